"""Communication settings over the ranks, and when nothing must be said about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoctor.analysis.nccl import read_nccl_env
from hangdoctor.knowledge.nccl import NCCL_FILE, load_nccl_knowledge
from hangdoctor.knowledge.tables import BadKnowledge

# As SGLang 0.5.12 leaves it in its ranks on a healthy 2×H200 (captures of this project).
HEALTHY = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "8",
    "CUDA_MODULE_LOADING": "AUTO",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_DEBUG": "WARN",
    "WORLD_SIZE": "5",
    "MASTER_ADDR": "192.0.2.7",
    "PATH": "/usr/bin",
}
LABELS = ("TP0", "TP1", "TP2", "TP3", "TP4")


def ranks(**odd: str) -> dict[str, dict[str, str]]:
    """Five healthy ranks; ``odd`` is set on TP2 alone."""
    environs = {label: {**HEALTHY, "RANK": label[2:]} for label in LABELS}
    environs["TP2"].update(odd)
    return environs


def everywhere(**settings: str) -> dict[str, dict[str, str]]:
    return {label: {**environ, **settings} for label, environ in ranks().items()}


def test_a_healthy_server_has_common_settings_and_nothing_to_say() -> None:
    env = read_nccl_env(ranks(), "sglang", server_version="0.5.12.post1")
    assert env.notes == () and env.differs == {}
    assert env.common["NCCL_CUMEM_ENABLE"] == "0"
    assert "PATH" not in env.common and "RANK" not in env.common


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("NCCL_ALGO", "Ring", "different algorithms"),
        ("NCCL_IB_DISABLE", "1", "cannot connect"),
        ("NCCL_P2P_DISABLE", "1", "different transports"),
        ("MASTER_ADDR", "192.0.2.8", "rendezvous"),
        ("NCCL_MIN_NCHANNELS", "4", "different algorithms"),
    ],
)
def test_one_rank_with_another_setting_is_said_with_the_reason(name: str, value: str, why: str) -> None:
    env = read_nccl_env(ranks(**{name: value}), "sglang")
    (note,) = env.notes
    before = HEALTHY.get(name, "(not set)")
    assert note.startswith(f"{name} differs ({value} on TP2; {before} on TP0-1,3-4): ") and why in note
    assert env.differs[name]["TP2"] == value and env.differs[name]["TP0"] == before


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "NCCL_DEBUG_FILE", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME"]
)
def test_settings_that_may_differ_are_shown_without_a_complaint(name: str) -> None:
    env = read_nccl_env(ranks(**{name: "eth1"}), "sglang")
    assert name in env.differs
    assert not [note for note in env.notes if "differs" in note]


def test_two_ranks_that_believe_to_be_the_same() -> None:
    assert read_nccl_env(ranks(RANK="3")).notes == (
        "RANK=3 on TP2-3: two processes believe to be the same rank",
    )


def test_a_rank_variable_inherited_by_all_is_no_duplicate() -> None:
    assert read_nccl_env(everywhere(RANK="0")).notes == ()


def test_different_libraries() -> None:
    versions = {label: {"nccl": "2.28.9", "torch": "2.11.0"} for label in LABELS}
    assert read_nccl_env(ranks(), versions=versions).notes == ()
    versions["TP3"] = {"nccl": "2.27.3", "torch": "2.11.0"}
    assert read_nccl_env(ranks(), versions=versions).notes == (
        "ranks have loaded different NCCL libraries (2.27.3 on TP3; 2.28.9 on TP0-2,4)",
    )


def test_what_disagrees_with_the_server_itself() -> None:
    env = read_nccl_env(everywhere(NCCL_CUMEM_ENABLE="1"), "sglang")
    assert env.notes[0].startswith("NCCL_CUMEM_ENABLE is 1 on TP0-4; SGLang sets 0 unless")
    assert not read_nccl_env(everywhere(NCCL_CUMEM_ENABLE="1"), "vllm", server_version="0.32.0").notes
    assert not read_nccl_env(everywhere(NCCL_CUMEM_ENABLE="1"), None).notes


def test_a_default_of_some_versions_is_held_against_those_only() -> None:
    four = everywhere(CUDA_DEVICE_MAX_CONNECTIONS="4")
    assert "SGLang sets 8" in read_nccl_env(four, "sglang", server_version="0.5.12.post1").notes[0]
    assert read_nccl_env(four, "sglang", server_version="0.5.2").notes == ()
    assert read_nccl_env(four, "sglang").notes == ()


def test_known_bad_settings_carry_their_source() -> None:
    (note,) = read_nccl_env(everywhere(NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")).notes
    assert note.startswith("NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1: neither peer-to-peer")
    assert read_nccl_env(everywhere(NCCL_P2P_DISABLE="1")).notes == ()
    on_one = read_nccl_env({**ranks(), "TP4": {**HEALTHY, "CUDA_LAUNCH_BLOCKING": "1"}}).notes
    assert on_one[0].startswith("CUDA_LAUNCH_BLOCKING=1 on TP4: ")


def test_a_combination_bound_to_a_release_needs_that_release() -> None:
    cumem = everywhere(NCCL_CUMEM_ENABLE="1")

    def noted(nccl: str) -> bool:
        versions = {label: {"nccl": nccl} for label in LABELS}
        return any("#2379" in note for note in read_nccl_env(cumem, versions=versions).notes)

    assert noted("2.29.7")
    assert not noted("2.28.9")
    assert not any("#2379" in note for note in read_nccl_env(cumem).notes)


def test_no_rank_could_be_read() -> None:
    env = read_nccl_env({}, "sglang")
    assert (env.common, env.differs, env.notes) == ({}, {}, ())


def test_every_combination_can_fire() -> None:
    """Guards against patterns that match nothing: each is given values made from its own examples."""
    samples = {
        "nvls-on": {"NCCL_NVLS_ENABLE": "1"},
        "mnnvl-on": {"NCCL_MNNVL_ENABLE": "1"},
        "cumem-on": {"NCCL_CUMEM_ENABLE": "1"},
        "no-direct-path": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
        "unreachable-interface": {"NCCL_SOCKET_IFNAME": "docker0"},
        "gloo-on-bridge": {"GLOO_SOCKET_IFNAME": "veth12ab"},
        "hangs-are-not-aborted": {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
        "no-monitoring": {"TORCH_NCCL_ENABLE_MONITORING": "0"},
        "launch-blocking": {"CUDA_LAUNCH_BLOCKING": "1"},
        "one-connection": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        "lazy-modules": {"CUDA_MODULE_LOADING": "LAZY"},
        "forced-ll128": {"NCCL_PROTO": "LL128"},
        "expandable-segments": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"},
        "other-nccl": {"VLLM_NCCL_SO_PATH": "/opt/libnccl.so.2"},
        "nccl-log-file": {"NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"},
        "ras-off": {"NCCL_RAS_ENABLE": "0"},
    }
    versions = {"nccl": "2.30.7", "cuda": "12.1"}
    for combination in load_nccl_knowledge().combinations:
        assert combination.holds(samples[combination.id], versions), combination.id
        assert not combination.holds(HEALTHY, versions), combination.id


def test_a_misspelt_key_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "nccl.toml"
    bad.write_text(NCCL_FILE.read_text().replace('why = "the ranks look', 'because = "the ranks look'))
    with pytest.raises(BadKnowledge, match="why"):
        load_nccl_knowledge(bad)
