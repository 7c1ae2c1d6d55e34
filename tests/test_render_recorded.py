"""Reports of real servers in every format: valid, bounded and complete, not only those that the tests make up."""

from __future__ import annotations

import json
import math
from functools import cache
from itertools import combinations

import html5lib
import jsonschema
import pytest

from hangdoctor import bundle
from hangdoctor.analysis import diagnose
from hangdoctor.knowledge import load_knowledge
from hangdoctor.render import RENDERERS, RenderOptions
from hangdoctor.render._citations import Citations
from hangdoctor.render._digest import Names
from hangdoctor.render._wait_graph import draw_waits
from hangdoctor.render.markdown import LIMIT
from hangdoctor.report import Report
from tests.expectations import BUNDLES, RECORDED
from tests.test_render_html import Facts
from tests.test_render_json import VALIDATOR
from tests.test_render_markdown import PARSER


@cache
def report(name: str) -> Report:
    return diagnose(bundle.read(BUNDLES / name / "capture.hang"), load_knowledge())


def write(name: str, form: str, *, detail: bool = False) -> str:
    return RENDERERS[form].render(report(name), RenderOptions(detail=detail))


@pytest.mark.parametrize("name", RECORDED)
def test_json_fits_the_schema_and_has_a_value_a_look(name: str) -> None:
    content = json.loads(write(name, "json"))
    VALIDATOR.validate(content)
    looks = len(content["timings"]["snapshots"])
    series = [each for row in content["processes"] for each in row["series"]]
    assert series and all(len(each["values"]) == looks for each in series)


def test_servers_give_their_processes_titles() -> None:
    titles = {row.title for name in RECORDED for row in report(name).processes if row.rank is not None}
    assert {"sglang::scheduler_TP1", "VLLM::Worker_TP1"} <= titles
    # A job that torchrun started keeps its command lines.
    plain = [row for name in RECORDED if "torch-" in name for row in report(name).processes]
    assert plain and not [row for row in plain if row.title]


@pytest.mark.parametrize("name", RECORDED)
def test_markdown_is_short_and_its_folds_are_closed(name: str) -> None:
    for detail in (False, True):
        text = write(name, "markdown", detail=detail)
        assert len(text) <= LIMIT and text.startswith("## ")
        html = [token.content for token in PARSER.parse(text) if token.type == "html_block"]
        assert len(html) % 2 == 0 and html[1::2] == ["</details>\n"] * (len(html) // 2)


@pytest.mark.parametrize("name", RECORDED[::7])
def test_html_is_valid_and_every_link_leads_somewhere(name: str) -> None:
    text = write(name, "html")
    html5lib.HTMLParser(strict=True).parse(text)
    facts = Facts(text)
    ids = facts.values("id")
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in facts.values("href")} <= set(ids)
    assert len(text) < 1_000_000
    for piece in report(name).evidence:
        assert f'href="#{piece.id}"' in text, "each piece of evidence is cited by something"


@pytest.mark.parametrize("name", RECORDED)
def test_the_numbers_on_the_arrows_can_be_told_apart(name: str) -> None:
    names = Names(report(name))
    drawing = draw_waits(report(name), names, Citations(report(name), names))
    places = [(arrow.badge_x, arrow.badge_y) for arrow in drawing.arrows] if drawing else []
    assert all(math.dist(a, b) >= 18 for a, b in combinations(places, 2))


@pytest.mark.parametrize("name", RECORDED)
def test_stacks_for_other_tools_have_a_profile_a_rank(name: str) -> None:
    """What https://www.speedscope.app/file-format-schema.json asks of a sampled profile."""
    content = json.loads(write(name, "speedscope"))
    jsonschema.validate(content, SPEEDSCOPE)
    count = len(content["shared"]["frames"])
    for profile in content["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(index < count for sample in profile["samples"] for index in sample)
    with_stacks = [
        row for row in report(name).processes if any(t.stack and not t.is_machinery for t in row.threads)
    ]
    assert len(content["profiles"]) == len(with_stacks)


SPEEDSCOPE = {
    "type": "object",
    "required": ["$schema", "profiles", "shared"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "name": {"type": "string"},
        "exporter": {"type": "string"},
        "shared": {
            "type": "object",
            "required": ["frames"],
            "properties": {
                "frames": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "additionalProperties": False,
                        "properties": {
                            "name": {"type": "string"},
                            "file": {"type": "string"},
                            "line": {"type": "number"},
                            "col": {"type": "number"},
                        },
                    },
                }
            },
        },
        "profiles": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "name", "unit", "startValue", "endValue", "samples", "weights"],
                "properties": {
                    "type": {"const": "sampled"},
                    "unit": {
                        "enum": ["bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds"]
                    },
                    "samples": {
                        "type": "array",
                        "items": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                    },
                    "weights": {"type": "array", "items": {"type": "number"}},
                },
            },
        },
    },
}
