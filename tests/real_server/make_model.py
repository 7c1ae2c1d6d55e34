"""Writes a Llama of random weights and a byte-level tokenizer, all local; run by the interpreter that vLLM runs on.

    python make_model.py FOLDER --layers 2 --hidden 128

Weights are bfloat16 in shards of two layers, named as the hub names them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 512
HEAD = 32
POSITIONS = 16384
SPECIAL = ("<s>", "</s>", "<pad>")
TEXT = "a server that waits is not a server that hangs, and a rank that runs is not a rank that moves. "
LAYERS_A_SHARD = 2
SEED = 20


def main() -> None:
    """Parse the command line and write the model."""
    parser = argparse.ArgumentParser(description="Write a Llama of random weights.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(options.folder)
    write_config(options.folder, options.layers, options.hidden)
    write_weights(options.folder, options.layers, options.hidden)


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE that can spell anything."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT * 20], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "pad_token": SPECIAL[2],
        "model_max_length": POSITIONS,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def write_config(folder: Path, layers: int, hidden: int) -> None:
    """What vLLM reads to know the architecture."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // HEAD,
        "num_key_value_heads": 2,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": POSITIONS,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def write_weights(folder: Path, layers: int, hidden: int) -> None:
    """The shards and their index."""
    generator = torch.Generator().manual_seed(SEED)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * 0.05).to(torch.bfloat16)

    ends = {
        "model.embed_tokens.weight": matrix(VOCABULARY, hidden),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        "lm_head.weight": matrix(VOCABULARY, hidden),
    }
    shards: list[dict[str, torch.Tensor]] = [ends]
    for layer in range(layers):
        if layer % LAYERS_A_SHARD == 0:
            shards.append({})
        shards[-1].update(_layer(f"model.layers.{layer}.", hidden, matrix))
    places, size = {}, 0
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, name))
        size += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _layer(prefix: str, hidden: int, matrix) -> dict[str, torch.Tensor]:  # type: ignore[no-untyped-def]
    grouped = 2 * HEAD
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (grouped, hidden),
        "self_attn.v_proj": (grouped, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (2 * hidden, hidden),
        "mlp.up_proj": (2 * hidden, hidden),
        "mlp.down_proj": (hidden, 2 * hidden),
    }
    tensors = {f"{prefix}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{prefix}{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    return tensors


if __name__ == "__main__":
    main()
