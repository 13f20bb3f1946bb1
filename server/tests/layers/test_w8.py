"""A rank's part of matrices with 8 bits is that part of what the checkpoint stands for, wherever it begins."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import tiny_llama
from support.compressed import set_quantisation
from support.eight_bit import FORMATS, block_scales, quantise_folder
from support.families import made, write
from support.family_cases import CASES
from support.loading import CPU
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import text_generation_kernels as kernels
from text_generation_server.config.model import ModelConfig
from text_generation_server.config.quantisation import Fp8, Int8
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.errors import ModelFilesError
from text_generation_server.layers.rope import rotary_order
from text_generation_server.layers.weights import Checkpoint, HeadSplit, Linear, load_attention, load_dense
from text_generation_server.layers.weights.activations import Activations
from text_generation_server.layers.weights.readers.w8 import quantised
from text_generation_server.weights import SafetensorsSource

# Heads of 64 and an inner size that is no multiple of 128: parts of ranks begin within blocks.
SIZES = {"hidden_size": 384, "intermediate_size": 448, "num_attention_heads": 6, "num_key_value_heads": 3}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, **SIZES, num_hidden_layers=1, initializer_range=0.1)


def checkpoint(folder: Path, rank: int = 0, world_size: int = 1) -> Checkpoint:
    config = ModelConfig.from_folder(folder)
    source, group = SafetensorsSource(folder, torch.float32, CPU), TensorParallelGroup(rank, world_size, CPU)
    return Checkpoint.of(source, config.decoder, config.names, group, config.schemes)


def weight_of(linear: Linear, inputs: int) -> Tensor:
    """[outputs, inputs], found by what it computes. Inputs of one number are not changed by rounding."""
    ones = torch.eye(inputs)
    if (static := getattr(linear.wants, "static", None)) is not None:
        return linear.apply(Activations(ones * static * 2)).t() / (static * 2)
    return linear.apply(Activations(ones)).t()


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("name", FORMATS)
def test_parts_of_ranks_are_parts_of_the_whole(plain: Path, tmp_path: Path, name: str, world_size: int) -> None:
    tensors = quantise_folder(plain, tmp_path / "made", name)
    whole = {key.rsplit(".", 2)[1]: value for key, value in tensors.items() if "_proj" in key}
    hidden, inner, size = SIZES["hidden_size"], SIZES["intermediate_size"], 64
    firsts, downs, outs = [], [], []
    for rank in range(world_size):
        part = checkpoint(tmp_path / "made", rank, world_size)
        layer = part.spec.layers[0]
        heads = HeadSplit.of(layer.mixer.num_heads, layer.mixer.num_kv_heads, part.group)
        attention = load_attention(part, 0, layer.mixer, heads)
        rows = (
            whole["q_proj"][heads.q_start * size : heads.q_stop * size],
            *(whole[name][head * size : (head + 1) * size] for name in ("k_proj", "v_proj") for head in heads.kv_heads),
        )
        torch.testing.assert_close(weight_of(attention.qkv, hidden), torch.cat(rows), atol=1e-5, rtol=1e-4)
        outs.append(weight_of(attention.out, heads.num_heads * size))
        dense = load_dense(part, 0, layer.ffn)  # type: ignore[arg-type]
        first = weight_of(dense.first, hidden)
        firsts.append(first.chunk(2))
        downs.append(weight_of(dense.down, first.shape[0] // 2))
    torch.testing.assert_close(torch.cat(outs, 1), whole["o_proj"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(torch.cat([gate for gate, _ in firsts]), whole["gate_proj"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(torch.cat([up for _, up in firsts]), whole["up_proj"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(torch.cat(downs, 1), whole["down_proj"], atol=1e-5, rtol=1e-4)
    assert sum(part.shape[1] for part in downs) == inner


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_blocks_begin_anew_in_each_shard_that_wrote_the_matrix(tmp_path: Path, world_size: int) -> None:
    """MiMo V2.5, whose shards have rows that are no multiple of 128."""
    case = CASES["mimo v2.5"]
    values = {**case.values, "hidden_size": 160, "head_dim": 48, "v_head_dim": 32, "num_attention_heads": 8}
    case = replace(case, values=values)
    write(case, made(case), tmp_path)
    state, whole = load_file(tmp_path / "model.safetensors"), {}
    for layer, keys in ((0, 1), (1, 2)):
        name = f"model.layers.{layer}.self_attn.qkv_proj"
        shards = state[f"{name}.weight"].chunk(2)
        stored, stands_for = zip(*map(block_scales, shards), strict=True)
        for kind in ("weight", "weight_scale_inv"):
            state[f"{name}.{kind}"] = torch.cat([each[kind].view(torch.uint8) for each in stored]).view(
                stored[0][kind].dtype
            )
        parts = (each.split((4 * 48, keys * 48, keys * 32)) for each in stands_for)
        whole[layer] = [torch.cat(each) for each in zip(*parts, strict=True)]
    save_file(state, tmp_path / "model.safetensors")
    alone = [f"model.layers.{layer}.self_attn.o_proj" for layer in range(3)]
    config = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": alone}
    set_quantisation(tmp_path, config)
    for rank in range(world_size):
        part = checkpoint(tmp_path, rank, world_size)
        for layer, (q, k, v) in whole.items():
            mixer = part.spec.layers[layer].mixer
            heads = HeadSplit.of(mixer.num_heads, mixer.num_kv_heads, part.group)
            order = rotary_order(mixer.rope, 48)
            q, k = (each.view(-1, 48, 160)[:, order].flatten(0, 1) for each in (q, k))
            expected = (
                q[heads.q_start * 48 : heads.q_stop * 48],
                *(k[head * 48 : (head + 1) * 48] for head in heads.kv_heads),
                *(v[head * 32 : (head + 1) * 32] for head in heads.kv_heads),
            )
            got = weight_of(load_attention(part, layer, mixer, heads).qkv, 160)
            torch.testing.assert_close(got, torch.cat(expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scheme", [Fp8(), Fp8("block"), Fp8("group", "none"), Int8()])
def test_weights_that_are_quantised_here_saturate_and_are_near(scheme: Fp8 | Int8) -> None:
    weight = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    # The largest number of a row lands on the largest code, where a cast without a bound may give NaN.
    weight[3] = 0.0
    weight[4] *= 1e4
    made = quantised(weight, scheme).dequantised()
    assert made.isfinite().all()
    bound = 2.0**-4 * weight.abs() + weight.abs().amax() * (2.0**-9 if scheme.weights == "block" else 1e-5)
    if isinstance(scheme, Int8):
        bound = weight.abs().amax(1, keepdim=True) / 127
    assert ((made - weight).abs() <= bound).all()


@pytest.fixture
def card_without_float8(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """An A100, of which there are shapes alone. What is known of cards is remembered, so it is forgotten around it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    kernels.has_fp8_gemms.cache_clear()
    yield torch.device("cuda", 0)
    kernels.has_fp8_gemms.cache_clear()


@pytest.mark.parametrize("scheme", [Fp8(online=True), Fp8("block", online=True), Fp8(activations="static")])
def test_cards_without_float8_products_keep_weights_in_it(scheme: Fp8, card_without_float8: torch.device) -> None:
    with FakeTensorMode():
        weight = torch.empty(200, 320, dtype=torch.bfloat16, device=card_without_float8)
        made = quantised(weight, scheme)
    assert (made.weight.shape, made.weight.dtype) == ((200, 320), torch.float8_e4m3fn)
    assert made.weight.device == made.scale.device == card_without_float8


@pytest.mark.parametrize("scheme", [Fp8(), Fp8("block")])
def test_weights_are_the_same_on_cards_without_float8(scheme: Fp8, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(2000, 130, generator=torch.Generator().manual_seed(0))
    expected = quantised(weight, scheme)
    monkeypatch.setattr(kernels, "has_fp8_gemms", lambda _: False)
    made = quantised(weight, scheme)
    assert torch.equal(made.weight.view(torch.uint8), expected.weight.view(torch.uint8))
    assert torch.equal(made.scale, expected.scale)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state, key: state.pop(f"{key}_scale"), "weight_scale` is in none of"),
        (lambda state, key: state.update({f"{key}_scale": torch.tensor(float("nan"))}), "not a number"),
        (lambda state, key: state.update({f"{key}_scale": torch.tensor(-1.0)}), "negative"),
        (lambda state, key: state.update({f"{key}_scale": torch.ones(7)}), r"shape \[7\], which is no scale of"),
        (lambda state, key: state.update({f"{key}_scale": torch.ones(1, dtype=torch.int32)}), "type I32; only"),
        (lambda state, key: state.update({key: state[key][:-1].clone()}), "has shape"),
        (lambda state, key: state.update({key: state[key].float()}), "has type F32; only F8_E4M3 work"),
    ],
)
def test_a_checkpoint_that_is_not_what_it_says_is_refused(plain: Path, tmp_path: Path, change, said: str) -> None:  # type: ignore[no-untyped-def]
    quantise_folder(plain, tmp_path / "made", "fp8 of matrices")
    path = tmp_path / "made" / "model.safetensors"
    state = load_file(path)
    change(state, "model.layers.0.mlp.down_proj.weight")
    save_file(state, path)
    part = checkpoint(tmp_path / "made")
    with pytest.raises(ModelFilesError, match=said):
        load_dense(part, 0, part.spec.layers[0].ffn)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [torch.zeros(1), torch.zeros(0)])
def test_inputs_need_a_scale_above_0(plain: Path, tmp_path: Path, scale: Tensor) -> None:
    quantise_folder(plain, tmp_path / "made", "fp8 static")
    path = tmp_path / "made" / "model.safetensors"
    save_file({**load_file(path), "model.layers.0.mlp.down_proj.input_scale": scale}, path)
    part = checkpoint(tmp_path / "made")
    with pytest.raises(ModelFilesError, match=r"down_proj\.input_scale` holds .* inputs need a scale above 0"):
        load_dense(part, 0, part.spec.layers[0].ffn)  # type: ignore[arg-type]


def test_a_file_that_was_cut_is_refused(plain: Path, tmp_path: Path) -> None:
    quantise_folder(plain, tmp_path / "made", "fp8 of blocks")
    path = tmp_path / "made" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelFilesError, match="damaged"):
        checkpoint(tmp_path / "made")
