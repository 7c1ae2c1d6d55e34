"""Reading a live process' memory and the symbols in it, and never changing it."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hangdoctor.collect import elf, memory
from hangdoctor.collect.memory import BudgetSpent, Memory, gather, read, read_regions
from tests.conftest import stuck

TEXT = ctypes.create_string_buffer(b"written by the test\0" + b"x" * 9000)
ADDRESS = ctypes.addressof(TEXT)
OURSELVES = os.getpid()


def test_read_returns_what_is_there() -> None:
    assert read(OURSELVES, ADDRESS, 19) == b"written by the test"
    assert read(OURSELVES, ADDRESS, 0) == b""


@pytest.mark.parametrize("address", [0, 8, 1 << 63, (1 << 64) - 8])
def test_unmapped_memory_is_an_error_not_zeros(address: int) -> None:
    with pytest.raises(OSError) as caught:
        read(OURSELVES, address, 8)
    assert caught.value.errno == errno.EFAULT


def test_a_read_that_ends_in_nothing_is_refused_whole() -> None:
    last = max(r.end for r in read_regions(OURSELVES) if "w" in r.permissions and not r.path.startswith("[v"))
    with pytest.raises(OSError):
        read(OURSELVES, last - 4, 4096)


def test_a_process_that_is_gone_is_an_error() -> None:
    with pytest.raises(ProcessLookupError):
        read(2**22 - 1, ADDRESS, 8)


def test_gather_loses_only_the_bad_addresses() -> None:
    items = [(ADDRESS, 7), (8, 8), (ADDRESS + 8, 2), (0x1000, 8), (ADDRESS, 1), ((1 << 63) + 5, 8)]
    assert gather(OURSELVES, items) == [b"written", None, b"by", None, b"w", None]


def test_gather_takes_more_than_one_batch() -> None:
    items = [(ADDRESS, 7), (0x1000, 8)] * 1500
    assert gather(OURSELVES, items) == [b"written", None] * 1500


def test_proc_mem_stands_in_where_the_call_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    monkeypatch.setattr(memory, "_readv", refuse)
    assert read(OURSELVES, ADDRESS, 7) == b"written"
    assert gather(OURSELVES, [(ADDRESS, 7), (0x1000, 8)]) == [b"written", None]
    with pytest.raises(OSError) as caught:
        read(OURSELVES, 0x1000, 8)
    assert caught.value.errno == errno.EFAULT


def test_page_cache_reads_a_page_once_and_fresh_sees_changes() -> None:
    view, buffer = Memory(OURSELVES), ctypes.create_string_buffer(b"old", 4096)
    at = ctypes.addressof(buffer)
    assert view.string(at) == b"old"
    buffer.value = b"new"
    assert view.string(at) == b"old"
    assert view.fresh(at, 3) == b"new"


def test_reads_across_pages_are_joined() -> None:
    assert Memory(OURSELVES).read(ADDRESS + 20, 9000) == b"x" * 9000


def test_string_stops_at_its_limit() -> None:
    assert Memory(OURSELVES).string(ADDRESS + 20, 5000) == b"x" * 5000


def test_budget_is_a_hard_limit() -> None:
    view = Memory(OURSELVES, budget_bytes=2 * memory.PAGE)
    with pytest.raises(BudgetSpent):
        view.read(ADDRESS, 9000)


def test_bad_addresses_cost_a_call_each_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Good ones are read, whatever stands between them, and no buffer is made anew for those that are left."""
    good = [(ADDRESS + 20 + at, 3 + at % 5) for at in range(1500)]
    items = [item for pair in zip(good, [(0x10000, 4096), (0, 8)] * 750, strict=True) for item in pair]
    buffers: list[int] = []
    make = ctypes.create_string_buffer

    def counting(size: int) -> ctypes.Array[ctypes.c_char]:
        buffers.append(size)
        return make(size)

    monkeypatch.setattr(memory.ctypes, "create_string_buffer", counting)
    found = gather(OURSELVES, items)
    assert found[::2] == [b"x" * size for _, size in good]
    assert set(found[1::2]) == {None}
    assert len(buffers) < 10


def test_a_file_name_may_hold_what_other_programs_take_for_the_end_of_a_line(tmp_path: Path) -> None:
    odd = tmp_path / "odd\u2028zz c d e f g"
    odd.write_bytes(bytes(4096))
    with odd.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert str(odd) in {region.path for region in read_regions(OURSELVES)}


def test_address_spaces_are_remembered_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(100.0, 0.2)
    monkeypatch.setattr(memory, "_recent", {})
    monkeypatch.setattr(memory, "_read_regions", lambda pid: memory.Regions(()))
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    first = read_regions(1)
    assert read_regions(1) is first
    for pid in range(2, 20):
        read_regions(pid)
    assert memory._recent is not None and len(memory._recent) < 5
    assert read_regions(1) is not first


def test_regions_are_found_by_address() -> None:
    regions = read_regions(OURSELVES)
    region = regions.find(ADDRESS)
    assert region is not None and region.start <= ADDRESS < region.end and region.permissions[:2] == "rw"
    assert regions.find(1) is None


def test_exported_symbols_of_another_process() -> None:
    with stuck("c_hold.py") as program:
        view, regions = Memory(program.pid), read_regions(program.pid)
        found = elf.find_symbols(
            view, regions, [b"Py_Version", b"no_such_symbol"], lambda name: "python" in name
        )
        assert set(found) == {b"Py_Version"}
        version = view.u64(found[b"Py_Version"].address)
        assert version >> 16 == sys.version_info[0] << 8 | sys.version_info[1]


def test_hidden_symbols_come_from_the_file_that_was_loaded(tmp_path: Path) -> None:
    source, library = tmp_path / "hidden.c", tmp_path / "libhidden.so"
    source.write_text("static int hidden_counter = 42; int *where(void) { return &hidden_counter; }")
    assert os.system(f"gcc -shared -fPIC -Wl,--build-id -o {library} {source}") == 0
    loaded = ctypes.CDLL(str(library))
    loaded.where.restype = ctypes.c_void_p
    region = next(r for r in elf.list_images(read_regions(OURSELVES)) if r.path == str(library))
    pattern = re.compile(rb"hidden_count\w+")
    found = elf.find_hidden(OURSELVES, Memory(OURSELVES), region, pattern)
    assert found[b"hidden_counter"].address == loaded.where()

    source.write_text(
        "static int other, hidden_counter = 43; int *where(void) { return &hidden_counter + other; }"
    )
    library.unlink()
    assert os.system(f"gcc -shared -fPIC -Wl,--build-id -o {library} {source}") == 0
    with pytest.raises(elf.NotAnImage, match="replaced"):
        elf.find_hidden(OURSELVES, Memory(OURSELVES), region, pattern)


def test_what_is_no_image_says_so() -> None:
    with pytest.raises(elf.NotAnImage):
        elf.Image(Memory(OURSELVES), ADDRESS)


@pytest.mark.parametrize("address", [-48, 0, 1 << 63, (1 << 64) - 8, 1 << 64])
def test_an_address_that_there_cannot_be_is_not_mapped(address: int) -> None:
    """A damaged pointer, with an offset: as any other that leads nowhere."""
    with pytest.raises(OSError) as caught:
        Memory(OURSELVES).u64(address)
    assert caught.value.errno == errno.EFAULT
