"""A build that takes minutes: many small kernels, one compiler run each, as JIT back ends do it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

KERNELS = 200
_FUNCTIONS = 300
"""Functions a source: 2.3 s of gcc -O3 on one core of a 2-core virtual machine."""

_C_KERNEL = """
void kernel_{n}(const unsigned char *packed, float *out, const float *scale, size_t size) {{
    for (size_t k = 0; k < size; k++) {{
        float low = (packed[k] & 15) - 8, high = (packed[k] >> 4) - 8 + {n};
        switch (k % 7) {{
        case 0: out[2 * k] = low * scale[k / 32]; break;
        case 1: out[2 * k] = low + high * scale[k / 64]; break;
        case 2: out[2 * k] = low / (scale[k / 16] + 1); break;
        default: out[2 * k] = high;
        }}
        out[2 * k + 1] = high * scale[k / 32 + 1];
    }}
}}
"""
_PYTHON_KERNEL = """
def kernel_{n}(packed, scale):
    return [((byte & 15) - 8 + {n}) * scale[index // 32] for index, byte in enumerate(packed) if byte % 7]
"""


def find_compiler() -> str | None:
    """The first C compiler on PATH, ``None`` where there is none."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def build_kernels(folder: Path, say_started: Callable[[], None]) -> None:
    """Compile :data:`KERNELS` sources in ``folder`` one after another; Python sources where there is no compiler.

    ``say_started`` is called once, while the first compiler runs.
    """
    folder.mkdir()
    compiler = find_compiler()
    for number in range(KERNELS):
        command = _write_c(folder, number, compiler) if compiler else _write_python(folder, number)
        with subprocess.Popen(command) as child:
            if number == 0:
                say_started()
            if child.wait() != 0:
                raise RuntimeError(f"{command[0]} failed with status {child.returncode}")


def _write_c(folder: Path, number: int, compiler: str) -> list[str]:
    source = folder / f"dequant_kernel_{number}.c"
    source.write_text("#include <stddef.h>\n" + "".join(_C_KERNEL.format(n=n) for n in range(_FUNCTIONS)))
    return [compiler, "-O3", "-c", str(source), "-o", str(source.with_suffix(".o"))]


def _write_python(folder: Path, number: int) -> list[str]:
    """Byte compilation is quick, so a source needs ten times as many functions to last."""
    source = folder / f"dequant_kernel_{number}.py"
    source.write_text("".join(_PYTHON_KERNEL.format(n=n) for n in range(10 * _FUNCTIONS)))
    return [sys.executable, "-m", "compileall", "-q", "-f", str(source)]
