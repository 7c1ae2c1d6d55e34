"""What is sent to a host without hangdoctor: a zip application of this very release, and py-spy where it lacks.

The application holds hangdoctor and the pure Python packages that ``collect`` and ``check`` import, with their
compiled files: those of this Python, marked as not to be compared with the source, for unpacking changes its date.
(Compiling everything anew takes a host 1.6 s of CPU; another Python release ignores the files and does that.)
"""

from __future__ import annotations

import importlib.util
import io
import platform
import zipapp
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from hangdoctor import __version__
from hangdoctor.collect.pyspy import PySpy, find_py_spy
from hangdoctor.errors import HangdoctorError

_PACKAGES = ("hangdoctor", "click", "cattrs", "attr", "attrs", "typing_extensions", "pynvml")
_FOR_OLDER_PYTHONS = ("exceptiongroup", "tomli")
"""Part of the standard library from 3.11 on; sent where this machine has them (they belong to the extra)."""
_SKIPPED = ("demo", "watching", "real_server")
_HEADER_BYTES = 16
_UNCHECKED = b"\x01\x00\x00\x00"
"""Flags of a compiled file that stands for its source whatever that is (PEP 552)."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A file to send."""

    name: str
    content: bytes


def parcels_for(has: str | None, has_py_spy: bool, machine: str) -> tuple[Parcel, ...]:
    """What a host needs that has hangdoctor ``has`` (a release, or none) and is a ``machine``.

    A host with another release gets this one: the two ends speak one language, and a bundle is always readable here.
    """
    needed = [] if has == __version__ else [application()]
    if not has_py_spy and machine == platform.machine():
        needed += [parcel for parcel in (py_spy(),) if parcel is not None]
    return tuple(needed)


@lru_cache(maxsize=1)
def application() -> Parcel:
    """hangdoctor as a zip application. Raises HangdoctorError where a package cannot be found as files."""
    with TemporaryDirectory(prefix="hangdoctor-parcel-") as name:
        folder = Path(name)
        for package in (*_PACKAGES, *_FOR_OLDER_PYTHONS):
            origin = _origin(package)
            if origin is not None:
                _copy(origin, folder)
            elif package not in _FOR_OLDER_PYTHONS:
                raise HangdoctorError(
                    f"the package {package} is not here as files, so hangdoctor cannot be sent to hosts without it",
                    hint=f"install it on every host: pip install hangdoctor=={__version__}",
                )
        target = io.BytesIO()
        zipapp.create_archive(folder, target, main="hangdoctor.__main__:main", compressed=True)
    return Parcel("hangdoctor.pyz", target.getvalue())


@lru_cache(maxsize=1)
def py_spy() -> Parcel | None:
    """The program that this machine would use; it is linked statically, so it runs on any Linux of its kind."""
    found = find_py_spy()
    if not isinstance(found, PySpy):
        return None
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        archive.write(found.path, "py-spy")
    return Parcel("py-spy.zip", target.getvalue())


def _origin(package: str) -> Path | None:
    """Its folder or file; a package that is compiled here has its Python sources beside."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    path = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
    return path if path.is_dir() or path.suffix == ".py" else None


def _copy(origin: Path, folder: Path) -> None:
    files = [origin] if origin.is_file() else list(_files(origin))
    for source in files:
        target = folder / source.relative_to(origin.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        compiled = _compiled(source)
        if compiled is not None:
            cache = target.parent / "__pycache__" / Path(importlib.util.cache_from_source(source.name)).name
            cache.parent.mkdir(exist_ok=True)
            cache.write_bytes(compiled)


def _files(folder: Path) -> Iterator[Path]:
    """Python, knowledge and templates; no compiled extensions: another machine could not load them."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.suffix in (".py", ".toml", ".json", ".j2", ".html") and not set(parts) & {
            *_SKIPPED,
            "__pycache__",
        }:
            yield path


def _compiled(source: Path) -> bytes | None:
    """The compiled file that an import has left beside ``source``, if it is of this very source."""
    if source.suffix != ".py":
        return None
    try:
        data = Path(importlib.util.cache_from_source(str(source))).read_bytes()
        status = source.stat()
    except (OSError, NotImplementedError):
        return None
    stamp = (int(status.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little")
    size = (status.st_size & 0xFFFFFFFF).to_bytes(4, "little")
    if data[:_HEADER_BYTES] != importlib.util.MAGIC_NUMBER + bytes(4) + stamp + size:
        return None
    return (
        importlib.util.MAGIC_NUMBER
        + _UNCHECKED
        + importlib.util.source_hash(source.read_bytes())
        + data[_HEADER_BYTES:]
    )
