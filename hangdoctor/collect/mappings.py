"""What the address space of a process tells: versions that are really loaded, and how much of the weights is in.

The resident share comes from ``pagemap``: it takes the mmap lock for 2 MiB at a time, so the target never waits
(``smaps`` holds it for a whole mapping: a reported 4 s at 200 GB), and measured 2.3 ms for 1 GiB here.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from hangdoctor.collect.memory import Region
from hangdoctor.collect.procfs import PAGE_BYTES, text
from hangdoctor.model import MappedFile

LARGE_BYTES = 32 << 20
MAX_MAPPED_FILES = 256
_EXACT_BYTES = 8 << 30
"""Up to this much is counted page by page (about 20 ms); beyond it every n-th block of 512 pages."""
_BLOCK_PAGES = 512
_ABSENT = bytes(range(0x80))
"""Top bytes of pagemap entries without bit 63, "page present" (Documentation/admin-guide/mm/pagemap.rst)."""
_WEIGHTS = re.compile(r"\.(safetensors|bin|gguf|ggml|pt|pth|ckpt|npy|npz)( \(deleted\))?$")
_NOT_DATA = re.compile(r"\.so(\.|$| )|^/dev/|^/memfd:|^/SYSV|^\[")
_PYTHON = re.compile(
    r"/libpython(\d\.\d+t?)\b[^/]*\.so|/bin/python(\d\.\d+t?)$|/python(\d\.\d+t?)/lib-dynload/"
)
_SITE = re.compile(r"^(.*/(?:site|dist)-packages)/")
_LIBRARIES = (
    ("nccl", re.compile(r"/libnccl(?:-net)?\.so\.(\d+\.\d+\.\d+)")),
    ("cuda", re.compile(r"/libcudart(?:-\w+)?\.so\.(\d+\.\d+[\d.]*)")),
    ("driver", re.compile(r"/libcuda\.so\.(\d+\.\d+[\d.]*)")),
)
_PACKAGES = re.compile(
    r"^(torch|vllm|sglang|triton|transformers|flashinfer_python|sgl_kernel|sglang_kernel|nvidia_nccl_cu\d+"
    r"|nvidia_cuda_runtime(?:_cu\d+)?|tensorrt_llm|lmdeploy|ray|deepspeed|accelerate)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info$",
    re.IGNORECASE,
)
_MOST_SITES = 3
_listed: dict[tuple[str, str], Mapping[str, str]] = {}
"""Packages by mount namespace and folder."""
_RENAMED = {"nvidia_nccl": "nccl", "nvidia_cuda_runtime": "cuda", "flashinfer_python": "flashinfer"}


@dataclass(frozen=True, slots=True)
class _Data:
    """The mappings of one data file."""

    path: str
    mapped_bytes: int
    regions: tuple[Region, ...]


def find_mapped_files(regions: Iterable[Region]) -> tuple[MappedFile, ...]:
    """Mapped weights, and other data files of 32 MiB or more, largest first; resident share and size unknown."""
    return tuple(MappedFile(data.path, None, None, data.mapped_bytes) for data in _find_data(regions))


def measure_mapped_files(pid: int, regions: Iterable[Region]) -> tuple[MappedFile, ...]:
    """As :func:`find_mapped_files`, with the bytes of each that this process has in memory."""
    files = _find_data(regions)
    total = sum(data.mapped_bytes for data in files)
    stride = max(1, -(-total // _EXACT_BYTES))
    try:
        pagemap = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return find_mapped_files(regions)
    try:
        return tuple(
            MappedFile(data.path, None, _count_resident(pagemap, data, stride), data.mapped_bytes)
            for data in files
        )
    finally:
        os.close(pagemap)


def _find_data(regions: Iterable[Region]) -> list[_Data]:
    by_path: dict[str, list[Region]] = {}
    for region in regions:
        if region.inode and region.path and _may_be_data(region.path):
            by_path.setdefault(region.path, []).append(region)
    found = []
    for path, parts in by_path.items():
        size = sum(part.end - part.start for part in parts)
        is_program = any("x" in part.permissions for part in parts)
        if not is_program and (size >= LARGE_BYTES or (_WEIGHTS.search(path) and size >= 1 << 20)):
            found.append(_Data(path, size, tuple(parts)))
    return sorted(found, key=lambda data: -data.mapped_bytes)[:MAX_MAPPED_FILES]


@lru_cache(maxsize=4096)
def _may_be_data(path: str) -> bool:
    return not _NOT_DATA.search(path)


def _count_resident(pagemap: int, data: _Data, stride: int) -> int | None:
    """Bytes present in memory; extrapolated from every ``stride``-th block. ``None`` when refused."""
    present = seen = 0
    for region in data.regions:
        first, last = region.start // PAGE_BYTES, region.end // PAGE_BYTES
        for page in range(first, last, _BLOCK_PAGES * stride):
            count = min(_BLOCK_PAGES, last - page)
            try:
                entries = os.pread(pagemap, count * 8, page * 8)
            except OSError:
                return None
            present += len(entries[7::8].translate(None, _ABSENT))
            seen += len(entries) // 8
    return min(data.mapped_bytes, data.mapped_bytes * present // seen) if seen else None


def find_versions(pid: int, paths: Iterable[str], exe: str | None) -> dict[str, str]:
    """``python``, ``torch``, ``nccl``, ``cuda``, ``driver``, ``vllm`` … as found behind the loaded libraries.

    Packages are those installed where the process loaded its libraries from. Reads directories of the target's
    file system, which may block.
    """
    versions: dict[str, str] = {}
    sites: Counter[str] = Counter()
    for path in (*paths, *((exe,) if exe else ())):
        told = _read_path(path)
        for name, version in told.versions:
            versions.setdefault(name, version)
        if told.site is not None:
            sites[told.site] += 1
    namespace = _mount_namespace(pid)
    for folder in sorted(sites, key=sites.__getitem__, reverse=True)[:_MOST_SITES]:
        for name, version in _list_packages(pid, namespace, folder).items():
            versions.setdefault(name, version)
    return versions


@dataclass(frozen=True, slots=True)
class _Told:
    """What the path of a mapped file tells."""

    versions: tuple[tuple[str, str], ...]
    site: str | None
    """The directory of packages that it is in."""


@lru_cache(maxsize=4096)
def _read_path(path: str) -> _Told:
    """Ranks load the same files."""
    versions = []
    python = _PYTHON.search(path)
    if python is not None:
        versions.append(("python", next(group for group in python.groups() if group)))
    for name, pattern in _LIBRARIES:
        found = pattern.search(path)
        if found is not None:
            versions.append((name, found[1]))
    site = _SITE.match(path)
    return _Told(tuple(versions), site[1] if site is not None else None)


def _mount_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return f"of pid {pid}"


def forget_packages() -> None:
    """What is installed is to be listed anew: a namespace's number, and its packages, may be another's by now."""
    _listed.clear()


def _list_packages(pid: int, namespace: str, folder: str) -> Mapping[str, str]:
    """Packages installed in a folder of the target's file system, listed once a mount namespace."""
    known = _listed.get((namespace, folder))
    if known is not None:
        return known
    versions: dict[str, str] = {}
    _listed[namespace, folder] = versions
    try:
        names = os.listdir(os.fsencode(f"/proc/{pid}/root{folder}"))
    except OSError:
        return versions
    for name in names:
        found = _PACKAGES.match(text(name))
        if found is not None:
            package = re.sub(r"_cu\d+$", "", found[1].lower())
            versions[_RENAMED.get(package, package)] = found[2]
    return versions
