"""DeepSeek V4: entries of every size, its quantised files, and what is refused."""

import copy
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.comparing import assert_whole_context_is_equal
from support.deepseek_v4 import DEEPSEEK_V4, DEEPSEEK_V4_CASES, OTHER, PUBLISHED, names_of_authors, published
from support.families import changed, made, model_of, write
from support.loading import load
from support.probabilities import log_probabilities, of_groups
from support.thread_ranks import thread_groups
from transformers import DeepseekV4Config

import text_generation_kernels as kernels
from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.kv_cache import quantised_kv_cache
from text_generation_server.config.model import ModelConfig, parse_model_config
from text_generation_server.config.shards import AskedShards, check_shards
from text_generation_server.config.sizes import weight_bytes
from text_generation_server.config.spec import CompressedAttentionSpec
from text_generation_server.doctor.model import kv_bytes_per_token
from text_generation_server.engine.kv_pool import bytes_per_slot
from text_generation_server.errors import ConfigurationError, ModelFilesError, UnsupportedModel

NAME = "deepseek v4"
CASE = DEEPSEEK_V4_CASES[NAME]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deepseek")
    write(CASE, model_of(NAME), folder)
    return folder


@pytest.mark.parametrize(
    ("sparse", "heavy", "window", "chosen"), [(2, 3, 4, 2), (4, 16, 8, 3), (5, 7, 1, 1), (4, 31, 64, 512)]
)
def test_contexts_reach_as_far_as_positions_whatever_stands_for_them(
    sparse: int, heavy: int, window: int, chosen: int, tmp_path: Path
) -> None:
    rates = {"compressed_sparse_attention": sparse, "heavily_compressed_attention": heavy}
    values = {**DEEPSEEK_V4, "compress_rates": rates, "sliding_window": window, "index_topk": chosen}
    assert_whole_context_is_equal(replace(CASE, values=values), tmp_path, {1, heavy, 2 * sparse + 1})


def test_published_files_mean_what_their_codes_stand_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one rank and on two, under the names and keys of the authors, beside layers that guess further tokens. As on a
    device without FP8 instructions, so that what matrices read is not rounded.
    """
    monkeypatch.setattr(kernels, "has_fp8_gemms", lambda _: False)
    values = {**DEEPSEEK_V4, "hidden_size": 64, "moe_intermediate_size": 64, "num_nextn_predict_layers": 1}
    stretched = {"factor": 4.0, "original_max_position_embeddings": 16, "rope_type": "yarn", "beta_fast": 32}
    values |= {"qk_rope_head_dim": 6, "partial_rotary_factor": ..., "rope_scaling": {**stretched, "beta_slow": 1}}
    case = replace(CASE, values=values)
    plain, quantised = tmp_path / "plain", tmp_path / "quantised"
    write(case, made(case), plain)
    raw = json.loads((plain / "config.json").read_text())
    stored, config, meant = published(load_file(plain / "model.safetensors"), raw)
    kept = {key: value for key, value in config.items() if key not in ("expert_dtype", "quantization_config")}
    quantised.mkdir()
    for each, tensors, its_config in ((plain, meant, kept), (quantised, stored, config)):
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, each / "model.safetensors")
        (each / "config.json").write_text(json.dumps(its_config))
    expected = log_probabilities(load(plain))
    with caplog.at_level(logging.WARNING):
        found = log_probabilities(load(quantised))
    assert not caplog.records
    for each in (found, *of_groups(quantised, thread_groups(2))):
        torch.testing.assert_close(each, expected, atol=1e-3, rtol=1e-3)


def test_scales_of_experts_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    case = replace(CASE, values={**OTHER, "hidden_size": 64, "moe_intermediate_size": 64})
    write(case, made(case), tmp_path)
    path = tmp_path / "model.safetensors"
    stored, config, _ = published(load_file(path), json.loads((tmp_path / "config.json").read_text()))
    stored["layers.1.ffn.experts.3.w2.scale"].view(torch.uint8)[5, 1] = 255
    save_file({name: tensor.contiguous().clone() for name, tensor in stored.items()}, path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ModelFilesError, match=r"`model\.layers\.1\.mlp\.experts\.3\.down_proj\.weight_scale` holds scales"
    ):
        load(tmp_path)


def test_a_published_file_is_read_as_transformers_reads_it() -> None:
    config = parse_model_config(JsonObject(PUBLISHED, "config.json"), None)
    mixers = [each for each in config.decoder.mixers if isinstance(each, CompressedAttentionSpec)]
    assert config.max_context_length == 1048576
    assert [(each.rate, each.overlaps, each.indexer is not None) for each in mixers[1:4]] == [
        (0, False, False),
        (4, True, True),
        (128, False, False),
    ]
    assert [(each.rope.theta, each.rope.rope_type, each.rope.attention_factor) for each in mixers[1:3]] == [
        (10000.0, "default", None),
        (160000.0, "yarn", 1.0),
    ]
    routes = [layer.moe.route for layer in config.decoder.layers if layer.moe is not None]
    assert [each.by_token for each in routes] == [True] * 3 + [False] * 40
    # 284 billion weights, of which those of experts have four bits, and 16 for the scale of 32 of them.
    assert 160e9 < weight_bytes(config, 2) < 170e9


def test_a_drafter_in_the_same_file_changes_nothing() -> None:
    keys = {"dspark_block_size": 5, "dspark_markov_rank": 32, "dspark_noise_token_id": 500}
    raw = {**PUBLISHED, **keys, "dspark_target_layer_ids": [40, 41, 42], "num_nextn_predict_layers": 3}
    plain, config = (parse_model_config(JsonObject(each, "config.json"), None) for each in (PUBLISHED, raw))
    assert config.decoder == plain.decoder
    assert "mtp.*" in config.names.ignored


KINDS = {
    (0, False): "sliding_attention",
    (1, True): "compressed_sparse_attention",
    (1, False): "heavily_compressed_attention",
}
YARN = {**PUBLISHED["rope_scaling"], "rope_type": "yarn"}
NESTED = {
    "compress": {"factor": 16.0, "original_max_position_embeddings": 65536, "rope_theta": 9.0, "rope_type": "yarn"},
    "main": {"partial_rotary_factor": 0.125, "rope_theta": 7.0, "rope_type": "default"},
}
NESTED["compress"]["partial_rotary_factor"] = 0.125


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"rope_scaling": None, "rope_parameters": {**YARN, "rope_theta": 12345.0}},
        {"rope_scaling": None, "rope_parameters": {**YARN, "attention_factor": 1.3}},
        {"rope_scaling": None, "rope_parameters": NESTED},
        {"rope_scaling": None, "rope_theta": 500.0, "compress_rope_theta": 700.0},
        {"qk_rope_head_dim": None, "partial_rotary_factor": 0.25},
        {"qk_rope_head_dim": None, "compress_ratios": None, "num_hash_layers": None},
        {"mlp_layer_types": ["moe"] * 40 + ["hash_moe"] * 3},
        {"compress_rates": {"compressed_sparse_attention": 8, "heavily_compressed_attention": 64}},
        {"compress_rate_csa": 16, "compress_rate_hca": 32},
    ],
)
def test_keys_of_rope_and_types_mean_what_they_mean_to_transformers(values: dict[str, Any]) -> None:
    raw = {key: each for key, each in {**PUBLISHED, **values}.items() if each is not None}
    theirs = ("architectures", "model_type", "expert_dtype", "quantization_config", "torch_dtype")
    expected = DeepseekV4Config(**copy.deepcopy({key: each for key, each in raw.items() if key not in theirs}))
    layers = parse_model_config(JsonObject(raw, "config.json"), None).decoder.layers
    mixers = [each.mixer for each in layers if isinstance(each.mixer, CompressedAttentionSpec)]
    assert [KINDS[min(each.rate, 1), each.overlaps] for each in mixers] == expected.layer_types
    routes = [each.moe.route for each in layers if each.moe is not None]
    assert ["hash_moe" if each.by_token else "moe" for each in routes] == expected.mlp_layer_types
    for kind, mixer in zip(expected.layer_types, mixers, strict=True):
        rope = expected.rope_parameters["main" if kind == "sliding_attention" else "compress"]
        found = mixer.rope.rope_type, mixer.rope.theta, mixer.rope.factor, mixer.rope.attention_factor, mixer.rope_dim
        wanted = rope["rope_type"], rope["rope_theta"], rope.get("factor", 1.0), rope.get("attention_factor")
        assert found == (*wanted, int(512 * rope["partial_rotary_factor"]))
        assert mixer.rate == expected.compress_rates.get(kind, 0)


def test_positions_take_what_is_counted_before_a_start(folder: Path) -> None:
    """A key of 16 elements in each layer, four vectors more and four of index keys in one, and two in another."""
    expected = (1 + (5 + 4) + 3) * 16 * 4
    assert kv_bytes_per_token(ModelConfig.from_folder(folder), 1, 4) == bytes_per_slot(load(folder)) == expected


@pytest.mark.parametrize("missing", ["layers.1.attn.compressor.ape", "layers.0.ffn.gate.tid2eid", "hc_head_fn"])
def test_tensors_of_entries_tables_and_streams_are_missed(missing: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(folder / "config.json")
    state = names_of_authors(load_file(folder / "model.safetensors"))
    del state[missing]
    save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFilesError, match="is in none of the model's safetensors files"):
        load(tmp_path)


def test_a_table_that_names_experts_that_are_not_there_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(folder / "config.json")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.ffn.gate.tid2eid"][7, 1] = 8
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFilesError, match="names experts other than the 8 that there are"):
        load(tmp_path)


def test_what_it_cannot_have_is_refused(folder: Path) -> None:
    config = ModelConfig.from_folder(folder)
    with pytest.raises(ConfigurationError, match="cache holds compressed positions beside keys"):
        quantised_kv_cache("int8", config)
    with pytest.raises(ConfigurationError, match="3 shards cannot share 4 groups of attention heads evenly"):
        check_shards(config, AskedShards(3))
    with pytest.raises(ConfigurationError, match="--enable-context-parallel is for latent attention"):
        check_shards(config, AskedShards(2, context_parallel=True))


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"compress_rates": {"compressed_sparse_attention": 0}}, ConfigurationError, "`compressed_sparse_attention`"),
        ({"compress_rate_hca": 10**9}, ConfigurationError, "`compress_rate_hca` must be an integer of at most 1024"),
        ({"hc_mult": 10**9}, ConfigurationError, "`hc_mult`"),
        ({"head_dim": 1024}, ConfigurationError, "`head_dim` must be an integer of at most 512"),
        ({"hidden_act": "gelu"}, UnsupportedModel, "`hidden_act` in config.json must be 'silu'"),
        ({"index_head_dim": 4}, ConfigurationError, "`index_head_dim` must be at least the 8 elements"),
        ({"index_head_dim": 512}, ConfigurationError, "`index_head_dim` must be an integer of at most 256"),
        ({"layer_types": ["sliding_attention"]}, ConfigurationError, "`layer_types` must be a list of 3 times one of"),
        ({"layer_types": None, "compress_ratios": [0, 4, 8]}, ConfigurationError, "`compress_ratios` must be a list"),
        ({"layer_types": None, "compress_ratios": [[0], 4, 4]}, ConfigurationError, "`compress_ratios` must be a list"),
        ({"mlp_bias": True}, UnsupportedModel, "`mlp_bias` in config.json must be false"),
        ({"mlp_layer_types": ["dense"] * 3}, ConfigurationError, "`mlp_layer_types` must be a list of 3 times"),
        ({"n_shared_experts": 2}, UnsupportedModel, "`n_shared_experts` in config.json must be 1"),
        ({"num_key_value_heads": 2}, ConfigurationError, "`num_key_value_heads` must be 1"),
        ({"o_groups": 3}, ConfigurationError, r"`o_groups` must be a divisor of `num_attention_heads` \(4\)"),
        ({"rope_parameters": {"main": {"rope_theta": 1e4}}}, ConfigurationError, "both `main` and `compress`"),
        ({"scoring_func": "softmax"}, ConfigurationError, "`scoring_func` must be one of sqrtsoftplus, sigmoid"),
        ({"swiglu_limit": 7.0}, UnsupportedModel, "`swiglu_limit` in config.json must be 10 for this family, not 7"),
    ],
)
def test_forms_that_are_not_there_are_refused_by_the_name_of_their_key(
    folder: Path, values: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        changed(folder, values)


def test_unknown_keys_of_rope_are_refused(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())["rope_parameters"]
    raw["compress"]["twist"] = 2
    with pytest.raises(UnsupportedModel, match=r"`rope_parameters` in config\.json has `twist`"):
        changed(folder, {"rope_parameters": raw})


def test_an_unknown_type_of_experts_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="`expert_dtype` must be one of fp4, fp8"):
        parse_model_config(JsonObject({**PUBLISHED, "expert_dtype": "int3"}, "config.json"), None)
