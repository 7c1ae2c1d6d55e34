#!/usr/bin/env python
"""How well hangdoctor reads what people paste: diagnoses the public reports of the corpus and prints what was right.

    scripts/score_reports.py                     all reports, one line each, and the sums
    scripts/score_reports.py sglang vllm-51921   only these
    scripts/score_reports.py --explain ID        the whole report of one case

The tool sees nothing but a report's `evidence`. Exits with 1 when a goal is missed: on reports from which the answer
can be derived, culprit and phase right in 90 % of the cases, no wrong culprit called certain, nothing healthy called
hung; on reports from which it cannot, no culprit named.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from hangdoctor.analysis import diagnose  # noqa: E402
from hangdoctor.knowledge import load_knowledge  # noqa: E402
from hangdoctor.parsers import read_text  # noqa: E402
from hangdoctor.report import Confidence, Culprit, Kind, Report  # noqa: E402

CORPUS = ROOT.parent / "shared" / "corpus" / "reports.yaml"
GOAL = 0.9
ACCEPTED = {"waiting": ("hung", "unknown")}
"""A rank that never came is no verdict of its own."""

# What of phases and causes means the same as a phase of the corpus.
FAMILIES = {
    "serving_collective": (
        r"collective|barrier|p2p|pipeline|dp-sync|broadcast|receive-req|laggard|missing-peer|wait-everyone"
    ),
    "serving_gpu_wait": r"gpu",
    "lock": r"lock|gil",
    "dist_init": r"dist-init|store|rendezvous|handshake|missing-peer|ports|wait-schedulers",
    "nccl_init": r"nccl-init|initializing-nccl|missing-peer",
    "jit_compile": r"jit|compil",
    "ipc_wait": r"wait-step|ipc|message-queue|shm",
    "scheduler_loop": r"schedul|serving",
    "idle": r"idle|serving|controller-idle|data-load",
    "weight_loading": r"weights-load|loading",
    "weight_postprocess": r"dequant|postprocess",
    "warmup": r"warm",
    "autotune": r"autotun",
}


@dataclass(frozen=True, slots=True)
class Truth:
    """What the corpus says in prose, in words that a program can look for."""

    names: tuple[str, ...] = ()
    """Any of these is a right culprit: a rank's label, a pid, a thread, a function."""
    innocent: tuple[str, ...] = ()
    """Blaming any of these is wrong."""
    says: str | None = None
    """The culprit is nobody that was seen: the report must say this instead (pattern)."""
    is_nobody: bool = False
    """Nobody is to blame."""


TRUTHS = {
    "pytorch-95944-last-rank-different": Truth(("cudaMemcpyAsync", "_local_scalar_dense_cuda", "-1", "?")),
    "autoround-1701-loader-lock-gil": Truth(("2929931", "1726753", "PyEval_RestoreThread", "MainThread")),
    "pytorch-129367-tcpstore-get-rank3": Truth(says=r"MASTER_|store|wrong server|port"),
    "sglang-33549-pyspy-denied": Truth(says=r"GPU|power|all ranks"),
    "vllm-51921-reader-site-enginecore": Truth(innocent=("EngineCore", "280"), says=r"worker"),
    "sglang-7339-20s-stall-cicc": Truth(("1413",)),
    "sglang-6864-tp1-never-started": Truth(("TP1",), ("TP0",), says=r"TP1|only TP0|other ranks"),
    "torch-2vs6-gloo-nccl-skew": Truth(
        ("rank 0", "rank 4"), ("rank 7", "rank 1", "rank 2", "rank 3", "rank 5", "rank 6")
    ),
    "vllm-23448-seq-off-by-one": Truth(("rank 3",), ("rank 0",)),
    "nccl-1610-two-groups": Truth(
        ("rank 13", "rank 15"), says=r"119.*112|112.*119|two groups|different groups"
    ),
    "nemo-13562-seq-divergence": Truth(
        ("rank 3",), ("rank 0",), says=r"rank 3|did not report|not seen|missing"
    ),
    "hf-m4-rank0-D-state": Truth(("280058",), ("280064",)),
    "marin-7344-jax-lagging-rank": Truth(("main",), ("_value", "__float__")),
    "sglang-slurm-7plus1-prefill-delayer": Truth(("117492", "init_next_round_input"), ("117489",)),
    "sglang-pp0-pp1-mutual-recv": Truth(("142", "211")),
    "sglang-12121-pp-dp-send": Truth(innocent=("3438121",), says=r"PP1|next stage|peer"),
    "sglang-30760-hicache-tp0-allreduce-vs-broadcast": Truth(("TP0",), ("TP1", "TP2", "TP3")),
    "lmcache-2823-gil-cuda-lock": Truth(("cudaSetDevice", "store", "__enter__", "THCPModule_exchangeDevice")),
    "sglang-11208-gb200-symm-window": Truth(
        innocent=("MainThread",), says=r"without|other rank|peer|not in it|elsewhere"
    ),
    "vllm-ascend-two-different-hangs": Truth(innocent=(), says=r"other|peer|not in|elsewhere|GPU|device"),
    "sglang-4257-tp2-prefill-ragged-run": Truth(
        ("TP0", "2696393", "Thread-3 (forward_thread_func)"), ("MainThread",)
    ),
    "sglang-22276-mtp-allgather-item": Truth(says=r"GPU|enqueued|stream"),
    "sglang-7254-launch-blocking-stack": Truth(("Thread-4 (forward_thread_func)", "12965"), ("MainThread",)),
    "vllm-17676-flashinfer-sampler-warmup": Truth(("2403",), says=r"GPU|JIT|compil"),
    "sglang-npu-mrope-copy-native": Truth(("163685", "TP0"), says=r"GPU|device"),
    "deepep-240-low-latency-unit-test": Truth(says=r"GPU|kernel"),
    "vllm-2479-ray-allgather-logits": Truth(
        innocent=("96488",), says=r"other|peer|not in it|elsewhere|was not seen"
    ),
    "vllm-41834-healthy-idle-worker": Truth(is_nobody=True),
    "sglang-20766-dp-controller-false-alarm": Truth(is_nobody=True),
    "vllm-weights-tqdm-100-still-copying": Truth(("270",)),
    "ray-65100-forked-dataloader-worker": Truth(is_nobody=True),
    "sglang-clusterip-handshake": Truth(says=r"other nodes|nodes|address|port|hand-?shake"),
    "sglang-33289-gb10-nccl-proxy-pool": Truth(("ncclLocalOpAppend", "SaveProxy", "-1")),
    "vllm-43420-shm-info-while-idle": Truth(is_nobody=True),
    "vllm-52291-autotune-desync": Truth(says=r"tun(e|ing)"),
    "vllm-flashinfer-jit-15min-shm": Truth(says=r"compil|JIT|busy|time-consuming"),
}


@dataclass(frozen=True, slots=True)
class Score:
    """One case."""

    id: str
    derivable: str
    expected: str
    said: str
    confidence: str
    verdict_right: bool
    culprit_right: bool | None
    """``None``: there is no right answer to give."""
    phase_right: bool
    is_false_hung: bool
    is_wrong_and_certain: bool
    is_named: bool


def score(case: dict[str, Any], report: Report) -> Score:
    """Compare a report with what the corpus says."""
    expected = case["expected"]
    verdict = report.verdict
    truth = TRUTHS.get(case["id"])
    culprit = _culprit_right(truth, report) if truth is not None else None
    accepted = ACCEPTED.get(expected["verdict"], (expected["verdict"],))
    is_hung = verdict.kind is Kind.HUNG
    return Score(
        id=case["id"],
        derivable=case["derivable_from_evidence"],
        expected=expected["verdict"],
        said=verdict.kind.value,
        confidence=verdict.confidence.value,
        verdict_right=verdict.kind.value in accepted,
        culprit_right=culprit,
        phase_right=_phase_right(expected["phase"], report),
        is_false_hung=is_hung and expected["verdict"] in ("slow", "ready"),
        is_wrong_and_certain=culprit is False
        and verdict.confidence is Confidence.CERTAIN
        and bool(verdict.culprits),
        is_named=bool(verdict.culprits),
    )


def _culprit_right(truth: Truth, report: Report) -> bool:
    culprits = report.verdict.culprits
    if truth.is_nobody:
        return not culprits
    blamed = [names_of(culprit) for culprit in culprits]
    if any(names & set(truth.innocent) for names in blamed) and not any(
        names & set(truth.names) for names in blamed
    ):
        return False
    if any(names & set(truth.names) for names in blamed):
        return True
    return truth.says is not None and bool(re.search(truth.says, text_of(report), re.IGNORECASE))


def names_of(culprit: Culprit) -> frozenset[str]:
    """Everything that one would recognise a culprit by."""
    names = {str(culprit.pid), str(culprit.tid), culprit.thread, culprit.rank.label if culprit.rank else None}
    names |= {frame.function.rsplit(".", 1)[-1] for frame in culprit.stack}
    if culprit.frame is not None:
        names.add(culprit.frame.function)
    return frozenset(name for name in names if name and name != "None")


def text_of(report: Report) -> str:
    """The sentences of a verdict."""
    verdict = report.verdict
    parts = [verdict.summary, *verdict.alternatives, *verdict.refuted_by, *report.matches]
    parts += [step.text for step in report.next_steps]
    parts += [culprit.doing for culprit in verdict.culprits]
    return "\n".join(parts)


def _phase_right(expected: str, report: Report) -> bool:
    verdict = report.verdict
    phases = [c.phase for c in verdict.culprits] + [v.phase for v in verdict.victims]
    if verdict.cause is not None:
        phases.append(verdict.cause.value)
    if not verdict.culprits and not verdict.victims:
        phases += [row.phase for row in report.processes]
    pattern = FAMILIES.get(expected, re.escape(expected))
    return any(phase is not None and re.search(pattern, phase) for phase in phases)


def print_scores(scores: Sequence[Score]) -> None:
    """One line a case."""
    print(f"{'case':<48} {'deriv.':<8}{'expected':<9}{'said':<18}{'verdict':<8} {'culprit':<8} {'phase':<6}")
    for one in scores:
        said = f"{one.said} ({one.confidence})"
        notes = [
            text
            for holds, text in (
                (one.is_false_hung, "HEALTHY CALLED HUNG"),
                (one.is_wrong_and_certain, "WRONG AND CERTAIN"),
                (one.derivable == "no" and one.is_named, "named although not derivable"),
            )
            if holds
        ]
        culprit = "-" if one.derivable == "no" else _mark(one.culprit_right)
        print(
            f"{one.id:<48} {one.derivable:<8}{one.expected:<9}{said:<18}{_mark(one.verdict_right):<8} "
            f"{culprit:<8} {_mark(one.phase_right):<6} {', '.join(notes)}".rstrip()
        )


def _mark(is_right: bool | None) -> str:
    return "-" if is_right is None else "yes" if is_right else "NO"


def print_sums(scores: Sequence[Score]) -> bool:
    """The sums by class; whether all goals are met."""
    print()
    for derivable in ("full", "partial", "no"):
        own = [s for s in scores if s.derivable == derivable]
        if own:
            print(f"{derivable:<8} {len(own):3} cases: " + ", ".join(_shares(own)))
    full = [s for s in scores if s.derivable == "full"]
    goals = (
        ("culprit right on `full`", _share([s.culprit_right is True for s in full]) >= GOAL),
        ("phase right on `full`", _share([s.phase_right for s in full]) >= GOAL),
        ("no wrong culprit called certain", not any(s.is_wrong_and_certain for s in scores)),
        ("nothing healthy called hung", not any(s.is_false_hung for s in scores)),
        ("no culprit named on `no`", not any(s.is_named for s in scores if s.derivable == "no")),
    )
    print()
    for name, is_met in goals:
        print(f"{'met   ' if is_met else 'MISSED'} {name}")
    return all(is_met for _, is_met in goals)


def _shares(scores: Sequence[Score]) -> Iterator[str]:
    yield f"verdict {sum(s.verdict_right for s in scores)}/{len(scores)}"
    if scores[0].derivable != "no":
        yield f"culprit {sum(s.culprit_right is True for s in scores)}/{len(scores)}"
    yield f"phase {sum(s.phase_right for s in scores)}/{len(scores)}"
    yield f"a culprit named in {sum(s.is_named for s in scores)}"
    by_class: dict[str, list[bool]] = {}
    for one in scores:
        by_class.setdefault(one.expected, []).append(one.verdict_right)
    yield "; ".join(f"{name} {sum(right)}/{len(right)}" for name, right in sorted(by_class.items()))


def _share(rights: Sequence[bool]) -> float:
    return sum(rights) / len(rights) if rights else 1.0


def main() -> int:
    """Score the cases asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="ID", help="parts of case ids; default: all")
    parser.add_argument("--explain", action="store_true", help="print the reports themselves, too")
    options = parser.parse_args()
    if not CORPUS.is_file():
        print(f"no corpus: {CORPUS} is absent, so there is nothing to score against", file=sys.stderr)
        return 2
    knowledge = load_knowledge()
    scores = []
    for case in yaml.safe_load(CORPUS.read_text()):
        if options.cases and not any(part in case["id"] for part in options.cases):
            continue
        report = diagnose(read_text(case["evidence"], "report", knowledge), knowledge)
        scores.append(score(case, report))
        if options.explain:
            from hangdoctor.render import RENDERERS, RenderOptions

            print(f"== {case['id']}\n{RENDERERS['markdown'].render(report, RenderOptions())}")
    print_scores(scores)
    return 0 if print_sums(scores) else 1


if __name__ == "__main__":
    sys.exit(main())
