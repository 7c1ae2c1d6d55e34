"""What the documentation shows can be used: manifests and shell lines parse, commands exist, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from hangdoctor.cli.group import HANGDOCTOR, State
from hangdoctor.report import Cause

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.M | re.S)
INDENTED = re.compile(r"^ {4}(?:\$ )?(hangdoctor .*)$", re.M)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for path in DOCS:
        for block in FENCE.finditer(path.read_text(encoding="utf-8")):
            if block["language"] == language:
                yield path.name, block["body"]


YAML = [pytest.param(body, id=f"{name}-{n}") for n, (name, body) in enumerate(blocks("yaml"))]
SHELL = [pytest.param(body, id=f"{name}-{n}") for n, (name, body) in enumerate(blocks("bash"))]


@pytest.mark.parametrize("text", YAML)
def test_manifests_are_what_kubernetes_expects(text: str) -> None:
    """As far as that can be told without a cluster: known keys in their places, types as in the API."""
    document = yaml.safe_load(text)
    if not isinstance(document, dict) or not (document.get("kind") == "Pod" or "securityContext" in document):
        return  # that it parses is all that can be said
    if "kind" not in document:  # a container's fields, for kubectl debug --custom
        assert set(document) <= {"securityContext", "env", "resources", "volumeMounts"}
        containers = [document]
    else:
        assert (document["apiVersion"], document["kind"]) == ("v1", "Pod")
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])
        containers = document["spec"]["containers"]
        volumes = {volume["name"] for volume in document["spec"].get("volumes", ())}
        for container in containers:
            assert {"name", "image", "command"} <= set(container)
            assert all(isinstance(word, str) for word in container["command"])
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
    lookers = [each for each in containers if "SYS_PTRACE" in _added(each)]
    assert lookers, "every manifest here is there to let somebody look"
    # A capability counts for nobody but root.
    assert all(each["securityContext"]["runAsUser"] == 0 for each in lookers)


def _added(container: dict[str, dict[str, dict[str, list[str]]]]) -> list[str]:
    return container.get("securityContext", {}).get("capabilities", {}).get("add", [])


@pytest.mark.parametrize("text", YAML)
def test_manifests_fit_the_schema_of_kubernetes(text: str) -> None:
    kubernetes = pytest.importorskip(
        "kubernetes_validate", reason="NOT TESTED: the manifests of docs/ against Kubernetes' own schema"
    )
    document = yaml.safe_load(text)
    if "kind" not in document:
        spec = {"containers": [{"name": "debugger", "image": "x", **document}]}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    kubernetes.validate(document, kubernetes.latest_version(), strict=True)


def test_a_sidecar_shares_the_processes() -> None:
    pods = [each for each in map(yaml.safe_load, (body for _, body in blocks("yaml"))) if "kind" in each]
    pairs = [pod["spec"] for pod in pods if len(pod["spec"]["containers"]) == 2]
    assert len(pods) >= 2 and pairs and all(spec["shareProcessNamespace"] is True for spec in pairs)


@pytest.mark.parametrize("text", SHELL)
def test_shell_lines_parse(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def commands() -> Iterator[tuple[str, str]]:
    """Every ``hangdoctor …`` that stands in a block, up to the pipe, the redirection or the remark behind it."""
    for path in DOCS:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        fenced = [block["body"] for block in FENCE.finditer(text) if block["language"] in ("bash", "console")]
        lines = [
            *INDENTED.findall(text),
            *re.findall(r"(?:^|-- |\$ |; )(hangdoctor .*)$", "\n".join(fenced), re.M),
        ]
        for line in lines:
            yield path.name, re.split(r"\s{2,}|\s[|>#]|;|'$|\s2>", line.replace("…", ""))[0]


COMMANDS = [pytest.param(line, id=f"{name}-{n}") for n, (name, line) in enumerate(commands())]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_and_options_exist(line: str) -> None:
    words = [{"PID": "4711", "HOST_PID": "4711"}.get(word, word) for word in shlex.split(line)[1:]]
    context = click.Context(HANGDOCTOR, obj=State(print))
    command = HANGDOCTOR.get_command(context, words[0])
    assert command is not None, line
    command.make_context(words[0], words[1:], parent=context)


def test_there_is_something_to_check() -> None:
    """Twin: the patterns find the blocks, so an empty list of cases is not a success."""
    assert len(YAML) >= 3 and len(SHELL) >= 5 and len(COMMANDS) >= 20


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_every_local_link_leads_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_what_is_to_be_explained_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    from hangdoctor.cli.running import run_command

    named = {
        name
        for path in DOCS
        for name in re.findall(r"hangdoctor explain ([a-z][\w.-]+)", path.read_text(encoding="utf-8"))
    }
    assert len(named) >= 2
    for name in sorted(named):
        assert name in {cause.value for cause in Cause} or run_command(["explain", name]) == 0, name
    capsys.readouterr()
