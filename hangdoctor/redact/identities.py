"""Who and where, renamed: ``alice`` is ``user-1`` and ``gpu-a07.corp`` is ``host-2`` in every text of a capture."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping

from hangdoctor.model import Host, Snapshot

_HOME = re.compile(r"(?P<head>/(?:home|Users|export/home|mnt/home|nfs/home)/)(?P<user>[^/\s:\"',;)]+)")
_USER_AT = re.compile(
    r"\b(?P<user>[a-z_][a-z0-9_.-]{1,31})@(?:(?P<host>[a-z0-9][a-z0-9-]*(?:\.[a-z0-9-]+)*\.[a-z]{2,})\b|(?=[A-Za-z0-9\[]))"
)
_USER_IS = re.compile(r"\b(?P<head>(?:USER|LOGNAME|SUDO_USER|username)=)(?P<user>[a-z_][\w.-]{1,31})")
_URL_HOST = re.compile(r"(?P<head>://(?:[^/@\s]*@)?)(?P<host>[A-Za-z0-9][\w.-]*[A-Za-z])(?=[:/?#\s\"',)]|$)")
# Not ".local": `threading.local` is no host.
_QUALIFIED = re.compile(
    r"\b(?:[a-z0-9][a-z0-9-]{0,62}\.)+(?:internal|cluster\.local|lan|corp|svc|in-addr\.arpa)\b"
    r"|\bip-(?:\d{1,3}-){3}\d{1,3}\b"  # EC2 names hosts by their addresses
)
# `name.site.example:29500` in a log; a place in code (`a.b.py:12`) has a file's ending there.
_HOST_PORT = re.compile(
    r"(?<![\w./@-])(?P<host>(?:[a-z0-9][a-z0-9-]*\.){2,}(?!(?:py|pyx|cc?|cpp|cu|cuh|h|hpp|rs|go|so|js|ts|sh)\b)[a-z]{2,})(?=:\d{2,5}\b)"
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)")
_IPV6 = re.compile(
    r"(?<![\w:.])\[?(?P<address>[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})(?P<zone>%\w+)?\]?(?![\w:])"
)
_HOST_VARIABLES = frozenset(("MASTER_ADDR", "HOSTNAME", "SLURMD_NODENAME", "RAY_ADDRESS", "NODE_NAME"))
_HOST_LISTS = frozenset(("SLURM_NODELIST", "SLURM_JOB_NODELIST", "no_proxy", "NO_PROXY"))
_LOCAL = frozenset(("localhost", "localhost.localdomain", "ip6-localhost"))
# Accounts of images and systems: they name nobody, and their names are words of paths and modules.
_NOBODY = frozenset(
    ("root", "user", "users", "app", "ubuntu", "nobody", "vllm", "sglang", "ray", "python", "torch", "nvidia", "shared",
     "runner", "jovyan", "default", "admin", "test", "data", "models", "cache", "git", "none", "null", "true", "false",
     "model", "worker", "server", "engine", "scheduler", "work", "workspace", "build", "deploy", "service", "container",
     "inference", "train", "training", "project", "projects", "code", "src", "venv", "conda", "python3", "lib", "local")
)  # fmt: skip
_LONG = 5
"""From that many letters on a name is sought within words, too (``alice1-loader``); ``vm`` is in too many."""
_NUMBERED = re.compile(r"(?P<stem>[A-Za-z][\w-]*?)\d+")
_PUBLIC = re.compile(
    r"(?:^|\.)(?:pytorch\.org|github\.com|huggingface\.co|nvidia\.com|python\.org|vllm\.ai|sglang\.ai)$"
)


class Pseudonyms:
    """A visitor that renames users, hosts and addresses, always in the same way. Learn first, then rename."""

    def __init__(self) -> None:
        self._users: dict[str, str] = {}
        self._hosts: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._domains: set[str] = set()
        self._words: re.Pattern[str] | None = None
        self._done: dict[str, str] = {}

    def learn_hosts(self, hosts: Iterable[Host]) -> None:
        """Take note of the machines that a capture was taken on, also of one without looks so far."""
        for host in hosts:
            self._host(host.name)

    def learn(self, snapshot: Snapshot) -> None:
        """Take note of the names of hosts and users, so that they are recognised in free text."""
        for process in snapshot.processes:
            if process.host:
                self._host(process.host)
            for text in (*process.command, process.cwd or "", process.exe or ""):
                for match in _HOME.finditer(text):
                    self._user(match["user"])
            for name, value in (process.environ or {}).items():
                if name in _HOST_VARIABLES and not _is_address(value):
                    self._host(value.partition(":")[0])
                for match in _HOME.finditer(value):
                    self._user(match["user"])

    # -- visitor ----------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Any text."""
        done = self._done.get(text)
        if done is None:
            done = self._done[text] = self._rename(text)
        return done

    def version(self, text: str) -> str:
        """A version number is no address."""
        return text

    def command(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """An argument vector."""
        return tuple(map(self.text, command))

    def environ(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Variables; those that list hosts in a notation of their own are masked as a whole."""
        return {
            name: "***" if name in _HOST_LISTS and value else self.text(value)
            for name, value in environ.items()
        }

    def lines(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        """Log lines."""
        return tuple(map(self.text, lines))

    # -- renaming ---------------------------------------------------------------------------------

    def _rename(self, text: str) -> str:
        text = _HOME.sub(lambda m: m["head"] + self._user(m["user"]), text)
        text = _USER_IS.sub(lambda m: m["head"] + self._user(m["user"]), text)
        text = _USER_AT.sub(self._rename_login, text)
        text = _URL_HOST.sub(lambda m: m["head"] + self._host(m["host"]), text)
        if "." in text or "ip-" in text:
            text = _QUALIFIED.sub(lambda m: self._host(m[0]), text)
            text = _HOST_PORT.sub(lambda m: self._host(m["host"]), text)
        if self._words is None:
            self._words = self._known_words()
        text = self._words.sub(self._rename_word, text)
        if text.count(".") >= 3:
            text = _IPV4.sub(lambda m: self._address(m[0], m[0]), text)
        if text.count(":") >= 2:
            text = _IPV6.sub(lambda m: self._address(m[0], m["address"]), text)
        return text

    def _known_words(self) -> re.Pattern[str]:
        """Everything that is known to be a name, as one pattern: the longest first, for one may begin with another."""
        known = {*self._hosts, *self._users}
        long = _any_of(name for name in known if len(name) >= _LONG)
        short = _any_of(name for name in known if len(name) < _LONG)
        # `gpu-a[07-08]`, as Slurm and ClusterShell write it, names hosts as well as they do themselves.
        stems = _any_of({match["stem"] for name in self._hosts if (match := _NUMBERED.fullmatch(name))})
        return re.compile(
            rf"(?<![\w.-])(?P<under>(?:[A-Za-z0-9-]+\.)+{_any_of(self._domains)})(?![\w-])"
            rf"|(?<![\w-])(?P<set>{stems}\[[\d,-]+\])"
            rf"|(?<![A-Za-z0-9]){long}(?![A-Za-z0-9])|(?<![\w-]){short}(?![\w-])"
        )

    def _rename_word(self, match: re.Match[str]) -> str:
        if match["set"]:
            return "hosts-***"
        if match["under"] and match["under"] not in self._hosts:
            return self._host(match["under"])
        return self._hosts.get(match[0]) or self._users.get(match[0]) or match[0]

    def _rename_login(self, match: re.Match[str]) -> str:
        name = match["user"]
        user = self._users.get(name) or (name if re.fullmatch(r"git|user-\d+", name) else "user")
        if not match["host"] or _PUBLIC.search(match["host"]):
            return f"{user}@{match['host'] or ''}"
        self._domains.add(match["host"])
        return f"{user}@{self._new(self._hosts, match['host'], 'host')}"

    def _user(self, name: str) -> str:
        if name.lower() in _NOBODY or re.fullmatch(r"user-\d+|\*+", name):
            return name
        return self._new(self._users, name, "user")

    def _host(self, name: str) -> str:
        plain = name.lower()
        is_ours = re.fullmatch(r"(host|address)-\d+|\**", plain) is not None
        if is_ours or plain in _LOCAL | _NOBODY or _PUBLIC.search(plain) or _is_address(plain):
            return name  # addresses have a rule of their own
        if name not in self._hosts and "." in name:
            # gpu7.corp and gpu7 are one host, and gpu8.corp is another one.
            if "." in (domain := name.partition(".")[2]):
                self._domains.add(domain)
            self._hosts[name] = self._new(self._hosts, name.partition(".")[0], "host")
            self._words = None
        return self._new(self._hosts, name, "host")

    def _new(self, names: dict[str, str], name: str, kind: str) -> str:
        if name not in names:
            names[name] = f"{kind}-{len(set(names.values())) + 1}"
            self._words = None
            self._done.clear()
        return names[name]

    def _address(self, whole: str, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return whole
        if address.is_loopback or address.is_unspecified:
            return whole
        name = self._addresses.setdefault(str(address), f"address-{len(self._addresses) + 1}")
        return whole.replace(text, name)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


def _any_of(names: Iterable[str]) -> str:
    ordered = sorted(names, key=lambda name: (-len(name), name))
    return f"(?:{'|'.join(map(re.escape, ordered)) or '(?!)'})"
