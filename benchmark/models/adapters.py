"""Write random LoRA adapters for a model folder of the Llama family, as PEFT saves them.

    python benchmark/models/adapters.py /tmp/llama-8b /tmp/adapters --count 64 --rank 16 [--modules q_proj]

Their numbers differ, and their texts mean nothing. One of rank 16 on all seven matrices of an 8B takes 84 MB.
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


def tensors(config: dict[str, Any], modules: list[str], rank: int, seed: int) -> dict[str, Tensor]:
    """A and B of these modules of all layers."""
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Tensor] = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (outputs, inputs) in matrices(config).items():
            if name.rpartition(".")[2] not in modules:
                continue
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            for factor, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
                values = torch.randn(shape, generator=generator) * SCALE
                made[f"{prefix}.{factor}.weight"] = values.to(torch.bfloat16)
    return made


def main() -> None:
    """Writes what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("adapters", type=Path, help="a folder of them, named 0, 1, ...")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--first", type=int, default=0, help="several processes share the work by this")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--modules", default="q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj")
    asked = parser.parse_args()
    config, modules = json.loads((asked.folder / "config.json").read_text()), asked.modules.split(",")
    saved = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": asked.rank, "lora_alpha": asked.rank, "bias": "none"}
    for number in range(asked.first, asked.first + asked.count):
        folder: Path = asked.adapters / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors(config, modules, asked.rank, number), folder / "adapter_model.safetensors", {"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps({**saved, "target_modules": modules}))


if __name__ == "__main__":
    main()
