"""Models with latent attention: what they keep of a position, what they refuse, and how their files are read."""

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.driver import Driver
from support.eight_bit import quantise_folder
from support.families import PROMPTS, logits_of, model_of, write
from support.family_cases import CASES
from support.loading import load
from support.thread_ranks import thread_groups, together

import text_generation_kernels as kernels
from text_generation_server.config.kv_cache import quantised_kv_cache
from text_generation_server.config.model import ModelConfig
from text_generation_server.config.sizes import weight_bytes
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.doctor.model import kv_bytes_per_token
from text_generation_server.engine.kv_pool import bytes_per_slot
from text_generation_server.errors import ConfigurationError
from text_generation_server.layers.infer import expanded
from text_generation_server.models import CausalLM

NAME = "deepseek v3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deepseek")
    write(CASES[NAME], model_of(NAME), path)
    return path


def logits(model: CausalLM, group: TensorParallelGroup | None = None) -> torch.Tensor:
    prompts = {str(index): prompt for index, prompt in enumerate(PROMPTS)}
    return Driver(model, max_tokens=32, group=group).prefill(prompts, all_logits=True)


def test_a_position_takes_its_latent_vector_on_every_rank(folder: Path) -> None:
    """12 elements, 4 of a key beside them, 3 layers, 4 bytes each; not 4 heads with keys of 10 and values of 8."""
    ranks = together([lambda group=group: load(folder, group=group) for group in thread_groups(2)])
    assert [bytes_per_slot(model) for model in (load(folder), *ranks)] == [(12 + 4) * 3 * 4] * 3
    config = ModelConfig.from_folder(folder)
    assert kv_bytes_per_token(config, 2, 4) == (12 + 4) * 3 * 4
    cache = ranks[0].caches[0].allocate(5, torch.float32, torch.device("cpu"))
    assert cache.v.data_ptr() == cache.k.data_ptr()


def test_weights_take_what_is_counted_before_they_are_read(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors").items()
    matrices = {name: tensor.numel() for name, tensor in stored if tensor.dim() > 1 and "mlp.gate." not in name}
    config = ModelConfig.from_folder(folder)
    assert weight_bytes(config, 2) == 2 * sum(matrices.values())
    kept = sum(size for name, size in matrices.items() if "kv_b_proj" in name or ".layers." not in name)
    assert weight_bytes(config.quantised("fp8"), 2) == sum(matrices.values()) + kept


@pytest.mark.parametrize("dtype", ["fp8_e4m3fn", "fp8_e5m2", "int8", "int4"])
def test_codes_of_8_bits_in_the_cache_are_refused(folder: Path, dtype: str) -> None:
    config = ModelConfig.from_folder(folder)
    assert quantised_kv_cache("auto", config) is None
    with pytest.raises(ConfigurationError, match=f"--kv-cache-dtype {dtype} is not there for DeepseekV3ForCausalLM"):
        quantised_kv_cache(dtype, config)  # type: ignore[arg-type]


def test_what_a_checkpoint_wants_of_the_cache_does_not_keep_it_from_starting(folder: Path, tmp_path: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    wanted = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    (tmp_path / "config.json").write_text(json.dumps({**raw, "quantization_config": wanted}))
    config = ModelConfig.from_folder(tmp_path)
    assert config.schemes.kv_cache == "fp8_e4m3fn"
    assert quantised_kv_cache("auto", config) is None


def test_layers_that_guess_further_tokens_are_not_missed(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        text.replace('"num_nextn_predict_layers": 0', '"num_nextn_predict_layers": 1')
    )
    extra = {f"model.layers.3.{name}.weight": torch.ones(32, 64) for name in ("eh_proj", "self_attn.q_a_proj")}
    save_file(load_file(folder / "model.safetensors") | extra, tmp_path / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits(load(tmp_path)), logits(load(folder)))
    assert not caplog.records


def test_what_makes_keys_and_values_is_dequantised(folder: Path, tmp_path: Path) -> None:
    """Blocks of fp8, as DeepSeek publishes: the matrix that is folded into queries and results loses nothing more."""
    others = [f"{name}_proj" for name in ("q_a", "q_b", "o", "gate", "up", "down")] + ["kv_a_proj_with_mqa"]
    made = tmp_path / "made"
    ends = ("kv_b_proj",)
    tensors = quantise_folder(folder, made, "fp8 of blocks", ends, modules_to_not_convert=[*others, "lm_head"])
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(tensors, plain / "model.safetensors")
    expected = logits(load(plain))
    torch.testing.assert_close(logits(load(made)), expected)
    for each in together([lambda g=group: logits(load(made, group=g), g) for group in thread_groups(2)]):
        torch.testing.assert_close(each, expected, atol=2e-4, rtol=2e-4)


def test_whole_checkpoints_of_8_bits_are_near(folder: Path, tmp_path: Path) -> None:
    quantise_folder(folder, tmp_path / "made", "fp8 of blocks", ("_proj", "_with_mqa"))
    expected = logits(load(folder))
    deviation = (expected - expected.mean()).norm()
    assert 0 < (logits(load(tmp_path / "made")) - expected).norm() < 0.4 * deviation


def test_long_chunks_have_keys_and_values_made_of_their_contexts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind prefixes and without, beside short ones that read latent vectors, and not where there is no room."""
    prompt = PROMPTS[-1]
    expected = logits_of(CASES[NAME], model_of(NAME), prompt)
    short = logits_of(CASES[NAME], model_of(NAME), prompt[:3])
    lengths: list[list[int]] = []
    expand = kernels.latent_expand

    def watched(*arguments: torch.Tensor) -> None:
        lengths.append(arguments[4].tolist())
        expand(*arguments)

    monkeypatch.setattr(kernels, "latent_expand", watched)
    monkeypatch.setattr(expanded, "WORTH", 0.1)
    monkeypatch.setattr(expanded, "LEAST_TOKENS", 2)
    for room, behind in ((64, [len(prompt)]), (1, [0])):
        monkeypatch.setattr(expanded, "MOST_POSITIONS", room)
        driver = Driver(load(folder), max_tokens=64)
        first = driver.prefill({"whole": prompt, "short": prompt[:3]})
        torch.testing.assert_close(first, torch.stack((expected[-1], short[-1])), atol=2e-4, rtol=2e-4)
        driver.register("cut", prompt)
        cuts = [driver.extend("cut", size) for size in (2, 1, len(prompt) - 3)]
        torch.testing.assert_close(torch.cat(cuts), expected[[1, 2, -1]], atol=2e-4, rtol=2e-4)
        # In each of three layers, but in the step of one token.
        assert lengths == [[len(prompt), 0]] * 3 + [[0]] * 3 + [behind] * 3
        lengths.clear()


def test_contexts_are_expanded_for_chunks_that_see_them_often_enough_as_far_as_there_is_room() -> None:
    starts, kv_lens = torch.tensor([2, 12, 13, 40, 40]), torch.tensor([10, 50, 60, 0])
    chunks = kernels.Chunks(torch.zeros(1, 60), torch.zeros(4), starts, kv_lens, 27)
    both = expanded.choose(chunks, 4.0, 70)
    assert (both.chunks.kv_lens.tolist(), both.first.tolist()) == ([10, 0, 60, 0], [0, 0, 10, 0])
    assert both.others.kv_lens.tolist() == [0, 50, 0, 0]
    assert expanded.choose(chunks, 4.0, 69).chunks.kv_lens.tolist() == [10, 0, 0, 0]
    assert both.chunks.slot_table[both.chunks.rows[2], :3].tolist() == [10, 11, 12]
