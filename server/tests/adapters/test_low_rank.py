"""Factors of layers: what they add beside matrices of any format is what merged weights compute, on any rank."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.adapted import adapt, linears_of, write_factors
from support.adapters import AdapterCase, rewrite, write_adapter, write_base
from support.driver import Driver
from support.families import PROMPTS, made, write
from support.family_cases import CASES as FAMILY_CASES
from support.loading import load
from support.packed_files import CASES as PACKED
from support.packed_files import (
    ORDERED,
    PackedCase,
    awq_pack,
    scale_activations,
    without_head,
    write_meant,
    write_packed,
)
from support.thread_ranks import ThreadGroup, thread_groups, together

from text_generation_server.errors import AdapterError
from text_generation_server.layers.weights import RowBlock, Site

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES: dict[str, AdapterCase] = {
    "llama": AdapterCase("llama", {"target_modules": [*ALL, "lm_head"], "rank_pattern": {"q_proj": 20, "up_proj": 2}}),
    "some": AdapterCase("llama", {"target_modules": ["k_proj", "up_proj"], "layers_to_transform": [1]}),
    "dora": AdapterCase("llama", {"target_modules": [*ALL, "lm_head"], "use_dora": True, "use_rslora": True}),
    "biases": AdapterCase("biased", {"target_modules": ALL, "lora_bias": True}),
    "tied head": AdapterCase("tied", {"target_modules": ["lm_head", "o_proj"], "use_dora": True}),
    "gpt2": AdapterCase(
        "gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True, "use_dora": True}
    ),
    "router": AdapterCase(
        "qwen3 moe", {"target_modules": ALL[:4], "target_parameters": ["mlp.gate.weight"], "use_rslora": True}
    ),
    "gated queries": AdapterCase("gated queries", {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
    "interleaved rope": AdapterCase("interleaved rope", {"target_modules": ALL}),
}


FAMILIES = [
    "bloom",
    "deepseek v3",
    "deepseek v3.2",
    "deepseek v4",
    "falcon 40b",
    "gemma2",
    "gemma4 small",
    "glm4",
    "gpt neox",
    "internlm2",
    "kimi k2.5",
    "lfm2",
    "ling 2.5",
    "longcat",
    "mamba 2",
    "mimo v2",
    "minimax m3",
    "minimax text 01",
    "nemotron 3 latent",
    "phi3",
    "qwen2 moe",
    "qwen3 next",
    "recurrent gemma",
    "starcoder",
    "step",
]
"""Of each kind of layout some; all other families pass too."""


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a base, written once."""
    root = tmp_path_factory.mktemp("bases")
    return cache(lambda name: write_base(name, root / name))


def merged(base: Path, adapter: Path) -> torch.Tensor:
    """The logits of the last tokens."""
    driver = Driver(load(base, merge_adapter=adapter), max_tokens=32)
    return driver.prefill({str(i): prompt for i, prompt in enumerate(PROMPTS)})


def beside(base: Path, adapter: Path, group: ThreadGroup, quantize: str | None = None) -> torch.Tensor:
    """The same where layers add the factors."""
    model = load(base, group=group, quantize=quantize)
    adapt(model, base, adapter, group)
    driver = Driver(model, max_tokens=32, group=group)
    return driver.prefill({str(i): prompt for i, prompt in enumerate(PROMPTS)})


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_factors_beside_weights_are_merged_weights(
    name: str, ranks: int, base_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    case = CASES[name]
    write_adapter(case, tmp_path)
    base = base_folder(case.base)
    expected = merged(base, tmp_path)
    # Four ranks have two heads of keys: each twice.
    for each in together([partial(beside, base, tmp_path, group) for group in thread_groups(ranks)]):
        torch.testing.assert_close(each, expected, atol=2e-5 * float(expected.abs().max()), rtol=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_factors_beside_weights_and_activations_of_8_bits(
    ranks: int, base_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """What they add is read from activations before these are rounded."""
    write_adapter(CASES["llama"], tmp_path)
    base = base_folder("llama")
    expected = merged(base, tmp_path)
    added = (expected - Driver(load(base), max_tokens=32).prefill(dict(zip("abcdefgh", PROMPTS, strict=False)))).norm()
    for each in together([partial(beside, base, tmp_path, group, "w8a8") for group in thread_groups(ranks)]):
        assert 0 < (each - expected).norm() < 0.2 * added


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["llama", "dora"])
def test_factors_beside_quantised_weights_in_another_order(
    name: str, ranks: int, base_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """GPTQ with act-order: the second matrix of a network has its inputs in the order of its groups."""
    case, plain = CASES[name], base_folder("llama")
    write_adapter(case, tmp_path / "adapter")
    meant = write_packed(plain, tmp_path / "packed", ORDERED)
    write_meant(plain, tmp_path / "meant", meant)
    expected = merged(tmp_path / "meant", tmp_path / "adapter")
    groups = thread_groups(ranks)
    for each in together([partial(beside, tmp_path / "packed", tmp_path / "adapter", group) for group in groups]):
        torch.testing.assert_close(each, expected, atol=2e-4 * float(expected.abs().max()), rtol=1e-4)


@pytest.mark.parametrize("ranks", [1, 2])
def test_factors_behind_an_activation_that_awq_has_scaled(ranks: int, tmp_path: Path) -> None:
    base, packed, adapter = tmp_path / "base", tmp_path / "packed", tmp_path / "adapter"
    write(FAMILY_CASES["gpt neox"], made(FAMILY_CASES["gpt neox"]), base)
    scales = scale_activations(base, "dense_4h_to_h", "act")
    case = PackedCase({**PACKED["awq"].config, "group_size": 16}, without_head(awq_pack(16)))
    meant = write_packed(base, packed, case)
    file = packed / "model.safetensors"
    save_file(load_file(file) | {f"{module}.scales": each.half() for module, (_, each) in scales.items()}, file)
    write_meant(base, tmp_path / "meant", meant | {name: meant[name] / each for name, each in scales.values()})
    write_factors(adapter, linears_of(load(base)))
    expected = merged(tmp_path / "meant", adapter)
    for each in together([partial(beside, packed, adapter, group) for group in thread_groups(ranks)]):
        torch.testing.assert_close(each, expected, atol=2e-4 * float(expected.abs().max()), rtol=1e-4)


def test_factors_of_another_size_than_a_quantised_matrix(base_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Only the layer knows the size of such a matrix."""
    write_adapter(AdapterCase("llama", {"target_modules": ["q_proj"]}), tmp_path / "adapter")
    rewrite(
        tmp_path / "adapter",
        lambda all: {name: torch.cat([each] * 2, -1) if "_A" in name else each for name, each in all.items()},
    )
    write_packed(base_folder("llama"), tmp_path / "packed", ORDERED)
    with pytest.raises(AdapterError, match=r"a matrix \[32, 64\], but `\S+q_proj` of the model is \[32, 32\]"):
        beside(tmp_path / "packed", tmp_path / "adapter", thread_groups(1)[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_every_layout_of_families(name: str, tmp_path: Path) -> None:
    """Fused matrices, heads by groups, low-rank queries, gates, states: each layer that has a site gets factors."""
    case = FAMILY_CASES[name]
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    write(case, made(case), base)
    write_factors(adapter, linears_of(load(base)))
    expected = merged(base, adapter)
    for each in together([partial(beside, base, adapter, group) for group in thread_groups(2)]):
        torch.testing.assert_close(each, expected, atol=1e-4 * float(expected.abs().max()), rtol=1e-4)
    plain = Driver(load(base), max_tokens=32).prefill({"a": PROMPTS[-1]})
    assert (plain[-1] - expected[-1]).abs().max() > 1e-3


def test_ranges_of_parts() -> None:
    """A matrix that is there twice, as of queries and their gates, is one part."""
    q, k = "layer.q", "layer.k"
    blocks = (RowBlock(q, 8, ((0, 2), (4, 6))), RowBlock(k, 4, ((0, 4),)), RowBlock(q, 8, ((2, 4), (6, 8))))
    site = Site(blocks, 16, padding=2)
    assert (site.modules, site.outputs) == ((q, k), 14)
    assert site.ranges() == [(0, 4, 0), (4, 8, 1), (8, 12, 0)]
    stored = {q: torch.arange(8.0), k: torch.arange(10.0, 14.0)}
    rows = site.rows_of((stored[block.name] for block in blocks), fill=-1.0)
    assert rows.tolist() == [0, 1, 4, 5, 10, 11, 12, 13, 2, 3, 6, 7, -1, -1]


def test_columns_of_a_shard() -> None:
    block = RowBlock("layer.down", 4, ((0, 4),))
    stored = torch.arange(6.0)[None]
    assert Site((block,), 6, (2, 4)).columns_of(stored).tolist() == [[2, 3]]
    assert Site((block,), 6, (2, 4), order=(5, 0)).columns_of(stored).tolist() == [[5, 0]]
    scaled = Site((block,), 6, (2, 4), input_scales=torch.tensor([2.0, 10.0]))
    assert scaled.columns_of(stored).tolist() == [[4, 30]]
