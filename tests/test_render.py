"""What all formats promise: golden files, no surprise from the environment, hostile names, a thousand ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hangdoctor.render import RENDERERS, RenderOptions
from tests.render_support import SAMPLES, compare_golden, empty, hostile, laggard

CASES = [
    pytest.param(sample, name, options, id=f"{sample}-{name}-{label}")
    for sample in SAMPLES
    for name, label, options in (
        ("terminal", "80", RenderOptions(width=80)),
        ("markdown", "default", RenderOptions()),
        ("json", "default", RenderOptions()),
    )
] + [
    pytest.param("laggard", "terminal", RenderOptions(width=60), id="laggard-terminal-60"),
    pytest.param("laggard", "terminal", RenderOptions(width=200), id="laggard-terminal-200"),
    pytest.param("laggard", "terminal", RenderOptions(ascii=True), id="laggard-terminal-ascii"),
    pytest.param("laggard", "terminal", RenderOptions(color=True), id="laggard-terminal-color"),
    pytest.param("laggard", "terminal", RenderOptions(detail=True), id="laggard-terminal-detail"),
    pytest.param("laggard", "markdown", RenderOptions(detail=True), id="laggard-markdown-detail"),
    pytest.param("compiling", "terminal", RenderOptions(color=True), id="compiling-terminal-color"),
]


@pytest.mark.parametrize(("sample", "name", "options"), CASES)
def test_golden(sample: str, name: str, options: RenderOptions, request: pytest.FixtureRequest) -> None:
    renderer = RENDERERS[name]
    actual = renderer.render(SAMPLES[sample](), options)
    file = request.node.callspec.id.replace("-default", "")
    compare_golden(f"{file}.{renderer.extension}", actual, request)


def test_formats_are_found_by_their_modules() -> None:
    assert {"json", "markdown", "terminal"} <= set(RENDERERS)
    assert all(RENDERERS[name].name == name for name in RENDERERS)
    assert len({RENDERERS[name].extension for name in RENDERERS}) == len(RENDERERS)
    assert "_wording" not in RENDERERS
    with pytest.raises(KeyError):
        RENDERERS["yaml"]


def test_asking_for_names_imports_no_format() -> None:
    code = (
        "import sys; from hangdoctor.render import RENDERERS; list(RENDERERS); print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", sorted(RENDERERS))
@pytest.mark.parametrize("sample", [*SAMPLES.values()], ids=[*SAMPLES])
def test_output_is_printable_and_ends_with_a_newline(name: str, sample: object) -> None:
    assert callable(sample)
    for options in (RenderOptions(), RenderOptions(width=60, detail=True, ascii=True)):
        text = RENDERERS[name].render(sample(), options)
        assert text.endswith("\n")
        text.encode("utf-8")  # no lone surrogate
        assert not {c for c in text if not c.isprintable() and c not in "\n\u200b"}
        assert text.isascii() or not options.ascii


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_the_environment_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = RENDERERS[name].render(laggard(), RenderOptions())
    for variable, value in (("FORCE_COLOR", "1"), ("NO_COLOR", "1"), ("COLUMNS", "33"), ("TERM", "dumb")):
        monkeypatch.setenv(variable, value)
        assert RENDERERS[name].render(laggard(), RenderOptions()) == plain


@pytest.mark.parametrize("name", sorted(RENDERERS))
@pytest.mark.parametrize(("detail", "threads"), [(False, 0), (True, 0), (True, 40)])
def test_a_thousand_ranks(name: str, detail: bool, threads: int) -> None:
    """``threads``: so many more Python threads in each rank, as a server has them; all of their stacks are shown."""
    # A process of its own, because its memory is the question; CPU time, because the machine may be busy.
    code = f"""
import json, re, sys, time
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from tests.render_support import many_ranks, with_threads
from hangdoctor.render import RENDERERS, RenderOptions
report = with_threads(many_ranks(), {threads})
before = time.process_time()
text = RENDERERS[{name!r}].render(report, RenderOptions(detail={detail}))
cpu = time.process_time() - before
# Not ru_maxrss: after a spawn it starts at the peak of the parent, which is this whole test run.
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
print(json.dumps([cpu, peak, "613" in text]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    cpu_s, peak_bytes, names_culprit = json.loads(done.stdout)
    assert cpu_s < 3
    assert peak_bytes < 300_000_000
    assert names_culprit


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_rendering_is_repeatable_and_tells_reports_apart(name: str) -> None:
    renderer = RENDERERS[name]
    assert renderer.render(hostile(), RenderOptions()) == renderer.render(hostile(), RenderOptions())
    assert renderer.render(empty(), RenderOptions()) != renderer.render(laggard(), RenderOptions())
