"""What other implementations got wrong in some family, and what the comparison of greedy ids would not show."""

import dataclasses
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.driver import Driver
from support.engine_driver import directly, stream
from support.families import NEW_TOKENS, PROMPTS, logits_of, model_of, write
from support.family_cases import CASES
from support.generating import SERVING, warm_engine
from support.loading import CPU, load
from support.router import Router
from torch.nn import functional
from transformers import AutoModelForCausalLM
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from text_generation_server.config import ModelConfig, ParallelConfig
from text_generation_server.config.families.alibi import mpt_slopes, slopes
from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.spec import EmbeddingSpec, NormSpec
from text_generation_server.distributed import TensorParallelGroup, init_group
from text_generation_server.errors import ModelFilesError
from text_generation_server.layers.infer import Embedding, InferState, Norm
from text_generation_server.layers.weights import EmbeddingWeights, NormWeights
from text_generation_server.layers.weights.checkpoint import fold_norm_weight
from text_generation_server.models.registry import load_model
from text_generation_server.models.sizes import bytes_of_weights


def folder_of(name: str, tmp_path: Path) -> Path:
    write(CASES[name], model_of(name), tmp_path)
    return tmp_path


def prompt_logits(folder: Path, prompt: list[int], max_tokens: int = 32, **options: torch.dtype) -> torch.Tensor:
    return Driver(load(folder, **options), max_tokens=max_tokens).prefill({"a": prompt}, all_logits=True)


@pytest.mark.parametrize("name", list(CASES))
def test_random_weights_need_no_files(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    (folder / "model.safetensors").unlink()
    model = load(folder, dummy=True)
    assert Driver(model, max_tokens=32).prefill({"a": PROMPTS[3]}).isfinite().all()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.has_media])
def test_a_configuration_tells_how_much_memory_random_weights_take(name: str, tmp_path: Path) -> None:
    """But for learned positions, which are much only in models as small as these, and products that are made once."""
    folder = folder_of(name, tmp_path)
    stored = sum(each.nbytes for each in load_file(folder / "model.safetensors").values() if each.ndim > 1)
    for impl in ("native", "transformers") if name == "llama" else ("native",):
        told = bytes_of_weights(folder, read_model_config(folder, impl), 4, are_read=False)
        assert told is not None
        assert 0.9 <= told / stored <= 1.1


@pytest.mark.parametrize(
    "name", ["llama", "gemma", "gemma2", "gemma3", "olmo2", "granite", "cohere plus", "deepseek v2 lite", "minicpm3"]
)
def test_half_precision_is_as_good_as_that_of_transformers(name: str, tmp_path: Path) -> None:
    folder, case, prompt = folder_of(name, tmp_path), CASES[name], PROMPTS[4]
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()
    exact = logits_of(case, model_of(name), prompt)
    ours = prompt_logits(folder, prompt, dtype=torch.bfloat16)
    assert (ours - exact).norm() <= 1.5 * (logits_of(case, theirs, prompt) - exact).norm()


def test_gemma_rounds_the_scale_of_embeddings_and_keeps_weights_of_norms_wide() -> None:
    tokens = torch.ones(4, 3072, dtype=torch.bfloat16)
    spec = EmbeddingSpec(scale=3072**0.5, scale_rounded=True)
    embedding = Embedding(spec, EmbeddingWeights(tokens), None, TensorParallelGroup(0, 1, torch.device("cpu")))
    place = torch.tensor([0])
    state = InferState(False, place, place, None, None, [], [], None)
    assert embedding.forward(torch.tensor([1]), state)[0, 0] == 55.5

    torch.manual_seed(0)
    theirs = GemmaRMSNorm(64, eps=1e-6).bfloat16()
    with torch.no_grad():
        theirs.weight.normal_(std=0.01)
    spec = NormSpec(1e-6, one_plus=True)
    norm = Norm(spec, NormWeights(fold_norm_weight(theirs.weight.detach(), spec), None))
    x = torch.randn(50, 64, dtype=torch.bfloat16)
    out = torch.empty_like(x)
    norm.apply(x, out)
    assert torch.equal(out, theirs(x))


@pytest.mark.parametrize(("max_tokens", "prompt"), [(32, list(range(5, 36))), (64, list(range(5, 45)))])
def test_longrope_has_one_table_for_all_positions(max_tokens: int, prompt: list[int], tmp_path: Path) -> None:
    """Of an original length of 32: where no request may be longer, factors are the short ones, else the long ones."""
    name = "phi3 longrope"
    folder, expected = folder_of(name, tmp_path), logits_of(CASES[name], model_of(name), prompt)
    torch.testing.assert_close(prompt_logits(folder, prompt, max_tokens), expected, atol=2e-4, rtol=2e-4)


def test_longrope_turns_requests_beside_each_other_alike(tmp_path: Path) -> None:
    """One is shorter than the original length, one as long, one longer: each has what it has alone."""
    model = load(folder_of("phi3 longrope", tmp_path))
    prompts = {str(length): [5 + i % 90 for i in range(length)] for length in (7, 32, 40)}
    together = Driver(model, max_tokens=64).prefill(prompts)
    alone = [Driver(model, max_tokens=64).prefill({name: prompt}) for name, prompt in prompts.items()]
    torch.testing.assert_close(together, torch.cat(alone), atol=2e-4, rtol=2e-4)


def test_longrope_crosses_the_original_length_in_an_answer_without_a_change_of_factors(tmp_path: Path) -> None:
    name, prompt = "phi3 longrope", list(range(5, 35))
    driver = Driver(load(folder_of(name, tmp_path)), max_tokens=64)
    driver.append(["a"], driver.prefill({"a": prompt}))
    for _ in range(5):
        logits = driver.decode(["a"])
        driver.append(["a"], logits)
    # Computed at once, transformers turns every position with the factors of the whole text.
    expected = logits_of(CASES[name], model_of(name), driver.ids["a"][:-1])[-1:]
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-4)


def test_a_tied_head_is_the_embedding_whatever_else_is_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_of("gemma", tmp_path)
    expected = prompt_logits(folder, PROMPTS[4])
    state = load_file(folder / "model.safetensors")
    state |= {"lm_head.weight": torch.randn(99, 32), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file(state, folder / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        assert torch.equal(prompt_logits(folder, PROMPTS[4]), expected)
    assert not caplog.records


def test_a_head_that_is_missing_is_named_with_its_key(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path)
    state = load_file(folder / "model.safetensors")
    del state["lm_head.weight"]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ModelFilesError, match=r"`lm_head\.weight` .*`tie_word_embeddings`"):
        load(folder)


def test_buffers_of_old_checkpoints_are_no_reason_to_warn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_of("gpt2", tmp_path)
    state = load_file(folder / "model.safetensors")
    state |= {"transformer.h.0.attn.bias": torch.ones(64, 64), "transformer.h.1.attn.masked_bias": torch.ones(1)}
    save_file(state, folder / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        load(folder)
    assert not caplog.records


def test_rows_of_the_head_of_baichuan_2_have_length_1(tmp_path: Path) -> None:
    folder = folder_of("baichuan", tmp_path)
    config = ModelConfig.from_folder(folder)
    head = dataclasses.replace(config.decoder.head, unit_rows=True)
    config = dataclasses.replace(config, decoder=dataclasses.replace(config.decoder, head=head))
    group = init_group(ParallelConfig(), CPU, timeout_s=1)
    model = load_model(folder, config, group, torch.float32, CPU, "safetensors")
    logits = Driver(model, max_tokens=32).prefill({"a": PROMPTS[4]}, all_logits=True)
    theirs = model_of("baichuan")
    with torch.inference_mode():
        hidden = theirs.model(torch.tensor([PROMPTS[4]])).last_hidden_state[0]
        expected = hidden @ functional.normalize(theirs.lm_head.weight).t()
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12, 20, 71])
def test_slopes_of_heads_that_are_no_power_of_two(heads: int) -> None:
    bloom = build_alibi_tensor(torch.ones(1, 2, dtype=torch.int64), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(slopes(heads)), bloom)
    mpt = build_mpt_alibi_tensor(heads, 2)[:, 0, 1] - build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    torch.testing.assert_close(torch.tensor(mpt_slopes(heads, 8.0)), mpt)


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("name", ["granite", "minicpm", "cohere", "gemma2"])
def test_temperature_divides_logits_that_are_scaled_and_bounded(
    name: str, do_sample: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = warm_engine(load(folder_of(name, tmp_path)), monkeypatch)
    parameters = {"do_sample": do_sample, "seed": 5, "temperature": 0.4}
    asked = stream(0, PROMPTS[4], NEW_TOKENS, top_n_tokens=2, **parameters)
    Router(directly(engine), SERVING).run(asked)
    logits = logits_of(CASES[name], model_of(name), asked.ids)[len(asked.prompt) - 1 : -1]
    expected = (logits / 0.4).log_softmax(-1)
    assert asked.logprobs == pytest.approx(expected[torch.arange(NEW_TOKENS), asked.tokens].tolist(), abs=2e-3)


@pytest.mark.parametrize("name", ["mistral", "gemma2", "exaone4", "cohere2", "smollm3 window"])
def test_a_window_hides_what_lies_before_it(name: str, tmp_path: Path) -> None:
    """In a model of one layer, the last of 5 tokens does not see the first, and the last of 4 does."""
    folder = folder_of(name, tmp_path)
    config = ModelConfig.from_folder(folder)
    sliding = next(layer for layer in config.decoder.layers if layer.mixer.window)
    config = dataclasses.replace(config, decoder=dataclasses.replace(config.decoder, layers=(sliding,)))
    group = init_group(ParallelConfig(), CPU, timeout_s=1)
    model = load_model(folder, config, group, torch.float32, CPU, "safetensors")

    def last(*prompt: int) -> torch.Tensor:
        return Driver(model, max_tokens=32).prefill({"a": list(prompt)})

    assert torch.equal(last(7, 11, 12, 13, 14), last(50, 11, 12, 13, 14))
    assert not torch.allclose(last(7, 11, 12, 13), last(50, 11, 12, 13))
