"""The terminal report: wrapped and never cut, the verdict last, nothing of the captured text reaches the terminal."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from hangdoctor import bundle
from hangdoctor.analysis import diagnose
from hangdoctor.knowledge import load_knowledge
from hangdoctor.model import Frame, Gap
from hangdoctor.render import RENDERERS, RenderOptions
from hangdoctor.render._wording import brief_stack, location, without_reasons
from hangdoctor.render.terminal import folded_frames, wrap
from hangdoctor.report import Party, Report, Strength, Wait
from tests.expectations import BUNDLES, RECORDED
from tests.render_support import SAMPLES, compiling, hostile, laggard, many_ranks, unknown

OUR_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def draw(report: Report, width: int = 80, *, color: bool = False, detail: bool = False) -> str:
    return RENDERERS["terminal"].render(report, RenderOptions(width=width, color=color, detail=detail))


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("sample", ["laggard", "compiling", "ready", "unknown"])
def test_lines_fit_the_width_unless_one_word_does_not(sample: str, width: int) -> None:
    for detail in (False, True):
        for line in draw(SAMPLES[sample](), width, detail=detail).splitlines():
            assert cell_len(line) <= width or len(line.split()) == 1, line


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_frame_is_ever_shortened(width: int) -> None:
    report = laggard()
    text = draw(report, width, detail=True)
    for row in report.processes:
        for thread in row.threads:
            for frame in thread.stack:
                assert frame.function in text
                assert location(frame) in text


def test_a_long_path_hangs_over_in_one_piece() -> None:
    path = "/mnt/" + "very-long-directory-name/" * 3 + "kernel.py"
    frame = Frame("f", path, 12)
    report = laggard()
    culprit = replace(report.verdict.culprits[0], stack=(frame,), frame=frame)
    report = replace(report, verdict=replace(report.verdict, culprits=(culprit,)))
    assert any(line.strip() == location(frame) for line in draw(report, 60).splitlines())


@pytest.mark.parametrize("sample", sorted(set(SAMPLES) - {"hostile"}))
def test_the_verdict_comes_last(sample: str) -> None:
    report = SAMPLES[sample]()
    _, rule, end = draw(report).rpartition("─" * 80 + "\n")
    assert rule
    assert report.verdict.summary.split()[0] in end
    assert re.match(r" (HUNG|SLOW|READY|CANNOT TELL)  ", end)
    assert end.count("\n") <= 8


def test_one_screen_for_eight_processes_and_everything_on_request() -> None:
    brief, full = draw(laggard()), draw(laggard(), detail=True)
    assert brief.count("\n") <= 55
    assert "All processes" in full and "All processes" not in brief
    assert "Communication environment" in brief
    assert full.count("worker_busy_loop") >= 7
    assert "(--detail)" not in full


def test_every_recorded_server_fits_one_screen() -> None:
    knowledge = load_knowledge()
    lines = {
        name: draw(diagnose(bundle.read(BUNDLES / name / "capture.hang"), knowledge)).count("\n")
        for name in RECORDED
    }
    assert {name: count for name, count in lines.items() if count > 64} == {}


def test_quoted_stacks_are_short_and_count_what_they_leave_out() -> None:
    assert brief_stack("same 8: a ◂ b ◂ c ◂ d ◂ e ◂ f ◂ 2 more") == "same 8: a ◂ b ◂ 6 more"
    assert brief_stack("a ◂ b ◂ c ◂ d") == "a ◂ b ◂ 2 more"
    for text in ("a ◂ b ◂ c", "a ◂ b ◂ 5 more", "no stack", ""):
        assert brief_stack(text) == text


def test_culprits_at_one_place_share_a_stack() -> None:
    report = laggard()
    (first,) = report.verdict.culprits
    others = tuple(replace(first, pid=41_898 + n, tid=41_898 + n, rank=None, thread=None) for n in (0, 1))
    same = draw(replace(report, verdict=replace(report.verdict, culprits=(first, *others))), 120)
    assert same.count("Stack of") == 1
    assert (
        "Stack of TP3 (pid 41901), thread kv-offload-flusher and TP0 (pid 41898) and 1 more, innermost"
        in same
    )
    # Twin: two places are two stacks.
    elsewhere = replace(others[0], stack=first.stack[1:])
    two = draw(replace(report, verdict=replace(report.verdict, culprits=(first, elsewhere))), 120)
    assert two.count("Stack of") == 2


def test_gaps_that_differ_in_the_pid_are_one_line() -> None:
    gaps = tuple(Gap("locks", f"pid {n}", "abandoned", f"gdb -p {n} -batch") for n in (41, 42, 411, 7))
    text = draw(replace(unknown(), gaps=gaps), 120)
    assert "locks on pid 41, pid 42, pid 411 and 1 more: abandoned → gdb -p PID -batch" in text
    # Twin: the command of a single one can be copied, and other reasons stay apart.
    assert "→ gdb -p 41 -batch" in draw(replace(unknown(), gaps=gaps[:1]), 120)
    other = replace(gaps[1], reason="refused")
    assert "→ gdb -p 42 -batch" in draw(replace(unknown(), gaps=(gaps[0], other)), 120)


def test_a_known_hang_says_what_it_is_before_why_it_fits() -> None:
    text = "a build waits (load (x.py); log: [1/2] (a)). Normal while a builder lives. Workaround: remove it."
    assert without_reasons(text) == "a build waits. Normal while a builder lives. Workaround: remove it."
    report = replace(laggard(), matches=(text,))
    assert "Fits a known hang: a build waits. Normal while" in draw(report, 120)
    assert "log: [1/2] (a)" in draw(report, 120, detail=True)
    for plain in ("no reasons", "never (closed", "", "(all of it)"):
        assert without_reasons(plain) == plain


def test_what_was_left_out_is_counted() -> None:
    report = replace(unknown(), gaps=tuple(Gap(f"source {n}", "pid 1", f"reason {n}") for n in range(13)))
    assert "… 10 more gaps (--detail)" in draw(report)
    assert "… 7 frames (--detail)" in draw(many_ranks(16, 11))


@pytest.mark.parametrize("color", [False, True])
def test_captured_text_cannot_speak_to_the_terminal(color: bool) -> None:
    for detail in (False, True):
        text = draw(hostile(), color=color, detail=detail)
        assert "\x1b" not in OUR_COLOURS.sub("", text)
        assert bool(OUR_COLOURS.search(text)) is color
        assert "\x1b[31mred" not in text
        # Brackets are rich's markup: had it been parsed, they would be gone (or an error).
        assert "[/int]" in text and "[x](http://e)" in text


def test_colour_only_adds_colour() -> None:
    for sample in (laggard, compiling, many_ranks):
        assert OUR_COLOURS.sub("", draw(sample(), color=True)) == draw(sample())


def test_progress_is_drawn_as_a_bar() -> None:
    assert "████████░░░░░░░░░░░░ 41 %  about 1 min 32 s left" in draw(compiling())


def test_waits_read_as_a_chain_toward_the_culprit() -> None:
    text = draw(compiling(), 120)
    assert text.index("TP0 ──waits for──▶ TP1") < text.index("TP1 ──waits for──▶ CUDA device compiler")
    folded = draw(many_ranks(), 120)
    assert folded.count("──waits for──▶") == 1
    assert "rank 0-612,614-1023 ──waits for──▶ rank 613 (node77, pid 5035)" in folded


@given(st.text(alphabet="ab 模 ", max_size=80), st.integers(3, 20))
def test_wrapping_keeps_every_word_whole(words: str, width: int) -> None:
    lines = [line.plain for line in wrap(Text(words), width)]
    assert " ".join(lines).split() == words.split()
    assert all(cell_len(line) <= width or len(line.split()) == 1 for line in lines)


def test_folded_frames_keep_both_ends_and_the_named_one() -> None:
    stack = tuple(Frame(f"f{n}", "x.py", n) for n in range(30))
    shown = list(folded_frames(stack, stack[17], 7))
    assert [frame.function if frame else f"({number})" for number, frame in shown] == [
        "f0", "f1", "f2", "f3", "f4", "(12)", "f17", "(11)", "f29",
    ]  # fmt: skip
    assert [frame for _, frame in folded_frames(stack[:8], None, 7)] == list(stack[:8])
    counted = sum(1 if frame else number for number, frame in folded_frames(stack, None, 7))
    assert counted == len(stack)


def _party(tp: int) -> Party:
    return Party(41_898 + tp, 41_898 + tp, f"TP{tp}", "node3")


def _with_waits(pairs: list[tuple[int, int]]) -> str:
    waits = tuple(Wait(_party(a), _party(b), "in all_reduce", None, Strength.LIKELY) for a, b in pairs)
    return draw(replace(laggard(), waits=waits), 120)


def test_waits_of_everybody_for_everybody_are_one_line() -> None:
    pairs = [(a, b) for a in range(7) for b in range(7) if a != b]
    assert "TP0-6 ──waits for──▶ each other  in all_reduce" in _with_waits(pairs)
    # The twin: one rank waits for nobody, so it is what the others wait for.
    assert "each other" not in _with_waits([(a, b) for a, b in pairs if a != 4])


def test_one_that_waits_for_many_is_one_line() -> None:
    assert "TP3 ──waits for──▶ TP0-2  in all_reduce" in _with_waits([(3, 0), (3, 1), (3, 2)])


def test_two_that_wait_for_each_other_are_a_visible_circle() -> None:
    text = _with_waits([(1, 2), (2, 1)])
    assert "TP1 ──waits for──▶ TP2 (pid 41900)" in text and "TP2 ──waits for──▶ TP1 (pid 41899)" in text


@pytest.mark.parametrize(
    ("state", "words"), [("T", "stopped"), ("gone", "gone"), ("Z", "zombie"), ("S", None)]
)
def test_a_group_says_what_its_stack_does_not(state: str, words: str | None) -> None:
    report = laggard()
    rows = tuple(
        replace(row, state=state if row.rank and row.rank.tp == 3 else row.state) for row in report.processes
    )
    line = next(
        line for line in draw(replace(report, processes=rows)).splitlines() if line.startswith("  TP3 ")
    )
    assert (words or "nothing") in line or (words is None and "stopped" not in line and "gone" not in line)
