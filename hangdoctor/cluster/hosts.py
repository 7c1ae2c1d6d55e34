"""Which hosts are meant: ClusterShell's node sets (``node[1-4]``, ``@group``) as names, and what reaches them."""

from __future__ import annotations

import shlex
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hangdoctor.errors import HangdoctorError, WrongUsage

if TYPE_CHECKING:
    from types import ModuleType

HINT = "pip install 'hangdoctor[cluster]'"
MOST_HOSTS = 65_536
_LOCAL = ("localhost", "127.0.0.1", "::1")
_PREFIXES = {
    # One task on one node beside the job's own; without --overlap a step waits until the job ends (Slurm 20.11).
    "srun": "srun --nodes=1 --ntasks=1 --nodelist=%h --overlap --quiet --unbuffered {options} sh -c",
    "kubectl": "kubectl exec -i {options} %h -- sh -c",
    "docker": "docker exec -i {options} %h sh -c",
}
TRANSPORTS = ("ssh", *_PREFIXES, "exec")


def load(module: str) -> ModuleType:
    """A module of ClusterShell. Raises HangdoctorError where it is not installed."""
    from importlib import import_module

    try:
        return import_module(f"ClusterShell.{module}")
    except ImportError as error:
        raise HangdoctorError("--hosts needs ClusterShell, which is not installed", hint=HINT) from error


def expand(text: str) -> tuple[str, ...]:
    """The names in a node set, in its order. Raises WrongUsage for one that cannot be read or is empty."""
    module = load("NodeSet")
    try:
        nodes: Any = module.NodeSet(text)
    except module.NodeSetException as error:
        raise WrongUsage(
            f"--hosts {text!r} is no set of hosts: {error}",
            hint="names and ranges: 'node[1-4],login1'; groups: '@gpu' (as `nodeset -e` understands them)",
        ) from error
    if not nodes:
        raise WrongUsage(f"--hosts {text!r} names no host", hint="`nodeset -e` shows what a set stands for")
    if len(nodes) > MOST_HOSTS:
        raise WrongUsage(f"--hosts {text!r} names {len(nodes)} hosts; at most {MOST_HOSTS} can be asked")
    return tuple(str(node) for node in nodes)


def first_named(text: str) -> str:
    """The host that the user typed first; a set by itself is in the order of its numbers."""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            return expand(text[:index])[0]
    return expand(text)[0]


def local_among(hosts: tuple[str, ...]) -> str | None:
    """The name of this machine in the set, however it is spelt there."""
    own = socket.gethostname()
    names = {own, own.partition(".")[0], *_LOCAL}
    return next((host for host in hosts if host in names or host.partition(".")[0] == own), None)


@dataclass(frozen=True, slots=True)
class Via:
    """How a command gets to a host: the name of a transport and the user's own options for it."""

    name: str
    options: str = ""
    """For ``exec`` the whole template."""

    @property
    def words(self) -> str:
        """As the user typed it."""
        return f"exec:{self.options}" if self.name == "exec" else f"{self.name} {self.options}".rstrip()

    def command(self, script: str) -> str:
        """What the worker is to run so that a POSIX shell on the host runs ``script``.

        For ``ssh`` the far login shell reads it, which need not be a POSIX one; the other transports run a local
        command in which ``%h`` is the host (ClusterShell replaces it) and the script is one quoted word.
        """
        word = shlex.quote(script)
        if self.name == "ssh":
            return f"sh -c {word}"
        word = word.replace("%", "%%")
        if self.name != "exec":
            return f"{_PREFIXES[self.name].format(options=self.options)} {word}"
        if "{command}" in self.options:
            return self.options.replace("{command}", word)
        return f"{self.options} {word}"


def parse_via(text: str) -> Via:
    """``ssh``, ``ssh -p 2222``, ``kubectl -n prod -c main``, ``exec:TEMPLATE``. Raises WrongUsage."""
    name, separator, template = text.partition(":")
    if name == "exec" and separator:
        if not template.strip():
            raise WrongUsage("--via exec: needs a template", hint="--via 'exec:ssh %h'")
        if "%hosts" in template or "%{hosts}" in template:
            raise WrongUsage(
                "--via exec: must say %h, not %hosts: each host is asked by itself",
                hint=f"--via 'exec:{template.replace('%hosts', '%h')}'",
            )
        return Via("exec", template.strip())
    word, _, options = text.strip().partition(" ")
    if word not in TRANSPORTS or word == "exec":
        raise WrongUsage(f"--via {text!r} is not known", hint="ssh, srun, kubectl, docker or exec:TEMPLATE")
    return Via(word, options.strip())
