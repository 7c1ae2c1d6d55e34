"""``hangdoctor watch``: real jobs that stall, idle, lose a rank or fall silent, and the pure rules beneath."""

from __future__ import annotations

import gzip
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hangdoctor import bundle
from hangdoctor.analysis import build_case, diagnose, write_report
from hangdoctor.case import Member
from hangdoctor.demo import SCENARIOS, Backend, start
from hangdoctor.demo.scenarios import CULPRIT
from hangdoctor.errors import HangdoctorError, WrongUsage
from hangdoctor.knowledge import load_knowledge
from hangdoctor.model import Capture
from hangdoctor.redact import Redactor
from hangdoctor.report import Cause, Confidence, Kind
from hangdoctor.watching.hook import Hook
from hangdoctor.watching.log_search import compile_patterns, search_file
from hangdoctor.watching.picture import MOST_ROWS, Row, Since, fold
from hangdoctor.watching.probe import Probe, check_url
from hangdoctor.watching.store import MOST_REPORTS, Store
from hangdoctor.watching.triggers import (
    LogWatch,
    Pause,
    ProbeAnswer,
    ProbeWatch,
    Reason,
    Roll,
    Sighting,
    Signature,
    StallClock,
    sight,
)
from hangdoctor.watching.view import open_view
from tests.captures import SLEEP, capture, frames, in_collective, rank
from tests.conftest import stuck

ROOT = Path(__file__).parent.parent
KNOWLEDGE = load_knowledge()
DEADLINE_S = 60.0
SAYS_WHAT = 'echo "$HANGDOCTOR_TRIGGER|$HANGDOCTOR_VERDICT|$HANGDOCTOR_CAUSE|$HANGDOCTOR_REPORT|$HANGDOCTOR_BUNDLE" > '


# -- real jobs ------------------------------------------------------------------------------------


@dataclass
class Watching:
    """A running watch, whose --exec writes a line to a FIFO: no test has to guess when it has acted."""

    popen: subprocess.Popen[bytes]
    folder: Path
    told_fd: int
    errors: Path
    output: Path

    def hear(self, deadline_s: float = DEADLINE_S) -> tuple[str, ...]:
        """The next trigger, as ``(trigger, verdict, cause, report, bundle)``."""
        line, deadline = b"", time.monotonic() + deadline_s
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.told_fd], [], [], left)[0]:
                raise AssertionError(f"it did not act\n{self.output.read_text()}\n{self.errors.read_text()}")
            line += os.read(self.told_fd, 1)
        return tuple(line.decode().strip().split("|"))

    def await_looks(self, count: int, after: float = 0.0) -> None:
        """Return when the bundle on disk holds ``count`` looks that began after the Unix time ``after``."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            with suppress(HangdoctorError):
                looks = bundle.read(self.folder / "watch.hang").snapshots
                if sum((look.taken_at or 0.0) > after for look in looks) >= count:
                    return
            time.sleep(0.05)
        raise AssertionError(f"too few looks\n{self.errors.read_text()}")

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(timeout=DEADLINE_S)

    @property
    def reports(self) -> list[Path]:
        return sorted(self.folder.glob("*/report.md"))


@contextmanager
def watching(tmp_path: Path, pid: int, *words: object) -> Iterator[Watching]:
    folder, fifo = tmp_path / "watch", tmp_path / "told"
    os.mkfifo(fifo)
    told_fd = os.open(fifo, os.O_RDWR)
    output, errors = tmp_path / "stdout", tmp_path / "stderr"
    command = ["watch", pid, "-o", folder, "--exec", f"{SAYS_WHAT}{fifo}", *words]
    with output.open("wb") as out, errors.open("wb") as err:
        popen = subprocess.Popen(
            [sys.executable, "-m", "hangdoctor", *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=ROOT,
        )
    try:
        yield Watching(popen, folder, told_fd, errors, output)
    finally:
        popen.kill()
        popen.wait()
        os.close(told_fd)


QUICK = ("--interval", "0.5", "--stall", "2")


def test_a_stalled_job_is_told_once_and_the_watch_goes_on(tmp_path: Path) -> None:
    with start(SCENARIOS["laggard"], Backend.BARRIER) as job, watching(tmp_path, job.pid, *QUICK) as watch:
        trigger, verdict, cause, report, kept = watch.hear()
        assert (trigger, verdict, cause) == ("stalled", "hung", "laggard")
        watch.await_looks(6, after=time.time())
        assert watch.end() == 130
        assert len(watch.reports) == 1 and str(watch.reports[0]) == report
        found = json.loads(Path(report).with_name("report.json").read_text())
        assert [row["pid"] for row in found["verdict"]["culprits"]] == [job.rank_pids[CULPRIT]]
        assert found["evidence"][-1]["source"] == "hangdoctor watch"
        again = diagnose(bundle.read(kept), KNOWLEDGE).verdict
        assert (again.kind, again.cause) == (Kind.HUNG, Cause.LAGGARD)
        assert bundle.read(Path(kept).with_name("before.hang")).snapshots
        assert "hung" in watch.output.read_text()
        assert "watch.hang" in watch.errors.read_text()


def test_a_certain_hang_does_not_wait_for_the_stall_time_and_once_says_hung(tmp_path: Path) -> None:
    with start(SCENARIOS["deadlock"], Backend.BARRIER) as job:
        words = ("--interval", "0.5", "--stall", "3600", "--once")
        with watching(tmp_path, job.pid, *words) as watch:
            assert watch.hear()[:3] == ("stalled", "hung", "lock-cycle")
            assert watch.popen.wait(timeout=DEADLINE_S) == 3
            assert "certain in two looks" in watch.reports[0].read_text()


@pytest.mark.parametrize("scenario", ["idle", "slow-load"])
def test_a_job_that_is_well_or_slow_never_triggers(tmp_path: Path, scenario: str) -> None:
    with start(SCENARIOS[scenario], Backend.BARRIER) as job:
        words = (*QUICK, "--stall", "1", "--for", "8")
        with watching(tmp_path, job.pid, *words) as watch:
            assert watch.popen.wait(timeout=DEADLINE_S) == 0, watch.errors.read_text()
            assert watch.reports == []
            looks = bundle.read(watch.folder / "watch.hang").snapshots
            assert len(looks) >= 3
            assert re.search(r"watching takes [\d.]+ % of a core", watch.output.read_text())


def test_a_rank_that_dies_is_told_with_its_name_and_once_ends_it(tmp_path: Path) -> None:
    with start(SCENARIOS["idle"], Backend.BARRIER) as job:
        victim = job.rank_pids[CULPRIT]
        with watching(tmp_path, job.pid, "--interval", "0.5", "--once") as watch:
            watch.await_looks(2)
            os.kill(victim, signal.SIGKILL)
            trigger, _verdict, _cause, report, _bundle = watch.hear()
            assert trigger == "gone"
            assert f"(pid {victim}) is gone" in Path(report).read_text()
            # The others idle on, so what the closer look says decides on the code.
            assert watch.popen.wait(timeout=DEADLINE_S) in (0, 3, 4)
            assert len(watch.reports) == 1


def test_the_end_of_the_job_is_told_from_what_was_seen_last(tmp_path: Path) -> None:
    with stuck("c_hold.py") as program, watching(tmp_path, program.pid, "--interval", "0.3") as watch:
        watch.await_looks(2)
        program.release(1)
        program.popen.wait(timeout=30)
        trigger, *_ = watch.hear()
        assert trigger == "gone"
        assert watch.popen.wait(timeout=DEADLINE_S) == 5
        assert "the job has ended" in watch.reports[0].read_text()


@pytest.mark.parametrize("number, words, code", [(2, (), 130), (15, (), 130), (2, ("--for", "100"), 0)])
def test_a_signal_leaves_a_bundle_that_can_be_read(
    tmp_path: Path, number: int, words: tuple[str, ...], code: int
) -> None:
    with stuck("c_hold.py") as program, watching(tmp_path, program.pid, "--interval", "0.3", *words) as watch:
        watch.await_looks(1)
        assert watch.end(signal.Signals(number)) == code, watch.errors.read_text()
        assert len(bundle.read(watch.folder / "watch.hang").snapshots) >= 1
        assert not list(watch.folder.glob("*.part"))


def test_an_interrupt_before_the_first_look_is_complete_leaves_a_bundle(tmp_path: Path) -> None:
    with stuck("c_hold.py") as program, watching(tmp_path, program.pid) as watch:
        deadline = time.monotonic() + DEADLINE_S
        while not (watch.folder / "watch.hang").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert watch.end() == 130
        assert bundle.read(watch.folder / "watch.hang").target.pid == program.pid


def test_only_the_last_looks_are_kept(tmp_path: Path) -> None:
    with (
        stuck("c_hold.py") as program,
        watching(tmp_path, program.pid, "--interval", "0.2", "--keep", "3") as watch,
    ):
        watch.await_looks(3)
        watch.await_looks(3, after=time.time())
        watch.end()
        with gzip.open(watch.folder / "watch.hang") as records:
            kinds = [json.loads(line)["hangdoctor"] for line in records]
        assert kinds == ["manifest", *["snapshot"] * 3, "manifest"]


def test_a_line_in_the_log_triggers_and_an_old_one_does_not(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with stuck("c_hold.py", output=log) as program:
        with log.open("a") as file:
            file.write("CUDA error: an old one\n")
        with watching(tmp_path, program.pid, "--interval", "0.3", "--log-pattern", "CUDA err.r") as watch:
            watch.await_looks(4)
            assert watch.reports == []
            with log.open("a") as file:
                file.write("step 1\n" * 100 + "CUDA error: api_key=sk-abcdefghijklmnop1234 illegal access\n")
                file.write("step 2\n" * 100)
            trigger, *_, report, _bundle = watch.hear()
            assert trigger == "log"
            text = Path(report).read_text()
            assert "illegal access" in text and "sk-abcdefghijklmnop1234" not in text


@contextmanager
def silent_endpoint() -> Iterator[str]:
    """Accepts (the kernel does, in the backlog) and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/health"


@contextmanager
def answering_endpoint(status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/health"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_silent_endpoint_triggers_although_the_job_idles(tmp_path: Path) -> None:
    with silent_endpoint() as url, stuck("c_hold.py") as program:
        words = ("--interval", "0.3", "--probe", url, "--probe-timeout", "0.3", "--once")
        with watching(tmp_path, program.pid, *words) as watch:
            assert watch.hear()[0] == "silent"
            watch.popen.wait(timeout=DEADLINE_S)
            assert "did not answer within 0.3 s, twice in a row" in watch.reports[0].read_text()


def test_an_endpoint_that_answers_does_not_trigger(tmp_path: Path) -> None:
    with (
        answering_endpoint() as url,
        stuck("c_hold.py") as program,
        watching(tmp_path, program.pid, "--interval", "0.3", "--probe", url, "--for", "4") as watch,
    ):
        assert watch.popen.wait(timeout=DEADLINE_S) == 0
        assert watch.reports == [] and len(bundle.read(watch.folder / "watch.hang").snapshots) >= 3


@pytest.mark.parametrize("words", [("--probe", "ftp://x"), ("--probe", "http://"), ("--log-pattern", "(")])
def test_wrong_usage_is_said_before_anything_is_looked_at(tmp_path: Path, words: tuple[str, str]) -> None:
    command = [
        sys.executable,
        "-m",
        "hangdoctor",
        "watch",
        str(os.getpid()),
        "-o",
        str(tmp_path / "w"),
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 2 and words[1] in done.stderr and not (tmp_path / "w").exists()


# -- when to act ----------------------------------------------------------------------------------

HUNG = Signature(Kind.HUNG, Cause.LAGGARD, (4703,))
IDLE = Signature(Kind.READY, Cause.IDLE, ())


def seen(
    at: float,
    signature: Signature = HUNG,
    confidence: Confidence = Confidence.LIKELY,
    living: tuple[Member, ...] = (),
) -> Sighting:
    return Sighting(at, signature, confidence, signature.kind in (Kind.READY, Kind.SLOW), living)


def test_a_likely_hang_is_told_after_the_stall_time_and_then_no_more() -> None:
    clock = StallClock(30.0)
    assert [clock.update(seen(at)) for at in (0.0, 10.0, 20.0, 29.0)] == [None] * 4
    event = clock.update(seen(31.0))
    assert event is not None and event.reason is Reason.STALLED and "31 s" in event.text
    clock.reported()
    assert all(clock.update(seen(float(at))) is None for at in range(40, 40_000, 10))


def test_a_certain_hang_needs_two_looks_that_agree() -> None:
    clock = StallClock(3600.0)
    other = replace(HUNG, culprits=(4705,))
    assert clock.update(seen(0.0, HUNG, Confidence.CERTAIN)) is None
    assert clock.update(seen(5.0, other, Confidence.CERTAIN)) is None
    assert clock.update(seen(10.0, other, Confidence.CERTAIN)) is not None


def test_a_changed_hang_is_told_again_but_not_at_once() -> None:
    clock = StallClock(10.0)
    clock.update(seen(0.0))
    assert clock.update(seen(10.0)) is not None
    clock.reported()
    other = replace(HUNG, culprits=(4705,))
    assert clock.update(seen(15.0, other)) is None
    assert clock.update(seen(20.0, other)) is not None
    clock.reported()
    # The next pause is twice as long: a culprit that flickers does not fill the disk.
    assert clock.update(seen(35.0, HUNG)) is None
    assert clock.update(seen(40.0, HUNG)) is not None


def test_a_job_that_moved_in_between_is_told_again() -> None:
    clock = StallClock(10.0)
    clock.update(seen(0.0))
    assert clock.update(seen(10.0)) is not None
    clock.reported()
    assert clock.is_reported
    assert clock.update(seen(20.0, IDLE)) is None and not clock.is_reported
    assert clock.stopped_since is None
    assert clock.update(seen(30.0)) is None
    assert clock.update(seen(40.0)) is not None


def test_a_refuted_stall_counts_anew() -> None:
    clock = StallClock(10.0)
    clock.update(seen(0.0))
    assert clock.update(seen(10.0)) is not None
    clock.refuted()
    assert clock.update(seen(19.0)) is None and clock.update(seen(28.0)) is None
    assert clock.update(seen(29.0)) is not None


def test_pauses_double_up_to_an_hour() -> None:
    pause, at, lengths = Pause(60.0), 0.0, []
    for _ in range(9):
        pause.begin(at)
        end = next(at + s for s in range(0, 10_000, 60) if pause.is_over(at + s))
        lengths.append(end - at)
        at = end
    assert lengths == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def look_at(numbers: tuple[int, ...], world: int = 5) -> tuple[Capture, Sighting]:
    looks = capture([rank(n, world, [in_collective()]) for n in numbers], offsets=(0.0, 5.0))
    case = build_case(looks, KNOWLEDGE)
    return looks, sight(case, write_report(case, KNOWLEDGE), 1.0)


def test_each_rank_that_vanishes_is_told_once() -> None:
    roll = Roll()
    _, everybody = look_at((0, 1, 2, 3, 4))
    _, fewer = look_at((0, 1, 4))
    assert roll.update(everybody) is None and roll.update(everybody) is None
    event = roll.update(fewer)
    assert event is not None and event.reason is Reason.GONE
    assert re.fullmatch(r"rank 2 \(pid \d+\), rank 3 \(pid \d+\) are gone", event.text)
    assert roll.update(fewer) is None
    # A rank that comes is no news.
    assert roll.update(everybody) is None


WELL, BUSY = ProbeAnswer(200, "answered 200 in 3 ms"), ProbeAnswer(503, "answered 503 in 3 ms")
MUTE = ProbeAnswer(None, "did not answer within 5 s")
REFUSED = ProbeAnswer(None, "refused the connection", is_refused=True)


@pytest.mark.parametrize(
    ("answers", "fires"),
    [
        ([WELL, MUTE, MUTE, MUTE, MUTE], [2]),
        ([WELL, MUTE, WELL, MUTE, WELL], []),
        ([MUTE, MUTE], [1]),
        ([REFUSED] * 5, []),
        ([BUSY] * 5, []),
        ([REFUSED, BUSY, WELL, REFUSED, REFUSED, REFUSED], [4]),
        ([WELL, BUSY, BUSY, WELL, BUSY, BUSY], [2, 5]),
    ],
)
def test_an_endpoint_must_fail_twice_and_a_starting_one_may_refuse(
    answers: list[ProbeAnswer], fires: list[int]
) -> None:
    probing = ProbeWatch()
    assert [index for index, answer in enumerate(answers) if probing.update(answer)] == fires


def test_a_pattern_is_told_again_only_after_a_pause() -> None:
    log = LogWatch(60.0)
    told = [at for at in range(0, 400, 10) if log.update([("e.*", "error")], float(at))]
    assert told == [0, 60, 180]
    assert log.update([("w.*", "warning"), ("e.*", "error")], 181.0) is not None


# -- probe, log, command, store, view -------------------------------------------------------------


def test_probe_says_what_happened_and_never_takes_longer_than_its_time() -> None:
    with answering_endpoint() as url:
        assert re.fullmatch(r"answered 200 in \d+ ms", Probe(url).answer().text)
    with answering_endpoint(302) as url:
        assert Probe(url).answer().status == 302
    with answering_endpoint(500) as url:
        assert not Probe(url).answer().is_well
    with silent_endpoint() as url:
        began = time.monotonic()
        answer = Probe(url, 0.3).answer()
        assert (answer.is_well, answer.is_refused) == (False, False) and "within 0.3 s" in answer.text
        assert time.monotonic() - began < 5.0
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert Probe(f"http://127.0.0.1:{port}/").answer().is_refused


@pytest.mark.parametrize(
    "url", ["", "localhost:30000", "file:///etc/passwd", "http://", "http://[", "http://a:b"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(WrongUsage):
        check_url(url)


def test_the_search_takes_whole_lines_and_goes_on_behind_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    patterns = compile_patterns(["err[0-9]"])
    log.write_bytes(b"err1\nfine\nbar 1%\rerr2 \rbar 3%\nhalf er")
    part = search_file(str(log), 5, patterns)
    assert [line for _, line in part.matches] == ["err2 "]
    with log.open("ab") as file:
        file.write(b"r3\n")
    assert [line for _, line in search_file(str(log), part.end, patterns).matches] == ["half err3"]


def test_one_command_at_a_time_and_none_for_ever(tmp_path: Path) -> None:
    hook = Hook(f"read line < {tmp_path / 'go'}; exit $line", limit_s=30.0)
    os.mkfifo(tmp_path / "go")
    assert hook.start({}) is None
    assert "still runs" in (hook.start({}) or "")
    (tmp_path / "go").write_text("7\n")
    assert hook.finish() == "ended with 7"
    assert hook.finish() is None
    slow = Hook(f"read line < {tmp_path / 'go'}", limit_s=0.2)
    assert slow.start({}) is None
    assert slow.finish() == "ended after 0 s"


def test_the_folder_is_bounded_and_the_first_report_stays(tmp_path: Path) -> None:
    looks, _ = look_at((0, 1, 2))
    store = Store(tmp_path / "w", 3, Redactor(KNOWLEDGE.redaction))
    store.begin(looks)
    assert bundle.read(store.rolling).snapshots == ()
    for _ in range(4):
        store.add(looks.snapshots[0])
    report = diagnose(looks, KNOWLEDGE)
    filed = [store.file(looks, report, Reason.STALLED) for _ in range(MOST_REPORTS + 5)]
    left = sorted(path.parent for path in store.folder.glob("*/report.md"))
    assert len(left) == MOST_REPORTS and filed[0].folder in left and filed[-1].folder in left
    assert len(bundle.read(store.rolling).snapshots) == 3
    assert (filed[-1].bundle.stat().st_mode & 0o77, store.folder.stat().st_mode & 0o77) == (0, 0)


def test_many_ranks_are_folded_and_since_counts_from_the_last_change() -> None:
    since = Since()
    stacks = [frames("load a.py:1")]
    for at, function in ((10.0, "load"), (15.0, "load"), (20.0, "copy")):
        stacks = [frames(f"{function} a.py:1")]
        looks = capture([rank(n, 3, stacks, syscall=SLEEP) for n in range(3)], offsets=(0.0, 5.0))
        case = build_case(looks, KNOWLEDGE)
        rows = since.rows(case, write_report(case, KNOWLEDGE), at)
        assert [row.since_s for row in rows] == [{10.0: 0.0, 15.0: 5.0, 20.0: 0.0}[at]] * 3
    many = [Row(f"TP{n}", n, "p", "f", "moves: 1 %", 1.0, n == 5) for n in range(MOST_ROWS + 1)]
    assert [row.label for row in fold(many)] == ["TP0-4,6-16", "TP5"]


def test_a_terminal_gets_a_table_that_captured_text_cannot_break(tmp_path: Path) -> None:
    from hangdoctor.watching.cost import Cost
    from hangdoctor.watching.picture import Picture

    row = Row("TP3", 4703, "torch.collective-wait", "[red]step", "no progress seen", 61.0, True)
    picture = Picture(
        0.0, "sglang at pid 1", "hung (likely, laggard)", "s", (row,), 61.0, None, Cost(0.02, 0.3, 0.0)
    )
    for is_live in (True, False):
        path = tmp_path / f"out-{is_live}"
        with (
            path.open("w") as stream,
            open_view(stream, is_live=is_live, is_ascii=False, color=False) as view,
        ):
            view.show(picture)
            view.show(replace(picture, at=5.0))
        text = path.read_text()
        assert "hung (likely, laggard)" in text and "2.0 % of a core" in text and "was not stopped" in text
        assert ("[red]step" in text and "1 min 1 s" in text) is is_live
        assert is_live or text.count("\n") == 1


def test_on_a_terminal_the_table_is_live_and_an_interrupt_leaves_all_in_order(tmp_path: Path) -> None:
    screen, terminal = os.openpty()
    command = [sys.executable, "-m", "hangdoctor", "watch", "-o", str(tmp_path / "w"), "--interval", "0.3"]
    with stuck("c_hold.py") as program:
        popen = subprocess.Popen(
            [*command, str(program.pid)],
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "160"},
        )
        os.close(terminal)
        try:
            shown = read_until(screen, b"Ctrl-C ends it", times=3)
            assert b"rank" in shown and b"phase" in shown and b"since" in shown
            assert b"\x1b[" in shown  # the table is drawn over itself
            popen.send_signal(signal.SIGINT)
            shown += read_until(screen, b"\x1b[?25h", times=1)  # the cursor is shown again
            assert popen.wait(timeout=DEADLINE_S) == 130
        finally:
            popen.kill()
            popen.wait()
            os.close(screen)
        assert bundle.read(tmp_path / "w" / "watch.hang").snapshots


def read_until(fd: int, words: bytes, times: int) -> bytes:
    shown, deadline = b"", time.monotonic() + DEADLINE_S
    while shown.count(words) < times:
        left = deadline - time.monotonic()
        assert left > 0 and select.select([fd], [], [], left)[0], shown
        try:
            shown += os.read(fd, 4096)
        except OSError as error:  # EIO: the other side has closed the terminal
            raise AssertionError(shown) from error
    return shown
