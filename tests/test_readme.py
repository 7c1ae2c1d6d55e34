"""What README.md shows is what the tool prints.

Every ``console`` block is run and compared, numbers and places aside. After a change of the output:
``HANGDOCTOR_UPDATE_README=1 pytest tests/test_readme.py`` writes what is printed now; read the difference.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hangdoctor.report import Cause

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n\$ (?P<command>.*)\n(?P<output>(?:.*\n)*?)```\n")
COMMANDS = [match["command"] for match in BLOCK.finditer(README.read_text())]
VOLATILE = (
    (re.compile(r"[─━=_]{5,}"), ""),  # rules are as wide as the terminal
    (re.compile(r"\bon \S+(?= +\d+ looks)"), "on HOST"),
    (re.compile(r"\S*/(?=\w+\.py\b)"), ""),  # folders of source files
    (re.compile(r"[█░]+"), "BAR"),
    (re.compile(r"about\s+[\d.]+\s+(?:min\s+[\d.]+\s+s|min|s)\s+left"), "about N left"),
    # Where a look catches it.
    (
        re.compile(r"\b(?:runs|sleeps|is\s[a-z ]+|waits\s[a-z ]+)\s+in\s+load_weights"),
        "reads in load_weights",
    ),
    (re.compile(r"SLOW\s+(?:certain|likely)"), "SLOW"),
    (re.compile(r"(?:E\d+ +rank [^E]*?flight recorder[^E]*)"), ""),  # only with a torch that has one
    (re.compile(r",\s+last\s+on\s+a\s+CPU\s+[\d.]+\s+s\s+ago"), ""),  # a busy machine cannot tell
    (re.compile(r",\s+[\d.]+\s+%\s+of\s+a\s+core"), ""),  # said from 5 % on; a slow machine needs more
    (re.compile(r"more observations?"), "more observations"),  # one more with a flight recorder
    (re.compile(r"\d+(?:\.\d+)?"), "N"),
    (re.compile(r"\s+"), " "),  # lines break elsewhere when a number grows
)


def run(command: str) -> str:
    """What a user sees who types ``command`` in an 80-column terminal without colour."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    return subprocess.run(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=ROOT,
        timeout=170,
        check=False,
    ).stdout.decode()


def steady(text: str) -> str:
    """``text`` without what differs from run to run."""
    for pattern, replacement in VOLATILE:
        text = pattern.sub(replacement, text)
    return text.strip()


def update(command: str, output: str) -> None:
    def replace(match: re.Match[str]) -> str:
        if match["command"] != command:
            return match[0]
        return f"```console\n$ {command}\n{output.rstrip()}\n```\n"

    README.write_text(BLOCK.sub(replace, README.read_text()))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("torch") is None, reason="README shows the demo with PyTorch, which is not here"
)
@pytest.mark.skipif(sys.version_info < (3, 11), reason="README shows qualified names, which need Python 3.11")
@pytest.mark.parametrize("command", COMMANDS)
def test_console_block(command: str) -> None:
    printed = run(command)
    if os.environ.get("HANGDOCTOR_UPDATE_README"):
        update(command, printed)
    shown = next(
        match["output"] for match in BLOCK.finditer(README.read_text()) if match["command"] == command
    )
    assert steady(shown) == steady(printed)


def test_there_are_console_blocks() -> None:
    """Twin: the pattern finds the blocks, so an empty list of cases is not a success."""
    assert len(COMMANDS) == README.read_text().count("```console") >= 2


def shown_commands() -> list[str]:
    """Indented lines that begin with hangdoctor, less the remarks behind them."""
    lines = re.findall(r"^    (hangdoctor .*)$", README.read_text(), re.MULTILINE)
    return [re.split(r"\s{2,}|\s\|", line)[0] for line in lines]


@pytest.mark.parametrize("line", shown_commands())
def test_commands_and_options_exist(line: str) -> None:
    words = shlex.split(line)[1:]
    page = run(f"hangdoctor {words[0]} --help")
    assert page.startswith(f"Usage: hangdoctor {words[0]}"), page
    for option in (word.partition("=")[0] for word in words[1:] if word.startswith("-")):
        assert re.search(rf"(^|\s){re.escape(option)}\b", page, re.MULTILINE), f"{option} of {line}"


def test_exit_codes_are_those_of_the_help() -> None:
    table = re.findall(r"^\| (\d+) \| (.*) \|$", README.read_text(), re.MULTILINE)
    page = re.findall(
        r"^ {2}(\d+) +(.*)$", run("hangdoctor --help").partition("Exit codes:")[2], re.MULTILINE
    )
    assert table == page


def test_every_local_link_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_explained_cause_exists() -> None:
    named = re.findall(r"hangdoctor explain ([\w-]+)", README.read_text())
    assert set(named) <= {cause.value for cause in Cause}
