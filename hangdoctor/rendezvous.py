"""Where the ranks of a job meet, and which processes of this machine meet there.

The address (``10.0.0.1:29500``) is the one thing that all hosts of a job have in common: it stands in command lines
(SGLang, vLLM, torchrun), in the environment that launchers set, or at the other end of a connection to the store.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from hangdoctor.collect import deadline
from hangdoctor.collect.environ import EnvironResult, read_environ
from hangdoctor.collect.holders import scan_host
from hangdoctor.collect.listeners import read_tables
from hangdoctor.collect.sockets import MAPPED_V4
from hangdoctor.errors import WrongUsage

_WHOLE = ("--dist-init-addr", "--nccl-init-addr", "--rdzv-endpoint", "--rdzv_endpoint")
"""SGLang's, and torchrun's in both spellings: address and port in one."""
_ADDRESS = ("--master-addr", "--master_addr")
_PORT = ("--master-port", "--master_port")
_VARIABLES = frozenset(("MASTER_ADDR", "MASTER_PORT"))
_DEFAULT_PORT = "29500"
"""torchrun's and torch.distributed's."""
_HERE_ONLY = ("127.", "localhost", "[::1]", "::1", "0.0.0.0")
_ENVIRON_S = 1.0
_ALL_S = 4.0
_ESTABLISHED = b"01"


def split(text: str) -> tuple[str, int]:
    """``host:port`` in two. Raises WrongUsage."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise WrongUsage(
            f"--rendezvous {text!r} is no address with a port", hint="--rendezvous 10.0.0.1:29500"
        )
    return host.strip("[]"), int(port)


def meeting_of(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Where the process with this command line and environment meets its peers; ``None`` when it does not say."""
    words = command[0].split() if len(command) == 1 else list(command)
    options = _options(words)
    whole = next((options[name] for name in _WHOLE if ":" in options.get(name, "")), None)
    if whole is not None:
        return whole
    address = next((options[name] for name in _ADDRESS if name in options), None)
    port = next((options[name] for name in _PORT if name in options), None)
    if address is not None:
        return f"{address}:{port or _DEFAULT_PORT}"
    if "MASTER_ADDR" in environ:
        return f"{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT') or _DEFAULT_PORT}"
    return None


def is_shared(meeting: str) -> bool:
    """Whether other hosts could meet there: the loopback address is another place on each of them."""
    return not meeting.startswith(_HERE_ONLY)


def _options(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        name, separator, value = word.partition("=")
        if name.startswith("--"):
            found.setdefault(name, value if separator else words[index + 1] if index + 1 < len(words) else "")
    return found


def find_meeting(pids: Iterable[int], commands: Mapping[int, tuple[str, ...]]) -> str | None:
    """Where the job of these processes meets: what its first process that says so says."""
    order = list(pids)
    environs = read_variables(order)
    for pid in order:
        meeting = meeting_of(commands.get(pid, ()), environs.get(pid, {}))
        if meeting is not None and is_shared(meeting):
            return meeting
    return None


def find_meeting_pids(meeting: str, commands: Mapping[int, tuple[str, ...]]) -> list[int]:
    """Those of the processes in ``commands`` that meet at ``meeting``: by their own words, or connected to it."""
    host, port = split(meeting)
    addresses = _resolve(host)
    candidates = [pid for pid, command in commands.items() if command]
    environs = read_variables(candidates)
    found = set(find_connected(port, addresses, candidates))
    for pid in candidates:
        own = meeting_of(commands[pid], environs.get(pid, {}))
        if own is not None and _is_same(own, host, port, addresses):
            found.add(pid)
    return sorted(found)


def read_variables(pids: Sequence[int]) -> dict[int, Mapping[str, str]]:
    """The variables that say where a process meets its peers, of those that may be read."""
    found: dict[int, Mapping[str, str]] = {}
    answers = deadline.each(
        lambda pid: read_environ(pid, _VARIABLES.__contains__),
        list(pids),
        item_s=_ENVIRON_S,
        total_s=_ALL_S * deadline.patience(),
        width=deadline.reader_count(),
    )
    for pid, answer in answers:
        if isinstance(answer, EnvironResult):
            found[pid] = answer.variables
    return found


def _is_same(other: str, host: str, port: int, addresses: frozenset[str]) -> bool:
    """Names differ between hosts (short, long, an address), so addresses are compared where names are not equal."""
    other_host, _, other_port = other.rpartition(":")
    if other_port != str(port):
        return False
    name = other_host.strip("[]")
    return name == host or bool(_resolve(name) & addresses)


def _resolve(host: str) -> frozenset[str]:
    """Its addresses; none for a name that is not known, or whose server does not answer."""
    answer = deadline.call(
        lambda: [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)], 2.0
    )
    return frozenset() if isinstance(answer, deadline.Trouble) else frozenset(answer)


def find_connected(port: int, addresses: frozenset[str], pids: Sequence[int]) -> list[int]:
    """Processes among ``pids`` with a connection to ``port`` of one of ``addresses``. Never raises."""
    ends = {end for address in addresses for end in _spellings(address, port)}
    inodes: set[int] = set()
    for table in read_tables(pids, "tcp", "tcp6"):
        inodes |= _connected(table, ends)
    if not inodes:
        return []
    wanted = set(pids)
    return sorted({held.pid for held in scan_host(inodes).held} & wanted)


def _connected(table: bytes, ends: Collection[bytes]) -> set[int]:
    """Inodes of ``/proc/net/tcp`` or ``tcp6`` with one of these far ends."""
    found = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _ESTABLISHED and fields[2] in ends:
            found.add(int(fields[9]))
    return found


def _spellings(address: str, port: int) -> Iterator[bytes]:
    """``10.0.0.1`` and ``fd00::1`` as the kernel prints them: words in host order.

    torch's store (2.13, libuv) talks through IPv6 sockets to IPv4 addresses, too: those stand in ``tcp6`` as
    ``::ffff:10.0.0.1``.
    """
    try:
        whole = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return
    words = "".join(f"{word:08X}" for word in struct.unpack(f"={len(whole.packed) // 4}I", whole.packed))
    yield f"{words}:{port:04X}".encode()
    if whole.version == 4:
        yield f"{MAPPED_V4}{words}:{port:04X}".encode()
