"""What `text-generation-server explain` says of a model, from its configuration alone."""

# pyright: basic
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_support.choices import CARDS, noted_choices
from support.deepseek_v4 import PUBLISHED as DEEPSEEK_V4
from support.published import PUBLISHED
from support.published_newer import NEWER
from support.published_recurrent import RECURRENT
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import text_generation_kernels as kernels
from text_generation_server.errors import ConfigurationError
from text_generation_server.explain import explain, parse_tokens

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
EXPERTS = {
    **LLAMA,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "head_dim": 128,
    "num_key_value_heads": 4,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}


FAMILIES = {
    name: case
    for cases in (PUBLISHED, NEWER, RECURRENT)
    for name, case in cases.items()
    # The file of Ling is made of that of transformers.
    if case.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and name != "Ling mini 2.0"
}


def explained(folder: Path, config: dict[str, Any], tokens: str, card: str = "h100", **more: Any) -> dict[str, str]:
    """The text about each matrix by its first line."""
    (folder / "config.json").write_text(json.dumps(config))
    _, *blocks = "\n".join(explain(folder, card, parse_tokens(tokens), **more)).split("\n\n")
    return {first: rest for first, _, rest in (block.partition("\n") for block in blocks)}


def test_each_matrix_has_its_shape_and_format(tmp_path: Path) -> None:
    assert list(explained(tmp_path, LLAMA, "1")) == [
        "3 x attention qkv: 6144 x 4096, bfloat16",
        "3 x attention out: 4096 x 4096, bfloat16",
        "3 x feed-forward gate_up: 28672 x 4096, bfloat16",
        "3 x feed-forward down: 4096 x 14336, bfloat16",
        "LM head: 128256 x 4096, bfloat16",
    ]
    halved = explained(tmp_path, {**LLAMA, "quantization_config": AWQ}, "1", shards=2)
    assert list(halved)[2:4] == [
        "3 x feed-forward gate_up: 14336 x 4096, W4A16, groups of 128",
        "3 x feed-forward down: 4096 x 7168, W4A16, groups of 128",
    ]
    assert "3 x attention out: 4096 x 4096, W8A8 in float8_e4m3fn, rows" in explained(
        tmp_path, LLAMA, "1", quantize="fp8"
    )


def test_a_kernel_comes_with_the_reasons_against_those_before_it(tmp_path: Path) -> None:
    about = explained(tmp_path, LLAMA, "1,8,16,64,100")["3 x feed-forward gate_up: 28672 x 4096, bfloat16"]
    assert about.splitlines() == [
        "          1  bf16_gemv",
        "       8-16  skinny_linear",
        "             not bf16_gemv: it computes a single token",
        "             not bf16_small_hopper: it computes 33 to 64 tokens",
        "         64  bf16_small_hopper",
        "             not bf16_gemv: it computes a single token",
        "        100  cublas",
        "             not bf16_gemv: it computes a single token",
        "             not bf16_small_hopper: it computes 33 to 64 tokens",
        "             not skinny_linear: it computes at most 64 tokens",
    ]


@pytest.mark.parametrize("tokens", [1, 5, 16, 30, 64])
def test_it_names_the_kernels_that_operators_launch(tokens: int, tmp_path: Path) -> None:
    """Those of the gate and up projection, on the card of the record of choices."""
    first = "3 x feed-forward gate_up: 28672 x 4096"
    dense = explained(tmp_path, LLAMA, str(tokens))[f"{first}, bfloat16"].split()[1]
    quantised = {**LLAMA, "quantization_config": AWQ}
    packed = explained(tmp_path, quantised, str(tokens))[f"{first}, W4A16, groups of 128"].split()[1]
    x = torch.empty(tokens, 4096, dtype=torch.bfloat16)
    out = x.new_empty(tokens, 14336)
    codes, scales = x.new_empty(28672, 512, dtype=torch.int32), x.new_empty(16, 28672, 2)
    weight = kernels.PackedMatrix(codes, scales, group_size=128)
    with noted_choices(CARDS[0]) as launches:
        (launched,) = launches(lambda: kernels.linear(x, x.new_empty(28672, 4096), None, out, "silu"))
        assert launched.startswith(f"{dense}_kernel(")
        launched, *_ = launches(lambda: kernels.weight_only_linear(x, weight, None, None, out, "silu"))
        assert launched.startswith(f"{packed}_kernel(")


def test_cards_have_kernels_of_their_own(tmp_path: Path) -> None:
    config = {**LLAMA, "quantization_config": FP8}
    first = "3 x attention qkv: 6144 x 4096, "
    assert "block" in explained(tmp_path, config, "4096")[f"{first}W8A8 in float8_e4m3fn, blocks"].split("\n")[0]
    # Without float8 tensor cores activations keep 16 bits.
    assert "dequantise_matmul" in explained(tmp_path, config, "4096", "a100")[f"{first}W8A16, groups of 128"]
    assert "capability 9.0" in explained(tmp_path, LLAMA, "64", "l4")[f"{first}bfloat16"]


def test_experts_name_both_matrices_and_the_reasons_against_a_fused_router(tmp_path: Path) -> None:
    about = explained(tmp_path, EXPERTS, "1,2,64")["3 x 128 experts of 2048 x 768, top 8, bfloat16"]
    one, two, many = about.index("  1  "), about.index("  2  "), about.index(" 64  ")
    assert "token_experts_hopper" in about[one:two]
    assert about[two:many].count("expert_gemv") >= 2
    assert "up: grouped_gemm, tiles of" in about[many:]
    assert "down: grouped_gemm, tiles of" in about[many:]
    quantised = explained(tmp_path, {**EXPERTS, "quantization_config": AWQ}, "1")
    (about,) = (text for name, text in quantised.items() if "experts" in name and "W4A16" in name and "top 8" in name)
    assert "not token_experts_hopper: it takes unquantised weights" in about


@pytest.mark.parametrize("name", FAMILIES)
def test_matrices_of_every_family_are_found(name: str, tmp_path: Path) -> None:
    case = FAMILIES[name]
    relayout = case.relayout or (lambda state, raw: (state, raw))
    _, config = relayout({}, {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[case.model_type]], **case.values})
    blocks = explained(tmp_path, config, "1,100", "a100")
    assert len(blocks) > 2
    assert [block for block in blocks if block.startswith("LM head: ")]
    assert all(about.lstrip().startswith("1") for about in blocks.values())


def test_experts_with_four_bits_are_found_by_their_shapes(tmp_path: Path) -> None:
    blocks = explained(tmp_path, {**DEEPSEEK_V4, "num_hidden_layers": 4}, "1,100")
    assert [name for name in blocks if "experts of 4096 x 2048, top 6, W4A16" in name]
    assert [name for name in blocks if name.endswith("compressed attention parts: 2560 x 4096, bfloat16")]


def test_only_norms_after_a_sublayer_reduce_splits(tmp_path: Path) -> None:
    """Layers whose sublayers read one norm add both outputs by torch; ranks of several all-reduce them."""
    reduced, first = "splits that the next kernel reduces", "3 x attention out: 4096 x "
    assert reduced in explained(tmp_path, LLAMA, "8")[f"{first}4096, bfloat16"]
    assert reduced not in explained(tmp_path, LLAMA, "8", shards=2)[f"{first}2048, bfloat16"]
    parallel = {**LLAMA, "architectures": ["CohereForCausalLM"], "model_type": "cohere", "layer_norm_eps": 1e-5}
    assert reduced not in explained(tmp_path, parallel, "8")[f"{first}4096, bfloat16"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"card": "h300"}, "--card h300"),
        ({"tokens": "1,two"}, "--tokens 1,two"),
        ({"tokens": "0"}, "--tokens 0"),
        ({"shards": 3}, "3"),
    ],
)
def test_a_wrong_value_is_named_with_its_flag(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        explained(tmp_path, LLAMA, **{"tokens": "1", **more})
