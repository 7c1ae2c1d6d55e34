"""The bugs. Each function blocks its thread in one way, for ever; names are those of honest code."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

KERNEL = "#include <torch/extension.h>\ntorch::Tensor pack_{0}(torch::Tensor pages) {{ return pages.contiguous(); }}\n"
BINDING = KERNEL + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("pack_0", &pack_0); }}\n'
KERNELS = 3
"""About 12 s of compiler each."""


class PagePool:
    """Pages in host memory, written out by a thread that forgets to give the lock back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_flushing = threading.Event()
        self._written = threading.Event()

    def flush_dirty_pages(self) -> None:
        with self._lock:
            self._is_flushing.set()
            self._written.wait()

    def reserve_page(self, say: Callable[[], None]) -> None:
        flusher = threading.Thread(target=self.flush_dirty_pages, name="page-flusher", daemon=True)
        flusher.start()
        self._is_flushing.wait()
        say()
        try:
            self._lock.acquire()
        finally:
            self._written.set()  # reached only when the test releases the worker


def fetch_remote_page(say: Callable[[], None]) -> None:
    """Waits in Python, without a lock."""
    say()
    time.sleep(1e6)


def call_copy_engine(say: Callable[[], None]) -> None:
    """Waits in C and keeps the interpreter lock, as a careless extension does."""
    say()
    ctypes.PyDLL(None).pause()


def wait_copy_engine(say: Callable[[], None]) -> None:
    """Waits in C without the interpreter lock."""
    say()
    ctypes.CDLL(None).pause()


def scan_free_list(say: Callable[[], None]) -> None:
    """Never ends and never waits."""
    say()
    page = 0
    while True:
        page = (page * 31 + 7) % 65521


def build_pack_kernel(folder: Path, say: Callable[[], None]) -> None:
    """Builds an extension at first use. Of several processes one compiles, the others wait for its lock file."""
    from torch.utils import cpp_extension

    folder.mkdir(parents=True, exist_ok=True)
    sources = [folder / f"pack_{number}.cpp" for number in range(KERNELS)]
    for number, source in enumerate(sources):
        text = (KERNEL if number else BINDING).format(number)
        if not source.exists():
            source.write_text(text)
    os.environ["MAX_JOBS"] = "1"
    say()
    cpp_extension.load(
        name="pack_pages", sources=[str(source) for source in sources], build_directory=str(folder)
    )
