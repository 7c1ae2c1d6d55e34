"""Which processes belong to the target: from any one of them up to the root of the job, then down to all of it.

A root must be justified: it is the entry point of a known server or launcher, or the topmost Python process that still
belongs to the same job. Wrappers (``sh -c``, ``timeout``, ``numactl``, ``tini``) are walked through; what outlives jobs
(login shells, sshd, tmux, init systems, container shims, test runners) is never entered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoctor import rendezvous
from hangdoctor.collect import deadline, processes, procfs
from hangdoctor.collect.listeners import find_listeners
from hangdoctor.collect.procfs import Stat
from hangdoctor.collect.tree import Member, Tree, is_own, own_ancestors
from hangdoctor.errors import NotPermitted, TargetNotFound, WrongUsage
from hangdoctor.knowledge import Knowledge
from hangdoctor.knowledge.catalogue import RoleKind, RoleMatch
from hangdoctor.model import Process

COMMAND_S = 1.0
COMMANDS_S = 5.0
MAX_LISTED = 12

_OUTLIVES_JOBS = re.compile(
    r"(systemd|init|sshd.*|tmux.*|screen|login|su|sudo|cron|crond|atd|supervisord|runsvdir|s6-svscan|kubelet|dockerd"
    r"|containerd.*|conmon|crio|runc|pause|slurmd|jupyter.*|code-server|node|gdb)$",
    re.IGNORECASE,
)
_SHELL = re.compile(r"-?(sh|bash|dash|zsh|ash|fish|ksh)$")
_INTERACTIVE_FLAGS = frozenset(("-l", "-i", "-li", "-il", "--login", "-", "-s"))
_TEST_RUNNER = re.compile(r"(^|[/ ])(pytest|py\.test|tox|nox)( |$)|-m (pytest|unittest)\b")
_MULTIPROCESSING = re.compile(r"from multiprocessing[. ]")
_SUPPORT = frozenset(("build", "launch", "python", "torch"))
"""Knowledge files whose roles occur below any server and name none."""
_LOOKS_TOO = re.compile(r"(?:^|[/ ])hangdoctor(?:-\w+)? (?:attach|collect|watch)\b")  # for the same pattern
_NO_SECRETS = re.compile(r"^[\w./:@+-]+$")


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for: one of the four, or nothing at all (the only server there is)."""

    pid: int | None = None
    name: str | None = None
    """Regular expression over command lines and titles."""
    port: int | None = None
    rendezvous: str | None = None
    """``host:port`` at which the ranks of the job meet."""
    is_of_many: bool = False
    """The job is looked at on other hosts too: all that meets at its address belongs to it, whoever started it."""

    @property
    def words(self) -> str:
        """As the user would recognise it."""
        if self.pid is not None:
            return f"pid {self.pid}"
        if self.rendezvous is not None:
            return f"--rendezvous {self.rendezvous}"
        if self.name is not None:
            return f"--name {self.name}"
        return f"--port {self.port}" if self.port is not None else "the only server on this machine"


def find_tree(request: Request, knowledge: Knowledge) -> Tree:
    """The job that ``request`` means. Raises :class:`TargetNotFound`, :class:`NotPermitted`, :class:`WrongUsage`."""
    targets = (request.pid, request.name, request.port, request.rendezvous)
    if sum(value is not None for value in targets) > 1:
        raise WrongUsage("give a pid, --name, --port or --rendezvous, but only one of them")
    host = _Host(procfs.read_table(), knowledge)
    meeting = request.rendezvous
    if meeting is not None:
        roots = _meeting(meeting, host)
    else:
        roots = _find_roots(request, host)
        inside = procfs.descend(host.table, roots)
        meeting = host.meeting_of(inside) if request.is_of_many else None
        roots += [root for root in _meeting(meeting, host) if root not in inside] if meeting else []
    asked = _check_pid(request.pid, host) if request.pid is not None else None
    return replace(host.grow_tree(roots, request.words, asked), meeting=meeting)


def _find_roots(request: Request, host: _Host) -> list[int]:
    if request.pid is not None:
        pid = _check_pid(request.pid, host)
        root = host.find_root(pid)
        _check_zombie(pid, root, host)
        return [root]
    if request.name is not None:
        roots = host.find_roots(_match_name(request.name, host))
        is_one_job = len(roots) > 1 and request.is_of_many and host.meet_together(roots)
        return roots if is_one_job else [_only(roots, request, host)]
    if request.port is not None:
        found = deadline.call(lambda: find_listeners(request.port or 0, list(host.table)), COMMANDS_S)
        roots = host.find_roots([] if isinstance(found, deadline.Trouble) else found)
        return [_only(roots, request, host)]
    return [_only(host.find_servers(), request, host)]


class _Host:
    """The processes of this machine at one moment, with the command lines that were needed so far."""

    def __init__(
        self,
        table: Mapping[int, Stat],
        knowledge: Knowledge,
        commands: Mapping[int, tuple[str, ...]] | None = None,
    ) -> None:
        self.table = {pid: stat for pid, stat in table.items() if not is_own(stat)}
        self._knowledge = knowledge
        self._commands = dict(commands or {})

    def read_commands(self, pids: Iterable[int]) -> None:
        """Reads command lines behind a deadline; one that blocks or is refused counts as empty."""
        missing = [pid for pid in pids if pid in self.table and pid not in self._commands]
        for pid, command in deadline.each(
            procfs.read_command, missing, item_s=COMMAND_S, total_s=COMMANDS_S * deadline.patience()
        ):
            self._commands[pid] = () if isinstance(command, deadline.Trouble) else command

    def process(self, pid: int) -> Process:
        """What is known of a process without touching it again."""
        self.read_commands((pid,))
        return processes.overlay(
            processes.from_stat(self.table[pid]), Process(pid, command=self._commands.get(pid, ()))
        )

    def line(self, pid: int) -> str:
        """Command line or title in one line; comm in brackets where there is none."""
        return " ".join(self.process(pid).command).strip() or f"[{self.table[pid].comm}]"

    def role(self, pid: int) -> RoleMatch | None:
        return self._knowledge.find_role(self.process(pid), None)

    def is_boundary(self, pid: int) -> bool:
        """Whether a process outlives jobs, so that nothing above it, or it itself, belongs to one."""
        stat = self.table[pid]
        if stat.is_kernel_thread or _OUTLIVES_JOBS.match(stat.comm):
            return True
        command = self.process(pid).command
        if _TEST_RUNNER.search(" ".join(command)):
            return True
        is_shell = bool(_SHELL.match(stat.comm))
        return is_shell and all(argument in _INTERACTIVE_FLAGS for argument in command[1:])

    def is_python(self, pid: int) -> bool:
        command = self.process(pid).command
        program = command[0].rpartition("/")[2] if command else ""
        return "python" in program or "python" in self.table[pid].comm

    def is_entry(self, pid: int) -> bool:
        """Whether a process was started as a known server or launcher, not by one."""
        role = self.role(pid)
        if role is None or _MULTIPROCESSING.search(self.line(pid)):
            return False
        if role.role.id in ("launch.mpirun", "ray.daemon"):
            return True
        if role.role.kind in (RoleKind.HELPER, RoleKind.COMPILER) or role.role.server in _SUPPORT:
            return False
        return role.source == "command line"

    def is_server_part(self, pid: int) -> bool:
        """Whether a process by itself names a server: by a title, or as its entry point."""
        role = self.role(pid)
        if role is None or role.role.server in _SUPPORT or role.role.kind is RoleKind.HELPER:
            return False
        return role.source == "title" or self.is_entry(pid)

    def ancestors(self, pid: int) -> list[int]:
        """``pid`` and its ancestors, up to but without the first that outlives jobs."""
        chain = [pid]
        while (parent := self.table[chain[-1]].ppid) in self.table and parent not in chain:
            if self.is_boundary(parent):
                break
            chain.append(parent)
        return chain

    def find_root(self, pid: int) -> int:
        """The root of the job that ``pid`` is part of; itself when nothing above it is justified."""
        chain = self.ancestors(pid)
        entries = [candidate for candidate in chain if self.is_entry(candidate)]
        if entries:
            return entries[-1]
        root, last = pid, pid
        for candidate in chain[1:]:
            if not self._is_same_job(last, candidate):
                break
            last = candidate
            if self.is_python(candidate) or self.is_server_part(candidate):
                root = candidate
        return root

    def _is_same_job(self, child: int, parent: int) -> bool:
        """Shells give every job its own process group; ninja gives one to every command, in the same session."""
        one, other = self.table[child], self.table[parent]
        return one.group == other.group or one.session == other.session

    def find_roots(self, pids: Iterable[int]) -> list[int]:
        """The roots of several processes, each once, in the order of their age."""
        roots = {self.find_root(pid) for pid in pids if pid in self.table}
        return sorted(roots, key=lambda pid: (self.table[pid].start_ticks, pid))

    def find_servers(self) -> list[int]:
        """The roots of all known servers on this machine."""
        self.read_commands(self.table)
        return self.find_roots(pid for pid in self.table if self._is_alive(pid) and self.is_server_part(pid))

    def _is_alive(self, pid: int) -> bool:
        return self.table[pid].state not in "ZX"

    def find_meeting_pids(self, address: str) -> list[int]:
        self.read_commands(self.table)
        return rendezvous.find_meeting_pids(address, self._commands)

    def meeting_of(self, pids: Sequence[int]) -> str | None:
        """Where the job of some processes meets, if another host could meet there, too."""
        self.read_commands(pids)
        return rendezvous.find_meeting(pids, self._commands)

    def meet_together(self, roots: Sequence[int]) -> bool:
        """Whether several roots may be one job: ranks that were started one by one. (None: it may not be read.)"""
        meetings = {self.meeting_of(procfs.descend(self.table, [root])) for root in roots} - {None}
        return len(meetings) < 2 and sum(map(self.is_server_part, roots)) != 1

    def grow_tree(self, roots: Sequence[int], asked: str, asked_pid: int | None) -> Tree:
        """The roots and all their descendants, and the orphans that were part of the first."""
        root = roots[0]
        pids = procfs.descend(self.table, roots)
        orphans = [pid for pid in set(self.table).difference(pids) if self._is_orphan_of(pid, root)]
        pids = procfs.descend(self.table, [*pids, *sorted(orphans)])
        self.read_commands(pids)
        named = [self.process(pid) for pid in pids if not _MULTIPROCESSING.search(self.line(pid))]
        server = self._knowledge.find_server(named)
        return Tree(
            root=root,
            asked=asked,
            members=tuple(Member(pid, self.table[pid].start_ticks) for pid in pids),
            server=None if server in _SUPPORT else server,
            asked_pid=asked_pid if asked_pid is not None else root,
        )

    def _is_adopted(self, stat: Stat) -> bool:
        """By init, or by what stands in for it (systemd --user, a container shim); not the child of a shell."""
        if stat.ppid in (0, 1) or stat.ppid not in self.table:
            return True
        return self.is_boundary(stat.ppid) and not _SHELL.match(self.table[stat.ppid].comm)

    def _is_orphan_of(self, pid: int, root: int) -> bool:
        """Workers of a dead engine core are re-parented to init within milliseconds; their session stays.

        One that is older than the entry point is left from an earlier run in the same terminal.
        """
        stat, top = self.table[pid], self.table[root]
        if stat.session != top.session or stat.is_kernel_thread:
            return False
        if not self._is_adopted(stat) or not self.is_server_part(pid) or self.is_entry(pid):
            return False
        return stat.start_ticks >= top.start_ticks or not self.is_entry(root)


def _check_pid(pid: int, host: _Host) -> int:
    """The process that a pid or thread id means. Raises when there is none to look at."""
    if pid == os.getpid():
        raise WrongUsage("that is hangdoctor itself")
    try:
        stat = procfs.read_stat(pid) if pid > 0 else None
    except PermissionError as error:
        raise NotPermitted(
            f"pid {pid} exists, but /proc shows nothing of it (hidepid)",
            hint=f'sudo env "PATH=$PATH" hangdoctor attach {pid}',
        ) from error
    if stat is None:
        raise _not_found(pid, host)
    if stat.is_kernel_thread:
        raise TargetNotFound(
            f"pid {pid} is a kernel thread ({stat.comm}), not a program",
            hint="As root, `cat /proc/PID/stack` shows what it does. " + _suggest(host),
        )
    status = procfs.read_status(pid)
    owner = status.tgid if status is not None and status.tgid else pid
    if owner not in host.table:
        raise _not_found(pid, host)
    return owner


def _check_zombie(pid: int, root: int, host: _Host) -> None:
    """A zombie with a living job around it is evidence; alone it is nothing to look at."""
    stat = host.table[pid]
    if root != pid or stat.state not in "ZX" or stat.thread_count > 1:
        return
    code = processes.from_stat(stat).exit_code
    how = (
        ""
        if code is None
        else f" ({'killed by signal ' + str(-code) if code < 0 else 'exit code ' + str(code)})"
    )
    parent = stat.ppid
    shown = f"pid {parent} ({host.table[parent].comm})" if parent in host.table else f"pid {parent}"
    raise TargetNotFound(
        f"pid {pid} ({stat.comm}) is a zombie: it has ended{how}, and its parent {shown} has not reaped it",
        hint=f"Look at the parent: hangdoctor attach {parent}",
    )


def _not_found(pid: int, host: _Host) -> TargetNotFound | NotPermitted:
    try:
        os.kill(pid, 0)  # signal 0 only asks whether it exists
    except PermissionError:
        return NotPermitted(
            f"pid {pid} exists, but /proc hides it from you (hidepid)",
            hint=f'sudo env "PATH=$PATH" hangdoctor attach {pid}',
        )
    except (OSError, OverflowError):
        pass
    inner = [other for other in host.table if _is_inner_pid(other, pid)]
    if inner:
        listed = "\n".join(_describe(other, host) for other in inner[:MAX_LISTED])
        return TargetNotFound(
            f"no process {pid} here; inside a container it is\n{listed}",
            hint=f"hangdoctor attach {inner[0]}",
        )
    return TargetNotFound(f"no process {pid}: it has ended, or never was", hint=_suggest(host))


def _is_inner_pid(pid: int, asked: int) -> bool:
    status = procfs.read_status(pid)
    return status is not None and len(status.ns_pids) > 1 and status.ns_pids[-1] == asked


def _meeting(address: str, host: _Host) -> list[int]:
    """The roots of the job that meets at an address; there may be several: ranks that were started one by one."""
    roots = host.find_roots(set(host.find_meeting_pids(address)) - own_ancestors())
    if not roots:
        raise TargetNotFound(
            f"no process here meets at {address}, or its environment may not be read",
            hint="Started as another user? Look as root. " + _suggest(host),
        )
    return roots


def _match_name(pattern: str, host: _Host) -> list[int]:
    """Processes whose command line fits; not those above ourselves, whose command line holds the pattern too."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise WrongUsage(f"--name {pattern!r} is no regular expression: {error}") from error
    host.read_commands(host.table)
    above = own_ancestors()
    return [
        pid
        for pid, stat in host.table.items()
        if pid not in above
        and not stat.is_kernel_thread
        and expression.search(line := host.line(pid))
        and not _LOOKS_TOO.search(line)
    ]


def _only(roots: Sequence[int], request: Request, host: _Host) -> int:
    servers = [pid for pid in roots if host.is_server_part(pid)]
    if len(roots) == 1 or len(servers) == 1:
        # An editor or `tail -f` that fits the name too is not what anybody means.
        return (servers or roots)[0]
    if roots:
        listed = "\n".join(_describe(pid, host) for pid in roots[:MAX_LISTED])
        more = f"\n  … and {len(roots) - MAX_LISTED} more" if len(roots) > MAX_LISTED else ""
        raise TargetNotFound(
            f"{len(roots)} jobs fit {request.words}; say which one:\n{listed}{more}",
            hint=f"hangdoctor attach {roots[0]}",
        )
    if request.port is not None:
        message = f"nobody listens on port {request.port}, or its owner may not be seen"
        raise TargetNotFound(message, hint="A server that still starts has no port yet. " + _suggest(host))
    if request.name is not None:
        raise TargetNotFound(f"no command line fits --name {request.name}", hint=_suggest(host))
    raise TargetNotFound("no known server runs here", hint="Give a pid: hangdoctor attach PID")


def _suggest(host: _Host) -> str:
    """What else there is to look at."""
    roots = host.find_servers()
    if not roots:
        return "No known server runs here. `ps -eo pid,etime,args --sort=-rss | head` shows the largest processes."
    return "Running here:\n" + "\n".join(_describe(pid, host) for pid in roots[:MAX_LISTED])


def _describe(pid: int, host: _Host) -> str:
    """``  4711  vllm  vllm serve some/model``: without options, whose values may be secrets."""
    role = host.role(pid)
    words: list[str] = []
    for word in host.process(pid).command or (f"[{host.table[pid].comm}]",):
        if word.startswith("--") or (words and not _NO_SECRETS.match(word)):
            break
        words.append(word)
    server = role.role.server if role is not None and role.role.server not in _SUPPORT else "-"
    return f"  {pid:>7}  {server}  {' '.join(words)[:100]}"
