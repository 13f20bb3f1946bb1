"""Write a random EAGLE-3 head for a model folder of the Llama family, as its authors save them: one layer, 32,000 ids.

    python benchmark/models/drafter.py /tmp/llama-8b /tmp/eagle

Its drafts are wrong, which is what costs: a step with the head, and checked windows that bring nothing.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from weights import matrices

SCALE = 0.02
IDS = 32_000
LAYER = "midlayer."


def shapes(config: dict[str, Any], ids: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors. The attention reads a token's embedding beside hidden states."""
    hidden = config["hidden_size"]
    wide = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}
    layer = {name: (rows, 2 * hidden if name in wide else row) for name, (rows, row) in matrices(config).items()}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    return {
        "fc.weight": (hidden, 3 * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (ids, hidden),
        **{f"{LAYER}{name}.weight": (hidden,) for name in norms},
        **{f"{LAYER}{name}.weight": shape for name, shape in layer.items()},
    }


def main() -> None:
    """Writes what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("drafter", type=Path)
    asked = parser.parse_args()
    config = json.loads((asked.folder / "config.json").read_text())
    vocabulary = config["vocab_size"]
    ids = min(IDS, vocabulary)
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {
        name: (torch.randn(shape, generator=generator) * SCALE).to(torch.bfloat16)
        for name, shape in shapes(config, ids).items()
    }
    if ids < vocabulary:
        # Differences to the ids of the model: here the first ones.
        tensors["d2t"] = torch.zeros(ids, dtype=torch.int64)
    asked.drafter.mkdir(parents=True, exist_ok=True)
    save_file(tensors, asked.drafter / "model.safetensors")
    says = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": ids}
    (asked.drafter / "config.json").write_text(json.dumps({**config, **says}))


if __name__ == "__main__":
    main()
