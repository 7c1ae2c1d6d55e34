"""The HTML page: valid, self-contained, silent towards the network, and as good with a thousand ranks as with two."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import html5lib
import pytest

from hangdoctor.model import Frame
from hangdoctor.render import RENDERERS, RenderOptions, _stack_tree
from hangdoctor.render._digest import Names
from hangdoctor.render._html_sections import gpu_lines, stack_columns, timeline, tree_lines
from hangdoctor.render._wait_graph import BOX_HEIGHT, BOX_WIDTH, draw_waits
from hangdoctor.report import Party, Report, Strength, Wait
from tests.render_support import SAMPLES, compare_golden, compiling, hostile, laggard, many_ranks, ready

ALL = {**SAMPLES, "many": lambda: many_ranks(64, 29)}


def page(report: Report, *, detail: bool = False) -> str:
    return RENDERERS["html"].render(report, RenderOptions(detail=detail))


class Facts(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, each, value in self.attributes if each == name]


@pytest.mark.parametrize("sample", ["laggard", "compiling", "hostile"])
def test_golden(sample: str, request: pytest.FixtureRequest) -> None:
    compare_golden(f"{sample}.html", page(SAMPLES[sample]()), request)


@pytest.mark.parametrize("detail", [False, True])
@pytest.mark.parametrize("sample", sorted(ALL))
def test_pages_are_valid(sample: str, detail: bool) -> None:
    text = page(ALL[sample](), detail=detail)
    parser = html5lib.HTMLParser(strict=True)
    parser.parse(text)
    facts = Facts(text)
    ids = facts.values("id")
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in facts.values("href")} <= set(ids)
    assert (
        facts.tags["h1"]
        == facts.tags["main"]
        == facts.tags["title"] - facts.tags["g"] + facts.tags["circle"]
        == 1
    )


@pytest.mark.parametrize("sample", sorted(ALL))
def test_a_page_needs_nothing_and_runs_nothing(sample: str) -> None:
    facts = Facts(page(ALL[sample](), detail=True))
    assert not set(facts.tags) & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    names = {name for _, name, _ in facts.attributes}
    assert not names & {"src", "srcset", "style", "action"}
    assert not [name for name in names if name.startswith("on")]
    assert all(link.startswith("#") for link in facts.values("href"))


def test_the_policy_forbids_all_but_the_style_that_is_there() -> None:
    text = page(laggard())
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = next(value for value in Facts(text).values("content") if "default-src" in value)
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "url(" not in style[1].replace("url(#", "") and "@import" not in style[1]


def test_hostile_names_stay_text() -> None:
    spoiled, harmless = Facts(page(hostile())), Facts(page(laggard()))
    assert set(spoiled.tags) <= set(harmless.tags)
    assert "<script>alert(1)</script>" in "".join(spoiled.text)


def test_sentences_link_to_their_evidence() -> None:
    text = page(laggard())
    why = text[text.index('id="why"') : text.index('id="timeline"')]
    assert 'only wait. <a href="#E4">E4</a>' in why
    assert re.search(r"sleeps in _flush_loop \(manager\.py:131\)\. <a href=\"#E1\">E1</a>", why)
    for piece in laggard().evidence:
        assert f'<dt id="{piece.id}">' in text


def test_small_for_eight_ranks_and_bounded_for_many() -> None:
    # 8 ranks of 200 threads each, as a server has them; every stack differs, so that nothing folds.
    base = laggard()
    thread = base.processes[0].threads[0]
    rows = tuple(
        replace(
            row,
            threads=tuple(
                replace(
                    thread,
                    tid=row.pid + n,
                    name=f"t{n}",
                    stack=(Frame(f"f{row.pid}_{n}", "x.py"), *thread.stack),
                )
                for n in range(200)
            ),
        )
        for row in base.processes
    )
    assert len(page(replace(base, processes=rows))) < 1_000_000
    assert len(page(many_ranks())) < 1_000_000
    assert "more processes" in page(many_ranks())


def test_what_is_left_out_is_in_the_detailed_page() -> None:
    assert page(many_ranks(64, 29), detail=True).count("--rank ") == 64
    assert page(many_ranks(2048, 29)).count("--rank ") < 2048


def test_processes_with_equal_phases_are_one_row_of_the_timeline() -> None:
    found = timeline(many_ranks(), Names(many_ranks()))
    assert found is not None
    assert [(row.label, row.is_culprit) for row in found.rows] == [
        ("rank 613", True),
        ("rank 0-612,614-1023", False),
    ]
    assert found.times == ("+0 s", "+3.02 s", "+10 s")
    moved = timeline(compiling(), Names(compiling()))
    assert moved is not None
    assert [(segment.phase, segment.span) for segment in moved.rows[0].segments] == [
        ("torch.jit-compile", 2),
        ("sglang.graph-capture", 1),
    ]
    assert timeline(SAMPLES["unknown"](), Names(SAMPLES["unknown"]())) is None


def test_a_long_watch_is_thinned_out() -> None:
    report = ready()
    rows = tuple(replace(row, phases=("sglang.idle",) * 199 + (None,)) for row in report.processes)
    found = timeline(replace(report, processes=rows), Names(report))
    assert found is not None and found.every == 5 and len(found.times) == 40


def test_the_frame_where_a_group_leaves_is_marked() -> None:
    first, second = stack_columns(laggard())
    assert (first.is_culprit, second.is_culprit) == (True, False)
    for column, function in ((first, "execute_model"), (second, "forward")):
        marked = [line.frame.function for line in column.lines if line.is_different]
        assert marked == [function]
        own = [line for line in column.lines if not line.is_shared]
        assert own and column.lines[: len(own)] == tuple(own)
    # The twin: equal stacks have no such frame.
    report = laggard()
    same = tuple(replace(group, stack=report.groups[0].stack) for group in report.groups)
    assert not [
        line for col in stack_columns(replace(report, groups=same)) for line in col.lines if line.is_different
    ]


def test_equal_functions_at_different_lines_differ() -> None:
    one = (Frame("b", "x.py", 2), Frame("a", "x.py", 1))
    other = (Frame("b", "x.py", 3), Frame("a", "x.py", 1))
    assert _stack_tree.first_difference(one, other) == 0
    assert _stack_tree.first_difference(one, one) is None
    assert _stack_tree.first_difference(one, ()) == 1
    assert _stack_tree.first_difference(one[1:], one) is None


def test_the_prefix_tree_accounts_for_every_rank_once() -> None:
    report = many_ranks(97, 41)
    lines = tree_lines(report, Names(report))
    assert [(line.depth, line.label) for line in lines] == [
        (0, "rank 0-96"),
        (1, "rank 0-40,42-96"),
        (1, "rank 41"),
    ]
    assert sum(line.count for line in lines if line.is_leaf) == 97


def test_the_prefix_tree_of_very_deep_stacks() -> None:
    deep = tuple(Frame("f", "x.py", n) for n in range(20_000))
    (root,) = _stack_tree.build_tree([("a", deep), ("b", deep[1:])])
    assert (len(root.frames), root.labels) == (19_999, ["a", "b"])
    assert [(child.labels, len(child.frames)) for child in root.children] == [(["a"], 1)]


def _graph(pairs: list[tuple[int, int]]) -> Report:
    def party(tp: int) -> Party:
        return Party(41_898 + tp, 41_898 + tp, f"TP{tp}", "node3")

    waits = tuple(Wait(party(a), party(b), "in all_reduce", None, Strength.LIKELY) for a, b in pairs)
    return replace(laggard(), waits=waits)


@pytest.mark.parametrize(
    ("pairs", "titles", "arrows"),
    [
        ([(a, 3) for a in range(7) if a != 3], {"TP0-2,4-6", "TP3"}, 1),
        ([(0, 1), (1, 2), (2, 3)], {"TP0", "TP1", "TP2", "TP3"}, 3),
        ([(0, 1), (1, 0)], {"TP0-1"}, 0),
        ([(0, 1), (1, 2), (2, 0)], {"TP0", "TP1", "TP2"}, 3),
        ([(a, b) for a in range(5) for b in range(5) if a != b], {"TP0-4"}, 0),
        ([], None, 0),
    ],
)
def test_the_wait_graph(pairs: list[tuple[int, int]], titles: set[str] | None, arrows: int) -> None:
    report = _graph(pairs)
    drawing = draw_waits(report, Names(report))
    if titles is None:
        assert drawing is None
        return
    assert drawing is not None
    assert {box.title for box in drawing.boxes} == titles
    assert len(drawing.arrows) == len(drawing.legend) == arrows
    places = [(box.x, box.y) for box in drawing.boxes]
    assert len(set(places)) == len(places)
    assert all(x + BOX_WIDTH <= drawing.width and y + BOX_HEIGHT <= drawing.height for x, y in places)


def test_the_culprit_stands_at_the_right_and_is_marked() -> None:
    drawing = draw_waits(laggard(), Names(laggard()))
    assert drawing is not None
    rightmost = max(drawing.boxes, key=lambda box: box.x)
    assert [box for box in drawing.boxes if box.is_culprit] == [rightmost]
    assert rightmost.full == "TP3 thread kv-offload-flusher"


def test_all_arrows_point_one_way_unless_there_is_a_circle() -> None:
    def columns(pairs: list[tuple[int, int]]) -> dict[str, int]:
        report = _graph(pairs)
        drawing = draw_waits(report, Names(report))
        assert drawing is not None
        return {box.title: box.x for box in drawing.boxes}

    # TP5 waits for both, and TP0 for TP1: the long way counts.
    chain = columns([(5, 1), (5, 0), (0, 1)])
    assert chain["TP5"] < chain["TP0"] < chain["TP1"]
    circle = columns([(5, 1), (1, 2), (2, 3), (3, 1)])
    assert len(circle) == 4 and circle["TP5"] < circle["TP1"]


def test_a_graph_of_many_different_waits_is_bounded() -> None:
    report = _graph([(n, n + 1) for n in range(200)])
    drawing = draw_waits(report, Names(report))
    assert drawing is not None
    assert len(drawing.boxes) == 30 and drawing.hidden == 171
    assert "171 more groups" in page(report)


def test_many_gpus_that_read_alike_are_one_line() -> None:
    lines = gpu_lines(many_ranks(), Names(many_ranks()))
    assert [(line.label, line.index) for line in lines] == [
        ("rank 613", "1 alike"),
        ("rank 0-612,614-1023", "1,023 alike"),
    ]
    assert [line.note != "" for line in lines] == [False, True]
    assert len(gpu_lines(laggard(), Names(laggard()))) == 7


def _chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium here; HANGDOCTOR_REQUIRE=chromium makes this a failure")


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_it_without_complaint(width: int, tmp_path: Path) -> None:
    file, image = tmp_path / "page.html", tmp_path / "page.png"
    file.write_text(page(hostile()), encoding="utf-8")
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
                 "--enable-logging=stderr", f"--window-size={width},900", f"--screenshot={image}"]  # fmt: skip
    done = subprocess.run(
        [_chromium(), *arguments, file.as_uri()], capture_output=True, text=True, timeout=120
    )
    # A style that the policy refuses, a broken document and the like are messages on the console.
    assert "CONSOLE" not in done.stderr, done.stderr
    assert image.stat().st_size > 10_000
