"""``--hosts`` through ``exec:sh -c``: the whole road of several hosts, wherever processes can be started."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoctor import bundle
from hangdoctor.cluster.answers import Answer, Clock, explain_exit
from hangdoctor.cluster.captures import combine, read_captures
from hangdoctor.cluster.hosts import parse_via
from hangdoctor.cluster.talks import SYNCS, Talk, program
from hangdoctor.errors import NothingCollected, WrongUsage
from hangdoctor.model import Capture, Frame, Gap, Host, Method, Process, Snapshot, Stack, Target, Thread, Tool
from hangdoctor.parsers.merge import merge_captures
from tests.cluster_support import ROOT, Across, has_cluster_shell, report_of, six_ranks
from tests.conftest import stuck
from tests.jobs import needs_torch, no_process_left

__all__ = ["no_process_left"]
needs_cluster_shell = pytest.mark.skipif(
    not has_cluster_shell and "ClusterShell" not in os.environ.get("HANGDOCTOR_REQUIRE", ""),
    reason="ClusterShell is not installed: --hosts was not tested",
)
QUICK = ("--snapshots", "2", "--interval", "3")
SH = ("--via", "exec:sh -c", "--remote-python", sys.executable)


def hangdoctor(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hangdoctor", *words],
        capture_output=True, text=True, timeout=150, cwd=cwd or ROOT, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )  # fmt: skip


# -- the whole road -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job() -> Iterator[Across]:
    """Six ranks; those of one pretended host have its name in their command lines."""
    with six_ranks([[], [], []], "127.0.0.1:29517", "lo", ["at-node1", "at-node2", "at-node3"]) as job:
        job.suffer("sleep", 3)
        yield job


@pytest.fixture(scope="module")
def kept(job: Across, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    folder = tmp_path_factory.mktemp("kept")
    done = hangdoctor(
        "attach", "--hosts", "node[1-3]", *SH, "--name", "at-%h", *QUICK, "--json", "--bundle", f"{folder}/"
    )
    assert done.returncode == 3, done.stderr
    return report_of(done), folder


@needs_cluster_shell
@needs_torch[0]
@needs_torch[1]
@pytest.mark.slow
class TestJobOnThreeHosts:
    def test_one_stuck_rank_of_six_is_named_with_its_host(self, kept: tuple[dict, Path], job: Across) -> None:
        verdict = kept[0]["verdict"]
        (culprit,) = verdict["culprits"]
        assert (verdict["kind"], culprit["rank"]["global"], culprit["pid"]) == ("hung", 3, job.pids[3])
        assert culprit["host"] == "node2"
        assert len(verdict["victims"]) == 5
        assert [gap for gap in kept[0]["gaps"] if gap["source"] == "cluster"] == []

    def test_captures_carried_by_hand_give_the_same_answer(self, kept: tuple[dict, Path]) -> None:
        report, folder = kept
        done = hangdoctor("analyze", *sorted(map(str, folder.iterdir())), "--json")
        by_hand = report_of(done)
        for part in ("verdict", "waits", "processes", "groups", "evidence"):
            assert by_hand[part] == report[part], part

    def test_collect_saves_one_file_of_all_hosts(self, kept: tuple[dict, Path], tmp_path: Path) -> None:
        done = hangdoctor(
            "collect", "--hosts", "node[1-3]", *SH, "--name", "at-%h", *QUICK, "-o", f"{tmp_path}/x.hang"
        )
        assert done.returncode == 0, done.stderr
        report = report_of(hangdoctor("analyze", f"{tmp_path}/x.hang", "--json"))
        assert report["verdict"]["culprits"][0]["pid"] == kept[0]["verdict"]["culprits"][0]["pid"]
        assert set(report["timings"]["clocks"]) == {"node1", "node2", "node3"}

    def test_failing_hosts_are_gaps(self, job: Across) -> None:
        """A host that ends at once, one that says nothing, one that has no such job, and one without Python."""
        template = (
            "case %h in bad) echo 'No route to host' >&2; exit 255;; mute) exec sleep 60;; esac; exec sh -c"
        )
        began = time.monotonic()
        done = hangdoctor(
            "attach", "--hosts", "node2,bad,mute,empty", "--via", f"exec:{template}", "--remote-python", sys.executable,
            "--name", "at-%h", "--connect-timeout", "2", *QUICK, "--json", "--no-bundle",
        )  # fmt: skip
        assert time.monotonic() - began < 60
        report = report_of(done)
        gaps = {gap["subject"]: gap for gap in report["gaps"] if gap["source"] == "cluster"}
        assert set(gaps) == {"host bad", "host mute", "host empty"}, done.stderr
        assert "cannot be reached" in gaps["host bad"]["reason"]
        assert "did not answer within" in gaps["host mute"]["reason"]
        assert "no command line fits" in gaps["host empty"]["reason"]
        assert all(gap["remedy"] for gap in gaps.values())
        assert [c["rank"]["global"] for c in report["verdict"]["culprits"]] == [3]
        (world,) = [gap for gap in report["gaps"] if gap["source"] == "world"]
        assert (
            "3 nodes are expected and 1 was looked at; not seen: node 0,2, with rank 0-1,4-5"
            in world["reason"]
        )


@needs_cluster_shell
def test_hangdoctor_is_sent_where_it_is_not_and_removed_again() -> None:
    """The Python there sees no site packages, so it has neither hangdoctor nor click."""
    with stuck("c_hold.py") as target:
        done = hangdoctor(
            "attach", "--hosts", "node7", "--via", "exec:sh -c", "--remote-python", f"{sys.executable} -S -E -s",
            str(target.pid), "--snapshots", "1", "--json", "--no-bundle", PYTHONPATH=str(ROOT),
        )  # fmt: skip
    report = report_of(done)
    assert report["processes"][0]["pid"] == target.pid, done.stderr
    assert report["processes"][0]["frame"] is not None
    assert [
        path for path in Path("/tmp").glob("hangdoctor-????????") if (path / "__main__.py").exists()
    ] == []


@needs_cluster_shell
def test_no_host_with_a_capture_is_an_error_that_names_all() -> None:
    done = hangdoctor("collect", "--hosts", "a,b", *SH, "--name", "surely-no-such-process", "-o", "-")
    assert done.returncode == 5 and done.stdout == ""
    assert "host a: no command line fits" in done.stderr and "host b:" in done.stderr


@needs_cluster_shell
@pytest.mark.parametrize(
    "words",
    [
        ("--hosts", "node[1-"),
        ("--hosts", ""),
        ("--hosts", "a", "--via", "carrier-pigeon"),
        ("--hosts", "a", "--via", "exec:"),
        ("--hosts", "a", "--via", "exec:pdsh -w %hosts"),
        ("--hosts", "a", "--via", "exec:echo %d"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_asked(words: tuple[str, ...]) -> None:
    done = hangdoctor("check", *words)
    assert done.returncode in (2, 5) and "Traceback" not in done.stderr, done.stderr
    assert "→" in done.stderr or "->" in done.stderr


def test_without_clustershell_the_remedy_is_named(tmp_path: Path) -> None:
    (tmp_path / "ClusterShell").mkdir()
    (tmp_path / "ClusterShell" / "__init__.py").write_text("raise ImportError('not here')")
    done = hangdoctor("check", "--hosts", "a", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 5 and "hangdoctor[cluster]" in done.stderr, done.stderr


# -- transports ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("via", ["srun --jobid=7", "kubectl -n prod -c main", "docker --user root"])
def test_transports_run_the_script_behind_their_own_words(via: str, tmp_path: Path) -> None:
    """The program is a stand-in that records its words and runs what comes after ``sh -c``."""
    name, options = via.split(" ", 1)
    stand_in = tmp_path / name
    stand_in.write_text('#!/bin/sh\nfor w in "$@"; do printf "%s\\n" "$w" >> words; done\n'
                        'while [ "$1" != sh ]; do shift; done\nexec "$@"\n')  # fmt: skip
    stand_in.chmod(0o755)
    line = (
        parse_via(via)
        .command("echo 'quoted %h' 100%")
        .replace("%%", "\0")
        .replace("%h", "node3")
        .replace("\0", "%")
    )
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stdout == "quoted %h 100%\n"
    said = (tmp_path / "words").read_text().split("\n")
    assert any("node3" in word for word in said)
    for option in options.split():
        assert option in said


def test_a_template_says_where_the_command_goes() -> None:
    assert parse_via("exec:ssh -J gate %h").command("true") == "ssh -J gate %h true"
    assert parse_via("exec:on %h do {command} now").command("a b") == "on %h do 'a b' now"
    with pytest.raises(WrongUsage):
        parse_via("exec")


# -- the conversation ---------------------------------------------------------------------------------


class Round:
    """Records what a talk reports."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def introduced(self, talk: Talk) -> None:
        self.heard.append("introduced")

    def came_ready(self, talk: Talk) -> None:
        self.heard.append("ready")

    def ended(self, talk: Talk) -> None:
        self.heard.append("ended")


class Wire:
    """A connection that keeps what was written."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_cut = False

    def write(self, buf: bytes) -> None:
        self.sent += buf

    def set_write_eof(self) -> None:
        pass

    def abort(self) -> None:
        self.is_cut = True


def opened() -> tuple[Talk, Round, Wire]:
    heard, wire = Round(), Wire()
    talk = Talk("node1", "@m", heard)
    talk.open(wire, set())
    talk.begin()
    return talk, heard, wire


def test_a_talk_reads_clocks_and_output_between_the_noise_of_a_login() -> None:
    talk, heard, wire = opened()
    talk.hear(b"Welcome to node1!", is_error=False)
    talk.hear(b'@m hello {"python": "3.11.2"}', is_error=False)
    for _ in range(SYNCS):
        talk.hear(f"@m sync {time.time() + 40!r}".encode(), is_error=False)
    assert heard.heard == ["introduced"]
    assert talk.clock is not None and talk.clock.offset_s == pytest.approx(40, abs=0.2)
    talk.start(1000.0)
    assert float(wire.sent.rsplit(b"start ", 1)[1]) == pytest.approx(1040, abs=0.2)
    talk.hear(b"@m data " + base64.b64encode(b"abc"), is_error=False)
    talk.hear(b"@m done 0", is_error=False)
    answer = talk.answer()
    assert (answer.output, answer.exit_code, answer.trouble) == (b"abc", 0, None)


@pytest.mark.parametrize("line", [b"@m data ***", b"@m hello {", b"@m sync soon", b"@m done well"])
def test_a_garbled_answer_is_a_gap_and_ends_the_talk(line: bytes) -> None:
    talk, heard, wire = opened()
    talk.hear(line, is_error=False)
    answer = talk.answer()
    assert answer.trouble is not None and "garbled" in answer.trouble.reason and answer.trouble.remedy
    assert wire.is_cut and heard.heard == ["ended"]


def test_somebody_elses_lines_with_a_mark_are_no_answer() -> None:
    talk, _, _ = opened()
    talk.hear(b"@other data AAAA", is_error=False)
    talk.hear(b"@m data AAAA", is_error=True)  # on standard error: not the far end's stream
    assert talk.answer().output == b""


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("ssh: Could not resolve hostname nix: Name or service not known", "name is not known"),
        ("ssh: connect to host a port 22: Connection refused", "listens"),
        ("root@a: Permission denied (publickey,password).", "refused the login"),
        ("Host key verification failed.", "host key"),
        ("Error from server (NotFound): pods \"a\" not found", "no such container"),
        ("srun: error: Unable to create step for job 7: Invalid node name specified", "Slurm"),
        ("hangdoctor: no Python from 3.10 on was found", "no Python"),
    ],
)  # fmt: skip
def test_a_failed_connection_is_explained_with_a_remedy(line: str, word: str) -> None:
    gap = explain_exit("a", 255, [line], [])
    assert word in gap.reason and gap.remedy and gap.subject == "host a"


def test_what_hangdoctor_says_there_comes_with_its_hint() -> None:
    said = ["hangdoctor: 2 jobs fit; say which one:", "  7 vllm", "  9 vllm", "  → hangdoctor attach 7"]
    gap = explain_exit("a", 5, [], said)
    assert gap.reason == "2 jobs fit; say which one: 7 vllm; 9 vllm"
    assert gap.remedy == "hangdoctor attach 7"


# -- the far end --------------------------------------------------------------------------------------


def far_end(mark: str = "@m") -> subprocess.Popen[bytes]:
    """The program as a host runs it."""
    code = program(mark)
    popen = subprocess.Popen(
        [sys.executable, "-u", "-c", f"import sys;exec(sys.stdin.buffer.read({len(code)}))"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert popen.stdin is not None
    popen.stdin.write(code)
    popen.stdin.flush()
    return popen


def order(popen: subprocess.Popen[bytes], main: str, seconds: float) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("__main__.py", main)
    content = archive.getvalue()
    token = json.loads(heard(popen, b"hello"))["token"].encode()
    words = json.dumps({"words": [], "seconds": seconds, "files": ["app.pyz"]}).encode()
    assert popen.stdin is not None
    popen.stdin.write(b"* parcel app.pyz %d\n" % len(content) + content)
    popen.stdin.write(b"somebody-else order {}\n" + token + b" order " + words + b"\n")
    popen.stdin.flush()


SAY_WHERE = "import os, sys, time; print(os.path.dirname(__file__) or sys.path[0], flush=True); "


def heard(popen: subprocess.Popen[bytes], word: bytes) -> bytes:
    assert popen.stdout is not None
    for line in popen.stdout:
        if line.startswith(b"@m " + word):
            return line.split(b" ", 2)[2].strip()
    raise AssertionError(f"it never said {word!r}")


def test_the_far_end_removes_what_it_got_before_it_says_so() -> None:
    with far_end() as popen:
        order(popen, SAY_WHERE, 20)
        folder = base64.b64decode(heard(popen, b"data")).decode().strip()
        assert folder.startswith("/")
        assert heard(popen, b"done") == b"0"
        assert not Path(folder).exists()


@pytest.mark.parametrize("how", ["the connection ends", "a signal", "its time is over"])
def test_the_far_end_removes_everything_however_it_ends(how: str) -> None:
    with far_end() as popen:
        # What it has said is passed on once its output is closed.
        order(popen, SAY_WHERE + "os.close(1); time.sleep(600)", 1.5 if "time" in how else 600)
        folder = base64.b64decode(heard(popen, b"data")).decode().strip()
        if how == "its time is over":
            assert heard(popen, b"done") == b"124"
        else:
            assert Path(folder).is_dir()
        if how == "a signal":
            popen.terminate()
        elif how == "the connection ends":
            assert popen.stdin is not None
            popen.stdin.close()
        popen.wait(20)
        assert not Path(folder).exists()


def test_the_far_end_answers_for_the_time_at_once() -> None:
    with far_end() as popen:
        token = json.loads(heard(popen, b"hello"))["token"].encode()
        assert popen.stdin is not None
        popen.stdin.write(b"another sync\n" + token + b" sync\n")
        popen.stdin.flush()
        assert float(heard(popen, b"sync")) == pytest.approx(time.time(), abs=5)
        popen.stdin.close()
        popen.wait(20)


def test_the_start_is_passed_on_and_awaited() -> None:
    """``collect --start-at -`` waits for its line; the looks do not begin before it."""
    with stuck("c_hold.py") as target:
        popen = subprocess.Popen(
            [sys.executable, "-m", "hangdoctor", "collect", str(target.pid), "--start-at", "-", "--snapshots", "1",
             "-q", "-o", "-"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        assert popen.stdin is not None and popen.stderr is not None
        timer = threading.Timer(60, popen.kill)
        timer.start()
        assert popen.stderr.readline().startswith(b"@ready {")
        moment = time.time() + 0.5
        output, _ = popen.communicate(f"{moment!r}\n".encode())
        timer.cancel()
    began = bundle.read(io.BytesIO(output)).snapshots[0].taken_at
    assert began is not None and moment <= began < moment + 20


# -- answers to one capture ---------------------------------------------------------------------------


def capture_of(name: str, *pids: int, boot: str = "b", at: float = 100.0) -> Capture:
    processes = tuple(Process(pid, start_ticks=pid) for pid in pids)
    return Capture(Tool("1"), Target("x"), (Host(name, boot_id=boot),), (Snapshot(at, processes),))


def answer_of(host: str, capture: Capture, **more: object) -> Answer:
    stream = io.BytesIO()
    bundle.write(capture, stream)
    return Answer(host, stream.getvalue(), 0, **more)  # type: ignore[arg-type]


def test_two_hosts_that_call_themselves_the_same_are_told_apart() -> None:
    captures, gaps = read_captures(
        [answer_of("a", capture_of("localhost", 7)), answer_of("b", capture_of("localhost", 7))]
    )
    whole = combine(captures, gaps, "a,b")
    assert [host.name for host in whole.hosts] == ["a", "b"]
    assert {(p.host, p.pid) for p in whole.snapshots[0].processes} == {("a", 7), ("b", 7)}


def test_a_hosts_own_name_is_kept_and_a_containers_number_is_not() -> None:
    captures, _ = read_captures(
        [answer_of("alias", capture_of("gpu-a07", 7)), answer_of("web", capture_of("0123456789ab", 7))]
    )
    assert [(c.hosts[0].name, c.hosts[0].asked) for c in captures] == [("gpu-a07", "alias"), ("web", "web")]


def test_clocks_and_lateness_go_with_the_host() -> None:
    late = answer_of("a", capture_of("a", 7, at=1043.0), clock=Clock(40.0, 0.001), start_at=1000.0)
    (capture,), _ = read_captures([late])
    host = capture.hosts[0]
    assert (host.clock_offset_s, host.clock_uncertainty_s) == (40.0, 0.001)
    assert host.start_delay_s == pytest.approx(3.0)
    assert any("3.0 s after" in gap.reason for gap in capture.gaps)


def test_a_bundle_of_a_newer_release_is_a_gap_with_the_release_to_install() -> None:
    record = {"hangdoctor": "manifest", "format": {"major": 99, "minor": 0}, "tool": {"version": "9.1"}}
    from hangdoctor.bundle.container import pack

    captures, gaps = read_captures([Answer("a", pack(record), 0)])
    assert captures == () and "format 99" in gaps[0].reason and "9.1" in (gaps[0].remedy or "")
    with pytest.raises(NothingCollected, match="host a"):
        combine(captures, gaps, "a")


def test_what_could_not_be_seen_names_its_host_once() -> None:
    gaps = tuple(Gap("proc", subject, "r") for subject in ("pid 7", "this machine", "host x", "pid 8 on a"))
    one = replace(capture_of("a", 7), gaps=gaps)
    merged = merge_captures([one, capture_of("b", 7)])
    assert [gap.subject for gap in merged.gaps] == ["pid 7 on a", "a", "host x", "pid 8 on a"]
    assert merge_captures([merged]).gaps == merged.gaps


def test_by_hand_equal_names_of_two_machines_are_two_and_of_one_machine_one() -> None:
    two = merge_captures([capture_of("h", 7), capture_of("h", 7, boot="other")])
    assert [host.name for host in two.hosts] == ["h", "h (2)"]
    one = merge_captures([capture_of("h", 7), capture_of("h", 9)])
    assert [host.name for host in one.hosts] == ["h"]


def test_equal_stacks_of_several_captures_become_one_object() -> None:
    def with_stack(name: str) -> Capture:
        capture = capture_of(name, 7)
        stack = Stack((Frame("wait", "threading.py", 331),), Method.PY_SPY_NONBLOCKING)
        process = replace(capture.snapshots[0].processes[0], threads=(Thread(7, stack=stack),))
        return replace(capture, snapshots=(replace(capture.snapshots[0], processes=(process,)),))

    merged = merge_captures([with_stack("a"), with_stack("b")])
    first, second = (p.threads[0].stack for p in merged.snapshots[0].processes)
    assert first is second
