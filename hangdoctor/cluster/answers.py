"""What came back from one host, and the sentence for each way in which nothing can come back."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoctor.model import Gap

SOURCE = "cluster"
_NO_PYTHON = "no Python from 3.10 on was found"


@dataclass(frozen=True, slots=True)
class Clock:
    """A host's clock against ours: ``offset_s`` is how far it is ahead, known to within ``uncertainty_s``."""

    offset_s: float
    uncertainty_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What one host sent. ``trouble`` says why its ``output`` is not what was asked for."""

    host: str
    output: bytes = b""
    exit_code: int | None = None
    said: tuple[str, ...] = ()
    """What the program there said on its standard error."""
    clock: Clock | None = None
    start_at: float | None = None
    """The agreed beginning, Unix time by our clock."""
    trouble: Gap | None = None


def trouble(host: str, reason: str, remedy: str | None = None) -> Gap:
    """A gap about one host."""
    return Gap(SOURCE, f"host {host}", reason, remedy)


_KNOWN = (
    # What ssh, kubectl, docker and srun write on standard error; the first that fits decides.
    (r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED",
     "ssh does not know its host key", "ssh-keyscan {host} >> ~/.ssh/known_hosts, after comparing the key"),
    (r"Permission denied \((?:publickey|password|keyboard|gssapi|hostbased)[^)]*\)",
     "it refused the login", "ssh-copy-id {host}; ssh-add -l shows which keys are offered"),
    (r"[Cc]ould not resolve hostname|Name or service not known|Temporary failure in name resolution",
     "its name is not known", "getent hosts {host}; is it spelt as in --hosts?"),
    (r"Connection refused", "nobody listens on its ssh port", "ssh {host} true; systemctl status sshd on its console"),
    (r"No route to host|Network is unreachable|Connection timed out|Operation timed out",
     "it cannot be reached", "ping {host}; its console: is it up?"),
    (r"Connection (?:closed|reset) by|kex_exchange_identification",
     "it closed the connection before the login", "ssh -v {host} true; sshd's MaxStartups or AllowUsers may be why"),
    (r"Error from server \(NotFound\)|No such container|container not found",
     "there is no such container", "kubectl get pods -o wide; docker ps"),
    (r"Error from server \(Forbidden\)", "kubectl may not exec there", "kubectl auth can-i create pods/exec"),
    (r"is not running", "its container does not run", "docker ps -a; kubectl describe pod {host}"),
    (r"[Ii]nvalid node name|node configuration is not available|[Uu]nable to create step|Invalid job id|allocation",
     "Slurm starts no step there", "inside the job's allocation, or: --via 'srun --jobid=JOB'; squeue -o '%i %N'"),
    (r"exec: .*: (?:Permission denied|not found)|: command not found: python|python\S*: Permission denied",
     "the Python named by --remote-python cannot be run there", "ssh {host} ls -l that file; as which user?"),
    (r"command not found|: not found|No such file or directory",
     "a program for the connection is missing", "hangdoctor check --hosts {host} --via …; which ssh kubectl srun"),
)  # fmt: skip
_OWN = re.compile(r"^hangdoctor: (.*)")
_HINT = re.compile(r"^\s+(?:→|->) (.*)")


def explain_exit(host: str, exit_code: int | None, noise: list[str], said: list[str]) -> Gap:
    """Why a connection or the program at its end ended without an answer."""
    text = "\n".join(noise)
    if _NO_PYTHON in text:
        remedy = "name one with --remote-python; it need not have hangdoctor, but must be 3.10 or newer"
        return trouble(host, _NO_PYTHON, remedy)
    own = _own_words(said)
    if own is not None:
        return trouble(host, *own)
    for pattern, reason, remedy in _KNOWN:
        found = re.search(pattern, text)
        if found is not None:
            last = next((line for line in reversed(noise) if re.search(pattern, line)), found[0])
            return trouble(host, f"{reason} ({last.strip()[:160]})", remedy.format(host=host))
    if exit_code == 124:
        return trouble(
            host, "its time was over before its capture was complete", "--host-timeout S gives it more"
        )
    last = next((line for line in reversed([*noise, *said]) if line.strip()), "it said nothing")
    return trouble(
        host,
        f"the connection ended without an answer: {last.strip()[:200]}",
        f"try it: hangdoctor check --hosts {host}",
    )


def _own_words(said: list[str]) -> tuple[str, str | None] | None:
    """The message, which may have several lines, and the hint of a hangdoctor that could not help."""
    for index, line in enumerate(said):
        found = _OWN.match(line)
        if found is None:
            continue
        message, hint = [found[1]], None
        for other in said[index + 1 :]:
            match = _HINT.match(other)
            if match is not None:
                hint = match[1]
                break
            message.append(other.strip())
        return "; ".join(part for part in message if part).replace(":;", ":"), hint
    return None


def explain_silence(host: str, seconds: float, *, has_answered: bool) -> Gap:
    """It is connected, or is being connected, and says nothing."""
    if has_answered:
        reason = f"it was not ready within {seconds:.0f} s; the others were looked at without it"
        return trouble(host, reason, f"look at it alone: hangdoctor attach --hosts {host}; uptime there")
    return trouble(
        host,
        f"it did not answer within {seconds:.0f} s",
        f"ssh {host} true; its console: does the machine still run?",
    )
