"""The HTML page: valid, self-contained, silent towards the network, and as good with a thousand ranks as with two."""

from __future__ import annotations

import base64
import hashlib
import json
import os
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
from hangdoctor.render._citations import Citations
from hangdoctor.render._digest import Names
from hangdoctor.render._html_sections import gpu_lines, timeline
from hangdoctor.render._html_stacks import StackColumn, prefix_tree, stack_columns
from hangdoctor.render._wait_graph import BOX_HEIGHT, BOX_WIDTH, Drawing, draw_waits
from hangdoctor.report import Party, Report, Strength, Wait
from tests.render_support import (
    SAMPLES,
    compare_golden,
    compiling,
    hostile,
    laggard,
    loading,
    many_ranks,
    ready,
)

ALL = {**SAMPLES, "many": lambda: many_ranks(64, 29), "loading": loading}


def page(report: Report, *, detail: bool = False) -> str:
    return RENDERERS["html"].render(report, RenderOptions(detail=detail))


def columns_of(report: Report) -> tuple[StackColumn, ...]:
    return stack_columns(report, Citations(report, Names(report)))


def drawing_of(report: Report) -> Drawing | None:
    names = Names(report)
    return draw_waits(report, names, Citations(report, names))


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
        == facts.tags["title"] - facts.tags["g"] + facts.values("class").count("badge")
        == 1
    )


def nu_html_checker() -> list[str]:
    """The W3C's validator: ``vnu`` on the PATH, or the jar of npm's vnu-jar that HANGDOCTOR_VNU names."""
    if path := shutil.which("vnu"):
        return [path]
    if (jar := os.environ.get("HANGDOCTOR_VNU")) and shutil.which("java"):
        return ["java", "-jar", jar]
    if "vnu" in os.environ.get("HANGDOCTOR_REQUIRE", ""):
        pytest.fail("HANGDOCTOR_REQUIRE names vnu, and there is none")
    pytest.skip(
        "NOT TESTED: the Nu Html Checker on the HTML pages (html5lib was). No vnu here, and no HANGDOCTOR_VNU"
    )


@pytest.mark.slow
def test_the_nu_html_checker_finds_nothing(tmp_path: Path) -> None:
    files = []
    for sample, make in ALL.items():
        for detail in (False, True):
            files.append(tmp_path / f"{sample}-{detail}.html")
            files[-1].write_text(page(make(), detail=detail), encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(page(ready()).replace("<main", '<main role="nonsense"'), encoding="utf-8")
    command = [*nu_html_checker(), "--format", "json"]
    done = subprocess.run([*command, *files, broken], capture_output=True, text=True, timeout=150)
    # Its warning about the style sheet's hash is wrong: a browser applies the sheet (test_render_browser.py).
    messages = [
        each for each in json.loads(done.stderr)["messages"] if "Content Security" not in each["message"]
    ]
    blamed = {Path(message["url"].removeprefix("file:")).name for message in messages}
    assert blamed == {"broken.html"}, [m for m in messages if "broken" not in m["url"]][:5]


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


def luminance(colour: str) -> float:
    channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_in_both_themes(theme: int) -> None:
    """Contrast of at least 4.5 to 1 (WCAG AA), for every colour of text on every ground it stands on."""
    style = re.findall(r":root \{(.*?)\}", page(laggard()), re.S)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", style[theme]))
    kinds = ("hung", "slow", "ready", "unknown")
    pairs = [(text, ground) for text in ("text", "faint", "link", *kinds) for ground in ("ground", "raised")]
    pairs += [("text", f"c{n}") for n in range(8)] + [
        ("text", "mark"),
        ("text", "culprit"),
        ("faint", "culprit"),
    ]
    pairs += [(kind, "culprit") for kind in kinds] + [("on-kind", kind) for kind in kinds]
    for text, ground in pairs:
        low, high = sorted((luminance(colours[text]), luminance(colours[ground])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_hostile_names_stay_text() -> None:
    spoiled, harmless = Facts(page(hostile())), Facts(page(laggard()))
    assert set(spoiled.tags) <= set(harmless.tags)
    assert "<script>alert(1)</script>" in "".join(spoiled.text)


def test_sentences_link_to_their_evidence() -> None:
    text = page(laggard())
    why = text[text.index('id="why"') : text.index('id="timeline"')]
    assert 'only wait. <a href="#E4">E4</a>' in why
    assert re.search(r"sleeps in _flush_loop \(manager\.py:131\)\. <a href=\"#E1\">E1</a>", why)
    assert re.search(r'Rests on <a href="#E1">E1</a> <a href="#E2">E2</a> <a href="#E3">E3</a></p>', text)
    # Each kind of wait, each stack, each process.
    assert re.search(r'has not entered.*?likely</span> <a href="#E4">E4</a> <a href="#E1">E1</a>', text)
    assert re.search(r'▸ TP3 <a href="#E1">E1</a>', text)
    for piece in laggard().evidence:
        assert f'<dt id="{piece.id}">' in text
    # … and back from the evidence to the threads of the process that it speaks of.
    home = re.search(r'<a href="#(p\d+)">TP3 \(pid 41901\), kv-offload-flusher</a>', text)
    assert home and re.search(rf'<details id="{home[1]}"><summary>TP3 \(pid 41901\)', text)


def test_equal_pids_on_two_hosts_do_not_share_their_evidence() -> None:
    report = many_ranks(16, 11)
    mine, other = report.processes[11], report.processes[3]
    assert mine.pid == other.pid and mine.host != other.host
    piece = replace(report.evidence[0], id="E1", subject=f"rank 11 (pid {mine.pid}), MainThread")
    report = replace(report, evidence=(piece,))
    citations = Citations(report, Names(report))
    assert citations.of(mine.pid, mine.host) == ("E1",)
    assert citations.of(other.pid, other.host) == ()


def test_a_process_that_gave_itself_a_title_is_called_by_it() -> None:
    text = page(laggard())
    assert '<summary>TP3 (pid 41901) <span class="mono">VLLM::Worker_TP3</span>' in text


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
    first, second = columns_of(laggard())
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
        line for col in columns_of(replace(report, groups=same)) for line in col.lines if line.is_different
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
    lines = prefix_tree(report, Names(report)).lines
    assert [(line.depth, line.label) for line in lines] == [
        (0, "rank 0-96"),
        (1, "rank 0-40,42-96"),
        (1, "rank 41"),
    ]
    assert sum(line.count for line in lines if line.is_leaf) == 97
    assert [line.label for line in lines if line.is_culprit] == ["rank 41"]
    # Every call is there: the outer ones of a long branch unfold.
    assert [frame.function for frame in (*lines[0].hidden, *lines[0].shown)][:2] == ["<module>", "spawn_main"]
    assert (len(lines[0].hidden), len(lines[0].shown)) == (4, 4)


def test_a_leaf_that_holds_others_as_well_does_not_accuse() -> None:
    """Twin: in `loading` the culprit stands in the very call of the others."""
    assert [line.is_culprit for line in prefix_tree(loading(), Names(loading())).lines] == [False]


def test_a_tree_of_many_branches_is_bounded_and_says_so() -> None:
    report = many_ranks(512, 41)
    rows = tuple(
        replace(row, frame=None, threads=(replace(row.threads[0], stack=(Frame(f"f{n}", "x.py", n),)),))
        for n, row in enumerate(report.processes)
    )
    tree = prefix_tree(replace(report, processes=rows), Names(report))
    assert (len(tree.lines), tree.hidden) == (300, 212)
    assert "and 212 more branches" in page(replace(report, processes=rows))


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
    drawing = drawing_of(report)
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
    drawing = drawing_of(laggard())
    assert drawing is not None
    rightmost = max(drawing.boxes, key=lambda box: box.x)
    assert [box for box in drawing.boxes if box.is_culprit] == [rightmost]
    assert rightmost.full == "TP3 thread kv-offload-flusher"


def test_all_arrows_point_one_way_unless_there_is_a_circle() -> None:
    def columns(pairs: list[tuple[int, int]]) -> dict[str, int]:
        report = _graph(pairs)
        drawing = drawing_of(report)
        assert drawing is not None
        return {box.title: box.x for box in drawing.boxes}

    # TP5 waits for both, and TP0 for TP1: the long way counts.
    chain = columns([(5, 1), (5, 0), (0, 1)])
    assert chain["TP5"] < chain["TP0"] < chain["TP1"]
    circle = columns([(5, 1), (1, 2), (2, 3), (3, 1)])
    assert len(circle) == 4 and circle["TP5"] < circle["TP1"]


def test_a_graph_of_many_different_waits_is_bounded() -> None:
    report = _graph([(n, n + 1) for n in range(200)])
    drawing = drawing_of(report)
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
