"""Steps with a drafter in a compile dry run: kernels come in an order that they allow, and warm-up names every variant
that serving needs.
"""

# pyright: basic
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_support.choices import CARDS, pretend_card
from kernel_support.variants import launched_variants, pretend_a_device
from support.dry_ranks import OneOfTwo
from support.dry_warm_up import dry_probe, warmed_up
from support.eagle import write_head
from transformers import LlamaConfig, LlamaForCausalLM

from text_generation_server.config.drafter import FoundDrafter, read_drafter_config
from text_generation_server.config.implementation import read_model_config
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.probe import Probe
from text_generation_server.engine.requests import (
    Chunk,
    NextTokenChooserParameters,
    Request,
    ServingLimits,
    SlotRange,
    StepPlan,
    WarmupLimits,
)
from text_generation_server.models.registry import load_model

CPU = torch.device("cpu")
LAYERS = (0, 2, 4)
LIMITS = ServingLimits(4096, 2048, 4096, 20)


@pytest.fixture
def nothing_is_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels write nothing, and operators of torch index with what they would have written."""
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    monkeypatch.setattr(torch, "empty", torch.zeros)


EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 1, "kv_lora_rank": 128,
    "q_lora_rank": 128, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64,
}  # fmt: skip


def probe_with_drafter(folder: Path, group: TensorParallelGroup, kind: str, **options: Any) -> Probe:
    """Takes the CPU for a device, and a small model with random weights for the model."""
    layer = {
        "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "vocab_size": 1000, "num_hidden_layers": 4, "max_position_embeddings": 4096,
    }  # fmt: skip
    of_model = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    if kind == "MTP":
        of_model = {**EXPERTS, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    (folder / "config.json").write_text(json.dumps({**layer, **of_model}))
    head = folder if kind == "MTP" else write_head(folder / "head", folder, LAYERS, head_dim=64)
    if kind == "Medusa":
        (head / "config.json").write_text(json.dumps({"medusa_num_heads": 3}))
        tensors = {f"{i}.0.linear.weight": torch.zeros(256, 256) for i in range(3)}
        torch.save(tensors | {f"{i}.0.linear.bias": torch.zeros(256) for i in range(3)}, head / "medusa_lm_head.pt")
    if kind == "draft model":
        head = folder / "smaller"
        LlamaForCausalLM(LlamaConfig(**{**layer, "num_hidden_layers": 2})).save_pretrained(head)
    config = read_model_config(folder, "native")
    found = FoundDrafter(head, read_drafter_config(head, config))
    model = load_model(folder, config, group, torch.bfloat16, CPU, "dummy", drafter=found)
    asked = WarmupLimits(LIMITS.max_batch_total_tokens // 2, LIMITS.max_batch_size)
    return dry_probe(model, group, asked, EngineOptions(speculate=3, **options))


@pytest.mark.parametrize("kind", ["EAGLE-3", "Medusa", "MTP", "draft model"])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
@torch.inference_mode()
def test_kernels_come_in_an_order_that_they_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, deterministic: bool, kind: str
) -> None:
    group = TensorParallelGroup(0, 1, CPU) if ranks == 1 else OneOfTwo()
    probe = probe_with_drafter(tmp_path, group, kind, deterministic=deterministic)
    pretend_card(monkeypatch, CARDS[0])
    pretend_a_device(monkeypatch)
    _, variants = warmed_up(probe, LIMITS)
    assert "choose_draft_kernel" in {name for name, _ in variants}


def request(row: int, length: int, **settings: Any) -> Request:
    slots = (SlotRange(row * 200, length + 3),)
    return Request(row, row, np.zeros(length, dtype=np.int64), NextTokenChooserParameters(**settings), slots)


@pytest.mark.parametrize("kind", ["EAGLE-3", "MTP", "draft model"])
@pytest.mark.usefixtures("nothing_is_garbage")
@torch.inference_mode()
def test_serving_needs_no_variant_that_warm_up_did_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    probe = probe_with_drafter(tmp_path, TensorParallelGroup(0, 1, CPU), kind)
    pretend_card(monkeypatch, CARDS[0])
    pretend_a_device(monkeypatch)
    _, named = warmed_up(probe, LIMITS)
    runner = probe.build_runner(LIMITS)
    rows = torch.full((LIMITS.max_batch_size,), runner.table.padding_row, dtype=torch.int64)
    with launched_variants() as needed:
        for longest in (1, 17, 150, 1900):
            for others in (0, 1, 7, 15):
                lengths = [longest] + [1] * others
                admit = [request(row, each, do_sample=row % 2 == 1) for row, each in enumerate(lengths)]
                chunks = [Chunk(row, 0, each) for row, each in enumerate(lengths)]
                runner.launch(StepPlan(0, admit=admit, chunks=chunks))
                runner.launch(StepPlan(1, drop=range(len(lengths))))
        for others in (1, 6, 14):
            for width in (1, 2, 4):
                admit = [request(row, 1 if row else 300) for row in range(others + 1)]
                decodes = list(range(1, others + 1))
                runner.launch(StepPlan(0, admit=admit[1:], chunks=[Chunk(row, 0, 1) for row in decodes]))
                beside = {"decode": decodes, "widths": [width] * others}
                for first, count in ((0, 20), (20, 280)):
                    chunks = [Chunk(0, first, count)]
                    runner.launch(StepPlan(1, admit=[] if first else admit[:1], chunks=chunks, **beside))
                runner.launch(StepPlan(2, drop=range(others + 1)))
        for count in range(1, LIMITS.max_batch_size + 1):
            for width in (1, 2, 4):
                runner.decode_windows(rows[:count], width, 1000) if width > 1 else runner.decode_rows(rows[:count], 9)
    assert {name for name, _ in needed} >= {"choose_draft_kernel", "ngram_draft_kernel"}
    assert not needed - named
