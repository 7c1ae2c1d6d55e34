"""The report as one HTML file that needs nothing else: no script, no network, a policy that forbids both.

`html_report.template.html` and `html_report.css` hold the page; this module prepares what they show. Every value is
cleaned and escaped by the template engine, whatever the template does with it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from hangdoctor.render import _charts, _html_stacks
from hangdoctor.render import _html_sections as sections
from hangdoctor.render import _wording as wording
from hangdoctor.render._base import Renderer, RenderOptions
from hangdoctor.render._citations import Citations
from hangdoctor.render._digest import VERDICT_WORDS, Names, fold_gaps, heading, looks
from hangdoctor.render._log_words import said_in_log
from hangdoctor.render._wait_graph import Drawing, draw_waits
from hangdoctor.report import Report

if TYPE_CHECKING:
    import jinja2

_HERE = files("hangdoctor.render")


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that the template may read."""

    report: Report
    names: Names
    style: str
    policy: str
    word: str
    title: str
    heading: str
    looks: str
    citations: Citations
    sentences: tuple[sections.Sentence, ...]
    timeline: sections.Timeline | None
    drawing: Drawing | None
    stacks: tuple[_html_stacks.StackColumn, ...]
    tree: _html_stacks.Tree
    charts: tuple[_charts.Chart, ...]
    progress: tuple[sections.ProgressLine, ...]
    gpus: tuple[sections.GpuLine, ...]
    threads: _html_stacks.Threads
    homes: Mapping[str, int]
    gaps: tuple[object, ...]
    differs: tuple[tuple[str, str], ...]
    said: tuple[tuple[str, str], ...]
    """A heading and a line of the log that is not its end."""


def render(report: Report, options: RenderOptions) -> str:
    """Write `report` as a page. Raises ImportError where jinja2 is not installed."""
    names = Names(report)
    citations = Citations(report, names)
    threads = _html_stacks.threads(report, names, citations, everything=options.detail)
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = Page(
        report=report,
        names=names,
        style=style,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        word=VERDICT_WORDS[report.verdict.kind],
        title=f"{VERDICT_WORDS[report.verdict.kind]}: {wording.clip(report.verdict.summary, 120)}",
        heading=heading(report),
        looks=looks(report),
        citations=citations,
        sentences=sections.sentences(report, names),
        timeline=sections.timeline(report, names),
        drawing=draw_waits(report, names, citations),
        stacks=_html_stacks.stack_columns(report, citations),
        tree=_html_stacks.prefix_tree(report, names),
        charts=_charts.charts(report, names),
        progress=sections.progress_lines(report, names),
        gpus=sections.gpu_lines(report, names),
        threads=threads,
        homes=threads.homes(report, citations),
        gaps=tuple(fold_gaps(report)),
        differs=tuple(
            (name, wording.fold_values(values)) for name, values in sorted(report.nccl_env.differs.items())
        ),
        said=tuple(said_in_log(report, with_newest=False)),
    )
    text = _template().render(page=page, w=wording)
    return wording.to_entities(text) if options.ascii else text


RENDERER = Renderer("html", "html", render)


def _style() -> str:
    return "\n" + _HERE.joinpath("html_report.css").read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        # Called on every value before it is escaped, so that no template can forget it.
        finalize=lambda value: wording.clean(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(_HERE.joinpath("html_report.template.html").read_text(encoding="utf-8"))
