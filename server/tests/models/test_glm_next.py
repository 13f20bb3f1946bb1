"""GLM 5.3 Flash: pools of every size, its quantised files, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.comparing import assert_whole_context_is_equal
from support.eight_bit import quantise_folder
from support.families import PROMPTS, changed, made, model_of, write
from support.glm_next import GLM_NEXT, GLM_NEXT_CASES
from support.loading import load
from support.moe_cases import with_corrections
from support.ranks import results

from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.model import ModelConfig, parse_model_config
from text_generation_server.config.recurrent import KimiDeltaSpec
from text_generation_server.doctor.model import kv_bytes_per_token
from text_generation_server.engine.kv_pool import bytes_per_slot
from text_generation_server.errors import ConfigurationError, ModelFilesError, UnsupportedModel

NAME = "glm 5.3"
CASE = GLM_NEXT_CASES[NAME]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glm")
    write(CASE, model_of(NAME), folder)
    return folder


@pytest.mark.parametrize(("chosen", "pool"), [(5, 1), (12, 4), (16, 16), (64, 8)])
def test_contexts_reach_as_far_as_positions_whatever_the_size_of_a_pool(chosen: int, pool: int, tmp_path: Path) -> None:
    text = {**GLM_NEXT, "index_topk": chosen, "index_kpool": pool}
    case = replace(CASE, values={**CASE.values, "text_config": text})
    assert_whole_context_is_equal(case, tmp_path, {1, pool, 2 * pool + 1})


def test_a_published_file_has_all_its_positions() -> None:
    raw = {"architectures": ["Glm5NextForCausalLM"], "hidden_size": 64, "intermediate_size": 64, "vocab_size": 99}
    raw |= {"num_attention_heads": 4, "num_hidden_layers": 4}
    assert parse_model_config(JsonObject(raw, "config.json"), None).max_context_length == 1048576


def test_positions_take_what_is_counted_before_a_start(folder: Path) -> None:
    """In two layers: latent vectors of 12 elements, the least shared key, an index key and its gates of 16 each."""
    expected = 2 * (12 + 16 + 2 * 16) * 4
    assert kv_bytes_per_token(ModelConfig.from_folder(folder), 1, 4) == bytes_per_slot(load(folder)) == expected


def test_gates_of_a_pool_are_missed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(folder / "config.json")
    tensors = load_file(folder / "model.safetensors")
    missing = "model.layers.1.self_attn.indexer.index_kpool_compress_gate"
    del tensors[missing]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFilesError, match=missing):
        load(tmp_path)


def test_quantised_matrices_stand_beside_those_with_16_bits(tmp_path: Path) -> None:
    """As published: latent attention and experts in fp8, and Kimi delta attention in 16 bits, some of it
    under the names of modules in Transformers. All tokens have all experts: another choice would be far off.
    """
    text = {**GLM_NEXT, "n_routed_experts": 2}
    case, folder = replace(CASE, values={**CASE.values, "text_config": text}, prepare=with_corrections), tmp_path / "16"
    write(case, made(case), folder)
    suffixes = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "gate_proj", "up_proj", "down_proj")
    apart = ("q", "k", "v", "o", "b", "forget_gate.f_a", "forget_gate.f_b", "g_a", "g_b")
    others = ["lm_head", "kv_b_proj", "wq_b", "wk", "weights_proj", *(f"{each}_proj" for each in apart)]
    quantise_folder(folder, tmp_path / "made", "fp8 of blocks", suffixes, modules_to_not_convert=others)
    expected, found = (results(load(each), PROMPTS, steps=2)[0] for each in (folder, tmp_path / "made"))
    assert 0 < (found - expected).norm() < 0.4 * (expected - expected.mean()).norm()


@pytest.mark.parametrize(
    ("values", "least"),
    [
        ({}, -5.0),
        ({"linear_lower_bound": None}, 0.0),
        ({"linear_lower_bound": -3.0}, -3.0),
        ({"linear_attn_config": {"gate_lower_bound": -2}}, -2.0),
        ({"linear_attn_config": {"gate_lower_bound": None}}, -5.0),
        ({"linear_attn_config": {"gate_lower_bound": None, "safe_gate": False}}, 0.0),
    ],
)
def test_decays_have_the_bound_that_transformers_reads(folder: Path, values: dict[str, object], least: float) -> None:
    mixers = changed(folder, values).decoder.mixers
    assert {each.least for each in mixers if isinstance(each, KimiDeltaSpec)} == {least}


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"attention_bias": True}, UnsupportedModel, "`attention_bias`"),
        ({"hc_mult": 10**9}, ConfigurationError, "`hc_mult`"),
        ({"hc_sinkhorn_iters": 0}, ConfigurationError, "`hc_sinkhorn_iters`"),
        ({"hidden_act": "gelu"}, UnsupportedModel, "`hidden_act` in config.json must be 'silu'"),
        ({"index_head_dim": 512}, ConfigurationError, "`index_head_dim` must be an integer of at most 256"),
        ({"index_kpool": 512}, ConfigurationError, "`index_kpool` must be an integer of at most 256"),
        ({"index_kpool": 5}, ConfigurationError, r"`index_topk` must be a multiple of `index_kpool` \(5\)"),
        ({"index_kpool_compress": False}, UnsupportedModel, "`index_kpool_compress` in config.json must be true"),
        (
            {"indexer_types": ["full", "shared", "full", "full"]},
            ConfigurationError,
            "`indexer_types` must be 'full' for layer 1",
        ),
        ({"index_kpool_always_select_tail": False}, UnsupportedModel, "`index_kpool_always_select_tail`.* be true"),
        ({"layer_types": ["mamba2"] * 4}, ConfigurationError, "`layer_types` must be a list of 4 names"),
        ({"linear_lower_bound": 5.0}, ConfigurationError, "`linear_lower_bound` must be a number below 0"),
        ({"mhc": False}, UnsupportedModel, "`mhc` in config.json must be true"),
        ({"q_lora_rank": None}, ConfigurationError, "`q_lora_rank`"),
        ({"qk_rope_head_dim": 4}, UnsupportedModel, "`qk_rope_head_dim` in config.json must be 0"),
        ({"swiglu_limit": 7.0}, UnsupportedModel, "`swiglu_limit` in config.json must be 10 for this family, not 7"),
    ],
)
def test_forms_that_are_not_there_are_refused_by_the_name_of_their_key(
    folder: Path, values: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        changed(folder, values)


def test_images_are_refused_with_their_reason(tmp_path: Path) -> None:
    name = "glm 5.3 images"
    write(GLM_NEXT_CASES[name], model_of(name), tmp_path)
    reason = "the vision tower of Glm5NextForConditionalGeneration is not supported"
    assert ModelConfig.from_folder(tmp_path).text_alone == reason
