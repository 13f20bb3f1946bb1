"""Whole models with an indexer whose attention is Triton's, in its interpreter: run with TRITON_INTERPRET=1."""

import importlib
from pathlib import Path

import pytest
import torch
from support.driver import Driver
from support.families import logits_of, model_of, write
from support.family_cases import CASES
from support.loading import load

import text_generation_kernels as kernels

OPERATORS = ["block_scores", "index_postprocess", "index_scores", "top_slots", "decode_attention", "prefill_attention"]
OPERATORS += [
    "latent_decode_attention",
    "latent_postprocess",
    "latent_prefill_attention",
    "qkv_postprocess",
    "rotate_heads",
]
PROMPTS = {"short": [7, 21, 60], "long": [(17 * i) % 90 + 4 for i in range(11)]}


@pytest.mark.parametrize("name", ["deepseek v3.2", "deepseek v4", "deepseek v4 other", "minimax m3", "glm 5.3"])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk whose context is whole beside one that is not, then decodes, together and alone."""
    for operator in OPERATORS:
        module = importlib.import_module(f"text_generation_kernels.attention.{operator}")
        monkeypatch.setattr(kernels, operator, getattr(module, f"{operator}_triton"))
    case, reference = CASES[name], model_of(name)
    write(case, reference, tmp_path)
    driver = Driver(load(tmp_path), max_tokens=32)
    expected = torch.cat([logits_of(case, reference, prompt) for prompt in PROMPTS.values()])
    torch.testing.assert_close(driver.prefill(PROMPTS, all_logits=True), expected, atol=2e-4, rtol=2e-4)
    names = list(PROMPTS)
    driver.append(names, expected[[2, -1]])
    expected = torch.stack([logits_of(case, reference, driver.ids[each])[-1] for each in names])
    torch.testing.assert_close(driver.decode(names), expected, atol=2e-4, rtol=2e-4)
    driver.append(names, expected)
    for each in names:
        expected = logits_of(case, reference, driver.ids[each])[-1:]
        torch.testing.assert_close(driver.decode([each]), expected, atol=2e-4, rtol=2e-4)
