"""Classes of transformers on several shards: what each rank has a part of, and what it must have whole."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.comparing import checkpoints
from support.fallback_cases import FALLBACK_CASES, FORCED
from support.families import PROMPTS, SIZES
from support.family_cases import CASES
from support.gemma_cases import GEMMA_3N, GEMMA_4_LARGE
from support.loading import load
from support.ranks import results
from support.thread_ranks import thread_groups, together
from torch import Tensor
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaMLP

from text_generation_server.config.fallback import FallbackConfig, parse_fallback_config
from text_generation_server.config.json_object import JsonObject
from text_generation_server.errors import ConfigurationError, UnsupportedModel
from text_generation_server.models import CausalLM
from text_generation_server.models.fallback import check_runnable
from text_generation_server.models.fallback.checks import try_out
from text_generation_server.models.fallback.interfaces import SERVING


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a case, written once."""
    return checkpoints(
        tmp_path_factory.mktemp("shards"), {**FALLBACK_CASES, **{name: CASES[name] for name in (*FORCED, "llama")}}
    )


def config_of(architecture: str, **values: Any) -> FallbackConfig:
    """As of a file with these keys."""
    raw = {**SIZES, **values, "architectures": [architecture]}
    return parse_fallback_config(JsonObject(raw, "config.json"), None)


def slots(model: CausalLM) -> int:
    """Bytes of all layers for a position."""
    return sum(cache.bytes_per_slot(model.dtype) for cache in model.caches)


def whole_matrices(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Those that the log names."""
    return [name for record in caplog.records for name in getattr(record, "matrices", ())]


def minus_mean(gate: Tensor) -> Tensor:
    return (gate - gate.mean(-1, keepdim=True)).relu()


def of_largest(gate: Tensor) -> Tensor:
    return gate / gate.abs().amax(-1, keepdim=True)


def normalised(gate: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(gate, gate.shape[-1:])


def swapped(gate: Tensor) -> Tensor:
    first, second = gate.chunk(2, dim=-1)
    return torch.cat((second, first), dim=-1)


def summed_up(gate: Tensor) -> Tensor:
    return gate.cumsum(-1).sin()


def softmax(gate: Tensor) -> Tensor:
    return gate.softmax(-1)


@pytest.mark.parametrize("mix", [minus_mean, of_largest, normalised, swapped, summed_up, softmax])
def test_a_network_that_mixes_the_row_that_ranks_would_share_is_whole_on_each(
    mix: Callable[[Tensor], Tensor],
    folder_of: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was shared, and all logits were wrong without an error."""

    def mixing(network: Any, x: Tensor) -> Tensor:
        return network.down_proj(mix(network.gate_proj(x)) * network.up_proj(x))

    monkeypatch.setattr(LlamaMLP, "forward", mixing)
    whole = load(folder_of("llama"), impl="transformers")
    ranks = [load(folder_of("llama"), group=group, impl="transformers") for group in thread_groups(2)]
    expected, ids = results(whole, PROMPTS[3:], 2)
    for logits, own_ids in together([partial(results, each, PROMPTS[3:], 2) for each in ranks]):
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-4)
        assert own_ids == ids
    assert whole_matrices(caplog) == [f"model.layers.*.mlp.{name}_proj.weight" for name in ("down", "gate", "up")]
    assert slots(ranks[0]) * 2 == slots(whole)


def test_attention_that_mixes_heads_is_whole_on_each_rank(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = modeling_llama.ALL_ATTENTION_FUNCTIONS[SERVING]

    def mixing(*_: object, **__: object) -> Callable[..., Any]:
        return lambda module, q, *others, **options: attend(module, q / q.norm(dim=1, keepdim=True), *others, **options)

    monkeypatch.setattr(modeling_llama.ALL_ATTENTION_FUNCTIONS, "get_interface", mixing)
    whole = load(folder_of("llama"), impl="transformers")
    ranks = [load(folder_of("llama"), group=group, impl="transformers") for group in thread_groups(2)]
    expected, ids = results(whole, PROMPTS[3:], 2)
    for logits, own_ids in together([partial(results, each, PROMPTS[3:], 2) for each in ranks]):
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-4)
        assert own_ids == ids
    assert slots(ranks[0]) == slots(whole)


def test_a_sparse_gate_leaves_the_other_networks_shared() -> None:
    """Of Gemma 3n, which has both."""
    config = config_of("Gemma3nForCausalLM", **GEMMA_3N)
    _, sharding, _ = try_out(config, thread_groups(2)[1], torch.float32)
    shared = [bool(sharding.cuts[f"model.layers.{index}.mlp.down_proj.weight"].ranges) for index in range(5)]
    assert shared == [sparsity == 0 for sparsity in GEMMA_3N["activation_sparsity_pattern"]]


def test_heads_that_differ_by_layer_are_shared_or_refused(folder_of: Callable[[str], Path]) -> None:
    """Of Gemma 4, whose layers that see everything have fewer."""
    raw: dict[str, Any] = {
        **SIZES,
        **GEMMA_4_LARGE,
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
    }
    config = parse_fallback_config(JsonObject({**raw, "num_global_key_value_heads": 1}, "config.json"), None)
    check_runnable(config)
    with pytest.raises(
        ConfigurationError, match=r"2 shards cannot share 4 attention heads with 1 .*layers\.1\.self_att"
    ):
        check_runnable(config, 2)
    with pytest.raises(ConfigurationError, match="4 shards cannot share 4 attention heads with 2"):
        load(folder_of("gemma4 large"), group=thread_groups(4)[0], impl="transformers")


def test_a_class_that_counts_its_heads_itself_is_refused_with_the_remedy(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def counting(network: Any, x: Tensor) -> Tensor:
        return network.down_proj(network.gate_proj(x).view(*x.shape[:-1], 48) * network.up_proj(x))

    monkeypatch.setattr(LlamaMLP, "forward", counting)
    load(folder_of("llama"), impl="transformers")
    with pytest.raises(UnsupportedModel, match=r"does not run on a part of its matrices .* set --num-shard to 1"):
        load(folder_of("llama"), impl="transformers", group=thread_groups(2)[0])
