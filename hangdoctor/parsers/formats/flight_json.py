"""A Flight Recorder dump as JSON (``_dump_nccl_trace_json``, ``torch.distributed.debug``)."""

from __future__ import annotations

from hangdoctor.parsers.flight import read_flight
from hangdoctor.parsers.registry import JsonFormat

FORMATS = (
    JsonFormat(
        name="flight recorder",
        summary="PyTorch Flight Recorder dump as JSON",
        keys=("pg_config", "pg_status", "entries", "collective_seq_id", "comm_lib_version"),
        read=read_flight,
    ),
)
