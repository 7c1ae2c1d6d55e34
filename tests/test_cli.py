"""The command line as its users and their scripts meet it: exit codes, streams, files, signals."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from hangdoctor import bundle
from hangdoctor.cli import run
from hangdoctor.cli.causes import CAUSES
from hangdoctor.cli.explain import all_ids, explanation
from hangdoctor.cli.group import HANGDOCTOR
from hangdoctor.cli.options import KeepChoice
from hangdoctor.cli.sources import SOURCES
from hangdoctor.cli.version import knowledge_revision
from hangdoctor.errors import HangdoctorError, WrongUsage
from hangdoctor.knowledge import load_knowledge
from hangdoctor.report import Cause
from tests.conftest import stuck

ROOT = Path(__file__).parent.parent
HUNG = ROOT / "tests" / "bundles" / "f2a-wedge-lock-rank1" / "capture.hang"
QUICK = ("--snapshots", "2", "--interval", "0.2")
NAMES = HANGDOCTOR.list_commands(click.Context(HANGDOCTOR))
NOBODY = 2**22 + 7
"""Above the kernel's largest pid."""


def hangdoctor(
    *words: object, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("HANGDOCTOR_", "COLUMNS"))
    }
    return subprocess.run(
        [sys.executable, "-m", "hangdoctor", *map(str, words)],
        capture_output=True,
        env={**environ, "PYTHONPATH": str(ROOT), **(env or {})},
        cwd=cwd or ROOT,
        input=stdin,
        timeout=120,
    )


# -- help, version, words -------------------------------------------------------------------------


def test_help_names_every_command_and_exit_code() -> None:
    done = hangdoctor("--help")
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode()
    for name in NAMES:
        assert re.search(rf"^  {name} ", text, re.M)
    for code in ("0", "1", "2", "3", "4", "5", "130"):
        assert re.search(rf"^  {code} ", text, re.M)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert hangdoctor("-h").stdout == done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_ends_with_examples_and_exit_codes(name: str) -> None:
    done = hangdoctor(name, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    examples, _, codes = done.stdout.decode().partition("Examples:\n")[2].partition("\nExit codes:\n")
    assert 2 <= len([line for line in examples.splitlines() if "hangdoctor" in line]) <= 4
    assert "130 " in codes and "wrong usage" in codes


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_a_real_command_line(name: str) -> None:
    command = HANGDOCTOR.get_command(click.Context(HANGDOCTOR), name)
    for example in command.examples:  # type: ignore[union-attr]
        calls = re.findall(r"\bhangdoctor ([a-z]+\b[^|;)\"]*)", example)
        assert calls, example
        for call in calls:
            called, *words = shlex.split(re.sub(r"\s*(2?>|#).*", "", call))
            other = HANGDOCTOR.get_command(click.Context(HANGDOCTOR), called)
            assert other is not None
            other.make_context(called, [word.replace("$(hostname)", "h") for word in words])


def test_the_summaries_fit_on_a_line_and_the_modules_are_there() -> None:
    for name in NAMES:
        command = HANGDOCTOR.get_command(click.Context(HANGDOCTOR), name)
        assert command is not None and command.name == name and command.help


def test_version_says_what_a_ticket_needs() -> None:
    for words in (["--version"], ["-V"]):
        done = hangdoctor(*words)
        assert (done.returncode, done.stderr) == (0, b"")
        lines = done.stdout.decode().splitlines()
        assert [line.split()[0] for line in lines] == ["hangdoctor", "py-spy", "knowledge", "python"]
    assert knowledge_revision() == load_knowledge().revision


def test_starting_imports_click_and_little_else() -> None:
    code = "import sys; from hangdoctor.cli import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stderr.split())
    base = subprocess.run(
        [sys.executable, "-c", "import click, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    extra = {name for name in loaded - set(base.stdout.split()) if not name.startswith("hangdoctor.cli")}
    assert extra <= {"hangdoctor", "__future__", "gc", "locale", "_locale"}


def test_ends_of_helpers_are_seen_also_under_a_supervisor_that_ignores_them() -> None:
    code = (
        "import signal; from hangdoctor.cli.stopping import stoppable\n"
        "def now(): return signal.getsignal(signal.SIGCHLD).name\n"
        "before = now()\n"
        "with stoppable(print): within = now()\n"
        "print(before, within, now())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )
    assert done.stdout.split() == ["SIG_IGN", "SIG_DFL", "SIG_IGN"]


def test_help_and_version_cost_no_more_than_importing_click() -> None:
    commands = {
        "click": [sys.executable, "-c", "import click"],
        "help": [sys.executable, "-m", "hangdoctor", "--help"],
        "version": [sys.executable, "-m", "hangdoctor", "--version"],
    }
    for _attempt in range(3):
        cpu = {name: _cpu(command) for name, command in commands.items()}
        if max(cpu["help"], cpu["version"]) <= 1.15 * cpu["click"]:
            return
    pytest.fail(f"{cpu}")


def _cpu(command: list[str]) -> float:
    """CPU seconds of the quicker half of some runs."""
    runs = []
    for _ in range(16):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        runs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return sum(sorted(runs)[:8])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["4711"], "hangdoctor attach 4711"),
        (["atach", "1"], "Did you mean 'attach'?"),
        (["attach", "one"], "not a valid integer"),
        (["attach", "1", "--format", "yaml"], "there are"),
        (["attach", "1", "--json", "--format", "markdown"], "contradict"),
        (["attach", "1", "--snapshots", "0"], "range"),
        (["attach", "1", "--name", "x"], "only one of them"),
        (["attach", "1", "--port", "70000"], "range"),
        (["analyze"], "FILE"),
        (["list", "colours"], "phases"),
        (["explain", "lagard"], "did you mean laggard"),
        (["demo", "volcano"], "laggard, "),
        (["completion", "tcsh"], "bash"),
        (["--nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_says_what_would_be_right(words: list[str], says: str) -> None:
    done = hangdoctor(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert says in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_without_words_it_says_how() -> None:
    done = hangdoctor()
    assert done.returncode == 2
    assert b"hangdoctor attach PID" in done.stderr + done.stdout


# -- what cannot be looked at ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["attach", NOBODY], ["attach", 0], ["attach", -1], ["collect", NOBODY], ["attach", "--name", "no-such-thing-x"],
        ["analyze", "/nowhere/x.hang"], ["analyze", "/dev/null"], ["analyze", "/bin/true"],
    ],
)  # fmt: skip
def test_what_cannot_be_looked_at_is_code_5_with_a_remedy(words: list[object], tmp_path: Path) -> None:
    done = hangdoctor(*words, cwd=tmp_path)
    text = done.stderr.decode()
    assert done.returncode in (5, 2) if words[1] in (0, -1) else done.returncode == 5, text
    assert done.stdout == b""
    assert "Traceback" not in text
    assert list(tmp_path.iterdir()) == []


def test_a_bug_is_code_1_and_asks_to_be_reported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the moon is full")

    monkeypatch.setattr("hangdoctor.parsers.read_files", fail)
    assert run(["analyze", str(HUNG)]) == 1
    out, err = capfd.readouterr()
    assert out == "" and "RuntimeError: the moon is full" in err and "Please report it" in err


# -- analyze --------------------------------------------------------------------------------------


def test_analyze_prints_the_report_and_nothing_else() -> None:
    done = hangdoctor("analyze", HUNG)
    assert (done.returncode, done.stderr) == (3, b"")
    assert re.search(rb"\n HUNG  likely", done.stdout)
    assert b"\x1b" not in done.stdout


@pytest.mark.parametrize("words", [["--json"], ["-f", "json"], ["--format", "json", "-o", "-"]])
def test_json_is_json(words: list[str]) -> None:
    done = hangdoctor("analyze", HUNG, *words)
    report = json.loads(done.stdout)
    assert report["verdict"]["kind"] == "hung" and done.returncode == 3
    assert report["redacted"] == ["secrets"] and report["bundle"] == str(HUNG)


def test_standard_input_is_a_file_as_well() -> None:
    done = hangdoctor("analyze", "-", "--json", stdin=HUNG.read_bytes())
    assert done.returncode == 3 and json.loads(done.stdout)["verdict"]["kind"] == "hung"


@pytest.mark.parametrize(
    ("environ", "words", "is_coloured"),
    [
        ({}, [], False),
        ({"FORCE_COLOR": "1"}, [], True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False),
        ({"FORCE_COLOR": "1"}, ["--no-color"], False),
        ({"FORCE_COLOR": "1"}, ["--json"], False),
        ({"FORCE_COLOR": ""}, [], False),
    ],
)
def test_colour_is_for_those_who_want_it(
    environ: dict[str, str], words: list[str], is_coloured: bool
) -> None:
    assert (b"\x1b[" in hangdoctor("analyze", HUNG, *words, env=environ).stdout) is is_coloured


def test_the_stream_decides_on_width_and_letters() -> None:
    narrow = hangdoctor("analyze", HUNG, env={"COLUMNS": "60"}).stdout.decode()
    assert "─" * 60 in narrow and "─" * 61 not in narrow
    plain = hangdoctor("analyze", HUNG, env={"PYTHONIOENCODING": "ascii"})
    assert plain.returncode == 3 and plain.stdout.isascii() and b"--waits for-->" in plain.stdout


def test_options_may_come_from_the_environment_and_typed_ones_win() -> None:
    environ = {"HANGDOCTOR_FORMAT": "json"}
    assert hangdoctor("analyze", HUNG, env=environ).stdout.startswith(b"{")
    assert hangdoctor("analyze", HUNG, "-f", "markdown", env=environ).stdout.startswith(b"## HUNG")
    assert b"All processes" in hangdoctor("analyze", HUNG, env={"HANGDOCTOR_ANALYZE_DETAIL": "1"}).stdout


@pytest.mark.parametrize(
    ("name", "begins"),
    [("r.md", b"## HUNG"), ("r.json", b"{"), ("r.html", b"<!DOCTYPE html>"), ("r.txt", b"vllm")],
)
def test_a_report_file_is_written_in_the_form_that_its_name_says(
    name: str, begins: bytes, tmp_path: Path
) -> None:
    done = hangdoctor("analyze", HUNG, "-o", tmp_path / name)
    assert (done.returncode, done.stdout) == (3, b"")
    assert (tmp_path / name).read_bytes().startswith(begins)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    file = tmp_path / "r.md"
    file.write_text("precious")
    refused = hangdoctor("analyze", HUNG, "-o", file)
    assert refused.returncode == 2 and b"--force" in refused.stderr and file.read_text() == "precious"
    assert hangdoctor("analyze", HUNG, "-o", file, "--force").returncode == 3
    assert file.read_text().startswith("## HUNG")


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    done = hangdoctor("analyze", HUNG, "-o", tmp_path / "nowhere" / "r.md")
    assert done.returncode == 5 and b"-o" in done.stderr and b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_jinja2_only_html_is_missing() -> None:
    code = "import sys; sys.modules['jinja2'] = None; from hangdoctor.cli import run; sys.exit(run(sys.argv[1:]))"
    for form, expected in (("json", 3), ("html", 5)):
        done = subprocess.run(
            [sys.executable, "-c", code, "analyze", str(HUNG), "-f", form],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.returncode == expected
    assert "pip install jinja2" in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


def test_a_full_disk_is_told_from_success() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hangdoctor", "analyze", str(HUNG)],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
    assert done.returncode == 5 and b"No space left" in done.stderr and b"Traceback" not in done.stderr


def test_a_closed_pipe_ends_it_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "hangdoctor", "analyze", str(HUNG)],
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (3, b"")


def test_strict_redaction_is_said_and_done() -> None:
    report = json.loads(hangdoctor("analyze", HUNG, "--json", "--redact=strict").stdout)
    assert "hosts" in report["redacted"]
    assert report["target"]["host"].startswith("host-")


# -- attach and collect on real processes ---------------------------------------------------------


def test_attach_reports_on_stdout_talks_on_stderr_and_keeps_the_capture(tmp_path: Path) -> None:
    with stuck("c_hold.py") as program:
        done = hangdoctor("attach", program.pid, *QUICK, "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert done.returncode == {"hung": 3, "unknown": 4}.get(report["verdict"]["kind"], 0)
    assert report["target"]["pid"] == program.pid
    assert len(report["timings"]["snapshots"]) == 2 and report["timings"]["target_paused_s"] == 0
    said = done.stderr.decode().splitlines()
    assert (
        said[0] == f"Looking at pid {program.pid} …" and sum(line.startswith("look ") for line in said) == 2
    )
    (kept,) = tmp_path.iterdir()
    assert report["bundle"] == kept.name and re.fullmatch(r"hangdoctor-\d+-\d{8}T\d{6}Z\.hang", kept.name)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert len(bundle.read(kept).snapshots) == 2
    again = hangdoctor("analyze", kept, "--json", cwd=tmp_path)
    verdict = json.loads(again.stdout)["verdict"]
    assert (again.returncode, verdict["kind"]) == (done.returncode, report["verdict"]["kind"])


def test_quiet_and_without_bundle_leaves_no_trace(tmp_path: Path) -> None:
    with stuck("c_hold.py") as program:
        done = hangdoctor("attach", program.pid, *QUICK, "-q", "--no-bundle", cwd=tmp_path)
    assert done.stderr == b"" and done.stdout and list(tmp_path.iterdir()) == []


def test_bundles_are_not_overwritten_and_a_lost_one_costs_no_diagnosis(tmp_path: Path) -> None:
    file = tmp_path / "x.hang"
    file.write_bytes(b"precious")
    with stuck("c_hold.py") as program:
        refused = hangdoctor("attach", program.pid, *QUICK, "--bundle", file)
        assert refused.returncode == 2 and file.read_bytes() == b"precious"
        lost = hangdoctor("attach", program.pid, *QUICK, "--bundle", tmp_path / "nowhere" / "x.hang")
    assert lost.returncode == 5 and lost.stdout == b"" and b"--no-bundle" in lost.stderr


def test_in_a_read_only_folder_the_capture_goes_to_the_temporary_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from hangdoctor.cli import looking

    monkeypatch.setattr(looking.tempfile, "gettempdir", lambda: str(tmp_path))
    keep = KeepChoice(bundle=None, no_bundle=False, force=False)
    monkeypatch.setattr(looking.os, "access", lambda path, mode: False)
    assert looking.bundle_path(keep, 7) == str(tmp_path / Path(looking.bundle_path(keep, 7) or "").name)
    monkeypatch.setattr(looking.os, "access", lambda path, mode: True)
    assert Path(looking.bundle_path(keep, 7) or "").parent == Path()


def test_collect_to_standard_output_is_a_bundle_that_analyze_reads() -> None:
    with stuck("c_hold.py") as program:
        done = hangdoctor("collect", program.pid, *QUICK, "-q", "-o", "-")
    assert (done.returncode, done.stderr) == (0, b"")
    assert [len(snapshot.processes) for snapshot in bundle.read(io.BytesIO(done.stdout)).snapshots] == [1, 1]
    assert hangdoctor("analyze", "-", stdin=done.stdout).returncode in (0, 3, 4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_capture_is_kept_and_reported(number: signal.Signals, tmp_path: Path) -> None:
    with stuck("c_hold.py") as program:
        words = ["attach", str(program.pid), "--snapshots", "2", "--interval", "600", "--json"]
        with subprocess.Popen(
            [sys.executable, "-m", "hangdoctor", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:  # fmt: skip
            assert process.stderr is not None
            said = [process.stderr.readline()]
            while said[-1] and not said[-1].startswith(b"look 1 of 2: "):
                said.append(process.stderr.readline())
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.startswith(b"Stopping, keeping what there is.")
    assert len(json.loads(out)["timings"]["snapshots"]) == 1
    (kept,) = tmp_path.iterdir()
    assert len(bundle.read(kept).snapshots) == 1


def test_the_command_that_opens_an_issue_is_all_that_is_printed(tmp_path: Path) -> None:
    done = hangdoctor("analyze", HUNG, "--github-issue")
    assert done.returncode == 3
    words = shlex.split(done.stdout.decode())
    pipe = words.index("|")
    assert words[:pipe] == ["hangdoctor", "analyze", str(HUNG), "-f", "markdown", "-o", "-"]
    assert words[pipe + 1 :][:4] == ["gh", "issue", "create", "--title"]
    assert words[pipe + 5].startswith("HUNG: TP1 (pid ") and words[pipe + 6 :] == ["--body-file", "-"]
    assert done.stdout.count(b"\n") == 1 and len(words[pipe + 5]) <= 256


def test_what_it_prints_works(tmp_path: Path) -> None:
    """With a `gh` that only writes down what it gets: the title, and the report as the text."""
    (tmp_path / "gh").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$OUT/words"; cat > "$OUT/body"\n')
    (tmp_path / "gh").chmod(0o755)
    (tmp_path / "hangdoctor").write_text(f'#!/bin/sh\nexec {sys.executable} -m hangdoctor "$@"\n')
    (tmp_path / "hangdoctor").chmod(0o755)
    line = hangdoctor("analyze", HUNG, "--github-issue", "--redact", "strict").stdout.decode()
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run(["bash", "-c", line], env={**os.environ, **environ}, check=True, cwd=ROOT, timeout=60)
    said = (tmp_path / "words").read_text().splitlines()
    assert said[:3] == ["issue", "create", "--title"] and said[3].startswith("HUNG: ")
    body = (tmp_path / "body").read_text()
    assert body.startswith("## HUNG") and "masked: secrets, user names" in body


def test_an_issue_takes_its_text_from_the_file_that_was_written(tmp_path: Path) -> None:
    file = tmp_path / "it's a report.md"
    words = shlex.split(hangdoctor("analyze", HUNG, "--github-issue", "-o", file).stdout.decode())
    assert words[:3] == ["gh", "issue", "create"] and words[-2:] == ["--body-file", str(file)]
    assert file.read_text().startswith("## HUNG")
    page = hangdoctor("analyze", HUNG, "--github-issue", "-o", tmp_path / "r.html").stdout.decode()
    assert page.startswith(f"hangdoctor analyze {HUNG} -f markdown -o - | gh issue create")


@pytest.mark.parametrize(
    "words",
    [("--json",), ("-f", "html"), ("-o", "-"), ("-f", "markdown", "-o", "-")],
    ids=" ".join,
)
def test_an_issue_and_a_report_on_one_stream_contradict_each_other(words: tuple[str, ...]) -> None:
    done = hangdoctor("analyze", HUNG, "--github-issue", *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"prints the command instead of the report" in done.stderr


def test_an_issue_needs_something_that_can_be_read_again() -> None:
    for words in (("analyze", "-"), ("attach", NOBODY, "--no-bundle"), ("demo",)):
        done = hangdoctor(*words, "--github-issue", stdin=b"")
        assert (done.returncode, done.stdout) == (2, b""), words
        assert b"-o report.md" in done.stderr


def test_the_first_words_come_before_the_work() -> None:
    code = """
import sys, hangdoctor.cli.running as running
loaded = []
running.say = lambda text: loaded.append(set(sys.modules))
running.run_command(["attach", "4194311"])
print([name for name in ("hangdoctor.model", "hangdoctor.knowledge", "psutil", "rich") if name in loaded[0]])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "code"), [("stopped", 3), ("idle", 0)])
def test_the_demo_is_diagnosed_and_cleaned_up(scenario: str, code: int, tmp_path: Path) -> None:
    done = hangdoctor("demo", scenario, "--json", *QUICK, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    report = json.loads(done.stdout)
    assert list(tmp_path.iterdir()) == []
    gone_by = time.monotonic() + 10
    while (
        any(Path(f"/proc/{row['pid']}").exists() for row in report["processes"])
        and time.monotonic() < gone_by
    ):
        time.sleep(0.05)
    assert not [row["pid"] for row in report["processes"] if Path(f"/proc/{row['pid']}").exists()]


# -- check, explain, list, completion -------------------------------------------------------------


def test_check_answers_for_this_machine_and_a_process() -> None:
    with stuck("c_hold.py") as program:
        done = hangdoctor("check", program.pid)
        as_json = hangdoctor("check", program.pid, "--json")
    rows = json.loads(as_json.stdout)
    assert done.returncode == as_json.returncode == (5 if any(row["ok"] is False for row in rows) else 0)
    assert all(row["name"] in done.stdout.decode() for row in rows)
    missing = hangdoctor("check", NOBODY)
    assert missing.returncode == 5 and b"NO " in missing.stdout


@pytest.mark.parametrize("what", ["phases", "servers", "collectors", "formats"])
def test_lists_have_a_name_and_a_meaning_on_every_line(what: str) -> None:
    done = hangdoctor("list", what)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert len(lines) > 3 and all(re.match(r"\S.*?  +\S", line) for line in lines)


def test_everything_that_can_be_named_is_explained() -> None:
    known = load_knowledge()
    for name in all_ids(known):
        assert explanation(name, known), name
    assert explanation("no.such-thing", known) is None
    done = hangdoctor("explain", "stale-lock-file")
    assert done.returncode == 0 and b"lock file" in done.stdout


def test_every_cause_and_every_source_of_a_gap_is_described() -> None:
    assert set(CAUSES) == set(Cause)
    described = {name for source in SOURCES for name in (source.id, *source.aliases)}
    used = set()
    for path in (ROOT / "hangdoctor").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Gap" and node.args:
                first = node.args[0]
                used |= {first.value} if isinstance(first, ast.Constant) else set()
    assert {"py-spy", "proc"} <= used
    assert used <= described


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    done = hangdoctor("completion", shell)
    assert done.returncode == 0 and b"_HANGDOCTOR_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("hangdoctor ", {"attach", "analyze", "completion"}),
        ("hangdoctor attach --no-", {"--no-bundle", "--no-color"}),
        ("hangdoctor attach -f ", {"terminal", "markdown", "json", "html"}),
        ("hangdoctor demo st", {"stopped"}),
        ("hangdoctor explain stale", {"stale-lock-file"}),
        ("hangdoctor list p", {"phases"}),
    ],
)
def test_the_shell_completes_commands_options_and_values(typed: str, offered: set[str]) -> None:
    environ = {
        "_HANGDOCTOR_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split(" ")) - 1),
    }
    done = hangdoctor(env=environ)
    assert offered <= {line.partition(",")[2] for line in done.stdout.decode().splitlines()}


def test_errors_are_documents() -> None:
    assert WrongUsage("x", hint="y").exit_code == 2
    assert HangdoctorError("x").exit_code == 5
