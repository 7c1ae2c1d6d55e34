"""Random weights for the model in a folder with config.json: ``make_weights.py FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file


def main() -> None:
    folder = Path(sys.argv[1])
    config = json.loads((folder / "config.json").read_text())
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    torch.manual_seed(20)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }.items():
            shapes[f"{prefix}.{name}.weight"] = shape
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * config["initializer_range"]
        for name, shape in shapes.items()
    }
    save_file(
        {name: weight.to(torch.bfloat16) for name, weight in weights.items()},
        str(folder / "model.safetensors"),
        metadata={"format": "pt"},
    )


if __name__ == "__main__":
    main()
