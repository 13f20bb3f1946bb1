"""Warm-up names every kernel variant that steps with adapters need, of those that add to outputs and others."""

# pyright: basic
from pathlib import Path

import pytest
import torch
from kernel_support.variants import launched_variants, pretend_a_device
from support.adapters import write_base
from support.dry_warm_up import dry_probe, warmed_up
from support.loading import CPU, load

from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.adapter_plans import Resident
from text_generation_server.engine.adapter_probe import AdapterProbe
from text_generation_server.engine.adapter_store import AdapterStore
from text_generation_server.engine.dummy_steps import run_step
from text_generation_server.engine.requests import ServingLimits, WarmupLimits

ROWS, TOKENS = 20, 2048
SERVED = 3
"""The number of an adapter that is here."""


@pytest.mark.parametrize("by_output", [False, True])
@torch.inference_mode()
def test_adapters_need_no_variant_that_warm_up_did_not_name(
    by_output: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of any length: from 1024 tokens on, tiles have 64."""
    model = load(write_base("biased", tmp_path), torch.bfloat16)
    model.max_context_length = TOKENS
    group, asked = TensorParallelGroup(0, 1, CPU), WarmupLimits(TOKENS, ROWS, adapter_pages=4, adapters_later=True)
    adapters = AdapterProbe.of(model, AdapterStore(model.adapters), asked, group)
    pretend_a_device(monkeypatch)
    probe = dry_probe(model, group, asked, adapters=adapters)
    runner, named = warmed_up(probe, ServingLimits(TOKENS, TOKENS - 1, TOKENS + 100, ROWS))
    residents = runner.checker.adapters.residents
    runner.checker.adapters.residents = {**residents, SERVED: Resident(0, 1, by_output, ready=True)}
    padding = torch.full((ROWS,), runner.table.padding_row, dtype=torch.int64)
    with launched_variants() as needed:
        for adapter in (0, SERVED):
            for lengths in ([1], [5], [40], [65], [200], [1000], [1024], [2000], [30] * 4, [500] * 3):
                for decodes in (0, 1, 10):
                    if sum(lengths) + decodes <= TOKENS:
                        run_step(runner, lengths, decodes, adapter=adapter)
            for count in range(1, ROWS + 1):
                runner.decode_rows(padding[:count], TOKENS, adapter)
    assert {name for name, _ in needed} >= {"lora_shrink_kernel", "lora_expand_kernel"}
    assert not needed - named
