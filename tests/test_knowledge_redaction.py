"""What may be shown: the allow-list of variables, names of secrets, and tokens in free text."""

from __future__ import annotations

import pytest

from tests.knowledge_support import built_in

KNOWLEDGE = built_in()
RULES = KNOWLEDGE.redaction


def words(text: str) -> list[str]:
    return text.split()


@pytest.mark.parametrize(
    "name",
    words(
        """
        NCCL_DEBUG NCCL_SOCKET_IFNAME NCCL_MIN_NCHANNELS NVSHMEM_IB_ENABLE_IBGDA UCX_TLS
        GLOO_SOCKET_IFNAME RANK LOCAL_RANK TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCHINDUCTOR_CACHE_DIR
        CUDA_VISIBLE_DEVICES PYTORCH_CUDA_ALLOC_CONF MASTER_ADDR VLLM_WORKER_MULTIPROC_METHOD
        SGLANG_HEALTH_CHECK_TIMEOUT SGL_FOO HF_HUB_OFFLINE TRANSFORMERS_OFFLINE SLURM_PROCID
        OMPI_COMM_WORLD_RANK PMIX_RANK TOKENIZERS_PARALLELISM VLLM_MAX_TOKENS_PER_EXPERT_FUSED_MOE
        no_proxy MAX_JOBS
        """
    ),
)
def test_variables_that_matter_for_hangs_may_be_shown(name: str) -> None:
    assert KNOWLEDGE.is_env_allowed(name)


@pytest.mark.parametrize(
    "name",
    words(
        """
        VLLM_API_KEY SGLANG_API_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN SGLANG_S3_SECRET_ACCESS_KEY
        SGLANG_S3_ACCESS_KEY_ID TRITON_ARTIFACTORY_TOKEN SGLANG_DIFFUSION_SLACK_TOKEN NCCL_SECRET
        VLLM_FOO_PASSWORD AWS_SECRET_ACCESS_KEY PATH HOME http_proxy https_proxy PMIX_SECURITY_MODE
        OPENAI_API_KEY USER PS1 KUBERNETES_PORT OMPI_MCA_orte_precondition_key
        """
    ),
)
def test_secrets_and_everything_else_may_not(name: str) -> None:
    assert not KNOWLEDGE.is_env_allowed(name)


@pytest.mark.parametrize(
    "name",
    words(
        """
        --api-key --api_key --admin-api-key --hf-token --api-keys --ssl-keyfile-password
        --watermark-key-b --ngrok-authtoken api_key s3_secret_access_key aws_session_token password
        token auth key authorization db-password client_secret
        """
    ),
)
def test_secret_names(name: str) -> None:
    assert RULES.is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    words(
        """
        --tokenizer-path --tokenizer-mode --max-total-tokens --max-prefill-tokens
        --max-num-batched-tokens --kv-cache-dtype --speculative-num-draft-tokens --speculative-token-map
        --ds-heavy-token-num --long-prefill-token-threshold --dbo-decode-token-threshold
        --disagg-config-key num_key_value_heads --port --tp-size --model-path monkey
        --skip-tokenizer-init eos_token pad_token
        """
    ),
)
def test_names_that_only_look_secret(name: str) -> None:
    assert not RULES.is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdefgh12345678",
        "hf_" + "A" * 34,
        "sk-" + "b1" * 12,
        "AKIA" + "ABCDEFGH12345678",
        "ghp_" + "c" * 36,
        "github_pat_" + "d" * 30,
        "nvapi-" + "e" * 40,
        "xoxb-1234567890-abc",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_tokens_are_recognised_wherever_they_stand(text: str) -> None:
    assert any(pattern.search(f"x={text} y") for pattern in RULES.tokens)


@pytest.mark.parametrize(
    "text", ["hf_transfer", "sk-learn", "bearer of news", "sha256:0123", "eyJ.eyJ", "risk-management-x"]
)
def test_ordinary_words_are_no_tokens(text: str) -> None:
    assert not any(pattern.search(text) for pattern in RULES.tokens)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("https://user:pass@host/x", "user:pass"),
        ("redis://:pw@h:6379", ":pw"),
        ("s3://KEY:SECRET@bucket", "KEY:SECRET"),
    ],
)
def test_url_userinfo(text: str, secret: str) -> None:
    found = RULES.url_userinfo.search(text)
    assert found is not None and found["secret"] == secret
    assert RULES.url_userinfo.search("tcp://10.0.0.1:29500 mail@host") is None


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("server_args=ServerArgs(api_key='a,b\"c', port=1)", "api_key", "'a,b\"c'"),
        ('{"hf_token": "abc"}', "hf_token", '"abc"'),
        ("password=hunter2 next", "password", "hunter2"),
    ],
)
def test_assignments_in_free_text(text: str, name: str, value: str) -> None:
    found = RULES.assignments.search(text)
    assert found is not None and (found["name"], found["value"]) == (name, value)


def test_harmless_assignments_are_kept_by_their_name() -> None:
    found = RULES.assignments.search("max_total_num_tokens=21744380")
    assert found is not None and not RULES.is_secret_name(found["name"])
