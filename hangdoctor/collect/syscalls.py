"""The system call a thread sits in, from ``/proc/PID/task/TID/syscall``, with its pointers followed.

The line is ``nr a0 a1 a2 a3 a4 a5 sp pc``, ``running``, or ``-1 sp pc`` for a thread that blocks outside
a call. Nothing here opens a file of the target: asking the file system a target waits for could hang us
with it.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from hangdoctor.collect import memory
from hangdoctor.collect.syscall_decoders import DECODERS, Call
from hangdoctor.collect.syscall_names import NAMES
from hangdoctor.collect.wchan import describe_wchan, name_device
from hangdoctor.model import Socket, Syscall

__all__ = ["decode_syscall", "describe_wchan"]


def decode_syscall(
    pid: int,
    line: str,
    *,
    can_read_memory: bool = True,
    wchan: str | None = None,
    sockets: Sequence[Socket] = (),
    pages: memory.Memory | None = None,
) -> Syscall | None:
    """One line of ``/proc/PID/task/TID/syscall`` as a :class:`Syscall`; ``None`` for a line that is none.

    ``can_read_memory=False`` (no attach permission) leaves times and names behind pointers out. ``wchan``
    tells which call a ``restart_syscall`` stands for: after any stop (a signal, an earlier debugger) the
    kernel resumes poll, futex and nanosleep under that name, with the arguments kept. ``sockets`` are
    those of the process. With ``pages``, its memory is read through them, each page once.

    Cost: 13-40 us with one pointer, 5 less where its page has been read. Never raises.
    """
    words = line.split()
    if words[:1] == ["running"]:
        return Syscall("running")
    try:
        number, args = int(words[0]), tuple([int(word, 16) for word in words[1:7]])
    except (IndexError, ValueError):
        return None
    if number < 0:
        phrase = describe_wchan(wchan)
        return Syscall("page-fault", detail=f"waits for {phrase}" if phrase else None)
    if len(args) < 6:
        return None
    name = _names().get(number, f"syscall {number}")
    call = Call(pid, name, args, can_read_memory, sockets, pages)
    if name == "restart_syscall":
        return _decode_restarted(call, wchan)
    decoded = _decode(call)
    device = name_device(wchan)
    if device is None:
        return decoded
    return replace(decoded, detail=f"{decoded.detail or name}; in the kernel it waits for {device}")


def list_futexes(lines: Iterable[str]) -> set[int]:
    """Addresses of the words that the futex calls among these lines are about, and of their time limits."""
    numbers = {str(number) for number, name in _names().items() if name == "futex"}
    found: set[int] = set()
    for line in lines:
        words = line.split(None, 5)
        if len(words) > 5 and words[0] in numbers:
            with suppress(ValueError):
                found.update((int(words[1], 16), int(words[4], 16)))
    return found - {0}


def _names() -> Mapping[int, str]:
    return NAMES.get(platform.machine(), {})


def _decode(call: Call) -> Syscall:
    decoder = DECODERS.get(call.name)
    return decoder(call) if decoder else Syscall(call.name, call.args)


def _decode_restarted(call: Call, wchan: str | None) -> Syscall:
    resumed = _name_restarted(call.args, wchan)
    if resumed is None:
        return Syscall(call.name, call.args, detail="resumed after a signal or a debugger's stop")
    decoded = _decode(call._replace(name=resumed))
    return replace(decoded, detail=f"{decoded.detail or resumed}; resumed after a stop")


_RESUMED_SLEEP = (
    "hrtimer_nanosleep",
    "do_nanosleep",
    "common_nsleep",
    # The functions of a resumed sleep are all marked __sched, which wchan skips: it shows the entry code
    # (do_syscall_64 on 6.18). A resumed poll or futex never does.
    "do_syscall_64",
    "x64_sys_call",
    "x64_sys_restart_syscall",
    "invoke_syscall",
    "el0_svc",
    "arm64_sys_restart_syscall",
)


def _name_restarted(args: tuple[int, ...], wchan: str | None) -> str | None:
    """Only these calls are resumed by ``restart_syscall`` (they set ``restart_block.fn`` in the kernel)."""
    name = (wchan or "").lstrip("_")
    if name.startswith(("poll_schedule_timeout", "do_poll", "do_sys_poll")):
        return "poll"
    if name.startswith("futex"):
        return "futex"
    if name.startswith(_RESUMED_SLEEP):
        # clock_nanosleep begins with a clock id and flags, nanosleep with a pointer.
        return "clock_nanosleep" if args[0] < memory.PAGE else "nanosleep"
    return None
