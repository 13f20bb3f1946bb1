"""Files of models of images: names that they have had, tensors that nobody reads, and towers that cannot be served."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.families import model_of, write
from support.family_cases import CASES
from support.loading import load
from support.vision_cases import PROCESSOR, VISION_CASES, views_of
from torch import Tensor

Tensors = dict[str, Tensor]


def changed(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    path = folder / "model.safetensors"
    save_file({name: each.contiguous().clone() for name, each in change(load_file(path)).items()}, path)


def renamed(*rules: tuple[str, str]) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        out: Tensors = {}
        for name, tensor in tensors.items():
            before, after = next(((a, b) for a, b in rules if name.startswith(a)), ("", ""))
            out[after + name.removeprefix(before)] = tensor
        return out

    return change


NEWER = (
    ("language_model.model.", "model.language_model."),
    ("language_model.lm_head", "lm_head"),
    ("vision_tower.", "model.vision_tower."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
    ("image_newline", "model.image_newline"),
)
PUBLISHED = (("vision_tower.", "vision_tower.vision_model."),)
BOTH = (("vision_tower.", "model.vision_tower.vision_model."), *NEWER)
OLDER_GEMMA = (
    ("model.vision_tower.", "vision_tower."),
    ("model.embed_vision.", "embed_vision."),
    ("model.language_model.", "language_model.model."),
)
QWEN_OLDER = (("model.visual.", "visual."), ("model.language_model.", "model."))
QWEN = (("visual.", "model.visual."), ("model.", "model.language_model."))


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("llava", PUBLISHED),
        ("llava", NEWER),
        ("llava", BOTH),
        ("llava next", PUBLISHED),
        ("llava next", NEWER),
        ("pixtral", NEWER),
        ("mistral3", NEWER),
        ("gemma3", PUBLISHED),
        ("gemma3", NEWER),
        ("gemma4", OLDER_GEMMA),
        ("internvl", NEWER),
        ("qwen2 vl", QWEN),
        ("qwen2.5 vl", QWEN),
        ("glm4v", QWEN_OLDER),
    ],
)
def test_names_of_other_versions_are_read(name: str, rules: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    case = VISION_CASES[name]
    case.write(tmp_path)
    views = views_of(case.items[0].views)

    def rows() -> Tensor:
        encoder = load(tmp_path).encoder
        assert encoder is not None
        state = encoder.begin(views, case.items[0].grid)
        encoder.run(state, 0, encoder.layers)
        return encoder.finish(state)

    first = rows()
    changed(tmp_path, renamed(*rules))
    assert torch.equal(rows(), first)


@pytest.mark.parametrize("name", VISION_CASES)
def test_every_tensor_is_read_or_listed(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    VISION_CASES[name].write(tmp_path)
    with caplog.at_level(logging.WARNING):
        load(tmp_path)
    assert caplog.messages == []
    changed(tmp_path, lambda tensors: {**tensors, "vision_tower.extra.weight": torch.ones(1)})
    with caplog.at_level(logging.WARNING):
        load(tmp_path)
    assert caplog.messages == ["1 tensors of the model folder are not used, such as vision_tower.extra.weight"]


def test_older_files_with_numbers_of_positions_are_no_surprise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    VISION_CASES["llava"].write(tmp_path)
    numbers = {"vision_tower.embeddings.position_ids": torch.arange(17)[None]}
    changed(tmp_path, lambda tensors: {**tensors, **numbers})
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path).encoder is not None
    assert caplog.messages == []


def test_a_tower_that_is_not_served_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """MiMo V2.5, whose class is that of MiMo V2."""
    write(CASES["mimo v2.5"], model_of("mimo v2.5"), tmp_path)
    with caplog.at_level(logging.WARNING):
        model = load(tmp_path)
    assert model.encoder is None
    assert caplog.messages == ["images are refused: the vision tower of MiMoV2ForCausalLM is not supported"]


def without_processor(folder: Path) -> None:
    (folder / "preprocessor_config.json").unlink()


def without_mean(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_std": [1, 1, 1]}))


def without_tower(folder: Path) -> None:
    changed(folder, lambda tensors: {name: each for name, each in tensors.items() if "vision_tower" not in name})


def with_codes(folder: Path) -> None:
    name = "vision_tower.encoder.layers.0.mlp.fc1.weight"
    changed(folder, lambda tensors: {**tensors, name: tensors[name].to(torch.float8_e4m3fn)})


def with_another_tower(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "vision_config": {**config["vision_config"], "model_type": "beit"}}))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (without_processor, "the model folder has no preprocessor_config.json"),
        (without_mean, "preprocessor_config.json: `image_mean` is missing"),
        (without_tower, "the files of the model hold no vision tower"),
        (with_codes, "tensor `vision_tower.encoder.layers.0.mlp.fc1.weight` has type F8_E4M3"),
        (with_another_tower, "a vision tower of type 'beit' is not supported"),
    ],
)
def test_text_is_served_alone_where_the_tower_cannot_be(
    spoil: Callable[[Path], None], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    VISION_CASES["llava"].write(tmp_path)
    spoil(tmp_path)
    with caplog.at_level(logging.WARNING):
        model = load(tmp_path)
    assert model.encoder is None
    (message,) = caplog.messages
    assert message.startswith("images are refused")
    assert reason in message


def test_the_tower_that_is_missing_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    VISION_CASES["llava original"].write(tmp_path)
    without_tower(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path).encoder is None
    (message,) = caplog.messages
    assert "hold no vision tower; it is openai/clip-vit-large-patch14-336, which a converted copy" in message


def test_the_processor_may_be_in_the_newer_file(tmp_path: Path) -> None:
    VISION_CASES["llava"].write(tmp_path)
    before = load(tmp_path).encoder
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, "image_mean": [0, 0, 0]}))
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": PROCESSOR}))
    after = load(tmp_path).encoder
    assert before is not None
    assert after is not None
    views = views_of([(16, 16)])
    both = [encoder.begin(views) for encoder in (before, after)]
    for encoder, state in zip((before, after), both, strict=True):
        encoder.run(state, 0, encoder.layers)
    assert torch.equal(before.finish(both[0]), after.finish(both[1]))


def test_random_weights_need_no_files(tmp_path: Path) -> None:
    VISION_CASES["qwen3 vl"].write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    encoder = load(tmp_path, dummy=True).encoder
    assert encoder is not None
    assert encoder.rows([(16, 16)]) == 4
