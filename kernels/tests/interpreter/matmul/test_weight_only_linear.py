"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support.choices import measured
from kernel_support.expert_codes import E2M1, nvfp4_scales

from text_generation_kernels import PackedMatrix, pack_codes, pack_scales
from text_generation_kernels.matmul import weight_only_ladder
from text_generation_kernels.matmul.weight_only_linear import weight_only_linear_triton
from text_generation_kernels.runtime.launch import arrivals


@pytest.fixture(params=[(1, 0, 0, 1, 32), (2, 1, 0, 0, 32), (5, 0, 1, 2, 24)], ids=str)
def config(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tiles, full or not, with splits, weights or tokens as the left operand, prefetched codes."""
    splits, swap, fold, ahead, rows = request.param
    settings = {
        "BLOCK_M": 16,
        "BLOCK_N": 32,
        "SWAP": swap,
        "FOLD": fold,
        "num_warps": 2,
        "num_stages": 2,
        "splits": splits,
    }
    settings |= {"AHEAD": ahead, "ROWS": rows}
    measured(monkeypatch, weight_only_ladder, weight_only_ladder.WEIGHT_ONLY, settings)


def _weight(kind: str, outputs: int, inputs: int, group_size: int) -> PackedMatrix:
    bits = 8 if kind in ("eight", "eight zeros", "float8") else 4
    groups = -(-inputs // (group_size or inputs))
    codes = torch.randint(0, 2**bits, (outputs, inputs), dtype=torch.uint8)
    scales, size = pack_scales((torch.rand(outputs, groups) + 0.5).bfloat16() / 16, inputs, group_size)
    points = torch.randint(0, 2**bits, (outputs, groups))
    zeros = pack_scales(points, inputs, group_size)[0] if "zeros" in kind else None
    packed = pack_codes(codes, bits)
    if kind == "float8":
        packed = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
    if kind == "nvfp4":
        scales, factors = nvfp4_scales(outputs, inputs)
        return PackedMatrix(packed, scales, None, torch.tensor([*E2M1, *(-each for each in E2M1)]), size, factors)
    return PackedMatrix(packed, scales, zeros, torch.randn(16) if kind == "table" else None, size)


def _check(kind: str, shape: tuple[int, int, int], group_size: int, dtype: torch.dtype, extra: bool) -> None:
    tokens, outputs, inputs = shape
    torch.manual_seed(tokens)
    weight = _weight(kind, outputs, inputs, group_size)
    x = torch.randn(tokens, inputs).to(dtype)
    bias, perm = (torch.randn(outputs).to(dtype), torch.randperm(inputs)) if extra else (None, None)
    out = torch.full((tokens, outputs), float("nan")).to(dtype)
    weight_only_linear_triton(x, weight, perm, bias, out)
    expected = (x if perm is None else x[:, perm]).double() @ weight.values(inputs).double().t()
    expected = expected if bias is None else expected + bias.double()
    assert (out.double() - expected).norm() <= 6e-3 * expected.norm()


@pytest.mark.parametrize("config", [(2, 1, 0, 0, 32)], indirect=True)
@pytest.mark.parametrize("group_size", [16, 32, 64, 128, 0])
@pytest.mark.parametrize("kind", ["symmetric", "zeros", "table", "eight", "eight zeros", "float8"])
@pytest.mark.usefixtures("config")
def test_every_kind_of_codes_and_size_of_groups(kind: str, group_size: int) -> None:
    _check(kind, (3, 20, 512), group_size, torch.float16, extra=True)


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("kind", ["zeros", "eight"])
@pytest.mark.parametrize(
    ("tokens", "outputs", "inputs"),
    [(1, 31, 256), (8, 32, 264), (16, 33, 600), (17, 5, 40), (64, 34, 256), (65, 16, 256)],
)
def test_tile_boundaries(kind: str, tokens: int, outputs: int, inputs: int) -> None:
    _check(kind, (tokens, outputs, inputs), 128, torch.float16, extra=False)


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(1, 31, 256), (8, 32, 264), (17, 33, 600)])
def test_float8_scales_of_groups_of_16(tokens: int, outputs: int, inputs: int) -> None:
    _check("nvfp4", (tokens, outputs, inputs), 16, torch.float16, extra=True)


@pytest.mark.usefixtures("config")
def test_counters_are_zero_again() -> None:
    for _ in range(2):
        _check("symmetric", (3, 40, 520), 128, torch.float16, extra=False)
        assert not arrivals(torch.device("cpu"), 3).any()


@pytest.mark.parametrize(("tokens", "group_size", "dtype"), [(513, 128, torch.bfloat16), (2, 48, torch.float16)])
def test_what_the_kernel_does_not_take_goes_by_a_matrix(tokens: int, group_size: int, dtype: torch.dtype) -> None:
    _check("zeros", (tokens, 33, 300), group_size, dtype, extra=True)


def test_no_tokens_and_wrong_shapes() -> None:
    weight = _weight("symmetric", 8, 64, 32)
    weight_only_linear_triton(torch.empty(0, 64), weight, None, None, torch.empty(0, 8))
    for x, out in (((2, 64), (2, 9)), ((2, 600), (2, 8))):
        with pytest.raises(ValueError, match="weight_only_linear: shapes"):
            weight_only_linear_triton(torch.empty(x), weight, None, None, torch.empty(out))
