"""Which matrices are quantised, and how, by the configurations that tools write."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.quantisation import (
    Fp8,
    Int8,
    Packed,
    Rule,
    Scheme,
    Schemes,
    online,
    online_schemes,
    read_schemes,
)
from text_generation_server.errors import ConfigurationError, ModelFilesError, UnsupportedModel

Raw = dict[str, Any]
Q, DOWN, HEAD = "model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj", "lm_head"
BYTES: Raw = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
TOKENS: Raw = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
LLAMA: Raw = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
}


def schemes_of(config: Raw, key: str = "quantization_config") -> Schemes:
    return read_schemes(JsonObject({key: config}, "config.json"))


def compressed(weights: Raw, inputs: Raw | None = None, **more: Any) -> Raw:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"], **more}


def integers(bits: int, strategy: str, **more: Any) -> Raw:
    return {"num_bits": bits, "type": "int", "strategy": strategy, "symmetric": True, **more}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (compressed(BYTES, TOKENS, format="float-quantized"), Fp8("channel", "dynamic")),
        (
            compressed({**BYTES, "strategy": "tensor"}, {**TOKENS, "dynamic": False}, format="float-quantized"),
            Fp8("tensor", "static"),
        ),
        (
            compressed(
                {**BYTES, "strategy": "block", "block_structure": [128, 128]},
                {**TOKENS, "strategy": "group", "group_size": 128},
                format="float-quantized",
            ),
            Fp8("block", "dynamic"),
        ),
        (
            compressed(integers(8, "channel"), {**TOKENS, "type": "int"}, format="int-quantized"),
            Int8("channel", "dynamic"),
        ),
        (
            compressed(
                integers(4, "group", group_size=128, symmetric=False, actorder="group"), format="pack-quantized"
            ),
            Packed("compressed-tensors", 4, 128, symmetric=False),
        ),
        (
            compressed(integers(8, "channel", actorder="static"), format="pack-quantized"),
            Packed("compressed-tensors", 8, 0),
        ),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, Fp8("tensor", "dynamic")),
        ({"quant_method": "fp8", "activation_scheme": "static"}, Fp8("tensor", "static")),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, Fp8("block", "dynamic")),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, Fp8("channel", "dynamic", bound=1200.0)),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Fp8("tensor", "static")),
        ({"quant_method": "modelopt", "quant_algo": "fp8_per_channel_per_token"}, Fp8("channel", "dynamic")),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, Packed("nvfp4", 4, 16)),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}, Packed("nvfp4", 4, 16)),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, Fp8("group", "none")),
        ({"quant_method": "mxfp8", "weight_block_size": [1, 32]}, Fp8("group", "none")),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}, Fp8("block", "dynamic")),
        (
            compressed({**BYTES, "strategy": "group", "group_size": 32}, TOKENS, format="mxfp8-quantized"),
            Fp8("group", "none"),
        ),
        (
            compressed(
                {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
                {"num_bits": 4, "type": "float", "strategy": "tensor_group", "dynamic": "local"},
                format="nvfp4-pack-quantized",
            ),
            Packed("nvfp4", 4, 16),
        ),
        # The strategy follows from the size of groups where none is named; fp8 weights may be alone.
        (compressed({"num_bits": 4, "group_size": 32}, format="pack-quantized"), Packed("compressed-tensors", 4, 32)),
        (compressed({"num_bits": 4, "group_size": -1}, format="pack-quantized"), Packed("compressed-tensors", 4, 0)),
        (compressed({"num_bits": 8, "type": "float"}, format="float-quantized"), Fp8("tensor", "none")),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, Packed("gptq", 4, 128)),
        (
            {"quant_method": "gptq", "bits": 3, "group_size": -1, "sym": False, "desc_act": True, "format": "gptq_v2"},
            Packed("gptq_v2", 3, 0, symmetric=False),
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, Packed("awq", 4, 64, symmetric=False)),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, Packed("gptq", 4, 128)),
        ({"quant_method": "awq", "bits": 4, "checkpoint_format": "gemm"}, Packed("awq", 4, 128, symmetric=False)),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, Packed("bnb-nf4", 4, 64)),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, Packed("bnb-int8", 8, 0)),
    ],
)
def test_a_configuration_is_read(config: Raw, expected: Scheme) -> None:
    schemes = schemes_of(config)
    assert schemes.of(Q) == schemes.of(DOWN) == expected
    assert schemes.of(HEAD) is None


@pytest.mark.parametrize(
    ("config", "skipped", "kept"),
    [
        # Whole names; a layer 1 is not the layer 11.
        ({"quant_method": "fp8", "ignored_layers": [Q, "model.layers.1"]}, Q, DOWN),
        ({"quant_method": "fp8", "modules_to_not_convert": ["mlp.down_proj"]}, DOWN, Q),
        # Any part of the name.
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["down_p"]}, DOWN, Q),
        # Wildcards.
        ({"quant_method": "modelopt", "exclude_modules": ["*.self_attn*"]}, Q, DOWN),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.*.self_attn"]}, Q, DOWN),
        ({"quant_method": "modelopt", "exclude_modules": ["self_attn.q_proj"]}, Q, DOWN),
        # Regular expressions, exact names.
        (compressed(BYTES, TOKENS, ignore=["re:.*self_attn.*"], format="float-quantized"), Q, DOWN),
        (compressed(BYTES, TOKENS, ignore=[DOWN, "q_proj"], format="float-quantized"), DOWN, Q),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*down": {}}}, DOWN, Q),
        ({"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": [["self_attn.q_proj"]]}, DOWN, Q),
    ],
)
def test_a_list_of_what_is_not_quantised_is_matched_as_its_method_does(config: Raw, skipped: str, kept: str) -> None:
    schemes = schemes_of(config)
    assert schemes.of(skipped) is None
    assert schemes.of(kept) is not None


def test_names_come_before_expressions_and_these_before_classes() -> None:
    def group(target: str, strategy: str) -> Raw:
        return {"targets": [target], "weights": {**BYTES, "strategy": strategy}, "input_activations": TOKENS}

    groups = {"a": group("Linear", "channel"), "b": group("re:.*mlp", "tensor"), "c": group(DOWN, "channel")}
    config = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}
    schemes = schemes_of(config)
    assert schemes.of(DOWN) == schemes.of(Q) == Fp8("channel")
    assert schemes.of("model.layers.0.mlp.up_proj") == Fp8("tensor")


def test_keys_of_auto_round_are_names_first_and_then_expressions() -> None:
    """A dot stands for itself in the one and for anything in the others, which are found anywhere in a name."""
    extra = {
        r"self_attn\.(q|k)_proj$": {"bits": 8, "group_size": 32},
        ".*layers.1.*": {"bits": 16, "data_type": "float"},
        Q: {"bits": 2},
        "layers.2.mlp": {"bits": 2},
    }
    schemes = schemes_of({"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": extra})
    assert schemes.of(Q) == Packed("gptq", 2, 128)
    assert schemes.of(Q.replace("0", "1")) == Packed("gptq", 8, 32)
    assert schemes.of(DOWN) is None
    assert schemes.of(DOWN.replace("11", "2")) == Packed("gptq", 4, 128)


def test_some_modules_may_have_other_numbers() -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:.*down": {"bits": 8}}}
    schemes = schemes_of(config)
    assert (schemes.of(Q), schemes.of(DOWN)) == (Packed("gptq", 4, 128), Packed("gptq", 8, 128))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128}, Packed("gptq", 4, 128)),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "zero_point": True}, Packed("awq", 4, 128, False)),
        (
            "hf_quant_config.json",
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
            Fp8("tensor", "static"),
        ),
    ],
)
def test_files_of_older_tools_are_read(tmp_path: Path, name: str, content: Raw, expected: Scheme) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / name).write_text(json.dumps(content))
    config = read_model_config(tmp_path)
    assert config.schemes.of(Q) == expected  # type: ignore[union-attr]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("symmetric", [None, False, True])
def test_tensors_that_say_how_they_are_quantised_are_read(
    tmp_path: Path, indexed: bool, symmetric: bool | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    numbers = {"gptq_bits": torch.tensor([4]), "gptq_groupsize": torch.tensor([64])}
    if symmetric is not None:
        numbers["gptq_sym"] = torch.tensor([symmetric])
    save_file(numbers, tmp_path / ("model-1.safetensors" if indexed else "model.safetensors"))
    if indexed:
        index = {"weight_map": dict.fromkeys(numbers, "model-1.safetensors")}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    schemes = read_model_config(tmp_path).schemes  # type: ignore[union-attr]
    assert schemes.of(Q) == Packed("gptq", 4, 64, symmetric=bool(symmetric))
    assert schemes.of(HEAD) is None


def test_tensors_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    save_file({"gptq_bits": torch.ones(2), "gptq_groupsize": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFilesError, match="gptq_bits"):
        read_model_config(tmp_path)


def test_other_places_of_the_configuration_are_read() -> None:
    config = compressed(BYTES, TOKENS, format="float-quantized")
    assert schemes_of(config, "compression_config").of(Q) == Fp8()
    assert read_schemes(JsonObject({"text_config": {"quantization_config": config}}, "c")).of(Q) == Fp8()


def test_the_kv_cache_of_a_checkpoint_is_known() -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    assert schemes_of(compressed(BYTES, TOKENS, kv_cache_scheme=scheme)).kv_cache == "fp8_e4m3fn"
    assert schemes_of({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}).kv_cache == "fp8_e4m3fn"
    assert schemes_of({"quant_method": "modelopt", "kv_cache_quant_algo": "NONE"}).kv_cache is None
    assert schemes_of({"quant_method": "modelopt", "kv_cache_scheme": scheme}).kv_cache == "fp8_e4m3fn"
    assert schemes_of({"quant_method": "fp8", "kv_cache_scheme": "static"}).kv_cache == "fp8_e4m3fn"
    assert schemes_of(compressed(BYTES, TOKENS)).kv_cache is None


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "exl2"}, "exl2"),
        ({"quant_method": "hqq"}, "hqq"),
        ({"quant_method": "quark"}, "quark"),
        ({}, "does not say"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "Marlin"),
        ({"quant_method": "gptq", "bits": 16}, "16 bits"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 1}}}, "1 bits"),
        ({"quant_method": "gptq", "bits": 4, "pack_dtype": "int16"}, "words of type int16"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp"}, "mx_fp"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemv"),
        ({"quant_method": "awq", "bits": 4, "format": "marlin"}, "marlin"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "64 x 64"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "e5m2"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "W4A8_AWQ"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "groups of 32"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "names no layer"),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {Q: {"quant_algo": "W4A8_AWQ"}},
            },
            "W4A8_AWQ",
        ),
        (compressed(BYTES, TOKENS, sparsity_config={"format": "sparse-24-bitmask"}), "sparse-24-bitmask"),
        (compressed(BYTES, TOKENS, format="marlin-24"), "marlin-24"),
        (compressed(BYTES, TOKENS, format="nvfp4-pack-quantized"), "floats of 4 in 16 are"),
        (compressed(BYTES, TOKENS, format="mxfp6-pack-quantized"), "mxfp6-pack-quantized"),
        (compressed(BYTES, TOKENS, transform_config={"config_groups": {"u": {}}}), "rotations"),
        (compressed(BYTES, TOKENS, quantization_status="initialized"), "initialized"),
        (compressed(integers(8, "channel"), {**TOKENS, "type": "int", "symmetric": False}), "zero points"),
        (compressed(integers(4, "group", group_size=128), TOKENS, format="pack-quantized"), "W4A8"),
        (compressed(BYTES, TOKENS, kv_cache_scheme={"type": "int", "symmetric": False}), "zero is not 0"),
    ],
)
def test_what_is_not_read_is_refused_by_name(config: Raw, named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        schemes_of(config)


@pytest.mark.parametrize(
    "config",
    [
        compressed(BYTES, TOKENS, ignore=["re:.*(self_attn"], format="float-quantized"),
        {"quant_method": "gptq", "bits": 4, "dynamic": {"-:[": {}}},
        {"quant_method": "auto-round", "bits": 4, "extra_config": {"*.mlp": {}}},
    ],
)
def test_an_expression_that_is_none_is_refused(config: Raw) -> None:
    with pytest.raises(ConfigurationError, match="is no regular expression"):
        schemes_of(config)


@pytest.mark.parametrize("repeated", [True, False])
def test_checkpoints_of_mlx_are_refused_by_name(repeated: bool) -> None:
    config = {"quantization": {"group_size": 64, "bits": 4}}
    with pytest.raises(UnsupportedModel, match="MLX"):
        read_schemes(
            JsonObject({**config, **({"quantization_config": config["quantization"]} if repeated else {})}, "c")
        )


@pytest.mark.parametrize(
    ("asked", "scheme"),
    [
        ("fp8", Fp8(online=True)),
        ("eetq", Packed("online-int8", 8, 0)),
        ("w8a8", Int8()),
        ("ppl_w8a8", Int8()),
        ("bitsandbytes", Packed("online-int8", 8, 0)),
        ("bitsandbytes-nf4", Packed("online-nf4", 4, 64)),
        ("bitsandbytes-fp4", Packed("online-fp4", 4, 64)),
        ("triton_w4a16", Packed("online-int4", 4, 128)),
        ("triton_w8a16", Packed("online-int8", 8, 0)),
        ("ao-w4a16-32", Packed("online-int4", 4, 32)),
    ],
)
def test_16_bits_are_quantised_as_asked(asked: str, scheme: Scheme) -> None:
    schemes = online_schemes(asked, Schemes())
    assert schemes.online
    assert schemes.of(Q) == scheme
    assert schemes.of(HEAD) is None


@pytest.mark.parametrize(
    ("asked", "method"),
    [("gptq", "awq"), ("marlin", "gptq"), ("fp8", "compressed-tensors"), ("bitsandbytes-nf4", "bitsandbytes")],
)
def test_a_name_may_ask_for_what_the_checkpoint_is(asked: str, method: str) -> None:
    stored = Schemes(method)
    assert online_schemes(asked, stored) is stored


@pytest.mark.parametrize(
    ("asked", "method", "error", "said"),
    [
        ("exl2", "", UnsupportedModel, "ExLlamaV2"),
        ("ao-fp8w8a16", "", UnsupportedModel, "use fp8"),
        ("ao-fp6w6a16", "", UnsupportedModel, "no 6-bit weights"),
        ("int3", "", ConfigurationError, "--quantize must be one of"),
        ("gptq", "", ConfigurationError, "needs a checkpoint that is quantised so"),
        ("eetq", "gptq", ConfigurationError, "contradicts the checkpoint"),
    ],
)
def test_names_that_cannot_work_are_refused(asked: str, method: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        online_schemes(asked, Schemes(method))


def test_families_whose_tensors_are_not_read_in_a_format_are_refused(tmp_path: Path) -> None:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    stored = {"quantization_config": {"quant_method": "fp8"}}
    interleaved = {**LLAMA, "architectures": ["GptOssForCausalLM"], **experts}
    (tmp_path / "config.json").write_text(json.dumps({**interleaved, **stored}))
    with pytest.raises(UnsupportedModel, match="their experts lie in one tensor; use the 16-bit checkpoint"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(interleaved))
    assert read_model_config(tmp_path, quantize="fp8") is not None
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": "mxfp4"}}))
    with pytest.raises(UnsupportedModel, match="mxfp4 is read of the experts of gpt-oss only"):
        read_model_config(tmp_path)


def test_the_launcher_knows_the_names_of_quantize() -> None:
    """It refuses others before anything is started, with the list of those that work."""
    source = Path(__file__, "../../../../launcher/src/args/values.rs").resolve().read_text()

    def names(constant: str) -> list[str]:
        items = re.search(rf"const {constant}: .*?= \[(.*?)\];", source, re.DOTALL)
        assert items is not None
        return [name for name in re.findall(r'"(.*?)"', items[1]) if name]

    assert names("QUANTIZE") == list(online.QUANTIZE_NAMES)
    for name in names("QUANTIZE_REFUSED"):
        with pytest.raises(UnsupportedModel, match=f"--quantize {name} is not supported"):
            online_schemes(name, Schemes())


def test_a_mixed_checkpoint_of_modelopt_has_an_algorithm_for_each_layer() -> None:
    layers = {Q: {"quant_algo": "FP8"}, DOWN: {"quant_algo": "NVFP4", "group_size": 16}}
    schemes = schemes_of({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    assert (schemes.of(Q), schemes.of(DOWN)) == (Fp8("tensor", "static"), Packed("nvfp4", 4, 16))
    assert schemes.of(Q.replace("q_proj", "k_proj")) is None


def test_the_first_rule_that_matches_counts() -> None:
    """Whether it is for one name or for many."""
    eight, four = Fp8(), Packed("gptq", 4, 128)
    rules = (Rule(None, "exact", "a"), Rule(eight, "text", "a"), Rule(four, "exact", "ba"), Rule(four, "exact", "c"))
    schemes = Schemes("some", (*rules, Rule(eight, "exact", "c")))
    assert [schemes.of(name) for name in ("a", "ba", "c", "d")] == [None, eight, four, None]
