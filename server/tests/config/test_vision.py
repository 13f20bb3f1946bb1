"""What published configurations say of vision towers, and which ones are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from text_generation_server.config import ModelConfig

PROCESSOR = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27}
QWEN_TEXT = {"model_type": "qwen3_vl_text", "hidden_size": 4096}


def read(folder: Path, architecture: str, processor: dict[str, Any] | None = None, **config: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], **config}))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor or PROCESSOR))
    return ModelConfig.from_folder(folder)


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
