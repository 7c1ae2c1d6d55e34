"""Every entry of the knowledge files proves itself by its own examples, in every spelling a dump may have."""

from __future__ import annotations

import pytest

from hangdoctor.knowledge import Example
from hangdoctor.knowledge.catalogue import Phase, RoleKind, Stage
from hangdoctor.knowledge.logs import LogRule
from hangdoctor.knowledge.match import GENERIC_SERVERS
from hangdoctor.knowledge.roles import RoleRule
from hangdoctor.model import Activity, Frame, Method, Stack
from hangdoctor.report import Cause
from tests.knowledge_support import bare, built_in, process

KNOWLEDGE = built_in()
PHASES = list(KNOWLEDGE.phases.values())


def found_in(frames: tuple[Frame, ...], example: Example) -> set[str]:
    """Ids that the stack is recognised as: the phase, and for aspects also the aspect."""
    server = None if example.server in GENERIC_SERVERS else example.server
    match = KNOWLEDGE.match(Stack(frames, Method.PASTED), server, example.role)
    if match is None:
        return set()
    names = {match.phase.id}
    if KNOWLEDGE.phases[example.phase].stage is Stage.ASPECT and match.aspect is not None:
        names.add(match.aspect.id)
    return names


@pytest.mark.parametrize("example", KNOWLEDGE.examples, ids=lambda e: f"{e.phase}-{e.matches}")
def test_every_phase_matches_its_examples_and_not_its_counterexamples(example: Example) -> None:
    assert (example.phase in found_in(example.frames, example)) is example.matches


@pytest.mark.parametrize("example", KNOWLEDGE.examples, ids=lambda e: f"{e.phase}-{e.matches}")
def test_examples_hold_without_class_names(example: Example) -> None:
    assert (example.phase in found_in(bare(example.frames), example)) is example.matches


@pytest.mark.parametrize("phase", PHASES, ids=lambda p: p.id)
def test_phases_are_complete(phase: Phase) -> None:
    assert phase.cause is None or phase.cause in {cause.value for cause in Cause}
    assert phase.title[0].islower() or phase.title.startswith(("CUDA", "NCCL", "HTTP")), "finishes 'TP1 is …'"
    assert phase.title.split()[0].endswith("ing") or phase.title.startswith(("in ", "at ")), phase.title
    assert phase.meaning.endswith((".", ")")), "meanings are sentences"
    if phase.stage is Stage.ASPECT:
        assert phase.server in GENERIC_SERVERS


_NO_BUDGET = {"sglang.wait-schedulers", "sglang.gated-launch", "vllm.wait-engine", "vllm.wait-workers"}
_NO_BUDGET |= {"vllm.wait-startup-rpc", "vllm.worker-ready", "tensorrt-llm.wait-workers"}
"""They last as long as somebody else does: only the others' budgets count."""


@pytest.mark.parametrize("phase", [p for p in PHASES if p.stage is Stage.STARTUP], ids=lambda p: p.id)
def test_start_up_phases_have_a_budget_or_only_wait_for_others(phase: Phase) -> None:
    assert (phase.budget_s is None) is (phase.id in _NO_BUDGET)


@pytest.mark.parametrize(
    "phase", [p for p in PHASES if p.activity is Activity.WAIT_COLLECTIVE], ids=lambda p: p.id
)
def test_collectives_have_a_budget(phase: Phase) -> None:
    assert phase.budget_s is not None


def rank_label(text: str) -> str | None:
    return text.rpartition(" => ")[2] if " => " in text else None


ROLE_EXAMPLES = [(rule, text) for rule in KNOWLEDGE.contents.roles for text in rule.examples]
ROLE_COUNTEREXAMPLES = [(rule, text) for rule in KNOWLEDGE.contents.roles for text in rule.counterexamples]


@pytest.mark.parametrize(
    ("rule", "text"), ROLE_EXAMPLES, ids=lambda v: v if isinstance(v, str) else v.role.id
)
def test_roles_are_found_by_their_examples(rule: RoleRule, text: str) -> None:
    found = KNOWLEDGE.find_role(process(text.partition(" => ")[0]), rule.role.server)
    assert found is not None
    assert found.role.id == rule.role.id
    assert (found.rank.label if found.rank else None) == rank_label(text)


@pytest.mark.parametrize(
    ("rule", "text"), ROLE_COUNTEREXAMPLES, ids=lambda v: v if isinstance(v, str) else v.role.id
)
def test_roles_stay_silent_on_their_counterexamples(rule: RoleRule, text: str) -> None:
    found = KNOWLEDGE.find_role(process(text), rule.role.server)
    assert found is None or found.role.id != rule.role.id


@pytest.mark.parametrize("rule", KNOWLEDGE.contents.logs, ids=lambda r: r.literal)
def test_log_rules_read_their_examples(rule: LogRule) -> None:
    for line in rule.examples:
        message = KNOWLEDGE.read_log_line(line)
        assert message is not None, line
        assert (message.kind, message.fields["server"], message.fields.get("phase")) == (
            rule.kind,
            rule.server,
            rule.phase,
        )
        named = rule.pattern.groupindex if rule.pattern is not None else {}
        assert not named or set(message.fields) & set(named), "a pattern with groups must read something"
    for line in rule.counterexamples:
        message = KNOWLEDGE.read_log_line(line)
        assert message is None or (message.kind, message.fields["server"]) != (rule.kind, rule.server)


def test_every_server_has_what_the_product_promises() -> None:
    engines = {name for name, server in KNOWLEDGE.servers.items() if server.kind == "engine"}
    assert engines >= {"sglang", "vllm", "tensorrt-llm", "lmdeploy", "tgi", "dynamo"}
    for name in engines - {"dynamo"}:
        kinds = {role.kind for role in KNOWLEDGE.roles.values() if role.server == name}
        stages = {phase.stage for phase in KNOWLEDGE.phases.values() if phase.server == name}
        assert RoleKind.RANK in kinds
        assert {Stage.STARTUP, Stage.IDLE} <= stages
        assert KNOWLEDGE.ready_line(name)


@pytest.mark.parametrize("server", ["sglang", "vllm"])
def test_the_promised_phase_ids_exist(server: str) -> None:
    suffixes = (
        "import dist-init nccl-init weights-load dequantize kv-cache-alloc jit-compile graph-capture warmup"
    )
    for suffix in suffixes.split():
        assert f"{server}.{suffix}" in KNOWLEDGE.phases


def test_explain_knows_every_id() -> None:
    names = [*KNOWLEDGE.phases, *KNOWLEDGE.roles, *(s.id for s in KNOWLEDGE.signatures)]
    for name in names:
        text = KNOWLEDGE.explain(name)
        assert text is not None and text.startswith(f"{name}: ")
    assert len(names) == len(set(names)), "one id, one meaning"
    assert KNOWLEDGE.explain("sglang.no-such-phase") is None
