"""Weight-only quantised models in every format, on one rank and two, against transformers with dequantised weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import tiny_llama
from support.families import PROMPTS as FAMILY_PROMPTS
from support.families import made, model_of, write
from support.family_cases import CASES as FAMILIES
from support.loading import load
from support.oracle import oracle
from support.packed_files import (
    CASES,
    ORDERED,
    PackedCase,
    awq_pack,
    scale_activations,
    without_head,
    write_meant,
    write_packed,
)
from support.probabilities import PROMPTS, log_probabilities, of_groups
from support.thread_ranks import thread_groups

from text_generation_server.errors import ModelFilesError

# Parts of two ranks begin and end inside groups and words.
SIZES = {"hidden_size": 192, "intermediate_size": 320, "num_attention_heads": 6, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, **SIZES, initializer_range=0.1)


def of_ranks(folder: Path, prompts: list[list[int]] = PROMPTS, ranks: int = 2) -> torch.Tensor:
    first, *others = of_groups(folder, thread_groups(ranks), prompts)
    assert all(torch.equal(first, other) for other in others)
    return first


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_computes_what_its_weights_stand_for(plain: Path, tmp_path: Path, name: str) -> None:
    meant = write_packed(plain, tmp_path / "packed", CASES[name])
    model = oracle(plain)
    model.load_state_dict(meant)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([ids])).logits[0] for ids in PROMPTS]).log_softmax(-1)
    torch.testing.assert_close(log_probabilities(load(tmp_path / "packed")), expected, atol=1e-4, rtol=1e-4)
    # Six ranks have less than a group of the inner elements each.
    for ranks in (2, 6):
        torch.testing.assert_close(of_ranks(tmp_path / "packed", ranks=ranks), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["gptq", "awq", "bitsandbytes, nf4"])
def test_an_output_matrix_that_is_the_embedding_stays_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, name: str
) -> None:
    tied = tiny_llama(tmp_path_factory, **SIZES, initializer_range=0.1, tie_word_embeddings=True, attention_bias=True)
    meant = write_packed(tied, tmp_path / "packed", CASES[name])
    assert not any(key.startswith("lm_head") for key in meant)
    model = oracle(tied)
    model.load_state_dict(meant, strict=False)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([ids])).logits[0] for ids in PROMPTS]).log_softmax(-1)
    torch.testing.assert_close(log_probabilities(load(tmp_path / "packed")), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(of_ranks(tmp_path / "packed"), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["glm4", "gpt neox", "phi3", "qwen2 moe"])
def test_matrices_of_every_place_may_be_packed(name: str, tmp_path: Path) -> None:
    """Fused ones, heads whose elements change places, one without a gate, experts: all with inputs in orders of their
    own.
    """
    write(FAMILIES[name], model_of(name), tmp_path / "plain")
    assert_like_16_bits(tmp_path, ORDERED)


@pytest.mark.parametrize("name", ["bloom", "falcon 7b", "gpt neox", "gptj", "mpt", "starcoder", "starcoder2"])
def test_awq_scales_an_activation_that_has_no_gate(name: str, tmp_path: Path) -> None:
    case = PackedCase({**CASES["awq"].config, "group_size": 16}, without_head(awq_pack(16), "wte", "wpe"))
    write(FAMILIES[name], model_of(name), tmp_path / "plain")
    down = {"gptj": "fc_out", "mpt": "down_proj"}.get(name, "c_proj" if "starcoder" in name else "dense_4h_to_h")
    scales = scale_activations(tmp_path / "plain", down, "gelu_impl" if name == "bloom" else "act")
    meant = write_packed(tmp_path / "plain", tmp_path / "packed", case)
    tensors = {f"{module}.scales": each.half() for module, (_, each) in scales.items()}
    save_file(load_file(tmp_path / "packed" / "model.safetensors") | tensors, tmp_path / "packed" / "model.safetensors")
    for second, each in scales.values():
        meant[second] = meant[second] / each
    write_meant(tmp_path / "plain", tmp_path / "meant", meant)
    ours = log_probabilities(load(tmp_path / "meant"), prompts=FAMILY_PROMPTS)
    torch.testing.assert_close(
        log_probabilities(load(tmp_path / "packed"), prompts=FAMILY_PROMPTS), ours, atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(of_ranks(tmp_path / "packed", FAMILY_PROMPTS), ours, atol=1e-4, rtol=1e-4)
    # Random weights have none of these scales.
    assert log_probabilities(load(tmp_path / "packed", dummy=True)).isfinite().all()


@pytest.mark.parametrize("value", [0.0, float("inf")])
def test_scales_of_an_activation_that_scale_nothing_are_refused(value: float, tmp_path: Path) -> None:
    write(FAMILIES["starcoder2"], model_of("starcoder2"), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    save_file(load_file(file) | {"model.layers.1.mlp.act.scales": torch.full((48,), value)}, file)
    with pytest.raises(ModelFilesError, match=r"model\.layers\.1\.mlp\.act\.scales"):
        load(tmp_path / "model")


def test_the_second_of_two_shared_experts_may_begin_inside_a_group(tmp_path: Path) -> None:
    """Groups have 64 inputs, experts 96: the network that every token passes is two of them."""
    values = {**FAMILIES["deepseek v2 lite"].values, "moe_intermediate_size": 96}
    case = replace(FAMILIES["deepseek v2 lite"], values=values)
    write(case, made(case), tmp_path / "plain")
    assert_like_16_bits(tmp_path, CASES["gptq"])


def assert_like_16_bits(folder: Path, case: PackedCase) -> None:
    """Packs the model in `plain` and compares it, on one rank and on two, with what its codes stand for."""
    plain, packed, expected = folder / "plain", folder / "packed", folder / "meant"
    write_meant(plain, expected, write_packed(plain, packed, case))
    ours = log_probabilities(load(expected), prompts=FAMILY_PROMPTS)
    torch.testing.assert_close(log_probabilities(load(packed), prompts=FAMILY_PROMPTS), ours, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(of_ranks(packed, FAMILY_PROMPTS), ours, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["gptq, an order for each", "awq", "bitsandbytes, nf4", "gptq_v2, 8 bits, head too"])
def test_random_weights_need_the_configuration_alone(plain: Path, tmp_path: Path, name: str) -> None:
    """They are rounded as the checkpoint would be."""
    write_packed(plain, tmp_path / "packed", CASES[name])
    (tmp_path / "packed" / "model.safetensors").unlink()
    computed = log_probabilities(load(tmp_path / "packed", dummy=True))
    assert computed.isfinite().all()
    assert not torch.equal(computed, log_probabilities(load(plain, dummy=True)))
