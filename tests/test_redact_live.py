"""Secrets and names planted in a live process, and every artefact of every command searched for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hangdoctor import bundle
from hangdoctor.render import RENDERERS
from tests.conftest import Stuck, stuck
from tests.test_redact import Canaries, command_line, environment, log_lines

ROOT = Path(__file__).parent.parent
QUICK = ("--snapshots", "2", "--interval", "0.2")
ONCE = ("--interval", "0.3", "--stall", "0.4", "--once", "--for", "30")
HOST, OTHER_HOST, USER, ADDRESS = "gpu-b19", "gpu-b20", "alice.zz", "10.20.30.40"
IDENTITIES = (
    USER,
    "alice",
    HOST,
    OTHER_HOST,
    "acme.example",
    ADDRESS,
    "fe80::17",
    "ip-10-20-30-41",
    os.uname().nodename,
)


def hangdoctor(*words: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HANGDOCTOR_")}
    return subprocess.run(
        [sys.executable, "-m", "hangdoctor", *map(str, words)],
        capture_output=True,
        env={**environ, "PYTHONPATH": str(ROOT), **(env or {})},
        cwd=ROOT,
        timeout=120,
        check=False,
    )


def artefacts(program: Stuck, folder: Path, *redact: str) -> dict[str, str]:
    """Everything that attach, analyze, diff, watch and their options write, print and say of a process, by name."""
    texts = {}
    capture = folder / "a.hang"
    for name, words in {
        "attach": ("attach", program.pid, *QUICK, "--json", "--bundle", capture, "--detail", "-vv"),
        "issue": ("attach", program.pid, *QUICK, "--github-issue", "--bundle", folder / "b.hang", "-vv"),
        "collect": ("collect", program.pid, *QUICK, "-o", folder / "c.hang", "-vv"),
        "issue of a capture": ("analyze", capture, "--github-issue"),
        "diff": ("diff", capture, "--detail"),
        "diff as json": ("diff", capture, "--json", "--detail"),
        "watch": ("watch", program.pid, *ONCE, "-o", folder / "watch", "-vv"),
        "check": ("check", program.pid),
    }.items():
        if name == "watch":
            os.kill(program.pid, signal.SIGSTOP)  # something to report
        done = hangdoctor(*words, *(redact if words[0] != "check" else ()))
        os.kill(program.pid, signal.SIGCONT)
        assert done.returncode in (0, 3, 4, 5), (name, done.stderr)
        texts[name] = done.stdout.decode()
        texts[f"{name}, said"] = done.stderr.decode()
    for name, renderer in RENDERERS.items():
        file = folder / f"r.{renderer.extension}"
        done = hangdoctor("analyze", capture, "--detail", "-f", name, "-o", file, *redact)
        assert file.stat().st_size > 100, (name, done.stderr)
        texts[name] = file.read_text()
    for file in folder.rglob("*.hang"):
        texts[file.name] = texts.get(file.name, "") + repr(bundle.read(file))
    reports = [*folder.glob("watch/*/*.json"), *folder.glob("watch/*/*.md")]
    texts["reports of watch"] = "".join(file.read_text() for file in reports)
    return texts


def test_no_artefact_of_a_live_process_holds_its_secrets(tmp_path: Path) -> None:
    canary = Canaries()
    command, environ, lines = command_line(canary), environment(canary), log_lines(canary)
    leak = command[command.index("--api-key") + 1]
    assert len(canary.planted) >= 40
    folder = tmp_path / "out"
    folder.mkdir()
    variables = {name: value for name, value in environ.items() if value} | {"E_FOLDER": str(tmp_path)}
    with stuck(
        "e_secrets.py", *command[3:], env={**variables, "E_LOG": "\n".join(lines), "E_LEAK": leak}
    ) as program:
        assert canary.left_in(_planted_places(program.pid)) == canary.planted, "all of it is really there"
        texts = artefacts(program, folder)
    report = json.loads(texts["attach"])
    assert "--max-total-tokens 4096" in report["target"]["command"] and "***" in report["target"]["command"]
    assert "tp_size=2" in texts["a.hang"], "the log was read"
    for name in (
        "terminal",
        "markdown",
        "html",
        "json",
        "speedscope",
        "collapsed",
        "a.hang",
        "b.hang",
        "c.hang",
        "watch.hang",
        "capture.hang",
        "reports of watch",
    ):
        assert "flush-***" in texts[name], f"{name} shows the thread that was named after a secret"
    assert "gh issue create" in texts["issue"] and "gh issue create" in texts["issue of a capture"]
    assert {name: canary.left_in(text) for name, text in texts.items() if canary.left_in(text)} == {}


def _planted_places(pid: int) -> str:
    """Command line, environment, log, paths and thread names of the process, as anybody with its rights reads them."""
    proc = Path(f"/proc/{pid}")
    parts = [proc.joinpath(name).read_text().replace("\0", " ") for name in ("cmdline", "environ")]
    parts += [str(fd.readlink()) for fd in proc.joinpath("fd").iterdir() if fd.is_symlink()]
    parts += [proc.joinpath("fd/1").read_text()]
    parts += [task.joinpath("comm").read_text() for task in proc.joinpath("task").iterdir()]
    return "\n".join(parts)


def test_strict_leaves_nobody_and_no_place_in_any_artefact(tmp_path: Path) -> None:
    folder, home = tmp_path / "out", tmp_path / "home" / USER
    folder.mkdir()
    home.mkdir(parents=True)
    lines = (
        f"{USER}@{HOST}: connecting to {OTHER_HOST}.acme.example:29500 ({ADDRESS}) via http://{HOST}:8000/v1",
        f"mail {USER}@acme.example; peers [fe80::17%eth0]:9 and ip-10-20-30-41; nodes gpu-b[19-20]",
        f"USER={USER} HOME=/home/{USER} listening on 127.0.0.1:30000",
    )
    variables = {
        "E_FOLDER": str(home), "E_LEAK": USER, "E_LOG": "\n".join(lines), "HF_HOME": f"/home/{USER}/hf",
        "MASTER_ADDR": f"{HOST}.acme.example", "SLURM_NODELIST": "gpu-b[19-20]", "NCCL_COMM_ID": f"{ADDRESS}:29500",
    }  # fmt: skip
    words = (
        "--host",
        f"{HOST}.acme.example",
        "--dist-init-addr",
        f"{ADDRESS}:5000",
        "--model",
        f"/home/{USER}/m",
    )
    with stuck("e_secrets.py", *words, env=variables) as program:
        plain = hangdoctor("attach", program.pid, *QUICK, "--no-bundle", "--json", "--detail").stdout.decode()
        texts = artefacts(program, folder, "--redact", "strict")
    assert [name for name in IDENTITIES if name not in plain] == [], "without strict they are all there"
    texts = {
        name: text for name, text in texts.items() if not name.startswith("check")
    }  # it is for the eyes of the user
    found = {
        name: [one for one in IDENTITIES if one in text.replace(str(tmp_path), "")]
        for name, text in texts.items()
    }
    assert {name: left for name, left in found.items() if left} == {}
    report = json.loads(texts["attach"])
    # One name stands for one thing, wherever it is.
    assert "/home/user-1/m" in report["target"]["command"]
    assert "flush-user-1" in texts["attach"] and "run-user-1" in texts["attach"]
    assert "127.0.0.1:30000" in texts["attach"], "loopback is nobody's address"


@pytest.mark.parametrize("redact", ["secrets", "strict"])
def test_the_footer_says_what_was_masked(redact: str) -> None:
    capture = ROOT / "tests" / "bundles" / "f2a-wedge-lock-rank1" / "capture.hang"
    done = hangdoctor("analyze", capture, "-f", "markdown", "--redact", redact)
    assert (b"user names" in done.stdout) is (redact == "strict") and b"masked: secrets" in done.stdout
