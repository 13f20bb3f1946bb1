"""One call from a folder to a model of ours, and to the oracle."""

from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from text_generation_server.config import ModelConfig, ParallelConfig
from text_generation_server.distributed import TensorParallelGroup, init_group
from text_generation_server.models import CausalLM, load_model

CPU = torch.device("cpu")


def load(
    folder: Path, dtype: torch.dtype = torch.float32, group: TensorParallelGroup | None = None, dummy: bool = False
) -> CausalLM:
    group = group or init_group(ParallelConfig(), CPU, timeout_s=1)
    config = ModelConfig.from_folder(folder)
    return load_model(folder, config, group, dtype, CPU, "dummy" if dummy else "safetensors")


def oracle(folder: Path, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


@torch.inference_mode()
def oracle_greedy(model: LlamaForCausalLM, prompt: list[int], steps: int) -> list[int]:
    """What `generate` would choose, with the end-of-text ids ignored."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=steps, do_sample=False, eos_token_id=None
    )
    return output[0, len(prompt) :].tolist()
