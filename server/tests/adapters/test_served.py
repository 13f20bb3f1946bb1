"""Requests with adapters of every kind of layer: what the layers of a family add is what merged weights compute."""

from pathlib import Path

import pytest
from support.adapted import write_factors
from support.engine_driver import copy_adapters, directly, engine_with, make_engine, stream
from support.families import PROMPTS, made, write
from support.family_cases import CASES
from support.loading import load
from support.router import Router, Stream

from text_generation_server.engine.requests import ServingLimits, WarmupLimits
from text_generation_server.layers.weights import Adapting, CurrentAdapters, ExpertSite, Linear, NormWeights
from text_generation_server.models import CausalLM
from text_generation_server.models.decoder import Decoder

LIMITS = WarmupLimits(max_batch_prefill_tokens=32, max_batch_size=4, max_batch_total_tokens=256, prefill_chunking=True)
FAMILIES = [
    "deepseek v3",
    "deepseek v4",
    "falcon 40b",
    "gemma2",
    "gemma4 small",
    "gpt neox",
    "glm4 moe",
    "glm 5.3",
    "hunyuan moe lists",
    "lfm2",
    "lfm2 moe",
    "ling 2 shared size",
    "mamba 2",
    "mistral 4 each",
    "nemotron 3 large shared",
    "nemotron 3 latent",
    "olmo2",
    "phi3",
    "qwen2 moe",
    "qwen3 next",
    "recurrent gemma",
]


class Noted(Adapting):
    """Notes what adapters can change."""

    def __init__(self) -> None:
        self.current = CurrentAdapters()
        self.linears: list[Linear] = []
        self.norms: list[NormWeights] = []
        self.sites: list[ExpertSite] = []

    def linear(self, linear: Linear) -> Linear:
        self.linears.append(linear)
        return linear

    def norm(self, weights: NormWeights) -> None:
        if weights.stored is not None:
            self.norms.append(weights)

    def experts(self, site: ExpertSite) -> None:
        self.sites.append(site)


def adapted_parts(model: CausalLM) -> Noted:
    """What adapters can change."""
    assert isinstance(model, Decoder)
    noted = Noted()
    for layer in model._layers:
        layer.adapted(noted)
    model._last.adapted(noted)
    return noted


def answers(
    model: CausalLM, adapters: list[int], chunk: int, folder: Path | None = None, later: bool = False
) -> list[tuple[list[int], list[float]]]:
    engine = make_engine(model, LIMITS) if folder is None else engine_with(model, LIMITS, [folder], later=later)
    if folder is not None:
        copy_adapters(engine, [folder])
    streams: list[Stream] = []
    for number, adapter in enumerate(adapters):
        streams.append(stream(number, PROMPTS[number], 3, prefill_logprobs=True))
        streams[-1].adapter = adapter
    limits = ServingLimits(256, 31, 32, 4)
    Router(directly(engine), limits, chunk=chunk, budget=32, recurrent=engine.info.recurrent).run(*streams)
    assert [each.failure for each in streams] == [None] * len(streams)
    return [(each.tokens, each.logprobs + each.prompt_logprobs) for each in streams]


@pytest.mark.parametrize("name", FAMILIES)
def test_what_layers_add_is_what_merged_weights_compute(name: str, tmp_path: Path) -> None:
    case, base, adapter = CASES[name], tmp_path / "base", tmp_path / "adapter"
    write(case, made(case), base)
    parts = adapted_parts(load(base))
    assert write_factors(adapter, parts.linears, parts.norms, parts.sites) > 2
    plain, changed = answers(load(base), [0, 0], 32), answers(load(base, merge_adapter=adapter), [0, 0], 32)
    for chunk, later in ((32, False), (2, True)):
        served = answers(load(base), [1, 0], chunk, adapter, later)
        for found, expected in ((served[0], changed[0]), (served[1], plain[1])):
            assert found[0] == expected[0]
            assert found[1] == pytest.approx(expected[1], abs=2e-3)
    assert changed[0][1] != pytest.approx(plain[0][1], abs=2e-2)
