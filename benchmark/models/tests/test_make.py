"""The folders have the sizes of the published models, as transformers counts them."""

import json
from pathlib import Path

import pytest
import torch
from make import COMMON, QUANTISED_NAMES, SHAPES, config_of, make_folder
from seeing import SEEING_SHAPES
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    Mistral4Config,
    Mistral4ForCausalLM,
)

# Transformers has the class, and lists its model of images beside text alone.
AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)

PARAMETERS = {
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Qwen2.5-VL-7B": 8_292_166_656,
    "Qwen3-VL-2B": 2_127_532_032,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-Next-80B-A3B": 79_674_391_296,
    "Qwen3.5-9B": 8_953_803_264,  # without its vision tower
    "Qwen3.5-35B-A3B": 34_660_610_688,  # likewise
    "Mamba-2.8B": 2_768_345_600,
    "Nemotron-3-Nano-30B-A3B": 31_577_937_344,  # without 128 corrections of each router, which are no parameters
    "Granite-4.0-H-Tiny": 6_939_037_248,
    "LFM2-1.2B": 1_170_340_608,
    "Gemma-2-9B": 9_241_705_984,
    "Gemma-3-27B": 27_009_346_304,  # without its vision tower
    "Phi-3-mini-4k": 3_821_079_552,
    "Command-R-Plus": 103_810_674_688,
    "Mistral-7B": 7_248_023_552,
    "Mixtral-8x7B": 46_702_792_704,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "DeepSeek-V3.2": 671_877_929_216,  # without corrections of routers and its layer for further tokens
    "DeepSeek-V4-Flash": 284_332_230_231,  # without corrections, tables by token id and its layer for further tokens
    "GLM-5": 743_911_199_232,  # likewise
    "Kimi-K2.5": 1_026_408_209_408,  # without its vision tower
    "Gemma-4-31B": 30_697_345_280,  # without its vision tower
    "Gemma-4-26B-A4B": 25_233_141_760,  # likewise
    "Gemma-4-E4B": 7_463_013_376,  # without its towers for images and sound
    "Falcon-H1-7B": 7_585_513_568,
    "Gemma-3n-E4B": 6_835_235_568,  # likewise
    "GLM-5.3-Flash": 313_326_799_870,  # without its tower, corrections of routers and its layer for further tokens
    "Kimi-Linear-48B-A3B": 49_122_675_072,
    "Laguna-XS-33B-A3B": 33_442_617_088,
    "Olmo-Hybrid-7B": 7_430_870_688,
    "Solar-Pro-22B": 22_140_032_000,
    "Step-3.5-Flash-196B-A11B": 196_956_130_368,
    "Ministral-3-8B": 8_489_553_920,  # without its vision tower
    "Mistral-Small-4-119B": 118_972_826_624,  # without its vision tower
    "MiMo-7B": 7_622_619_136,  # without its layer that guesses further tokens
    "IQuest-Coder-40B": 39_794_283_520,
    "K-EXAONE-236B-A23B": 236_571_150_336,
    "Solar-Open-100B": 102_651_793_408,
    "Nemotron-3-Super-120B-A12B": 120_668_687_360,  # without corrections of routers and its layers for further tokens
    "MiMo-V2-Flash": 308_778_768_832,  # without its layers for further tokens
    "Llama-4-Scout": 107_769_861_120,  # without its vision tower
    "Hy3-295B-A21B": 295_033_528_320,
    "Trinity-Mini": 26_123_974_400,
    "Ling-mini-2.0": 16_255_638_528,
    "Ling-2.6-flash": 104_186_907_648,
    "LongCat-Flash-560B-A27B": 560_664_958_976,
    "MiniMax-M3-428B-A23B": 426_174_565_632,  # without its vision tower
    "MiniMax-Text-01": 456_089_655_296,
    "Sarvam-30B": 32_152_648_064,
    "Zamba2-7B": 7_356_749_648,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
GLM = {"model_type": "glm4_moe", "n_shared_experts": 1, "num_nextn_predict_layers": 0}
OF_OTHER_CLASSES = {
    "MiMo-7B": {"model_type": "qwen2"},
    "IQuest-Coder-40B": {"model_type": "llama"},
    "MiniMax-Text-01": {
        "model_type": "minimax",
        "layer_types": [*["linear_attention"] * 7, "full_attention"] * 10,
    },
    "Ling-mini-2.0": GLM | {"n_routed_experts": 256},
    "Ling-2.6-flash": {"model_type": "deepseek_v3", "n_routed_experts": 256, "n_shared_experts": 1},
    "Sarvam-30B": GLM | {"n_routed_experts": 128},
    "Solar-Pro-22B": {"model_type": "llama"},
    "Step-3.5-Flash-196B-A11B": {
        "model_type": "laguna",
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42,
        "num_attention_heads_per_layer": ([64, 96, 96, 96] * 12)[:45],
        "num_experts": 288,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 8,
        "rope_scaling": dict.fromkeys(("full_attention", "sliding_attention"), ROPE),
        "rope_theta": 10000.0,
        "shared_expert_intermediate_size": 1280,
    },
}
"""Of models whose class transformers lacks: one with the same parameters, and its keys."""
LATENT = 4096 * (1536 + 576 + 32 * 128) + 1536 * 32 * 192 + 512 * 32 * 256 + 1536 + 512
LIGHTNING = 4096 * 5 * 4096 + 4096 + 2 * 128
BESIDE = {"Ling-2.6-flash": 28 * (LIGHTNING - LATENT), "LongCat-Flash-560B-A27B": -28 * 256 * 2 * 2048 * 6144}
"""Parameters that the class lacks; below 0, that it has and never reads."""


WITHOUT_HEAD = {"GLM-5.3-Flash"}
"""Of whose model of text transformers has no class with a head."""


def test_every_shape_has_a_published_size() -> None:
    assert SHAPES.keys() == PARAMETERS.keys()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_model_has_the_published_number_of_parameters(shape: str) -> None:
    config = AutoConfig.for_model(**(COMMON | SHAPES[shape] | OF_OTHER_CLASSES.get(shape, {})))
    with torch.device("meta"):
        kind = AutoModelForImageTextToText if shape in SEEING_SHAPES else AutoModelForCausalLM
        model = (AutoModel if shape in WITHOUT_HEAD else kind).from_config(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    if shape in WITHOUT_HEAD:
        counted += config.vocab_size * config.hidden_size
    assert counted + BESIDE.get(shape, 0) == PARAMETERS[shape]


def test_quantised_models_have_the_shape_of_their_name() -> None:
    for name, (shape, _) in QUANTISED_NAMES.items():
        config = config_of(name)
        assert config.pop("quantization_config")["quant_method"] in (
            "compressed-tensors",
            "fp8",
            "gptq",
            "awq",
            "mxfp4",
            "modelopt",
        )
        assert config == config_of(shape)


@pytest.mark.parametrize("shape", ["Llama-3.1-8B", "Qwen2.5-0.5B"])
def test_every_id_has_a_text_and_a_word_is_a_token(shape: str, tmp_path: Path) -> None:
    make_folder(shape, tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config.vocab_size
    assert tokenizer.decode([config.eos_token_id], skip_special_tokens=True) == ""
    for ids in ([300, 5000, 100_000], list(range(1000, 1200))):
        assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False).ids == ids
    assert tokenizer.decode(tokenizer.encode("héllo, wörld", add_special_tokens=False).ids) == "héllo, wörld"


@pytest.mark.parametrize("shape", SEEING_SHAPES)
def test_marks_of_images_are_tokens_and_the_template_writes_them(shape: str, tmp_path: Path) -> None:
    make_folder(shape, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    content = [{"type": "image"}, {"type": "text", "text": " ab"}]
    ids = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=True, return_dict=False)
    around = [config[key] for key in ("vision_start_token_id", "image_token_id", "vision_end_token_id")]
    first = ids.index(around[0])
    assert ids[first : first + 3] == around
