"""Messages of torch.distributed, gloo, the store, torchrun, NCCL and DeepEP that name somebody or something."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.knowledge.clock import Clock
from hangdoctor.model import LogMessage
from hangdoctor.parsers.findings import Finding, Where
from hangdoctor.parsers.registry import LineFormat

_JOINED = r"world_size=(?P<expected>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)"
_FINGERPRINT = r" is running collective: CollectiveFingerPrint\(SequenceNumber="
# Kind and pattern; named groups become fields. First match wins.
_PATTERNS = (
    (
        "torch.collective-mismatch",
        r"Detected mismatch between collectives on ranks\. Rank (?P<rank>\d+)"
        + _FINGERPRINT
        + r"(?P<sequence>\d+), ?OpType=(?P<op>\w+).{0,400}?but Rank (?P<other_rank>\d+)"
        + _FINGERPRINT
        + r"(?P<other_sequence>\d+), ?OpType=(?P<other_op>\w+)",
    ),
    (
        "torch.barrier-missing",
        r"(?:\[Rank (?P<rank>\d+)\]: )?Ranks? (?P<missing>\d+(?:, ?\d+){0,2000}) failed to pass monitoredBarrier"
        r"(?: in (?P<timeout_ms>\d+) ms)?",
    ),
    (
        "torch.desync",
        r"\[(?P<missing>[\d, ]{1,2000})\] finished collective #(?P<finished>\d+), "
        r"but didn't join collective #(?P<sequence>\d+)",
    ),
    ("torch.desync", r"\[(?P<ranks>[\d, ]{1,2000})\] joined but didn't finish collective #(?P<sequence>\d+)"),
    (
        "torch.desync-ranks",
        r"lagging/dead/mismatched ranks that caused the desync are:?\s*(?P<missing>.{0,400})",
    ),
    (
        "torch.missing-ranks",
        r"Not all ranks joining collective(?P<what>.{0,200}?)missing ranks: \{?(?P<missing>[\d, ]{1,2000})",
    ),
    (
        "store.joined",
        r"[Tt]imed out after (?P<seconds>\d+) seconds waiting for (?:clients|workers)\. "
        r"(?P<joined>\d+)/(?P<expected>\d+) (?:clients|workers) joined",
    ),
    ("store.key-timeout", r"Timeout waiting for key: (?P<key>\S{1,300})"),
    ("store.key-timeout", r"wait timeout after (?P<timeout_ms>\d+)ms, keys: (?P<key>\S{1,300})"),
    (
        "store.connect",
        r"client socket has (?:timed out after (?P<timeout_ms>\d+) ?ms|failed to connect).{0,60}? connect to "
        r"\(?(?P<address>[^,()]{1,200}), (?P<port>\d+)\)?",
    ),
    (
        "store.address-in-use",
        r"(?:EADDRINUSE|[Aa]ddress already in use)(?:.{0,120}?port[:=]? ?(?P<port>\d+))?",
    ),
    ("store.barrier", r"store_based_barrier_key:\S{1,20} ?\(" + _JOINED),
    (
        "store.barrier",
        r"Waiting in store based barrier to initialize process group for (?:\d+ seconds, )?rank: (?P<rank>\d+)"
        r".{0,200}?" + _JOINED,
    ),
    ("gloo.timeout", r"Timed out waiting (?P<timeout_ms>\d+)ms for (?P<op>send|recv)"),
    ("gloo.peer-closed", r"Connection (?:closed|reset) by peer \[(?P<peer>[^\]]{1,80})\]:(?P<port>\d+)"),
    ("gloo.peer-closed", r"Application timeout caused pair closure"),
    ("gloo.size-mismatch", r"op\.preamble\.length <= op\.nbytes\. (?P<size>\d+) vs (?P<expected>\d+)"),
    (
        "nccl.init",
        r"(?P<call>ncclCommInit\w+) comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<nranks>\d+)"
        r".{0,300}?Init (?P<step>START|COMPLETE)",
    ),
    ("nccl.mismatch", r"NCCL WARN (?P<what>Mismatched collective detected.{0,200})"),
    ("nccl.warn", r"NCCL WARN (?P<what>.{1,300})"),
    (
        "nccl.unique-id",
        r"\[(?P<rank>\d+)\] is setting up NCCL communicator and retrieving ncclUniqueId from "
        r"\[(?P<from_rank>\d+)\]",
    ),
    (
        "torchrun.exit",
        r"failed \(exitcode: (?P<exit_code>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)",
    ),
    ("torchrun.exit", r"exitcode {1,4}: (?P<exit_code>-?\d+) \(pid: (?P<pid>\d+)\)"),
    ("deepep.timeout", r"DeepEP (?P<what>[\w ()\-]{3,80}?timeout.{0,160})"),
)
_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)
_NOISE = re.compile(r"errno: 97 - Address family not supported")


class TorchLogReader:
    """Stateless."""

    def __init__(self) -> None:
        self._clock = Clock()

    def read(self, text: str, where: Where, label: str | None) -> Iterable[Finding] | None:
        """The message in a line, if any."""
        if _NOISE.search(text):
            return None
        for kind, pattern in _COMPILED:
            found = pattern.search(text)
            if found is not None:
                fields = {n: v for n, v in found.groupdict().items() if v is not None}
                if label is None and "rank" in fields:
                    label = f"rank {fields['rank']}"
                moment = self._clock.read(text[:200])
                if moment is not None:
                    fields["time_s"] = f"{moment.seconds:.3f}"
                return (LogMessage(kind, text[:600], label, fields, where.line),)
        return None

    def close(self) -> Iterable[Finding]:
        """Nothing."""
        return ()


FORMATS = (
    LineFormat(
        name="torch.distributed log",
        summary="messages of torch.distributed, gloo, the store, torchrun, NCCL and DeepEP",
        hints=(
            "collective",
            "monitoredBarrier",
            "desync",
            "joined",
            "Timeout waiting for key",
            "wait timeout after",
            "client socket has",
            "EADDRINUSE",
            "ddress already in use",
            "store_based_barrier",
            "store based barrier",
            "Timed out waiting",
            " by peer",
            "pair closure",
            "op.preamble",
            "ncclCommInit",
            "NCCL WARN",
            "ncclUniqueId",
            "exitcode",
            "DeepEP",
        ),
        reader=TorchLogReader,
        order=20,
    ),
)
