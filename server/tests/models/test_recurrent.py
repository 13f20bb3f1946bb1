"""Models with recurrent layers: what they keep of a row, what they refuse, and how their files are read."""

import json
from pathlib import Path

import pytest
from support.eight_bit import quantise_folder
from support.engine_driver import directly, make_request, stream
from support.families import NEW_TOKENS, PROMPTS, model_of, write
from support.family_cases import CASES
from support.generating import generations, warm_engine
from support.loading import load
from support.ranks import results
from support.recurrent_cases import RECURRENT_CASES
from support.router import Router
from support.thread_ranks import thread_groups, together

from text_generation_server.config.model import ModelConfig
from text_generation_server.config.names import TensorNames
from text_generation_server.config.shards import AskedShards, check_shards
from text_generation_server.doctor.model import (
    kv_bytes_per_token,
    state_bytes_per_row,
    state_bytes_per_window_token,
)
from text_generation_server.engine.kv_pool import (
    allocate_pool,
    bytes_per_row,
    bytes_per_slot,
    bytes_per_window_token,
)
from text_generation_server.engine.requests import ServingLimits, StepPlan
from text_generation_server.errors import ConfigurationError, UnsupportedModel


@pytest.fixture(params=list(RECURRENT_CASES), scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def written(name: str, root: Path) -> Path:
    folder = root / name
    if not folder.exists():
        write(CASES[name], model_of(name), folder)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recurrent")


@pytest.fixture
def folder(name: str, root: Path) -> Path:
    return written(name, root)


def test_a_row_takes_what_is_counted_before_a_start(folder: Path) -> None:
    """On one shard and on two; positions take what attention keeps of them, and nothing where there is none."""
    config, whole = ModelConfig.from_folder(folder), load(folder)
    ranks = together([lambda group=group: load(folder, group=group) for group in thread_groups(2)])
    for shards, models in ((1, [whole]), (2, ranks)):
        assert {bytes_per_row(model) for model in models} == {state_bytes_per_row(config, shards, 4)}
        assert {bytes_per_slot(model) for model in models} == {kv_bytes_per_token(config, shards, 4)}
        window = state_bytes_per_window_token(config, shards, 4)
        assert {bytes_per_window_token(model) for model in models} == {window}
    pool = allocate_pool(whole, num_slots=5, num_rows=3, window_tokens=7)
    assert sum(each.inputs.nbytes + each.state.nbytes for each in pool.states) == 4 * bytes_per_row(whole)
    assert sum(part.nbytes for layer in pool.read for part in layer) == 7 * bytes_per_window_token(whole)


def test_a_row_tells_its_next_request_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row, which requests have one after the other."""
    engine = warm_engine(load(folder), monkeypatch)
    alone = [generations(engine, index, chunk=3, pause=0.0)[0].tokens for index in (2, 4, 3)]
    asked = [stream(index, PROMPTS[index], NEW_TOKENS) for index in (2, 4, 3)]
    engine.clear_cache(None)
    assert Router(directly(engine), ServingLimits(256, 31, 32, 1), chunk=3, depth=2).run(*asked) == alone


def test_a_request_behind_a_prefix_fails_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = warm_engine(load(written("qwen3.5", root)), monkeypatch)
    assert engine.info.recurrent
    good, bad = make_request(0, PROMPTS[3]), make_request(1, PROMPTS[3], cached_length=2)
    (failure,) = engine.step(StepPlan(0, admit=[good, bad])).result().failures
    assert failure.request_id == bad.id
    assert "`cached_length` must be 0, not 2" in failure.message


def test_quantised_parts_of_a_layer_stand_beside_those_with_16_bits(root: Path, tmp_path: Path) -> None:
    """As published: what says how much a head corrects and how fast it decays is not quantised."""
    folder, made = written("qwen3.5", root), tmp_path / "made"
    others = ["in_proj_a", "in_proj_b", "lm_head"]
    quantise_folder(folder, made, "fp8 of matrices", ("_proj", "_qkv", "_z"), modules_to_not_convert=others)
    expected, found = (results(load(each), PROMPTS, steps=2)[0] for each in (folder, made))
    assert 0 < (found - expected).norm() < 0.4 * (expected - expected.mean()).norm()


def test_shards_that_cannot_share_it_are_refused(root: Path) -> None:
    for name, count, what in (
        ("qwen3 next", 3, "4 attention heads"),
        ("mamba", 5, "48 channels of a state space"),
        ("nemotron h", 8, "4 groups of heads of a state space"),
        ("granite 4 dense", 3, "8 heads of a state space"),
        ("falcon h1", 3, "4 attention heads"),
        ("falcon h1 gated first", 4, "2 groups of heads of a state space"),
        ("lfm2", 5, "32 channels of a convolution"),
        ("recurrent gemma", 3, "4 blocks of a recurrent unit"),
        ("ling 2.5", 4, "2 groups of heads of linear attention"),
        ("ling 2.5 whole norm", 3, "4 attention heads"),
        ("zamba 2", 4, "2 groups of heads of a state space"),
        ("zamba 2 of one block", 8, "4 attention heads"),
    ):
        with pytest.raises(ConfigurationError, match=f"{count} shards cannot share {what} evenly"):
            check_shards(ModelConfig.from_folder(written(name, root)), AskedShards(count))


@pytest.mark.parametrize(
    ("name", "values", "error", "message"),
    [
        ("nemotron 3", {"moe_latent_size": -1}, ConfigurationError, "`moe_latent_size`"),
        ("nemotron 3", {"mlp_bias": True}, UnsupportedModel, "`mlp_bias`"),
        ("bamba", {"time_step_limit": [1.0, 0.5]}, ConfigurationError, "`time_step_limit` must be a list of two"),
        (
            "bamba",
            {"mamba_d_head": "auto", "mamba_n_heads": 7},
            ConfigurationError,
            "`mamba_n_heads` must be a divisor",
        ),
        ("falcon h1", {"attention_bias": True}, UnsupportedModel, "`attention_bias`"),
        ("falcon h1", {"mamba_proj_bias": True}, UnsupportedModel, "`mamba_proj_bias`"),
        ("falcon h1", {"projectors_bias": True}, UnsupportedModel, "`projectors_bias`"),
        ("falcon h1", {"mlp_bias": True}, UnsupportedModel, "`mlp_bias`"),
        ("falcon h1", {"mamba_n_heads": 7}, ConfigurationError, "`mamba_n_heads` must be a divisor"),
        ("falcon h1", {"mamba_d_head": 16}, ConfigurationError, "`mamba_d_head` must be the width"),
        ("falcon h1", {"ssm_multipliers": [1.0]}, ConfigurationError, "`ssm_multipliers` must be a list of 5"),
        ("falcon h1", {"key_multiplier": 0}, ConfigurationError, "`key_multiplier` must be a number above 0"),
        ("granite 4", {"layer_types": ["attention"]}, ConfigurationError, "`layer_types` must be a list of 3"),
        ("nemotron h", {"layers_block_type": ["dense"]}, ConfigurationError, "`layers_block_type` must be a list"),
        ("nemotron h letters", {"hybrid_override_pattern": "M?"}, ConfigurationError, "made of the letters"),
        ("nemotron h", {"n_groups": 3}, ConfigurationError, "`n_groups` must be a divisor"),
        ("qwen3 next", {"attention_bias": True}, UnsupportedModel, "`attention_bias`"),
        ("qwen3 next", {"linear_num_key_heads": 3}, ConfigurationError, "`linear_num_key_heads` must be a divisor"),
        ("qwen3 next", {"layer_types": ["full_attention"]}, ConfigurationError, "`layer_types` must be a list of 3"),
        ("olmo hybrid", {"linear_num_key_heads": 3}, ConfigurationError, "`linear_num_key_heads` must be a divisor"),
        ("olmo hybrid", {"linear_key_head_dim": 300}, ConfigurationError, "`linear_key_head_dim`"),
        ("olmo hybrid", {"layer_types": ["linear_attention"]}, ConfigurationError, "`layer_types` must be a list of 3"),
        ("olmo hybrid", {"hidden_act": "gelu"}, UnsupportedModel, "`hidden_act` in config.json must be 'silu'"),
        ("qwen3.5", {"hidden_act": "gelu"}, UnsupportedModel, "`hidden_act` in config.json must be 'silu'"),
        ("lfm2", {"conv_L_cache": 9}, ConfigurationError, "`conv_L_cache`"),
        ("lfm2", {"layer_types": ["conv"]}, ConfigurationError, "`layer_types` must be a list of 3"),
        ("mamba", {"state_size": 1000}, ConfigurationError, "`state_size`"),
        ("recurrent gemma", {"block_types": []}, ConfigurationError, "`block_types` must be a list of names"),
        ("recurrent gemma", {"lru_width": 30}, ConfigurationError, "`num_attention_heads` must be a divisor"),
        ("recurrent gemma", {"hidden_activation": "silu"}, UnsupportedModel, "`hidden_activation`"),
        ("zamba 2", {"layers_block_type": ["m", "g", "m", "g"]}, ConfigurationError, "`layers_block_type` must be"),
        ("zamba 2", {"num_attention_heads": 5}, ConfigurationError, "`num_attention_heads` must be such that"),
        ("zamba 2", {"num_key_value_heads": 3}, ConfigurationError, "`num_key_value_heads` must be a divisor"),
        ("zamba 2", {"num_key_value_heads": 2}, ConfigurationError, "`use_shared_attention_adapter` is true"),
        ("zamba 2 of one block", {"n_mamba_heads": 7}, ConfigurationError, "`n_mamba_heads` must be a divisor"),
        ("zamba 2", {"num_mem_blocks": 0}, ConfigurationError, "`num_mem_blocks`"),
    ],
)
def test_forms_that_are_not_there_are_refused_by_the_name_of_their_key(
    name: str, values: dict[str, object], error: type[Exception], message: str, root: Path, tmp_path: Path
) -> None:
    config = json.loads((written(name, root) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **values}))
    with pytest.raises(error, match=message):
        ModelConfig.from_folder(tmp_path)


@pytest.mark.parametrize("suffix", ["weight", "qweight", "weight_packed"])
def test_other_names_count_where_no_layer_has_the_first(suffix: str) -> None:
    """Whether its matrices are quantised or not."""
    names = TensorNames(delta_out="own", instead={"delta_out": "other"})
    for stored in ("own", "other"):
        assert names.as_stored(2, {f"model.layers.1.{stored}.{suffix}"}.__contains__).delta_out == stored
