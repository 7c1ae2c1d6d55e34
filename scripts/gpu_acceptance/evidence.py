"""What only this machine can tell, for later work without it: ``evidence.py OUT``.

Versions, NVML's idea of the GPUs at rest, the layout of PyTorch's Flight Recorder with CUDA events (offsets from the
installed header, symbols from the installed library).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import torch
from look import REPOSITORY

OFFSETS = r"""
#include <cstddef>
#include <cstdio>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>
#include <ATen/cuda/CUDAEvent.h>
using FR = c10d::FlightRecorder<at::cuda::CUDAEvent>;
int main() {
#define F(x) std::printf("FlightRecorder." #x " %zu\n", offsetof(FR, x));
  F(enabled_) F(entries_) F(max_entries_) F(next_) F(id_)
#define E(x) std::printf("Entry." #x " %zu\n", offsetof(FR::Entry, x));
  E(id_) E(pg_id_) E(pg_name_) E(collective_seq_id_) E(p2p_seq_id_) E(op_id_) E(profiling_name_) E(time_created_)
  E(timeout_ms_) E(isP2P_) E(input_dims_) E(output_dims_) E(sizes_) E(input_dtypes_) E(output_dtypes_)
  E(time_discovered_started_) E(time_discovered_completed_) E(thread_name_) E(retired_)
  std::printf("sizeof.Entry %zu\nsizeof.FlightRecorder %zu\n", sizeof(FR::Entry), sizeof(FR));
}
"""


def run(command: list[str] | str, limit_s: float = 120) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, shell=isinstance(command, str)
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"failed: {problem}"
    return done.stdout + done.stderr


def offsets(folder: Path) -> str:
    root = Path(torch.__file__).parent
    source = folder / "offsets.cpp"
    source.write_text(OFFSETS)
    include = [
        f"-I{root / 'include'}",
        f"-I{root / 'include/torch/csrc/api/include'}",
        "-I/usr/local/cuda/include",
    ]
    flags = ["-std=c++20", "-fno-access-control", "-Winvalid-offsetof", "-w", "-DUSE_C10D_NCCL"]
    built = run(["g++", *flags, *include, "-c", "-o", str(folder / "offsets.o"), str(source)])
    linked = run(
        [
            "g++",
            "-o",
            str(folder / "offsets"),
            str(folder / "offsets.o"),
            "-Wl,--unresolved-symbols=ignore-all",
        ]
    )
    return built + linked + run([str(folder / "offsets")])


def main() -> None:
    out = Path(sys.argv[1])
    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = {
            "offsets.txt": offsets(folder),
            "symbols.txt": run(
                f"nm -C {root}/lib/libtorch_cuda.so {root}/lib/libtorch_cpu.so | grep -i flightrecorder"
            ),
            "mangled.txt": run(
                f"nm {root}/lib/libtorch_cuda.so | grep -i -e FlightRecorder -e NCCLTraceBuffer"
            ),
            "nvidia_smi.txt": run("nvidia-smi -q -d POWER,CLOCK,UTILIZATION,PERFORMANCE; nvidia-smi topo -m"),
            "gpus.txt": run(
                [
                    sys.executable,
                    "-c",
                    "from hangdoctor.collect.gpu import read_gpus; print(*read_gpus(20.0), sep='\\n')",
                ]
            ),
            "versions.json": json.dumps(
                {
                    "torch": torch.__version__,
                    "cuda": torch.version.cuda,
                    "nccl": torch.cuda.nccl.version(),
                    "python": sys.version,
                    "kernel": run(["uname", "-a"]),
                    "repository": str(REPOSITORY),
                }
            ),
        }
        for header in ("FlightRecorder.hpp", "FlightRecorderDetail.hpp"):
            path = root / "include/torch/csrc/distributed/c10d" / header
            texts[header] = path.read_text() if path.exists() else "not installed"
        for file, text in texts.items():
            (folder / file).write_text(text)
        for compiled in ("offsets", "offsets.o"):
            (folder / compiled).unlink(missing_ok=True)
        with tarfile.open(out / "evidence.tar.gz", "w:gz") as archive:
            archive.add(folder, arcname="evidence")
    print(texts["offsets.txt"][-1500:], texts["gpus.txt"][:1500], sep="\n")


if __name__ == "__main__":
    main()
