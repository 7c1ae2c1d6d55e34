"""The Markdown report: parsed by a real parser, because a ticket is only as good as it renders."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from hangdoctor.model import Gap
from hangdoctor.render import RENDERERS, RenderOptions
from hangdoctor.render._markdown_text import cell, code, escape, fence, table
from hangdoctor.render._wording import clean
from hangdoctor.render.markdown import LIMIT
from hangdoctor.report import Evidence, Report
from tests import render_support
from tests.render_support import SAMPLES, hostile, laggard, many_ranks, unknown

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
FORBIDDEN = {"link_open", "image", "em_open", "s_open", "html_inline", "hardbreak"}


def write(report: Report, *, detail: bool = False) -> str:
    return RENDERERS["markdown"].render(report, RenderOptions(detail=detail))


def inline(tokens: list[Token]) -> list[Token]:
    return [child for token in tokens for child in token.children or ()]


def text_of(tokens: list[Token]) -> str:
    return "".join(t.content for t in inline(tokens) if t.type in ("text", "text_special", "code_inline"))


@pytest.mark.parametrize("detail", [False, True])
def test_hostile_names_change_nothing_in_the_structure(detail: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled = PARSER.parse(write(hostile(), detail=detail))
    monkeypatch.setattr(render_support, "HOSTILE", "harmless")
    harmless = PARSER.parse(write(hostile(), detail=detail))
    assert [token.type for token in spoiled] == [token.type for token in harmless]
    assert {child.type for child in inline(spoiled)} & FORBIDDEN == set()
    html = [token.content for token in spoiled if token.type == "html_block"]
    assert all(re.fullmatch(r"<details><summary>[^<>]*</summary>\n|</details>\n", block) for block in html)


def test_hostile_names_notify_nobody() -> None:
    tokens = PARSER.parse(write(hostile()))
    prose = " ".join(child.content for child in inline(tokens) if child.type in ("text", "text_special"))
    assert "@" in prose and not re.search(r"@\w|#\d", prose)


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_every_fold_is_closed_and_holds_markdown(sample: str) -> None:
    tokens = PARSER.parse(write(SAMPLES[sample](), detail=True))
    html = [token.content for token in tokens if token.type == "html_block"]
    assert html == [block for pair in zip(html[::2], ["</details>\n"] * 99, strict=False) for block in pair]
    rows = [token for token in tokens if token.type == "tr_open"]
    assert bool(rows) is bool(SAMPLES[sample]().groups)


@pytest.mark.parametrize("sample", ["laggard", "compiling", "ready", "unknown"])
def test_the_verdict_comes_first(sample: str) -> None:
    report = SAMPLES[sample]()
    heading, summary, reasoning = write(report).split("\n\n")[:3]
    assert heading.startswith("## ")
    assert report.verdict.summary.split()[0] in summary and summary.startswith("**")
    assert "This would be refuted by" in reasoning


def test_reading_order_of_a_ticket() -> None:
    text = write(laggard())
    parts = ["| ranks |", "### Who waits", "### Stack of TP3", "### Communication", "### Versions", "### Not seen",
             "### Next steps", "<details><summary>Evidence", "hangdoctor 0.1.0"]  # fmt: skip
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)
    for evidence in laggard().evidence:
        assert f"**{evidence.id}**" in text


@pytest.mark.parametrize(
    ("character", "detail"), [*zip("&`\\@|\u202ea", [True, False] * 4, strict=False), ("&", False)]
)
def test_never_longer_than_a_ticket_may_be(
    character: str, detail: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_support, "HOSTILE", character * 7000)
    report = hostile()
    report = replace(
        report,
        evidence=report.evidence * 200,
        groups=report.groups * 40,
        next_steps=report.next_steps * 40,
        gaps=tuple(Gap(f"{n} {render_support.HOSTILE}", "x", "y") for n in range(100)),
    )
    text = write(report, detail=detail)
    assert len(text) <= LIMIT
    assert text.startswith("## HUNG")
    assert "Shortened to stay below 60,000 characters: " in text
    assert PARSER.parse(text)[-1].type == "paragraph_close"


def test_the_least_informative_parts_go_first_and_it_says_so() -> None:
    text = write(many_ranks(), detail=True)
    assert len(text) <= LIMIT
    notice = next(line for line in text.splitlines() if line.startswith("Shortened"))
    assert "stacks of threads" in notice and "evidence" not in notice and "stack of the culprit" not in notice
    assert "### Next steps" in text and "**E1**" in text
    # A table that lists 64 of 1,024 ranks lists the one that matters.
    table_of_ranks = text[text.index("All processes") :]
    assert "rank 613" in table_of_ranks[: table_of_ranks.index("</details>")]
    assert "… and 960 more processes" in text
    assert "Shortened" not in write(laggard(), detail=True)


def test_a_short_part_is_kept_when_only_a_long_one_had_to_go() -> None:
    report = replace(many_ranks(), log_tail=("the last line before silence",))
    assert "the last line before silence" in write(report, detail=True)


def test_much_evidence_is_cut_where_it_is_cited_least() -> None:
    pieces = tuple(Evidence(f"E{n}", "TP1", None, "/proc", "x" * 500) for n in range(1, 400))
    text = write(replace(unknown(), evidence=pieces))
    assert len(text) <= LIMIT
    assert "**E1**" in text and "more pieces of evidence" in text


@given(st.text(min_size=1).filter(lambda text: clean(text).strip()))
def test_escaped_text_renders_as_itself(text: str) -> None:
    tokens = PARSER.parse(f"- {escape(text)} end")
    assert [token.type for token in tokens[:3]] == ["bullet_list_open", "list_item_open", "paragraph_open"]
    assert {child.type for child in inline(tokens)} <= {"text", "text_special"}
    rendered = text_of(tokens).replace("\u200b", "")
    assert rendered.split() == f"{clean(text)} end".replace("\u200b", "").split()


@given(st.text(min_size=1).filter(lambda text: clean(text).strip()))
def test_code_renders_as_itself(text: str) -> None:
    (span,) = [child for child in inline(PARSER.parse(f"x {code(text)}")) if child.type != "text"]
    assert span.type == "code_inline"
    assert span.content.strip() == clean(text).strip()


@given(
    st.text(alphabet="ab|\\`*_ <&\n#-", min_size=1).filter(lambda text: clean(text).strip()), st.booleans()
)
def test_a_cell_stays_one_cell(text: str, is_code: bool) -> None:
    tokens = PARSER.parse(table(("a", "b"), [(cell(text, is_code=is_code), "second")]))
    cells = [tokens[i + 1].children or [] for i, token in enumerate(tokens) if token.type == "td_open"]
    assert len(cells) == 2
    rendered = "".join(child.content for child in cells[0])
    assert rendered.replace("\u200b", "").split() == clean(text).split()
    assert cells[1][0].content == "second"


@given(st.lists(st.text(alphabet="`~ab\n", max_size=20), min_size=1))
def test_a_fence_holds_its_lines(lines: list[str]) -> None:
    tokens = PARSER.parse(fence(lines) + "\n\nafter\n")
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert tokens[0].content == "".join(f"{clean(line)}\n" for line in lines)
