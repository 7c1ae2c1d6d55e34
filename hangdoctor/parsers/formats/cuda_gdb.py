"""``info cuda kernels`` of cuda-gdb: which kernel occupies the GPU, and for NCCL's which collective it runs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.model import LogMessage
from hangdoctor.parsers.findings import Finding
from hangdoctor.parsers.registry import BlockFormat, Opening

_ROW = re.compile(
    r"(?P<focus>\*)?\s*(?P<kernel>\d{1,9})\s+(?P<parent>\S+)\s+(?P<device>\d{1,4})\s+(?P<grid>\d{1,12})\s+"
    r"(?P<status>[A-Z]\w+)\s+0x[0-9a-fA-F]+\s+\((?P<blocks>[\d,]+)\)\s+\((?P<threads>[\d,]+)\)\s+(?P<name>\S.*)$"
)
_NCCL = re.compile(
    r"nccl(?:Dev)?Kernel_(?P<collective>[A-Za-z]+?)(?:_(?P<reduction>Sum|Prod|Max|Min|MinMax|PreMulSum|SumPostDiv)"
    r"_(?P<dtype>\w+?))?(?:_(?P<algorithm>RING|TREE|COLLNET\w*|NVLS\w*|PAT))?(?:_(?P<protocol>LL128|LL|SIMPLE))?\("
)
_MOST_ROWS = 4096


class KernelListReader:
    """Reads the header and the rows."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._rows: list[tuple[dict[str, str], int]] = []

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the table."""
        body = text.strip()
        found = _ROW.match(body)
        if found is not None and len(self._rows) < _MOST_ROWS:
            fields = {
                n: v for n, v in found.groupdict().items() if v is not None and n not in ("focus", "parent")
            }
            nccl = _NCCL.match(found["name"])
            if nccl is not None:
                fields.update({n: v for n, v in nccl.groupdict().items() if v is not None})
            self._rows.append((fields, number))
            return True
        return not self._rows and (body.startswith(("cuda-gdb", "(cuda-gdb)")) or "Parent Dev Grid" in body)

    def close(self) -> Iterable[Finding]:
        """One message a kernel."""
        label = next(iter(self._opening.labels), None)
        for fields, number in self._rows:
            text = f"GPU {fields['device']}: {fields['name']} ({fields['status']})"
            yield LogMessage("gpu.kernel", text[:400], label, fields, number)


FORMATS = (
    BlockFormat(
        name="cuda-gdb",
        summary="cuda-gdb's info cuda kernels",
        first="c(K*0123456789",
        opens=re.compile(
            r"\(?cuda-gdb\)? ?info cuda kernels|Kernel +Parent +Dev +Grid"
            r"|\*?\s*\d{1,9}\s+-\s+\d{1,4}\s+\d{1,12}\s+[A-Z]\w+\s+0x"
        ),
        reader=KernelListReader,
        order=14,
    ),
)
