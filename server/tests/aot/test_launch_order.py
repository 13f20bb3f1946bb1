"""Warm-up ends where a kernel reads early what an earlier one may still be writing, and no family's order does."""

# pyright: basic
import dataclasses
import json
from pathlib import Path

import pytest
import torch
from kernel_support.choices import CARDS, pretend_card
from kernel_support.variants import pretend_a_device
from support.dry_ranks import OneOfTwo
from support.dry_warm_up import dry_probe, warmed_up
from support.fake_model import FakeModel
from support.published import PUBLISHED
from support.published_newer import NEWER
from support.published_recurrent import RECURRENT
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from triton import knobs

import text_generation_kernels as kernels
from text_generation_server.config.implementation import read_model_config
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.requests import ServingLimits, WarmupLimits
from text_generation_server.errors import EngineFailed
from text_generation_server.models.registry import load_model

CPU = torch.device("cpu")
ASKED = WarmupLimits(64, 9)
CASES = {
    name: case
    for cases in (PUBLISHED, NEWER, RECURRENT)
    for name, case in cases.items()
    # The file of Ling is made of that of transformers, whose class of GLM 5.3 is one with images.
    if (case.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and name != "Ling mini 2.0") or name == "GLM-5.3-Flash"
}


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_kernels_of_every_family_come_in_an_order_that_they_allow(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    relayout = case.relayout or (lambda state, raw: (state, raw))
    _, raw = relayout({}, {"architectures": [case.class_name], **case.values})
    if "attention_chunk_size" in raw:
        raw["attention_chunk_size"] = 64
    (tmp_path / "config.json").write_text(json.dumps(raw))
    config = dataclasses.replace(read_model_config(tmp_path, "native"), vision=None)
    groups: list[TensorParallelGroup] = [TensorParallelGroup(0, 1, CPU)]
    if name in ("Llama 3.1", "DeepSeek V2 Lite", "Mixtral"):
        groups.append(OneOfTwo())
        groups[-1].context_parallel = name == "DeepSeek V2 Lite"
        groups[-1].expert_parallel = name == "Mixtral"
    models = [load_model(tmp_path, config, group, torch.bfloat16, CPU, "dummy") for group in groups]
    pretend_card(monkeypatch, CARDS[0])
    pretend_a_device(monkeypatch)
    for model, group in zip(models, groups, strict=True):
        _, variants = warmed_up(dry_probe(model, group, ASKED), ServingLimits(256, 64, 128, 9))
        # Only ranks that have whole experts each count the rows of each.
        assert ("expert_load_kernel" in {kernel for kernel, _ in variants}) == group.expert_parallel


class Hasty(FakeModel):
    """A model whose GEMV reads as its weight what the norm before it writes."""

    def __init__(self) -> None:
        super().__init__(max_context_length=64)

    def forward(self, input_ids: Tensor, state: object) -> Tensor:
        x = torch.zeros(64, 64, dtype=torch.bfloat16)
        kernels.rms_norm(x, x[0].clone(), 1e-5, out := torch.empty_like(x))
        kernels.linear(x[:1], out, None, torch.empty_like(x[:1]))
        return super().forward(input_ids, state)


@torch.inference_mode()
def test_a_wrong_order_ends_the_start_with_both_kernels_the_operand_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_a_device(monkeypatch)
    # Nothing is compiled, as in `dry_run_variants`.
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", lambda **_: True)
    probe = dry_probe(Hasty(), TensorParallelGroup(0, 1, CPU), ASKED)
    said = r"bf16_gemv reads `weight` .* rms_norm, .* `out`: .* start with --attention torch"
    with pytest.raises(EngineFailed, match=said):
        probe.compile_ahead()
