"""Classes of transformers in our engine: they compute what transformers does, and what could not is refused."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.comparing import assert_generations_are_equal, assert_logits_are_equal, checkpoints
from support.driver import Driver
from support.fallback_cases import FALLBACK_CASES, FORCED, WHOLE_HEADS
from support.families import PROMPTS, model_of
from support.family_cases import CASES
from support.generating import warm_engine
from support.loading import load
from support.ranks import results
from support.thread_ranks import thread_groups, together
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P

from text_generation_server.config.fallback import FallbackConfig, parse_fallback_config
from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.model import ModelConfig
from text_generation_server.errors import ConfigurationError, ModelFilesError, UnsupportedModel
from text_generation_server.models import CausalLM
from text_generation_server.models.fallback import check_runnable
from text_generation_server.models.fallback.dry_run import dry_run
from text_generation_server.models.fallback.interfaces import SERVING
from text_generation_server.models.fallback.norm import recognise
from text_generation_server.models.fallback.skeleton import build_skeleton

ALL = {**FALLBACK_CASES, **{name: CASES[name] for name in FORCED}}


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a case, written once."""
    return checkpoints(tmp_path_factory.mktemp("fallback"), ALL)


@pytest.fixture(params=list(ALL), scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model_for(folder_of: Callable[[str], Path]) -> Callable[[str], CausalLM]:
    """Loads a case; the last one is kept. Pytest would keep `model` for a test that gets its `name` from its own list,
    whatever the name is.
    """

    @lru_cache(maxsize=1)
    def model_of_case(name: str) -> CausalLM:
        # As the engine does.
        with torch.inference_mode():
            return load(folder_of(name), impl="transformers" if name in FORCED else "auto")

    return model_of_case


@pytest.fixture
def model(name: str, model_for: Callable[[str], CausalLM]) -> CausalLM:
    return model_for(name)


def test_logits_are_those_of_transformers(name: str, model: CausalLM) -> None:
    assert_logits_are_equal(ALL[name], model_of(name), model)


def test_greedy_ids_and_their_probabilities_are_those_of_transformers(
    name: str, model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_generations_are_equal(ALL[name], model_of(name), warm_engine(model, monkeypatch))


def test_steps_that_copy_numbers_to_the_device_are_known(name: str, model: CausalLM) -> None:
    """As the sparse gate of Gemma 3n does. CUDA graphs hold all others."""
    assert model.is_captured is not name.startswith("gemma3n")


@pytest.mark.parametrize("name", FORCED, scope="module")
def test_a_known_family_is_the_same_through_its_class(
    name: str, model: CausalLM, folder_of: Callable[[str], Path]
) -> None:
    """`auto` takes our decoder, `transformers` the class; both compute the same."""
    assert isinstance(read_model_config(folder_of(name)), ModelConfig)
    assert isinstance(read_model_config(folder_of(name), "transformers"), FallbackConfig)
    native, forced = (results(each, PROMPTS, 4) for each in (load(folder_of(name)), model))
    torch.testing.assert_close(forced[0], native[0], atol=2e-4, rtol=2e-4)
    assert forced[1] == native[1]


def test_two_ranks_compute_what_one_does(name: str, model: CausalLM, folder_of: Callable[[str], Path]) -> None:
    models = [load(folder_of(name), group=group, impl="transformers") for group in thread_groups(2)]
    (first, ids), (second, other_ids) = together([partial(results, each, PROMPTS[3:], 2) for each in models])
    expected_logits, expected_ids = results(model, PROMPTS[3:], 2)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected_logits, atol=2e-4, rtol=2e-4)
    assert ids == other_ids == expected_ids
    part, whole = (sum(cache.bytes_per_slot(each.dtype) for cache in each.caches) for each in (models[0], model))
    assert part * (1 if name in WHOLE_HEADS else 2) == whole


@pytest.mark.parametrize(("name", "matrices"), [("olmoe", "o_proj"), ("persimmon", "query_key_value")])
def test_what_every_shard_holds_whole_is_said(
    name: str, matrices: str, folder_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    load(folder_of(name), group=thread_groups(2)[0])
    (said,) = (record for record in caplog.records if "whole" in record.message)
    assert f"model.layers.*.self_attn.{matrices}.weight" in getattr(said, "matrices", ())


def test_heads_that_cannot_be_shared_are_refused(folder_of: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigurationError, match=r"4 shards cannot share 4 attention heads with 2 .* --num-shard"):
        load(folder_of("arcee"), group=thread_groups(4)[0])
    check_runnable(config_of("arcee", **TINY), 2)
    with pytest.raises(ConfigurationError, match=r"4 shards cannot share 4 attention heads with 2 .* --num-shard"):
        check_runnable(config_of("arcee", **TINY), 4)


def config_of(model_type: str, **values: Any) -> FallbackConfig:
    """As of a file with these keys, and with the defaults of the class."""
    raw = {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type, "")], "model_type": model_type, **values}
    return parse_fallback_config(JsonObject(raw, "config.json"), None)


TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 99,
}


@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "`layer_types` .* 'conv'; only full_attention"),
        ("lfm2", {}, "values on the host"),
        ("t5", {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "it has an encoder"),
        ("bert", {}, "looks ahead"),
        ("roberta", {}, "looks ahead"),
        ("gpt_neo", {}, "does not go through the library's attention interface"),
        ("bloom", {}, "does not go through the library's attention interface"),
        ("diffllama", {}, "calls attention more than once"),
        ("gpt_oss", {}, "`is_transposed`"),
        (
            "qwen2_moe",
            {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4},
            "neither all positions before it nor a window",
        ),
        ("llama4_text", {"layer_types": ["full_attention"] * 2}, "no decoder of its own"),
        (
            "llama4_text",
            {"layer_types": ["chunked_attention", "full_attention"]},
            "`layer_types` .* 'chunked_attention'",
        ),
        ("qwen3_next", {"layer_types": ["linear_attention", "full_attention"]}, "`layer_types` .* 'linear_attention'"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' depends on the length"),
        ("phi3", {"rope_scaling": {"type": "longrope"}}, "'longrope' depends on the length"),
        (
            "gemma3_text",
            {"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}},
            "'dynamic' depends on the length",
        ),
        ("llama", {"quantization_config": {"quant_method": "nobody"}}, "quantised by 'nobody' are not supported"),
        ("llama", {"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4 is read of the experts of gpt-oss"),
        ("llama", {"architectures": ["NobodyForCausalLM"]}, "'NobodyForCausalLM' is not supported: .*Transformers 5"),
    ],
)
def test_what_cannot_run_is_refused_with_its_reason(model_type: str, values: dict[str, Any], message: str) -> None:
    """Before there are weights."""
    with pytest.raises(UnsupportedModel, match=message):
        check_runnable(config_of(model_type, **{**TINY, **values}))


def test_a_published_spelling_of_a_class_is_known() -> None:
    """That of K-EXAONE."""
    config = config_of("exaone_moe", **TINY, architectures=["ExaoneMoEForCausalLM"])
    assert isinstance(config, FallbackConfig)
    check_runnable(config)


@pytest.mark.parametrize(
    "model_type",
    ["mamba", "jamba", "nemotron_h", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "falcon_h1", "zamba"],
)
def test_recurrent_models_are_refused_by_their_configuration_alone(model_type: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"ForCausalLM cannot run .* a state beside keys and values"):
        check_runnable(config_of(model_type, **TINY))


def test_layers_that_do_not_call_attention_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = LlamaDecoderLayer.forward

    def every_second(layer: LlamaDecoderLayer, hidden_states: torch.Tensor, **inputs: Any) -> torch.Tensor:
        return forward(layer, hidden_states, **inputs) if layer.self_attn.layer_idx % 2 else hidden_states

    monkeypatch.setattr(LlamaDecoderLayer, "forward", every_second)
    with pytest.raises(UnsupportedModel, match="1 of its 2 layers call attention"):
        check_runnable(config_of("llama", **TINY))


@pytest.mark.parametrize(
    ("model_type", "values", "turned", "networks"),
    [
        ("llama", {}, True, 2),
        ("smollm3", {"no_rope_layers": [1, 0], "pad_token_id": None, "bos_token_id": 1}, True, 2),
        ("gemma2", {"head_dim": 8}, True, 2),
        ("mixtral", {"num_local_experts": 4}, True, 0),
        # Pairs that lie elsewhere, a part of a head, a normalisation behind, and a plain network.
        ("cohere", {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}, False, 2),
        ("persimmon", {}, False, 0),
        ("hunyuan_v1_dense", {"head_dim": 8, "pad_token_id": None}, False, 2),
        ("phi", {}, False, 0),
    ],
)
def test_what_of_a_class_our_operators_compute(
    model_type: str, values: dict[str, Any], turned: bool, networks: int
) -> None:
    """Rotary embeddings, and gated networks."""
    seen = dry_run(build_skeleton(config_of(model_type, **{**TINY, **values}), torch.float32))
    assert (seen.rotated_by_attention, len(seen.networks)) == (turned, networks)


def test_a_class_that_reads_turned_queries_turns_them_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """If attention rotated them, another operator would read queries and keys before RoPE."""

    def reading(*_: object, **__: object) -> Callable[..., Any]:
        attend = ALL_ATTENTION_FUNCTIONS[SERVING]
        return lambda module, q, *others, **options: attend(module, q + q.mean(), *others, **options)

    monkeypatch.setattr(modeling_llama.ALL_ATTENTION_FUNCTIONS, "get_interface", reading)
    seen = dry_run(build_skeleton(config_of("llama", **TINY), torch.float32))
    assert not seen.rotated_by_attention


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_attention_heads": "many"}, "num_attention_heads"),
        ({"num_hidden_layers": 10**9}, "`num_hidden_layers` must be an integer of at most 1024"),
        ({"hidden_act": "no such function"}, "cannot be built from config.json"),
    ],
)
def test_wrong_values_are_errors_of_the_file(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_runnable(config_of("llama", **{**TINY, **values}))


def test_code_that_comes_with_a_model_is_not_run(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder_of("arcee"), tmp_path / "model"))
    raw = json.loads((folder / "config.json").read_text())
    raw["auto_map"] = {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"}
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "theirs.py").write_text("raise SystemExit('was run')")
    load(folder)
    (folder / "config.json").write_text(json.dumps({**raw, "architectures": ["TheirsForCausalLM"]}))
    with pytest.raises(UnsupportedModel, match="'TheirsForCausalLM' is not supported"):
        load(folder)


def test_tensors_that_do_not_fit_the_class_are_refused(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder_of("arcee"), tmp_path / "model"))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}, path)
    load(folder)
    save_file({**tensors, "model.layers.0.mlp.gate_proj.weight": torch.zeros(4)}, path)
    with pytest.raises(
        ModelFilesError, match=r"1 tensors .* no part of its class, such as `model.layers.0.mlp.gate_proj"
    ):
        load(folder)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path)
    with pytest.raises(ModelFilesError, match=r"1 tensors .* such as `model\.layers\.1\.mlp\.up_proj\.weight`"):
        load(folder)


@pytest.mark.parametrize(
    ("values", "tensors"),
    [({}, ("eh_proj", "mlp.up_proj")), ({"num_nextn_predict_layers": 1}, ("mlp.up_proj",))],
)
def test_layers_that_guess_further_tokens_are_not_read(
    values: dict[str, int], tensors: tuple[str, ...], folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Behind the last layer, at whichever depth. What is there for another reason is refused."""
    folder = Path(shutil.copytree(folder_of("arcee"), tmp_path / "model"))
    path, config = folder / "model.safetensors", folder / "config.json"
    tensors_of_class = load_file(path)
    beyond = {f"model.layers.3.{name}.weight": torch.zeros(4) for name in tensors}
    save_file({**tensors_of_class, **beyond}, path)
    config.write_text(json.dumps({**json.loads(config.read_text()), **values}))
    load(folder)
    save_file({**tensors_of_class, **beyond, "model.layers.4.mlp.up_proj.weight": torch.zeros(4)}, path)
    with pytest.raises(ModelFilesError, match=r"1 tensors .* such as `model\.layers\.4\.mlp\.up_proj\.weight`"):
        load(folder)


def test_dummy_weights_need_no_files(folder_of: Callable[[str], Path]) -> None:
    model = load(folder_of("olmoe"), dummy=True)
    logits = Driver(model, max_tokens=32).prefill({"a": PROMPTS[4]})
    assert logits.isfinite().all()


def test_normalisations_are_recognised_by_what_they_compute() -> None:
    """Rounding before the weight, or after it; with 1 added to the weight; and none that subtracts a mean."""
    forms = [recognise(kind(8)) for kind in (LlamaRMSNorm, GemmaRMSNorm, NemotronLayerNorm1P)]
    assert [form and (form.wide, form.one_plus) for form in forms] == [(False, False), (True, True), None]


def test_native_models_do_not_load_transformers() -> None:
    program = "import sys, text_generation_server.engine.loading; sys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
