"""What every format owes: a name, a summary, an opening that matches its own examples, and a place in the list."""

from __future__ import annotations

import pytest

from hangdoctor.parsers import describe_formats, read_text
from hangdoctor.parsers.registry import BinaryFormat, BlockFormat, Format, JsonFormat, LineFormat, formats
from tests.parsers_support import DUMPS, knowledge, read_dump, reports

FORMATS = formats()
# An example for each: a file of tests/data/dumps, or a public report.
EXAMPLES = {
    "py-spy text": "py-spy.txt",
    "py-spy JSON": "py-spy.json",
    "py-spy error": "sglang-33549-pyspy-denied",
    "pystack": "pystack.txt",
    "gdb": "gdb.txt",
    "faulthandler": "faulthandler-twice.txt",
    "traceback": "torch-2vs6-gloo-nccl-skew",
    "frames": "deepep-240-low-latency-unit-test",
    "flight recorder": "nccl_trace_rank_0",
    "flight recorder stack": "sglang-10124-cudagdb-fr-reducescatter",
    "ncclras": "ncclras-gpu_spin.txt",
    "cuda-gdb": "sglang-10124-cudagdb-fr-reducescatter",
    "ps": "ps-threads.txt",
    "/proc status": "proc-status.txt",
    "/proc stack": "proc-stack.txt",
    "strace": "strace.txt",
    "NCCL watchdog": "vllm-23448-seq-off-by-one",
    "torch.distributed log": "torch-2vs6-gloo-nccl-skew",
    "watchdog": "sglang-34582-mlp-sync-symmetric",
    "progress bar": "vllm-52291-autotune-desync",
    "server log": "sglang-startup.log",
    "kernel log": "INFO: task python3:4711 blocked for more than 122 seconds.\n",
    "nvidia-smi": "index, power.draw [W]\n0, 68.10 W\n",
    "hangdoctor bundle": "",
}


def test_every_format_has_an_example_and_nothing_else_has() -> None:
    assert {name for name, _ in describe_formats()} == set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(name for name, example in EXAMPLES.items() if example))
def test_the_example_is_read_as_that_format(name: str) -> None:
    example = EXAMPLES[name]
    if (DUMPS / example.split("\n")[0]).is_file():
        capture = read_dump(example)
    else:
        capture = read_text(reports().get(example, example), "example", knowledge())
    assert name in capture.origin.split(", ")


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f"{type(f).__name__}: {f.name}")
def test_a_format_describes_itself(form: Format) -> None:
    assert form.name and form.summary and not form.summary.endswith(".")
    if isinstance(form, BlockFormat):
        assert not form.opens.match("It hangs after five hours of training")
        assert all(not form.first or char in form.first for char in _firsts(form))
    elif isinstance(form, LineFormat):
        assert form.hints and all(form.hints)
    elif isinstance(form, JsonFormat):
        assert form.keys
    else:
        assert isinstance(form, BinaryFormat) and not form.magic.match(b"Thread 1")


def _firsts(form: BlockFormat) -> set[str]:
    """The characters that lines of our examples begin with where the format opens on them."""
    texts = [*reports().values(), *(p.read_text(errors="replace") for p in DUMPS.glob("*.txt"))]
    lines = {line.strip() for text in texts for line in text.splitlines()}
    return {line[0] for line in lines if line and form.opens.match(line)}
