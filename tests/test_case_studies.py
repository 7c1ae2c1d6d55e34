"""The case studies show what the tool prints: each report is made again from its capture and compared.

After a change of the output: ``HANGDOCTOR_UPDATE_DOCS=1 pytest tests/test_case_studies.py``; read the difference.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hangdoctor.cli.running import run_command
from tests import expectations

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "case-studies"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
BLOCK = re.compile(r"```console\n\$ hangdoctor (?P<words>.*)\n(?P<output>(?:.*\n)*?)```\n")


def read(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_the_report_is_what_the_tool_prints(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    (block,) = BLOCK.finditer(read(page))
    code = run_command(block["words"].split())
    printed = capsys.readouterr().out
    if os.environ.get("HANGDOCTOR_UPDATE_DOCS"):
        shown = f"```console\n$ hangdoctor {block['words']}\n{printed.rstrip()}\n```\n"
        (FOLDER / f"{page}.md").write_text(read(page).replace(block[0], shown), encoding="utf-8")
        block = BLOCK.search(read(page)) or block
    assert block["output"].rstrip() == printed.rstrip()
    name = block["words"].split("/")[2]
    assert {0: ("slow", "ready"), 3: ("hung",), 4: ("unknown",)}[code][0] in [
        kind.value for kind in expectations.load(name).kinds
    ]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_tells_the_whole_story(page: str) -> None:
    parts = ("# ", "**Symptom.**", "**Command.**", "```console", "**Reasoning.**", "**Fix.**")
    places = [read(page).index(part) for part in parts]
    assert places == sorted(places)
    outside = BLOCK.sub("", read(page))
    assert len(outside.split()) > 150 and max(map(len, outside.splitlines())) <= 160


def test_the_index_lists_every_page() -> None:
    listed = re.findall(r"\]\((\w[\w-]*)\.md\)", read("README"))
    assert sorted(listed) == PAGES and len(PAGES) >= 8
