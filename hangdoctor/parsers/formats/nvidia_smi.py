"""``nvidia-smi``: its table and ``--query-gpu=… --format=csv``. 100 % at idle watts is a spinning kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hangdoctor.model import Gpu, GpuProcess
from hangdoctor.parsers.findings import Finding
from hangdoctor.parsers.registry import BlockFormat, Opening

_NAME = re.compile(
    r"\|\s{1,4}(?P<index>\d{1,3})\s+(?P<name>[A-Z][\w /.\-]{2,60}?)\s+(?:On|Off|N/A|\.\.\.)\s*\|"
)
_USE = re.compile(
    r"\|\s*(?:N/A|\d{1,3}%|ERR!)\s+(?:\d{1,3}C|N/A)\s+P\d{1,2}\s+(?P<power>\d{1,5}|N/A)W? ?"
    r"/ ?(?P<limit>\d{1,5}|N/A)W?\s*\|"
    r"\s*(?P<used>\d{1,8})MiB ?/ ?(?P<total>\d{1,8})MiB\s*\|\s*(?:(?P<util>\d{1,3})%|N/A)"
)
_PROCESS = re.compile(
    r"\|\s+(?P<gpu>\d{1,3})\s+(?:N/A|\d+)\s+(?:N/A|\d+)\s+(?P<pid>\d{1,10})\s+[CGM+]{1,3}\s+\S.*?(?P<mem>\d{1,8})MiB\s*\|"
)
_CSV_COLUMNS = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "utilization.gpu": "utilization",
    "utilization.memory": "memory_utilization",
    "memory.used": "used",
    "memory.total": "total",
    "power.draw": "power",
    "power.limit": "limit",
    "clocks.sm": "clock",
    "clocks.current.sm": "clock",
}
_SHORT = re.compile(
    r"GPU ?(?P<index>\d{1,3})\s*:?\s+(?P<power>\d{1,4}(?:\.\d+)?) ?W[\s,/]+(?P<util>\d{1,3}) ?%$"
)
_MOST_ROWS = 4096


class SmiReader:
    """Reads the table or the CSV."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._gpus: dict[int, Gpu] = {}
        self._index: int | None = None
        self._columns: list[str] | None = None
        self._count = 0

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the output."""
        body = text.strip()
        self._count += 1
        if self._count > _MOST_ROWS or not body:
            return self._count <= _MOST_ROWS and self._columns is None
        if self._columns is not None:
            return self._csv_row(body)
        if "," in body and body.split(",")[0].split(" ")[0] in _CSV_COLUMNS:
            self._columns = [_CSV_COLUMNS.get(c.strip().split(" ")[0], "") for c in body.split(",")]
            return "index" in self._columns
        short = _SHORT.match(body)
        if short is not None:
            self._put(
                int(short["index"]), utilization_percent=float(short["util"]), power_w=float(short["power"])
            )
            return True
        return body.startswith(("|", "+")) and self._table_row(body)

    def _table_row(self, body: str) -> bool:
        name = _NAME.match(body)
        if name is not None:
            self._index = int(name["index"])
            self._put(self._index, name=name["name"].strip())
            return True
        use = _USE.match(body)
        if use is not None and self._index is not None:
            self._put(
                self._index,
                power_w=_number(use["power"]),
                power_limit_w=_number(use["limit"]),
                memory_used_bytes=int(use["used"]) << 20,
                memory_total_bytes=int(use["total"]) << 20,
                utilization_percent=_number(use["util"]),
            )
            return True
        process = _PROCESS.match(body)
        if process is not None:
            gpu = self._gpus.get(int(process["gpu"]))
            if gpu is not None and len(gpu.processes) < 200:
                row = GpuProcess(int(process["pid"]), int(process["mem"]) << 20)
                self._gpus[gpu.index] = replace(gpu, processes=(*gpu.processes, row))
        return True

    def _csv_row(self, body: str) -> bool:
        cells = [cell.strip() for cell in body.split(",")]
        if self._columns is None or len(cells) != len(self._columns):
            return False
        row = dict(zip(self._columns, cells, strict=True))
        if not row["index"].isdecimal():
            return False
        self._put(
            int(row["index"][:4]),
            name=row.get("name"),
            uuid=row.get("uuid"),
            utilization_percent=_cell(row, "utilization"),
            memory_utilization_percent=_cell(row, "memory_utilization"),
            power_w=_cell(row, "power"),
            power_limit_w=_cell(row, "limit"),
            memory_used_bytes=_mebibytes(row, "used"),
            memory_total_bytes=_mebibytes(row, "total"),
            sm_clock_mhz=_whole(row, "clock"),
        )
        return True

    def _put(self, index: int, **values: str | int | float | None) -> None:
        known = self._gpus.get(index, Gpu(index=index, host=self._opening.host))
        self._gpus[index] = replace(known, **values)  # type: ignore[arg-type]

    def close(self) -> Iterable[Finding]:
        """The GPUs."""
        return tuple(self._gpus.values())


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None


_CELL = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)")


def _cell(row: Mapping[str, str], name: str) -> float | None:
    found = _CELL.match(row.get(name, ""))
    return float(found[1]) if found else None


def _whole(row: Mapping[str, str], name: str) -> int | None:
    number = _cell(row, name)
    return int(number) if number is not None else None


def _mebibytes(row: Mapping[str, str], name: str) -> int | None:
    number = _cell(row, name)
    return int(number * (1 << 20)) if number is not None else None


FORMATS = (
    BlockFormat(
        name="nvidia-smi",
        summary="nvidia-smi's table or CSV",
        first="|iunmpG",
        opens=re.compile(
            r"\| NVIDIA-SMI |\|\s{1,4}\d{1,3}\s+(?:NVIDIA|Tesla|Quadro|GeForce|[A-Z]\d{2,4})"
            r"|(?:index|name|uuid|utilization\.gpu|memory\.used|power\.draw)(?: \[[^\]]*\])?, "
            r"|GPU ?\d{1,3}\s*:?\s+\d{1,4}(?:\.\d+)? ?W[\s,/]"
        ),
        reader=SmiReader,
        order=55,
    ),
)
