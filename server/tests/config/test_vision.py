"""What published configurations say of vision towers, and which ones are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from text_generation_server.config import ModelConfig
from text_generation_server.config.vision import PositionSpec
from text_generation_server.errors import UnsupportedModel

PROCESSOR = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27}
QWEN_TEXT = {"model_type": "qwen3_vl_text", "hidden_size": 4096}


def read(
    folder: Path,
    architecture: str,
    processor: dict[str, Any] | None = None,
    added: dict[str, int] | None = None,
    **config: Any,
) -> ModelConfig:
    (folder / "added_tokens.json").write_text(json.dumps(added or {}))
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], **config}))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor or PROCESSOR))
    return ModelConfig.from_folder(folder)


MINICPM_V: dict[str, Any] = {
    "architecture": "MiniCPMV",
    "model_type": "minicpmv",
    "added": {"<unk>": 128244},
    "image_size": 448,
    "processor": {"norm_mean": [0.5, 0.5, 0.5], "norm_std": [0.5, 0.5, 0.5], "scale_resolution": 448},
    "query_num": 64,
    "rms_norm_eps": 1e-6,
    "vision_config": {**SIGLIP, "image_size": 980, "model_type": "siglip", "patch_size": 14},
}

QWEN_VL: dict[str, Any] = {
    "architecture": "QWenLMHeadModel",
    "model_type": "qwen",
    **{"hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128, "num_attention_heads": 32},
    **{"num_hidden_layers": 32, "seq_length": 2048, "vocab_size": 151936},
    "visual": {
        **{"heads": 16, "image_size": 448, "image_start_id": 151857, "layers": 48, "mlp_ratio": 4.9231},
        **{"output_dim": 4096, "patch_size": 14, "width": 1664},
    },
}

PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llava 1.5": (
        {
            "architecture": "LlavaForConditionalGeneration",
            "text_config": {"model_type": "llama", "vocab_size": 32064, "rms_norm_eps": 1e-5},
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": 1024,
                "image_size": 336,
                "intermediate_size": 4096,
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
                "patch_size": 14,
            },
        },
        {"blocks": 23, "hidden": 1024, "image": 336, "merge": 1, "outputs": 4096, "token": 32000},
    ),
    "pixtral": (
        {
            "architecture": "LlavaForConditionalGeneration",
            "image_token_index": 10,
            "text_config": {"model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "num_key_value_heads": 8},
            "vision_config": {"model_type": "pixtral", "head_dim": 64, "hidden_act": "silu", "patch_size": 16},
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        {"blocks": 24, "hidden": 1024, "image": 0, "merge": 1, "outputs": 5120, "token": 10},
    ),
    "gemma 3": (
        {
            "architecture": "Gemma3ForConditionalGeneration",
            "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34},
            "vision_config": {**SIGLIP, "image_size": 896, "patch_size": 14, "vision_use_head": False},
        },
        {"blocks": 27, "hidden": 1152, "image": 896, "merge": 4, "outputs": 2560, "token": 262144},
    ),
    "qwen 2.5 vl": (
        {
            "architecture": "Qwen2_5_VLForConditionalGeneration",
            "model_type": "qwen2_5_vl",
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "num_hidden_layers": 36,
            "image_token_id": 151655,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
            "vision_config": {
                "depth": 32,
                "hidden_act": "silu",
                "hidden_size": 1280,
                "intermediate_size": 3420,
                "num_heads": 16,
                "in_chans": 3,
                "out_hidden_size": 2048,
                "patch_size": 14,
                "spatial_merge_size": 2,
                "spatial_patch_size": 14,
                "window_size": 112,
                "fullatt_block_indexes": [7, 15, 23, 31],
            },
        },
        {"blocks": 32, "hidden": 1280, "image": 0, "merge": 2, "outputs": 2048, "token": 151655},
    ),
    "qwen 3 vl": (
        {
            "architecture": "Qwen3VLForConditionalGeneration",
            "text_config": QWEN_TEXT,
            "vision_config": {"out_hidden_size": 4096, "deepstack_visual_indexes": [8, 16, 24]},
        },
        {"blocks": 27, "hidden": 1152, "image": 0, "merge": 2, "outputs": 4096, "token": 151655},
    ),
    "smolvlm": (
        {
            "architecture": "Idefics3ForConditionalGeneration",
            "image_token_id": 49153,
            "scale_factor": 3,
            "text_config": {"model_type": "llama", "hidden_size": 2048},
            "vision_config": {**SIGLIP, "image_size": 384, "patch_size": 14},
        },
        {"blocks": 27, "hidden": 1152, "image": 0, "merge": 3, "outputs": 2048, "token": 49153},
    ),
    "granite vision": (
        {
            "architecture": "LlavaNextForConditionalGeneration",
            "image_token_index": 49155,
            "text_config": {"model_type": "granite", "hidden_size": 2048, "embedding_multiplier": 12.0},
            "vision_config": {**SIGLIP, "model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14},
            "vision_feature_layer": [-24, -20, -12, -1],
            "vision_feature_select_strategy": "full",
        },
        {"blocks": 27, "hidden": 1152, "image": 384, "merge": 1, "outputs": 2048, "token": 49155},
    ),
    "kimi k2.5": (
        {
            "architecture": "KimiK25ForConditionalGeneration",
            "processor": {"media_proc_cfg": PROCESSOR},
            "text_config": {"model_type": "kimi_k2", "hidden_size": 7168},
            "vision_config": {"vt_hidden_size": 1024, "init_pos_emb_height": 64, "vt_num_hidden_layers": 27},
        },
        {"blocks": 27, "hidden": 1024, "image": 0, "merge": 2, "outputs": 7168, "token": 163605},
    ),
    "kimi vl": (
        {
            "architecture": "KimiVLForConditionalGeneration",
            "model_type": "kimi_vl",
            "media_placeholder_token_id": 163605,
            "text_config": {"hidden_size": 2048, "num_attention_heads": 16, "q_lora_rank": None},
            "vision_config": {"model_type": "moonvit", "init_pos_emb_height": 64, "merge_kernel_size": [2, 2]},
        },
        {"blocks": 27, "hidden": 1152, "image": 0, "merge": 2, "outputs": 2048, "token": 163605},
    ),
    "gemma 4": (
        {
            "architecture": "Gemma4ForConditionalGeneration",
            "processor": {"do_normalize": False},
            "text_config": {"model_type": "gemma4_text", "hidden_size": 1536},
            "vision_config": {"use_clipped_linears": True, "pooling_kernel_size": 3},
        },
        {"blocks": 16, "hidden": 768, "image": 0, "merge": 3, "outputs": 1536, "token": 258880},
    ),
    "glm 4.1v": (
        {
            "architecture": "Glm4vForConditionalGeneration",
            "text_config": {
                "model_type": "glm4v_text",
                "partial_rotary_factor": 0.5,
                "rope_theta": 1e4,
                "rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]},
            },
            "vision_config": {"model_type": "glm4v", "depth": 24, "spatial_merge_size": 2},
        },
        {"blocks": 24, "hidden": 1536, "image": 0, "merge": 2, "outputs": 4096, "token": 151343},
    ),
    "llama 4": (
        {
            "architecture": "Llama4ForConditionalGeneration",
            "image_token_index": 200092,
            "text_config": {"model_type": "llama4_text"},
            "vision_config": {
                "hidden_size": 1408,
                "image_size": 336,
                "projector_output_dim": 4096,
                "rope_theta": 10000,
                "vision_output_dim": 4096,
            },
        },
        {"blocks": 34, "hidden": 1408, "image": 336, "merge": 2, "outputs": 5120, "token": 200092},
    ),
    "aria": (
        {
            "architecture": "AriaForConditionalGeneration",
            "model_type": "aria",
            "image_token_index": 9,
            "projector_patch_to_query_dict": {"1225": 128, "4900": 256},
            "text_config": {"model_type": "aria_text", "hidden_size": 2560, "num_attention_heads": 20},
            "vision_config": {**SIGLIP, "image_size": 980, "model_type": "idefics3_vision", "patch_size": 14},
        },
        {"blocks": 27, "hidden": 1152, "image": 0, "merge": 1, "outputs": 2560, "token": 9},
    ),
    "minicpm-v 2.6": (
        {
            **MINICPM_V,
            **{"version": 2.6, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28},
            **{"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 151666},
        },
        {"blocks": 27, "hidden": 1152, "image": 0, "merge": 1, "outputs": 3584, "token": 128244},
    ),
    "minicpm-v 4": (
        {
            **MINICPM_V,
            **{"version": 4.0, "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32},
            **{"num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 73448},
            "drop_vision_last_layer": True,
        },
        {"blocks": 26, "hidden": 1152, "image": 0, "merge": 1, "outputs": 2560, "token": 128244},
    ),
    "minimax m3": (
        {
            "architecture": "MiniMaxM3SparseForConditionalGeneration",
            "model_type": "minimax_m3_vl",
            "image_token_index": 200025,
            "projector_hidden_size": 6144,
            "text_config": {"model_type": "minimax_m3_vl_text"},
            "vision_config": {
                "hidden_size": 1280,
                "image_size": 2016,
                "num_hidden_layers": 32,
                "rope_theta": 10000.0,
            },
        },
        {"blocks": 32, "hidden": 1280, "image": 0, "merge": 2, "outputs": 6144, "token": 200025},
    ),
    "step 3.7": (
        {
            "architecture": "Step3p7ForConditionalGeneration",
            "model_type": "step3p7",
            "image_token_id": 128001,
            "text_config": {"model_type": "step3p5", "hidden_size": 4096},
            "vision_config": {
                "heads": 16,
                "image_size": 728,
                "layers": 47,
                "ls_init_value": 0.1,
                "mlp_ratio": 8960 / 1536,
                "patch_size": 14,
                "width": 1536,
            },
        },
        {"blocks": 47, "hidden": 1536, "image": 0, "merge": 4, "outputs": 4096, "token": 128001},
    ),
    "internvl 3": (
        {
            "architecture": "InternVLChatModel",
            "model_type": "internvl_chat",
            "added": {"<IMG_CONTEXT>": 151667},
            "downsample_ratio": 0.5,
            "force_image_size": 448,
            "ps_version": "v2",
            "llm_config": {
                "model_type": "qwen2",
                "hidden_size": 3584,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
            },
            "vision_config": {
                "hidden_size": 1024,
                "image_size": 448,
                "intermediate_size": 4096,
                "norm_type": "layer_norm",
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
                "qk_normalization": False,
                "qkv_bias": True,
            },
        },
        {"blocks": 24, "hidden": 1024, "image": 448, "merge": 2, "outputs": 3584, "token": 151667},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_read(name: str, tmp_path: Path) -> None:
    config, facts = PUBLISHED[name]
    read_config = read(tmp_path, **config)
    vision = read_config.vision
    assert vision is not None, read_config.text_alone
    tower = vision.tower
    found = {
        "blocks": tower.blocks,
        "hidden": tower.hidden,
        "image": tower.image,
        "merge": tower.merge,
        "outputs": vision.hidden,
        "token": vision.token_id,
    }
    assert found == facts
    assert (vision.pixels.mean, vision.pixels.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_the_original_llava_sees_as_the_clip_that_it_names(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        **{"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32},
        **{"vocab_size": 32000, "rms_norm_eps": 1e-5},
        "architecture": "LlavaLlamaForCausalLM",
        "added": {"<unk>": 0},
        "model_type": "llava_llama",
        "mm_projector_type": "mlp2x_gelu",
        "mm_vision_tower": "openai/clip-vit-large-patch14-336",
    }
    vision = read(tmp_path, **config).vision
    assert vision is not None
    assert (vision.tower.image, vision.tower.blocks, vision.token_id, vision.tiles) == (336, 23, 0, None)
    assert vision.pixels.mean[0] == 0.48145466
    assert len(vision.levels[0].linears) == 2
    tiled = read(tmp_path, **config, image_aspect_ratio="anyres", mm_patch_merge_type="spatial_unpad").vision
    assert tiled is not None
    assert tiled.tiles is not None
    reasons = {
        "the vision tower 'google/siglip' (`mm_vision_tower`": {"mm_vision_tower": "google/siglip"},
        "`mm_projector_type` must be 'linear'": {"mm_projector_type": "ldp"},
        "`mm_patch_merge_type` 'spatial_unpad'": {"image_aspect_ratio": "anyres"},
        "`image_aspect_ratio` must be one of": {"image_aspect_ratio": "anyres_max_9"},
        "`mm_use_im_start_end`": {"mm_use_im_start_end": True},
        "tells the id of <unk>": {"added": {}},
    }
    for reason, change in reasons.items():
        assert reason in read(tmp_path, **{**config, **change}).text_alone


def test_the_first_qwen_that_sees_is_read_as_published(tmp_path: Path) -> None:
    read_config = read(tmp_path, **QWEN_VL)
    vision = read_config.vision
    assert vision is not None, read_config.text_alone
    tower, queries = vision.tower, vision.levels[0].queries
    assert (tower.image, tower.blocks, tower.hidden, tower.block.inner) == (448, 48, 1664, 8192)
    assert (vision.token_id, vision.hidden, vision.pixels.mean[0]) == (151859, 4096, 0.48145466)
    assert queries is not None
    assert (queries.heads, queries.count(32)) == (32, 256)
    reasons = {
        "`output_dim` must be 4096, the hidden size of the decoder": {"output_dim": 1024},
        "`n_queries` must be the square of a number": {"n_queries": 255},
        "`image_size` must be a multiple of 14": {"image_size": 450},
        "`heads` must be a number of heads that divide the 1664": {"heads": 17},
    }
    for reason, change in reasons.items():
        changed = read(tmp_path, **{**QWEN_VL, "visual": {**QWEN_VL["visual"], **change}})
        assert changed.vision is None
        assert reason in changed.text_alone


def test_xcomposer_2_is_read_as_published(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "architecture": "InternLMXComposer2ForCausalLM",
        "model_type": "internlmxcomposer2",
        **{"bias": False, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32},
        **{"num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
        **{"eos_token_id": 2, "img_size": 490, "tie_word_embeddings": False, "vocab_size": 92544},
    }
    read_config = read(tmp_path, **config)
    vision = read_config.vision
    assert vision is not None, read_config.text_alone
    tower = vision.tower
    assert (tower.image, tower.blocks, tower.hidden, tower.positions) == (490, 24, 1024, PositionSpec(35))
    assert (vision.token_id, vision.hidden, vision.levels[0].reads) == (0, 4096, (24,))
    assert vision.own_matrices
    assert vision.pixels.mean[0] == 0.48145466
    # The end of a turn, which no file names, beside that of a text.
    assert read_config.eos_token_ids == (2, 92542)
    for size, name in ((336, "2-4KHD"), (560, "2.5")):
        tiled = read(tmp_path, **{**config, "img_size": size})
        assert tiled.vision is None
        assert f"tiles of large images, as InternLM-XComposer {name} has them" in tiled.text_alone


@pytest.mark.parametrize(("version", "placed"), [(2.6, "keys"), (4.5, "values")])
def test_queries_of_minicpm_v_are_told_places_by_its_version(version: float, placed: str, tmp_path: Path) -> None:
    config, _ = PUBLISHED["minicpm-v 2.6"]
    vision = read(tmp_path, **{**config, "version": version}).vision
    assert vision is not None
    queries = vision.levels[0].queries
    assert queries is not None
    assert (queries.placed, queries.heads, queries.count(7), queries.count(70)) == (placed, 28, 64, 64)


@pytest.mark.parametrize("version", [2.5, None])
def test_other_versions_of_minicpm_v_are_refused(version: float | None, tmp_path: Path) -> None:
    config, _ = PUBLISHED["minicpm-v 2.6"]
    with pytest.raises(UnsupportedModel, match=f"`version` {version} is not supported; known are 2.6, 4.0, 4.5"):
        read(tmp_path, **{**config, "version": version})


def test_angles_of_gemma_4_have_their_own_base(tmp_path: Path) -> None:
    config, _ = PUBLISHED["gemma 4"]
    vision = read(tmp_path, **config).vision
    assert vision is not None
    assert vision.tower.rope is not None
    assert vision.tower.rope.theta == 100
    assert not vision.whole_spans


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vision_feature_layer": 25}, "`vision_feature_layer` must be whole numbers from -25 to 24"),
        ({"vision_feature_layer": []}, "`vision_feature_layer` must be the number of a block"),
        ({"vision_feature_select_strategy": "none"}, "`vision_feature_select_strategy` must be one of default, full"),
        ({"projector_hidden_act": "mish"}, "`projector_hidden_act` must be one of quick_gelu"),
        ({"image_token_index": -1}, "`image_token_index` must be an integer of at least 0"),
        ({"vision_config": {"num_attention_heads": 7}}, "`num_attention_heads` must be a number of heads"),
        ({"vision_config": {"image_size": [224, 336]}}, "`image_size` must be the pixels along a side"),
        ({"vision_config": {"image_size": 8}}, "`image_size` must be at least 32"),
        ({"vision_config": {"num_hidden_layers": 10**6}}, "`num_hidden_layers` must be an integer of at most"),
        ({"processor": {**PROCESSOR, "image_std": [1, 1, 0]}}, "`image_std` must be a list of 3 numbers above 0"),
        ({"processor": {**PROCESSOR, "image_mean": 0.5}}, "`image_mean` must be a list of 3 numbers of at least 0"),
        ({"processor": {**PROCESSOR, "rescale_factor": 0}}, "`rescale_factor` must be a number above 0"),
    ],
)
def test_wrong_values_leave_text_alone_and_are_named(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    config, _ = PUBLISHED["llava 1.5"]
    parsed = read(tmp_path, **{**config, **change})
    assert parsed.vision is None
    assert reason in parsed.text_alone


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("aria", {"projector_patch_to_query_dict": {"1226": 128}}, "numbers of patches, which are squares"),
        ("aria", {"projector_patch_to_query_dict": {}}, "numbers of patches, which are squares"),
        ("aria", {"projector_patch_to_query_dict": {"1225": 0}}, "`1225` must be an integer of at least 1"),
        ("aria", {"vision_feature_layer": [1, 2]}, "`vision_feature_layer` must be the number of one block"),
        ("minicpm-v 2.6", {"added": {}}, "tells the id of <unk>"),
        ("minicpm-v 2.6", {"query_num": 0}, "`query_num` must be an integer of at least 1"),
        ("minicpm-v 2.6", {"hidden_size": 3640}, "`hidden_size` must be a multiple of 128"),
        ("minicpm-v 2.6", {"processor": {"norm_mean": [0.5] * 3}}, "`norm_std` is missing"),
        ("minimax m3", {"vision_config": {"num_attention_heads": 320}}, "heads of at least 6 elements"),
        ("step 3.7", {"vision_config": {"image_size": 50}}, "`image_size` must be at least 56"),
    ],
)
def test_wrong_values_of_other_towers_are_named(name: str, change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    config, _ = PUBLISHED[name]
    parsed = read(tmp_path, **{**config, **change})
    assert parsed.vision is None
    assert reason in parsed.text_alone
