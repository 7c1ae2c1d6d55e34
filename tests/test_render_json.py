"""The JSON report: valid against the shipped schema, with the contract's keys, and documented."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangdoctor.render import RENDERERS, RenderOptions, json_report
from hangdoctor.report import (
    SCHEMA,
    Cause,
    Confidence,
    Evidence,
    Kind,
    Progress,
    ProgressClass,
    Report,
    Strength,
)
from tests.render_support import SAMPLES, empty, laggard, many_ranks

SCHEMA_TEXT = files("hangdoctor.render").joinpath("report.schema.json").read_text(encoding="utf-8")
DESCRIPTION = json.loads(SCHEMA_TEXT)
DOCUMENT = (Path(__file__).parent.parent / "docs" / "report.md").read_text(encoding="utf-8")
VALIDATOR = jsonschema.Draft202012Validator(DESCRIPTION)

CONTRACT = {
    "": "schema tool target verdict processes groups waits nccl_env evidence gaps next_steps timings",
    "tool": "version knowledge",
    "target": "pid host server server_version started_at command",
    "verdict": "kind confidence cause summary culprits victims progress refuted_by alternatives",
    "verdict.culprits": "pid tid thread role rank phase frame doing evidence",
    "verdict.culprits.rank": "global tp pp dp ep host",
    "verdict.culprits.frame": "function file line",
    "verdict.victims": "pid role rank waits_for phase frame",
    "verdict.progress": "class rate percent eta_s what",
    "processes": "pid role rank state phase frame progress gpu threads",
    "groups": "ranks phase stack count",
    "waits": "from to reason object strength",
    "waits.from": "pid tid",
    "nccl_env": "common differs notes",
    "evidence": "id subject snapshot source text",
    "gaps": "source subject reason remedy",
    "next_steps": "text command",
    "timings": "snapshots skew_s wall_s target_paused_s",
}


def made(report: Report, *, ascii_only: bool = False) -> dict[str, object]:
    text = RENDERERS["json"].render(report, RenderOptions(ascii=ascii_only))
    value = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_reports_are_valid(sample: str) -> None:
    VALIDATOR.validate(made(SAMPLES[sample]()))
    assert made(SAMPLES[sample](), ascii_only=True) == made(SAMPLES[sample]())


def test_a_thousand_ranks_are_valid() -> None:
    # One process of each shape is enough for the validator; the full text is measured in test_render.py.
    VALIDATOR.validate(made(many_ranks(17, 11)))


def test_the_schema_is_one_and_is_strict_about_what_is_there() -> None:
    jsonschema.Draft202012Validator.check_schema(DESCRIPTION)
    for broken in (
        {key: value for key, value in made(laggard()).items() if key != "gaps"},
        {**made(laggard()), "schema": "hangdoctor.report/2"},
        {**made(laggard()), "evidence": [{"id": 1}]},
    ):
        assert not VALIDATOR.is_valid(broken)
    assert VALIDATOR.is_valid({**made(laggard()), "added later": None})


@pytest.mark.parametrize("path", sorted(CONTRACT))
def test_the_contract_is_kept(path: str) -> None:
    value: object = made(laggard())
    for key in filter(None, path.split(".")):
        assert isinstance(value, dict)
        value = value[key]
        if isinstance(value, list):
            value = value[0]
    assert isinstance(value, dict)
    assert set(CONTRACT[path].split()) <= set(value)


def test_unknown_is_null_and_never_left_out() -> None:
    full, least = made(laggard()), made(empty())
    assert set(least) == set(full)
    for part in ("target", "verdict", "timings", "nccl_env"):
        assert set(_object(least[part])) == set(_object(full[part]))
    assert _object(least["target"])["pid"] is None
    assert _object(least["verdict"])["progress"] is None


def _object(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def test_a_number_that_is_none_becomes_null() -> None:
    report = laggard()
    progress = Progress(ProgressClass.PROOF, "x", float("nan"), "bytes/s", float("inf"), None)
    verdict = _object(made(replace(report, verdict=replace(report.verdict, progress=progress)))["verdict"])
    assert _object(verdict["progress"])["rate"] is None
    assert _object(verdict["progress"])["percent"] is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" ")),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("ab€"), inner),
    ),
    st.booleans(),
)  # fmt: skip
def test_it_is_written_as_json_itself_writes_it(value: object, is_ascii: bool) -> None:
    writer = json_report._Writer(is_ascii)
    writer.write(value, "")  # type: ignore[arg-type]
    assert "".join(writer.parts) == json.dumps(value, indent=2, ensure_ascii=is_ascii)


@given(st.text(st.characters(categories=("Cs", "Cf", "Cc", "Zl", "Zp", "Ll"))), st.booleans())
def test_no_text_breaks_the_json_or_speaks_to_a_terminal(text: str, is_ascii: bool) -> None:
    writer = json_report._Writer(is_ascii)
    writer.write([text], "")
    written = "".join(writer.parts)
    assert written.isprintable() or written.replace("\n", "").isprintable()
    written.encode("utf-8")
    plain = text.encode("utf-8", "backslashreplace").decode("utf-8")
    assert json.loads(written) == [plain]


def test_order_is_meaningful() -> None:
    report = laggard()
    pieces = tuple(Evidence(f"E{n}", "x", None, "y", "z") for n in (10, 2, 1))
    value = made(replace(report, evidence=pieces, processes=tuple(reversed(report.processes))))
    assert [_object(piece)["id"] for piece in value["evidence"]] == ["E1", "E2", "E10"]  # type: ignore[attr-defined]
    ranks = [_object(row)["rank"] for row in value["processes"]]  # type: ignore[attr-defined]
    assert [rank and rank["tp"] for rank in ranks] == [0, 1, 2, 3, 4, 5, 6, None]  # type: ignore[index]


def test_the_schema_knows_every_value_that_can_be_written() -> None:
    lists = [set(entry["enum"]) - {None} for entry in _find(DESCRIPTION, "enum")]
    for enum in (Kind, Confidence, Cause, ProgressClass, Strength):
        assert {member.value for member in enum} in lists
    assert DESCRIPTION["properties"]["schema"]["const"] == SCHEMA
    assert all(cause.value in DOCUMENT for cause in Cause)


def test_every_key_is_described_and_documented() -> None:
    objects = list(_find(DESCRIPTION, "properties"))
    assert all(set(entry["required"]) == set(entry["properties"]) for entry in objects)
    documented = set(re.findall(r"\w+", DOCUMENT))
    assert {key for entry in objects for key in entry["properties"]} <= documented
    captured = {**laggard().nccl_env.common, **laggard().nccl_env.differs, **laggard().target.versions}
    labels = {f"TP{rank}" for rank in range(7)}
    assert set(_keys(made(laggard()))) <= documented | labels | set(captured)


def _find(value: object, key: str) -> Iterator[dict[str, dict[str, object]]]:
    if isinstance(value, dict):
        if isinstance(value.get(key), list if key == "enum" else dict) and "type" not in value.get(key, {}):
            yield value
        for item in value.values():
            yield from _find(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _find(item, key)


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)
