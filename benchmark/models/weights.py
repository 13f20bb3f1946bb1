"""Write random weights for a model folder that `make.py` made, to time loading: safetensors in files of some GB.

    python benchmark/models/weights.py /tmp/llama-8b

The shapes are those that the config.json of a Llama asks for. Nothing is downloaded, and the texts of such a model
mean nothing.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

LAYERS_A_FILE = 8


def matrices(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Names of the matrices of a layer, with outputs and inputs."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head = config.get("head_dim", hidden // heads)
    q, kv = heads * head, config["num_key_value_heads"] * head
    return {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def tensors(config: dict[str, Any]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Names and shapes, file by file."""
    hidden = config["hidden_size"]
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        **{f"{name}.weight": shape for name, shape in matrices(config).items()},
    }
    vocabulary = (config["vocab_size"], hidden)
    yield {"model.embed_tokens.weight": vocabulary, "lm_head.weight": vocabulary, "model.norm.weight": (hidden,)}
    count = config["num_hidden_layers"]
    for first in range(0, count, LAYERS_A_FILE):
        yield {
            f"model.layers.{index}.{name}": shape
            for index in range(first, min(count, first + LAYERS_A_FILE))
            for name, shape in layer.items()
        }


def main() -> None:
    """Writes the files and their index."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    config = json.loads((folder / "config.json").read_text())
    files = list(tensors(config))
    # One block of random numbers serves all tensors: speed does not look at values.
    block = (torch.randn(1 << 24) * 0.02).to(torch.bfloat16)
    index: dict[str, str] = {}
    for number, shapes in enumerate(files, start=1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        values = {}
        for key, shape in shapes.items():
            size = torch.Size(shape).numel()
            values[key] = block.repeat(-(-size // block.numel()))[:size].reshape(shape).contiguous()
            index[key] = name
        save_file(values, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


if __name__ == "__main__":
    main()
