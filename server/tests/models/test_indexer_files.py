"""Models with an indexer: what they keep of a position, how their files are read, and what they refuse."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.comparing import checkpoints
from support.eight_bit import quantise_folder
from support.family_cases import CASES
from support.loading import load
from support.thread_ranks import thread_groups, together

from text_generation_server.config.kv_cache import quantised_kv_cache
from text_generation_server.config.model import ModelConfig
from text_generation_server.config.sizes import weight_bytes
from text_generation_server.config.spec import IndexerSpec
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.doctor.model import kv_bytes_per_token
from text_generation_server.engine.kv_pool import bytes_per_slot
from text_generation_server.errors import ConfigurationError, ModelFilesError
from text_generation_server.explain.matrices import Matrix, matrices_of
from text_generation_server.layers.weights import Activations, IndexerWeights
from text_generation_server.models.builder import DecoderBuilder
from text_generation_server.weights import SafetensorsSource

LATENT = ["deepseek v3.2", "glm 5", "glm 5.2"]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoints(tmp_path_factory.mktemp("sparse"), CASES)


@pytest.fixture(params=LATENT)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(name: str, folder_of: Callable[[str], Path]) -> Path:
    return folder_of(name)


def test_a_position_takes_its_index_key_too_on_every_rank(name: str, folder: Path) -> None:
    """12 elements, 4 of a key beside them, in 3 layers, and 16 of an index key in each with an indexer."""
    expected = ((12 + 4) * 3 + 16 * (2 if name == "glm 5.2" else 3)) * 4
    ranks = together([lambda group=group: load(folder, group=group) for group in thread_groups(2)])
    assert [bytes_per_slot(model) for model in (load(folder), *ranks)] == [expected] * 3
    assert kv_bytes_per_token(ModelConfig.from_folder(folder), 2, 4) == expected


@pytest.mark.parametrize("ranks", [1, 2])
def test_keys_of_blocks_take_room_beside_keys_and_values(folder_of: Callable[[str], Path], ranks: int) -> None:
    """12 elements of an index key in two layers, whole on every rank, and 8 of a key and of a value of each head."""
    folder, expected = folder_of("minimax m3"), (12 * 2 + 2 * 8 * 3 * 2 // ranks) * 4
    models = together([lambda group=group: load(folder, group=group) for group in thread_groups(ranks)])
    assert [bytes_per_slot(model) for model in models] == [expected] * ranks
    config = ModelConfig.from_folder(folder)
    assert kv_bytes_per_token(config, ranks, 4) == expected
    with pytest.raises(ConfigurationError, match="heads attend to blocks of positions of their own"):
        quantised_kv_cache("int8", config)


@pytest.mark.parametrize("name", [*LATENT, "minimax m3"])
def test_weights_take_what_is_counted_before_they_are_read(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors").items()
    matrices = {name: tensor.numel() for name, tensor in stored if tensor.dim() > 1 and "mlp.gate." not in name}
    config = ModelConfig.from_folder(folder)
    assert weight_bytes(config, 2) == 2 * sum(matrices.values())
    wide = ("kv_b_proj", "weights_proj")
    kept = sum(size for name, size in matrices.items() if ".layers." not in name or any(end in name for end in wide))
    assert weight_bytes(config.quantised("fp8"), 2) == sum(matrices.values()) + kept


@pytest.mark.parametrize("name", [*LATENT, "glm 5.3"])
def test_explain_names_the_matrices_of_the_indexer(name: str, folder: Path) -> None:
    parts = [each.part for each in matrices_of(ModelConfig.from_folder(folder), torch.float32, 1)]
    names = {part.name for part in parts if isinstance(part, Matrix)}
    assert {"indexer queries", "indexer keys", "indexer weights"} <= names
    assert ("indexer gates" in names) == (name == "glm 5.3")


def indexers(folder: Path) -> list[tuple[IndexerSpec, IndexerWeights]]:
    """Of all layers that have one."""
    config, device = ModelConfig.from_folder(folder), torch.device("cpu")
    source = SafetensorsSource(folder, torch.float32, device)
    builder = DecoderBuilder(config, TensorParallelGroup(0, 1, device), source, device)
    builder.build()
    found = [(each.spec, each.weights) for each in builder.sublayers if isinstance(each.spec, IndexerSpec)]
    return [(spec, weights) for spec, weights in found if isinstance(weights, IndexerWeights)]


def test_matrices_of_8_bits_are_read(folder: Path, tmp_path: Path) -> None:
    """Blocks of fp8, as DeepSeek publishes, which leaves the weights of heads as they are. Logits would not tell:
    activations are of 8 bits too, and other positions are chosen.
    """
    kept = ["q_a_proj", "q_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "kv_a_proj_with_mqa", "kv_b_proj"]
    others = [*kept, "indexer.weights_proj", "lm_head"]
    ends = ("indexer.wq_b", "indexer.wk")
    quantise_folder(folder, tmp_path / "made", "fp8 of blocks", ends, modules_to_not_convert=others)
    for (spec, plain), (_, made) in zip(indexers(folder), indexers(tmp_path / "made"), strict=True):
        x, query = torch.randn(3, 32), torch.randn(3, 10)
        for one, other, inputs in ((plain.queries, made.queries, query), (plain.keys, made.keys, x)):
            expected, found = (each.apply(Activations(inputs)) for each in (one, other))
            assert 0 < (found - expected).norm() < 0.1 * expected.norm()
        assert torch.equal(*(each.weights.apply(Activations(x)) for each in (plain, made)))
        assert plain.queries.outputs == spec.num_heads * spec.head_dim


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    raw = json.loads((folder / "config.json").read_text())
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    return tmp_path, raw


def config_of(path: Path, raw: dict[str, Any]) -> ModelConfig:
    (path / "config.json").write_text(json.dumps(raw))
    return ModelConfig.from_folder(path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"q_lora_rank": None}, "`q_lora_rank` is missing"),
        ({"index_topk": 0}, "`index_topk` must be an integer of at least 1"),
        ({"index_head_dim": 2}, "`index_head_dim` must be at least `qk_rope_head_dim`"),
        ({"index_head_dim": 4096}, "`index_head_dim` must be an integer of at most 256"),
    ],
)
def test_sizes_that_no_indexer_has_are_refused(
    changed: tuple[Path, dict[str, Any]], values: dict[str, Any], message: str
) -> None:
    path, raw = changed
    with pytest.raises(ConfigurationError, match=message):
        config_of(path, raw | values)


def layers_with_one(config: ModelConfig) -> list[bool]:
    return [getattr(layer.mixer, "indexer", None) is not None for layer in config.decoder.layers]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [True, True, True]),
        ({"indexer_types": ["full", "shared", "full"]}, [True, False, True]),
        ({"index_topk_pattern": "FFSS"}, [True, True, False]),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, [True, False, True]),
        ({"index_topk_freq": 3}, [True, True, False]),
    ],
)
def test_which_layers_choose_for_themselves(
    changed: tuple[Path, dict[str, Any]], values: dict[str, Any], expected: list[bool]
) -> None:
    path, raw = changed
    raw = {key: value for key, value in raw.items() if key not in ("indexer_types", "index_topk_pattern")}
    config = config_of(path, {**raw, "architectures": ["GlmMoeDsaForCausalLM"], **values})
    assert layers_with_one(config) == expected
    # DeepSeek has no such keys.
    assert all(layers_with_one(config_of(path, {**raw, "architectures": ["DeepseekV32ForCausalLM"], **values})))


@pytest.mark.parametrize("pattern", ["FS", "SFF", "FXF", ["full", "shared"], ["full", "none", "full"]])
def test_a_pattern_that_is_none_is_refused(changed: tuple[Path, dict[str, Any]], pattern: object) -> None:
    path, raw = changed
    raw = {key: value for key, value in raw.items() if key not in ("indexer_types", "index_topk_pattern")}
    with pytest.raises(ConfigurationError, match="`index_topk_pattern` must be of 3 layers"):
        config_of(path, {**raw, "architectures": ["GlmMoeDsaForCausalLM"], "index_topk_pattern": pattern})


@pytest.mark.parametrize("name", ["minimax m3"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"swiglu_limit": 6.0}, "`swiglu_limit` must be 7.0"),
        ({"index_n_heads": 1}, r"`index_n_heads` must be as many as `num_key_value_heads` \(2\)"),
        ({"index_head_dim": 2}, "`index_head_dim` must be at least the 4 elements"),
        ({"index_block_size": 512}, "`index_block_size` must be an integer of at most 256"),
        ({"index_local_blocks": 3}, r"`index_local_blocks` must be at most `index_topk_blocks` \(2\)"),
        ({"index_local_blocks": 0}, "`index_local_blocks` must be an integer of at least 1"),
        ({"layer_types": ["full_attention", "sliding_attention", "minimax_m3_sparse"]}, "`layer_types` must be"),
        ({"mlp_layer_types": ["dense"]}, "`mlp_layer_types` must be a list of 3 times"),
    ],
)
def test_blocks_that_are_not_implemented_are_refused(
    changed: tuple[Path, dict[str, Any]], values: dict[str, Any], message: str
) -> None:
    path, raw = changed
    with pytest.raises(ConfigurationError, match=message):
        config_of(path, raw | values)


@pytest.mark.parametrize("name", ["minimax m3 images"])
def test_the_keys_of_the_authors_count_first(changed: tuple[Path, dict[str, Any]]) -> None:
    path, raw = changed
    text = raw["text_config"]
    sparse = {**text["sparse_attention_config"], "sparse_topk_blocks": 9, "sparse_attention_freq": [1, 0, 1]}
    config = config_of(path, {**raw, "text_config": {**text, "sparse_attention_config": sparse}})
    assert layers_with_one(config) == [True, False, True]
    assert [getattr(getattr(each, "indexer", None), "top_k", 0) for each in config.decoder.mixers] == [9, 0, 9]
    with pytest.raises(ConfigurationError, match="`sparse_attention_freq` must be a list of 3 numbers"):
        config_of(path, {**raw, "text_config": {**text, "sparse_attention_config": {"sparse_attention_freq": [1]}}})


def test_a_layer_without_its_indexer_is_missed(folder: Path, changed: tuple[Path, dict[str, Any]]) -> None:
    path, raw = changed
    config_of(path, raw)
    (path / "model.safetensors").unlink()
    tensors = load_file(folder / "model.safetensors")
    missing = "model.layers.0.self_attn.indexer.weights_proj.weight"
    del tensors[missing]
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(ModelFilesError, match=missing):
        load(path)


def test_contexts_reach_as_far_as_positions(folder: Path) -> None:
    assert ModelConfig.from_folder(folder).max_context_length >= 64
