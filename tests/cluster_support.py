"""Three hosts on one machine: network, PID and host-name namespaces with a real sshd each, and a job across them.

    with three_hosts() as hosts:
        with six_ranks([hosts.inside(node) for node in NODES], ADDRESS, "eth0", NODES) as job:
            job.suffer("sleep", 3); hosts.hangdoctor("attach", "--hosts", "node[1-3]", …)

Nothing of it is visible outside its own namespaces: the bridge lies in one of its own, from which hangdoctor is run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.jobs import MARK, PROGRAMS, RUN, command_ranks, fifos_of_ranks, hear_ranks, kill_marked

ROOT = Path(__file__).parent.parent
NET = "10.77.0"
NET6 = "fd77"
NODES = ("node1", "node2", "node3")
SSH_PORT, NOBODY_PORT, SILENT_PORT = 22, 2222, 2299
NOBODY = 65534
DEADLINE_S = 60.0

has_cluster_shell = find_spec("ClusterShell") is not None


def why_not() -> str | None:
    """What this machine lacks for hosts of namespaces; ``None`` when it can have them."""
    if os.geteuid() != 0:
        return "not root: no namespaces, so --hosts over a real sshd was not tested"
    for program in ("ip", "unshare", "nsenter", "ssh", "ssh-keygen", "setpriv"):
        if shutil.which(program) is None:
            return f"{program} is not installed: --hosts over a real sshd was not tested"
    if not Path("/usr/sbin/sshd").exists():
        return "sshd is not installed: --hosts over a real sshd was not tested"
    name = f"hd{os.getpid()}t"
    probe = (
        f"ip netns add {name} && ip -n {name} link add b0 type bridge && "
        f"ip -n {name} link add v0 type veth peer name v1"
        f" && ip netns exec {name} unshare --uts --pid --mount --fork --mount-proc true"
    )
    done = subprocess.run(["sh", "-c", probe], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    if done.returncode:
        return f"namespaces are not allowed here ({done.stderr.strip()}): --hosts over a real sshd was not tested"
    return None


@dataclass
class Hosts:
    """The running hosts, and the folder with their keys and settings."""

    folder: Path
    prefix: str
    anchors: dict[str, int]
    """Name of a node to the pid of its first process, seen from here."""
    _silent: subprocess.Popen[bytes] | None = None

    def inside(self, node: str) -> list[str]:
        """A command's beginning that runs it on a node."""
        return ["nsenter", "-t", str(self.anchors[node]), "--net", "--uts", "--pid", "--mount"]

    @property
    def via(self) -> str:
        """For ``--via``."""
        return f"ssh -F {self.folder}/ssh_config"

    def hangdoctor(
        self, *words: str, deadline_s: float = 120.0, python: str | None = sys.executable
    ) -> subprocess.CompletedProcess[str]:
        """Run hangdoctor where the hosts can be reached from."""
        extra = ["--remote-python", python] if python else []
        return subprocess.run(
            [*self.command(*words), "--via", self.via, *extra],
            capture_output=True,
            text=True,
            timeout=deadline_s,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )

    def command(self, *words: str) -> list[str]:
        """The command line alone."""
        return ["ip", "netns", "exec", f"{self.prefix}s", sys.executable, "-m", "hangdoctor", *words]

    def run(self, node: str, *words: str) -> str:
        """What a command on a node prints."""
        return subprocess.run(
            [*self.inside(node), *words], capture_output=True, text=True, check=False, timeout=DEADLINE_S
        ).stdout


_SSHD = """\
Port {port}
Port {nobody_port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
MaxStartups 100
LogLevel ERROR
Match LocalPort {nobody_port}
  ForceCommand setpriv --reuid={nobody} --regid={nobody} --clear-groups sh -c "$SSH_ORIGINAL_COMMAND"
"""
_SSH_HOST = "Host {name}\n  HostName {address}\n  Port {port}\n"
_SSH_ALL = """\
Host *
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
"""
_SILENT = (
    "import socket, time; s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(('{address}', {port})); s.listen(); "
    "time.sleep(600)"
)


def _sh(script: str) -> None:
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script}\n{done.stderr}"


@contextmanager
def three_hosts() -> Iterator[Hosts]:
    """``node1`` to ``node3``; aliases: ``nobody1`` to ``nobody3`` log in without rights, ``gone`` is unreachable,
    ``closed`` refuses, ``silent`` accepts connections and says nothing."""
    prefix = f"hd{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="hd-hosts-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for key in ("key", "host_key"):
            _sh(f"ssh-keygen -q -t ed25519 -N '' -f {folder}/{key}")
        started: list[subprocess.Popen[bytes]] = []
        anchors: dict[str, int] = {}
        try:
            _sh(
                f"ip netns add {prefix}s; ip -n {prefix}s link set lo up; ip -n {prefix}s link add br0 type bridge"
            )
            _sh(
                f"ip -n {prefix}s addr add {NET}.254/24 dev br0; ip -n {prefix}s link set br0 up; mkdir -p /run/sshd"
            )
            for number, node in enumerate(NODES, 1):
                anchors[node] = _start_node(prefix, number, node, folder, started)
            silent = _SILENT.format(address=f"{NET}.254", port=SILENT_PORT)
            started.append(
                subprocess.Popen(["ip", "netns", "exec", f"{prefix}s", sys.executable, "-c", silent])
            )
            _write_ssh_config(folder)
            hosts = Hosts(folder, prefix, anchors)
            _wait_for_logins(hosts)
            yield hosts
        finally:
            for popen in started:
                _end(popen)
            for suffix in ("s", "1", "2", "3"):
                subprocess.run(["ip", "netns", "del", f"{prefix}{suffix}"], capture_output=True, check=False)


def _end(popen: subprocess.Popen[bytes]) -> None:
    """Ends the whole PID namespace with its first process."""
    with suppress(ProcessLookupError):
        os.killpg(popen.pid, signal.SIGKILL) if os.getpgid(popen.pid) == popen.pid else popen.kill()
    popen.wait()


def _start_node(
    prefix: str, number: int, node: str, folder: Path, started: list[subprocess.Popen[bytes]]
) -> int:
    ns, address = f"{prefix}{number}", f"{NET}.{number}"
    _sh(
        f"ip netns add {ns}; ip -n {ns} link set lo up;"
        f"ip -n {prefix}s link add v{number} type veth peer name eth0 netns {ns};"
        f"ip -n {prefix}s link set v{number} master br0; ip -n {prefix}s link set v{number} up;"
        f"ip -n {ns} addr add {address}/24 dev eth0; ip -n {ns} addr add {NET6}::{number}/64 dev eth0 nodad;"
        f"ip -n {ns} link set eth0 up;"
        f"ip -n {ns} route add default via {NET}.254"
    )
    config = folder / f"sshd_{node}"
    config.write_text(
        _SSHD.format(port=SSH_PORT, nobody_port=NOBODY_PORT, address=address, folder=folder, nobody=NOBODY)
    )
    # The shell stays the first process: it reaps what is orphaned, and says where it is seen from here.
    script = f"hostname {node}; /usr/sbin/sshd -D -e -f {config} & wait"
    popen = subprocess.Popen(
        ["ip", "netns", "exec", ns, "unshare", "--uts", "--pid", "--mount", "--fork", "--mount-proc",
         "--kill-child", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    started.append(popen)
    return _only_child(popen.pid)


def _only_child(pid: int) -> int:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if words:
            return int(words[0])
        time.sleep(0.01)
    raise AssertionError("the node's first process did not come up")


def _write_ssh_config(folder: Path) -> None:
    rows = [(node, f"{NET}.{number}", SSH_PORT) for number, node in enumerate(NODES, 1)]
    rows += [(f"nobody{number}", f"{NET}.{number}", NOBODY_PORT) for number in (1, 2, 3)]
    rows += [
        ("gone", f"{NET}.99", SSH_PORT),
        ("closed", f"{NET}.1", 4),
        ("silent", f"{NET}.254", SILENT_PORT),
    ]
    text = "".join(_SSH_HOST.format(name=name, address=address, port=port) for name, address, port in rows)
    (folder / "ssh_config").write_text(text + _SSH_ALL.format(folder=folder))


def _wait_for_logins(hosts: Hosts) -> None:
    deadline = time.monotonic() + DEADLINE_S
    for node in NODES:
        command = [
            "ip",
            "netns",
            "exec",
            f"{hosts.prefix}s",
            "ssh",
            "-F",
            str(hosts.folder / "ssh_config"),
            node,
            "hostname",
        ]
        while (
            done := subprocess.run(command, capture_output=True, text=True, check=False)
        ).stdout.strip() != node:
            assert time.monotonic() < deadline, f"no login on {node}: {done.stderr}"
            time.sleep(0.1)


# -- a job across hosts ------------------------------------------------------------------------------


@dataclass
class Across:
    """Six ranks of a gloo job, two a host, and how they are spoken to (programs/d_gloo_rank.py)."""

    world: int
    folder: Path
    said_fd: int
    pids: list[int] = field(default_factory=list)
    """By rank, as their own host numbers them."""
    address: str = ""

    def suffer(self, fault: str, culprit: int) -> None:
        """The culprit goes into the fault, the others into the collective, and they stay there."""
        command_ranks(self.folder, self.world, f"{fault} {culprit}")
        self.hear("placed")

    def hear(self, word: str) -> dict[int, str]:
        """What follows ``word`` in the lines of all ranks, once each has said it."""
        return hear_ranks(self.said_fd, word, self.world, self.folder / "log", DEADLINE_S)


@contextmanager
def six_ranks(
    prefixes: Sequence[Sequence[str]],
    address: str,
    interface: str,
    names: Sequence[str],
) -> Iterator[Across]:
    """Two ranks behind each prefix (what runs a command on that host); ``names`` end up in the command lines."""
    mark, world = f"{RUN}-{uuid.uuid4().hex}", 2 * len(prefixes)
    host, _, port = address.partition(":")
    common = {
        **os.environ,
        MARK: mark,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": interface,
        "PYTHONWARNINGS": "ignore",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }
    with (
        tempfile.TemporaryDirectory(prefix="hd-across-") as name,
        fifos_of_ranks(folder := Path(name), world) as said_fd,
    ):
        started = []
        try:
            with (folder / "log").open("wb") as log:
                for rank in range(world):
                    place = rank // 2
                    own = {
                        "RANK": str(rank),
                        "LOCAL_RANK": str(rank % 2),
                        "GROUP_RANK": str(place),
                        "GLOO_JOB": name,
                    }
                    program = [sys.executable, str(PROGRAMS / "d_gloo_rank.py"), names[place]]
                    started.append(
                        subprocess.Popen(
                            [*prefixes[place], *program],
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=log,
                            env={**common, **own},
                            start_new_session=True,
                        )
                    )
            job = Across(world, folder, said_fd, address=address)
            said = job.hear("pid")
            job.pids = [int(said[rank].split()[1]) for rank in range(world)]
            yield job
        finally:
            kill_marked(mark)
            for popen in started:
                popen.wait()


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON report on stdout."""
    assert done.stdout.startswith("{"), f"exit {done.returncode}\n{done.stdout[-500:]}\n{done.stderr[-2500:]}"
    return dict(json.loads(done.stdout))
