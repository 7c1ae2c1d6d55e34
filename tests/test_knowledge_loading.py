"""The loader refuses what it does not understand, and says where."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hangdoctor.errors import HangdoctorError
from hangdoctor.knowledge import BadKnowledge, load_knowledge
from hangdoctor.knowledge.loader import BUILT_IN
from tests.knowledge_support import built_in, stack

PHASE = """
[server]
name = "acme"
title = "Acme"
kind = "engine"

[[role]]
id = "acme.worker"
title = "worker"
kind = "rank"
titles = ['^acme::worker']
examples = ["acme::worker"]
counterexamples = ["python acme.py"]

[[phase]]
id = "acme.load"
title = "loading"
stage = "startup"
meaning = "Loads."
activity = "WAIT_IO"
waits_for = "storage"
budget_s = 60
roles = ["acme.worker"]
own = ["load @ acme/model.py"]
examples = ["load acme/model.py | main acme/run.py"]
counterexamples = ["serve acme/run.py"]

[[machinery]]
name = "acme helpers"
meaning = "Help."
names = ['acme-.*']

[[log]]
kind = "ready"
literal = "acme is up"
meaning = "Serves."
examples = ["acme is up"]

[[signature]]
id = "acme-hang"
title = "it hangs"
meaning = "It hangs."
workaround = "Restart."
links = ["https://example.org/1"]
versions = { acme = ">=1.0,<2.0" }
phases = ["acme.load"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the built-in knowledge that a test may spoil."""
    for path in BUILT_IN.glob("*.toml"):
        shutil.copy(path, tmp_path / path.name)
    (tmp_path / "acme.toml").write_text(PHASE, encoding="utf-8")
    return tmp_path


def test_another_folder_adds_a_server_with_one_file(folder: Path) -> None:
    knowledge = load_knowledge(folder)
    assert knowledge.servers["acme"].title == "Acme"
    found = knowledge.match(stack("load acme/model.py | main acme/run.py"), "acme")
    assert found is not None and found.phase.id == "acme.load"
    message = knowledge.read_log_line("acme is up")
    assert message is not None and message.kind == "ready"


SPOILED = [
    ('activity = "WAIT_IO"', 'activitty = "WAIT_IO"', "unknown key 'activitty'"),
    ('activity = "WAIT_IO"', 'activity = "WAIT_DISK"', "'activity' is 'WAIT_DISK'"),
    ('waits_for = "storage"', 'waits_for = "disk"', "'waits_for' is 'disk'"),
    ('stage = "startup"', 'stage = "boot"', "'stage' is 'boot'"),
    ("budget_s = 60", "budget_s = -1", "'budget_s' must be a positive number"),
    ("budget_s = 60", 'budget_s = "60"', "'budget_s' must be a positive number"),
    ('id = "acme.load"', 'id = "load"', "must begin with 'acme.'"),
    ('meaning = "Loads."', "", "key 'meaning' is missing"),
    ('title = "loading"', 'title = ""', "'title' must be a non-empty string"),
    ('own = ["load @ acme/model.py"]', "", "no frames"),
    ('own = ["load @ acme/model.py"]', 'own = "load"', "'own' must be a list"),
    ('own = ["load @ acme/model.py"]', 'own = ["load it"]', "expected NAME"),
    ('own = ["load @ acme/model.py"]', 'own = ["/(/ @ a.py"]', "no regular expression"),
    ('own = ["load @ acme/model.py"]', 'aspects = ["acme.load"]', "which is no aspect"),
    ('roles = ["acme.worker"]', 'roles = ["acme.wurker"]', "which is no role"),
    ('examples = ["load acme/model.py | main acme/run.py"]', "", "at least one stack in 'examples'"),
    ('counterexamples = ["serve acme/run.py"]', "", "at least one stack in 'counterexamples'"),
    ('counterexamples = ["serve acme/run.py"]', 'counterexamples = ["serve"]', "expected 'function file'"),
    ("titles = ['^acme::worker']", "titles = ['^acme::(worker']", "is no regular expression"),
    ("titles = ['^acme::worker']", "", "nothing says how the role is recognised"),
    ('kind = "rank"', 'kind = "boss"', "'kind' is 'boss'"),
    ("names = ['acme-.*']", "", "nothing says how the threads are recognised"),
    ('kind = "ready"', 'kind = "up"', "'kind' is 'up'"),
    ('examples = ["acme is up"]', "", "at least one line in 'examples'"),
    ('links = ["https://example.org/1"]', "", "at least one public report"),
    ('acme = ">=1.0,<2.0"', 'acme = "1.x"', "expected comparisons"),
    ('phases = ["acme.load"]', 'phases = ["acme.gone"]', "which is no phase"),
    ('phases = ["acme.load"]', "", "versions alone are no sign"),
    ("[server]", "[sever]", "unknown key 'sever'"),
    ("[server]", "[[server]]", "'server' must be a table"),
    ("[[phase]]", "[phase]", "must be a list of tables"),
    ("[[phase]]", "[[phase", "not valid TOML"),
]


@pytest.mark.parametrize(("good", "bad", "complaint"), SPOILED, ids=lambda v: str(v)[:40])
def test_a_faulty_file_is_refused_with_its_name(folder: Path, good: str, bad: str, complaint: str) -> None:
    path = folder / "acme.toml"
    assert good in PHASE
    path.write_text(PHASE.replace(good, bad, 1), encoding="utf-8")
    with pytest.raises(BadKnowledge) as caught:
        load_knowledge(folder)
    assert complaint in caught.value.message
    assert isinstance(caught.value, HangdoctorError)
    assert "acme" in caught.value.message or "vllm" in caught.value.message


def test_ids_may_not_repeat(folder: Path) -> None:
    path = folder / "acme.toml"
    phase = PHASE[PHASE.index("[[phase]]") : PHASE.index("[[machinery]]")]
    path.write_text(PHASE + phase, encoding="utf-8")
    with pytest.raises(BadKnowledge, match=r"acme\.toml: \[\[phase\]\] acme\.load: .*already there"):
        load_knowledge(folder)


def test_a_server_has_one_file(folder: Path) -> None:
    (folder / "zz.toml").write_text(
        '[server]\nname = "acme"\ntitle = "A"\nkind = "engine"\n', encoding="utf-8"
    )
    with pytest.raises(BadKnowledge, match=r"zz\.toml: .*already described in another file"):
        load_knowledge(folder)


def test_a_folder_without_knowledge_and_a_partial_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadKnowledge, match="no knowledge files"):
        load_knowledge(tmp_path)
    (tmp_path / "acme.toml").write_text(PHASE.replace('roles = ["acme.worker"]', ""), encoding="utf-8")
    with pytest.raises(BadKnowledge, match="redaction"):
        load_knowledge(tmp_path)


def test_a_file_that_is_no_text_is_refused(folder: Path) -> None:
    (folder / "broken.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadKnowledge, match=r"broken\.toml"):
        load_knowledge(folder)


def test_the_revision_follows_every_byte(folder: Path) -> None:
    before = load_knowledge(folder).revision
    assert load_knowledge(folder).revision == before
    with (folder / "acme.toml").open("a", encoding="utf-8") as file:
        file.write("# a comment\n")
    assert load_knowledge(folder).revision != before
    assert len(before) == 12 and built_in().revision != before
