"""CPython's own reader of stacks, from a hangdoctor that runs on the same version as its target (3.14 or later).

Needs such an interpreter: ``HANGDOCTOR_PYTHON_3_14`` names one; else the running one, pyenv's and ``python3.14`` on
the PATH are tried. It needs nothing installed: what collects uses the standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from hangdoctor.collect import remote_debugging
from hangdoctor.collect.remote_debugging import Unreadable, is_same_version, read_stacks
from hangdoctor.model import Method, Process
from tests.conftest import stuck

ROOT = Path(__file__).parent.parent
LOOK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from hangdoctor.collect import Member, Plan, Tree, own_stacks, procfs, take_capture
if sys.argv[3] == "unknown":
    own_stacks.read_stacks = lambda pid: None
pid = int(sys.argv[2])
tree = Tree(pid, "test", (Member(pid, procfs.read_stat(pid).start_ticks),), None, pid)
snapshot = take_capture(tree, Plan(snapshots=1, use_gpu=False)).snapshots[0]
print(json.dumps({
    "gaps": [gap.source + ": " + gap.reason for gap in snapshot.gaps],
    "threads": [
        {
            "tid": thread.tid, "name": thread.name, "comm": thread.comm, "owns_gil": thread.owns_gil,
            "method": thread.stack.method.value, "is_torn": thread.stack.is_torn,
            "frames": [[frame.function, frame.file, frame.line] for frame in thread.stack.frames],
            "lock": thread.lock.kind if thread.lock else None,
        }
        for thread in snapshot.processes[0].threads if thread.stack
    ],
}))
"""


def _find_python() -> str | None:
    candidates = [os.environ.get("HANGDOCTOR_PYTHON_3_14", ""), sys.executable]
    candidates += sorted(map(str, (Path.home() / ".pyenv" / "versions").glob("3.1[4-9]*/bin/python3")))
    candidates += [shutil.which("python3.14") or "", shutil.which("python3.15") or ""]
    check = "import sys, _remote_debugging; sys.exit(sys.version_info < (3, 14))"
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", check], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


PYTHON = _find_python()
needs_python_3_14 = pytest.mark.skipif(
    PYTHON is None,
    reason="no Python 3.14 here (HANGDOCTOR_PYTHON_3_14): its _remote_debugging was not tested",
)


def look(pid: int, version: str = "unknown") -> Any:
    """Our own reader knows 3.14, the module is for what it does not know."""
    done = subprocess.run(
        [str(PYTHON), "-c", LOOK, str(ROOT), str(pid), version],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_python_3_14
def test_same_version_is_read_without_a_stop() -> None:
    with stuck("c_threads.py", 7, 5, "own", python=str(PYTHON)) as target:
        seen = look(target.pid)
        tracer = Path(f"/proc/{target.pid}/status").read_text()
    assert "TracerPid:\t0" in tracer
    assert not [gap for gap in seen["gaps"] if gap.startswith("py-spy")]
    threads = {thread["comm"]: thread for thread in seen["threads"]}
    assert len(threads) == 8
    for number in range(7):
        thread = threads[f"rest-{number}"]
        assert thread["method"] == Method.REMOTE_DEBUGGING.value and not thread["is_torn"]
        functions = [function for function, _, _ in thread["frames"]]
        assert functions[:6] == ["rest", *["descend"] * 5]
        assert functions[-1].endswith("_bootstrap")
        assert thread["lock"] == "threading.Lock" and thread["owns_gil"] is False
    main = next(thread for thread in seen["threads"] if thread["tid"] == target.pid)
    assert [function for function, _, _ in main["frames"]] == ["hold", "<module>"]
    assert main["name"] == "MainThread"
    source = Path(main["frames"][-1][1]).read_text().splitlines()
    assert "handshake.hold()" in source[main["frames"][-1][2] - 1]


@needs_python_3_14
def test_twin_a_version_that_our_own_reader_knows_is_left_to_it() -> None:
    with stuck("c_threads.py", 3, 2, "own", python=str(PYTHON)) as target:
        ours, theirs = look(target.pid, "known"), look(target.pid)
    assert {thread["method"] for thread in ours["threads"]} == {Method.MEMORY.value}
    for seen in (*ours["threads"], *theirs["threads"]):
        del seen["method"]
    assert [(seen["tid"], seen["frames"]) for seen in ours["threads"]] == [
        (seen["tid"], seen["frames"]) for seen in theirs["threads"]
    ]


@needs_python_3_14
def test_the_thread_that_holds_the_gil_is_named() -> None:
    with stuck("c_spin.py", 3, python=str(PYTHON)) as target:
        seen = [look(target.pid) for _ in range(3)]
    owners = [thread["tid"] for one in seen for thread in one["threads"] if thread["owns_gil"]]
    assert owners and target.pid not in owners


@needs_python_3_14
def test_what_it_cannot_read_falls_to_the_other_readers() -> None:
    """A process of another version: no word of the attempt, and stacks all the same."""
    with stuck("c_threads.py", 3, 2, python=sys.executable) as target:
        seen = look(target.pid, "known")
    methods = {thread["method"] for thread in seen["threads"]}
    if sys.version_info < (3, 14):
        assert methods == {Method.MEMORY.value}
    assert len(seen["threads"]) == 4


# --- without a 3.14 ---------------------------------------------------------------------------------------


def test_another_version_is_never_asked() -> None:
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert is_same_version(Process(7, versions={"python": own})) is not own.endswith("t")
    for other in ("3.9", own + "t", ""):
        assert not is_same_version(Process(7, versions={"python": other}))
    assert not is_same_version(Process(7))


class LocationInfo(NamedTuple):
    lineno: int


class FrameInfo(NamedTuple):
    filename: str
    location: LocationInfo | None
    funcname: str


def module_that(answer: Any) -> SimpleNamespace:
    """A ``_remote_debugging`` whose unwinder gives ``answer``, or raises it."""

    class Unwinder:
        def __init__(self, pid: int, *, all_threads: bool) -> None:
            assert all_threads

        def get_stack_trace(self) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    return SimpleNamespace(RemoteUnwinder=Unwinder)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("invalid state"), PermissionError(1, "no"), UnicodeDecodeError("u", b"", 0, 1, "x")],
)
def test_any_error_of_the_module_is_one_kind(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_debugging, "_find_module", lambda: module_that(error))
    with pytest.raises(Unreadable):
        read_stacks(os.getpid())


def test_answers_of_3_15_are_understood_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One level more, a location instead of a line, and frames for what is no Python."""
    location = LocationInfo(41)
    frames = [FrameInfo("~", None, "<native>"), FrameInfo("x.py", location, "<module>")]
    thread = SimpleNamespace(thread_id=os.getpid(), frame_info=frames, status=0)
    answer = [SimpleNamespace(interpreter_id=0, threads=[thread])]
    monkeypatch.setattr(remote_debugging, "_find_module", lambda: module_that(answer))
    (dumped,) = read_stacks(os.getpid()).threads
    assert [(frame.function, frame.line) for frame in dumped.frames] == [("<module>", 41)]
    assert dumped.name == "MainThread"


def test_without_the_main_thread_it_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = SimpleNamespace(thread_id=os.getpid() + 1, frame_info=[])
    monkeypatch.setattr(remote_debugging, "_find_module", lambda: module_that([thread]))
    with pytest.raises(Unreadable, match="main thread"):
        read_stacks(os.getpid())
