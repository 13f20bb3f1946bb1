"""Models with 8-bit weights: beside what compressed-tensors says that they compute, and beside those with 16 bits."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import load_file, save_file
from support.checkpoints import tiny_llama
from support.compressed import compress_folder, preset, reference, set_quantisation
from support.eight_bit import block_scales, quantise_folder
from support.families import made, model_of, write
from support.family_cases import CASES
from support.generating import generations, warm_engine
from support.loading import load
from support.oracle import oracle
from support.probabilities import PROMPTS, log_probabilities, of_groups
from support.thread_ranks import thread_groups

SIZES = {"hidden_size": 192, "intermediate_size": 320, "num_attention_heads": 6, "num_key_value_heads": 2}
SCHEMES: dict[str, Mapping[str, QuantizationScheme]] = {
    "fp8 dynamic": {"": preset("FP8_DYNAMIC")},
    "fp8 static": {"": preset("FP8")},
    "fp8 blocks": {"": preset("FP8_BLOCK")},
    "int8": {"": preset("W8A8")},
    "mixed": {
        "q_proj": preset("W8A8", ("re:.*q_proj",)),
        "k_proj": preset("FP8", ("re:.*k_proj",)),
        "mlp": preset("FP8_DYNAMIC", ("re:.*mlp.*",)),
    },
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, **SIZES, initializer_range=0.1)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_checkpoint_of_compressed_tensors_computes_what_the_library_says(
    plain: Path, tmp_path: Path, name: str
) -> None:
    folder = compress_folder(plain, tmp_path / "made", SCHEMES[name])
    said = reference(oracle(plain), folder, SCHEMES[name])
    with torch.inference_mode():
        expected = torch.cat([said(torch.tensor([ids])).logits[0] for ids in PROMPTS]).log_softmax(-1)
    torch.testing.assert_close(log_probabilities(load(folder)), expected, atol=1e-4, rtol=1e-4)
    for ranks in (2, 6):
        first, *others = of_groups(folder, thread_groups(ranks))
        assert all(torch.equal(first, other) for other in others)
        # Each rank measures the scales of its own part of the inputs, and what is rounded otherwise is a little apart.
        assert (first - expected).abs().mean() < (1e-4 if name == "fp8 static" else 0.12)


@pytest.mark.parametrize(("asked", "apart"), [("fp8", 0.25), ("w8a8", 0.12), ("eetq", 0.05), ("bitsandbytes-nf4", 0.5)])
def test_16_bits_that_are_quantised_while_they_are_read_are_near(plain: Path, asked: str, apart: float) -> None:
    expected = log_probabilities(load(plain))
    assert 0 < (log_probabilities(load(plain, quantize=asked)) - expected).abs().mean() < apart
    for each in of_groups(plain, thread_groups(2), quantize=asked):
        assert 0 < (each - expected).abs().mean() < apart


@pytest.mark.parametrize("name", ["fp8 dynamic", "fp8 static", "fp8 blocks", "int8", "mixed"])
def test_random_weights_need_the_configuration_alone(plain: Path, tmp_path: Path, name: str) -> None:
    folder = compress_folder(plain, tmp_path / "made", SCHEMES[name])
    (folder / "model.safetensors").unlink()
    computed = log_probabilities(load(folder, dummy=True))
    assert computed.isfinite().all()
    assert torch.equal(log_probabilities(load(folder, dummy=True)), computed)


def test_deterministic_results_do_not_depend_on_chunks_or_batch(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = compress_folder(plain, tmp_path / "made", SCHEMES["mixed"])
    engine = warm_engine(load(folder), monkeypatch, deterministic=True)
    every = generations(engine, 0, 1, 2, 3, 4, chunk=3, pause=0.1)
    (alone,) = generations(engine, 4, chunk=64, pause=0.0)
    assert (alone.tokens, alone.logprobs) == (every[4].tokens, every[4].logprobs)


def test_experts_are_computed_with_the_numbers_that_8_bits_stand_for(tmp_path: Path) -> None:
    case = "mixtral"
    write(CASES[case], model_of(case), tmp_path / "plain")
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    tensors = quantise_folder(
        tmp_path / "plain", tmp_path / "made", "fp8 of blocks", ("w1", "w2", "w3"), modules_to_not_convert=attention
    )
    save_file(tensors, tmp_path / "plain" / "model.safetensors")
    expected = log_probabilities(load(tmp_path / "plain"))
    torch.testing.assert_close(log_probabilities(load(tmp_path / "made")), expected)
    for each in of_groups(tmp_path / "made", thread_groups(2)):
        torch.testing.assert_close(each, expected, atol=1e-4, rtol=1e-4)


def test_scales_of_experts_count_whatever_holds_their_codes(tmp_path: Path) -> None:
    """Of Gemma 4, whose tools store the matrices of each expert apart."""
    case = CASES["gemma4 experts"]
    write(case, model_of("gemma4 experts"), tmp_path / "plain")
    file = tmp_path / "plain" / "model.safetensors"
    state = load_file(file)
    for name in [name for name in state if ".experts." in name]:
        first, which = name.rsplit(".", 1)
        for expert, matrix in enumerate(state.pop(name)):
            parts = matrix.chunk(2) if which == "gate_up_proj" else (matrix,)
            for part, its in zip(parts, ("gate_proj", "up_proj") if len(parts) == 2 else (which,), strict=True):
                state[f"{first}.{expert}.{its}.weight"] = part.clone()
    save_file(state, file)
    tensors = quantise_folder(
        tmp_path / "plain",
        tmp_path / "made",
        "fp8 of blocks",
        tuple(f".{expert}.{name}_proj" for expert in range(6) for name in ("gate", "up", "down")),
        modules_to_not_convert=[
            *("q_proj", "k_proj", "v_proj", "o_proj"),
            *(f"model.layers.{layer}.mlp.{name}_proj" for layer in range(5) for name in ("gate", "up", "down")),
        ],
    )
    save_file(tensors, file)
    expected = log_probabilities(load(tmp_path / "plain"))
    torch.testing.assert_close(log_probabilities(load(tmp_path / "made")), expected)
    for each in of_groups(tmp_path / "made", thread_groups(2)):
        torch.testing.assert_close(each, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("stored", "strategy"), [("fp8 of matrices", "tensor"), ("fbgemm", "channel"), ("fp8 of blocks", "block")]
)
@pytest.mark.parametrize(
    ("case", "ends"),
    [("phi3", ("_proj",)), ("gpt neox", ("query_key_value", "dense", "_h", "_4h")), ("qwen2", ("_proj",))],
)
def test_weights_alone_may_have_8_bits_in_matrices_of_every_place(
    tmp_path: Path, case: str, ends: tuple[str, ...], stored: str, strategy: str
) -> None:
    """Queries, keys and values, or gate and up, in one stored matrix; biases; an output matrix that is the embedding or
    has a name of its own.
    """
    values = {
        **CASES[case].values,
        "hidden_size": 192,
        "intermediate_size": 200,
        "tie_word_embeddings": case == "qwen2",
    }
    sized = replace(CASES[case], values=values)
    write(sized, made(sized), tmp_path / "plain")
    meant = quantise_folder(tmp_path / "plain", tmp_path / "made", stored, ends)
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "block_structure": [128, 128]}
    set_quantisation(
        tmp_path / "made",
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["Linear"], "weights": weights}}},
    )
    save_file(meant, tmp_path / "plain" / "model.safetensors")
    expected = log_probabilities(load(tmp_path / "plain"))
    for computed in (log_probabilities(load(tmp_path / "made")), *of_groups(tmp_path / "made", thread_groups(2))):
        torch.testing.assert_close(computed, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    "case", ["cohere", "gptj", "gpt2", "glm", "gemma2", "gemma4 large", "gemma4 small", "phi3", "opt"]
)
def test_layers_of_every_kind_run_with_8_bits(tmp_path: Path, case: str) -> None:
    write(CASES[case], model_of(case), tmp_path / "plain")
    expected = log_probabilities(load(tmp_path / "plain"))
    deviation = (expected - expected.mean()).norm()
    for asked, apart in (("fp8", 0.3), ("w8a8", 0.15), ("eetq", 0.06)):
        computed = log_probabilities(load(tmp_path / "plain", quantize=asked))
        assert 0 < (computed - expected).norm() < apart * deviation


def test_the_text_part_of_a_model_for_images_may_have_8_bits(tmp_path: Path) -> None:
    """Tools list what they left as it was by names of modules, of which the files have others."""
    write(CASES["llava"], model_of("llava"), tmp_path / "plain")
    left = ("lm_head", "re:.*vision_tower.*", "re:.*multi_modal_projector.*")
    schemes = {"language_model.model.layers": preset("FP8_DYNAMIC")}
    made = compress_folder(tmp_path / "plain", tmp_path / "made", schemes, left)
    expected, computed = log_probabilities(load(tmp_path / "plain")), log_probabilities(load(made))
    assert 0 < (computed - expected).norm() < 0.3 * (expected - expected.mean()).norm()


def test_experts_that_one_tensor_holds_may_have_8_bits(tmp_path: Path) -> None:
    """Of Step 3.5, as published: blocks of each expert."""
    case = "step"
    write(CASES[case], model_of(case), tmp_path / "plain")
    state = load_file(tmp_path / "plain" / "model.safetensors")
    stored, plain = dict(state), dict(state)
    for name in [name for name in state if ".moe." in name and "_proj" in name]:
        made = [block_scales(expert) for expert in state[name]]
        stored[name] = torch.stack([codes["weight"].view(torch.uint8) for codes, _ in made]).view(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = torch.stack([codes["weight_scale_inv"] for codes, _ in made])
        plain[name] = torch.stack([stands_for for _, stands_for in made])
    shutil.copytree(tmp_path / "plain", tmp_path / "made")
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    save_file(stored, tmp_path / "made" / "model.safetensors")
    others = [f"model.layers.{layer}.{name}" for layer in range(4) for name in ("self_attn", "share_expert", "mlp")]
    config = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": [*others, "lm_head"]}
    set_quantisation(tmp_path / "made", config)
    expected = log_probabilities(load(tmp_path / "plain"))
    torch.testing.assert_close(log_probabilities(load(tmp_path / "made")), expected)
    for each in of_groups(tmp_path / "made", thread_groups(2)):
        torch.testing.assert_close(each, expected, atol=1e-4, rtol=1e-4)
