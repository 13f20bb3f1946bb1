"""What transformers makes of a folder and of a prompt."""

from pathlib import Path

import torch
from transformers import LlamaForCausalLM


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
