"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support.choices import measured
from torch import Tensor

from text_generation_kernels.matmul import bf16_ladder
from text_generation_kernels.matmul.linear import linear_triton
from text_generation_kernels.matmul.linear_split_k import linear_split_k_triton
from text_generation_kernels.norm.act_and_mul import act_and_mul_triton
from text_generation_kernels.runtime.launch import arrivals


@pytest.fixture(params=[1, 2, 3])
def splits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Small tiles, so that few inputs make several steps."""
    config = {"BLOCK_N": 16, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2, "splits": request.param}
    measured(monkeypatch, bf16_ladder, bf16_ladder.BF16, config)
    return request.param


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    linear_triton(x, weight, bias, out)
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-3)


@pytest.mark.usefixtures("splits")
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("inputs", [32, 96, 128])
@pytest.mark.parametrize(("tokens", "outputs"), [(1, 15), (3, 16), (16, 17), (17, 33), (64, 5), (33, 16)])
def test_tile_boundaries(tokens: int, outputs: int, inputs: int, with_bias: bool) -> None:
    torch.manual_seed(tokens)
    x, weight = torch.randn(tokens, inputs).half(), torch.randn(outputs, inputs).half()
    bias = torch.randn(outputs).half() if with_bias else None
    _check(x, weight, bias, torch.full((tokens, outputs), float("nan")).half())


@pytest.mark.parametrize("inputs", [32, 128, 160])
@pytest.mark.parametrize(("tokens", "outputs"), [(2, 15), (16, 33), (17, 16), (33, 49)])
def test_partials_add_up_to_the_gemm(splits: int, tokens: int, outputs: int, inputs: int) -> None:
    """As many as are not empty: 128 inputs in three splits are two, 64 each."""
    torch.manual_seed(tokens)
    x, weight = torch.randn(tokens, inputs).half(), torch.randn(outputs, inputs).half()
    splits = {32: 1, 128: min(splits, 2), 160: splits}[inputs]
    out = torch.full((splits, tokens, outputs), float("nan"))
    linear_split_k_triton(x, weight, out)
    expected = x.double() @ weight.double().t()
    torch.testing.assert_close(out.double().sum(0), expected, atol=1e-3, rtol=1e-4)
    whole = torch.empty(tokens, outputs).half()
    linear_triton(x, weight, None, whole)
    assert torch.equal(sum(out.unbind(), torch.zeros(tokens, outputs)).half(), whole)


@pytest.mark.parametrize("splits", [2], indirect=True)
@pytest.mark.usefixtures("splits")
def test_another_number_of_partials_is_refused() -> None:
    with pytest.raises(ValueError, match=r"linear_split_k: out .* must be float32 \(2, 4, 8\)"):
        linear_split_k_triton(torch.empty(4, 64).half(), torch.empty(8, 64).half(), torch.empty(3, 4, 8))


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(5, 768), (9, 4096), (3, 9000), (70, 40)])
def test_one_token(outputs: int, inputs: int, with_bias: bool) -> None:
    """Rows of a thread block's size, shorter ones and longer ones, which take several steps."""
    torch.manual_seed(inputs)
    x, weight = torch.randn(1, inputs).half(), torch.randn(outputs, inputs + 8).half()[:, :inputs] / inputs**0.5
    bias = torch.randn(outputs).half() if with_bias else None
    _check(x, weight, bias, torch.full((1, outputs), float("nan")).half())


@pytest.mark.parametrize("splits", [1, 2], indirect=True)
@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(1, 14, 64), (17, 16, 96), (3, 50, 32), (65, 6, 64)])
def test_fused_activation(splits: int, tokens: int, outputs: int, inputs: int) -> None:
    """As if it were an operator of its own, to the bit; the last case goes to torch."""
    torch.manual_seed(tokens)
    x, weight, bias = (torch.randn(*shape).half() for shape in ((tokens, inputs), (outputs, inputs), (outputs,)))
    linear = torch.empty(tokens, outputs).half()
    out, expected = torch.full((2, tokens, outputs // 2), float("nan")).half()
    linear_triton(x, weight, bias, linear)
    act_and_mul_triton(linear, "silu", expected)
    linear_triton(x, weight, bias, out, "silu")
    assert torch.equal(out, expected)
    with pytest.raises(ValueError, match="linear: unknown activation 'tanh'"):
        linear_triton(x, weight, bias, out, "tanh")


def test_counters_are_zero_again(splits: int) -> None:
    x, weight, out = torch.randn(2, 96).half(), torch.randn(40, 96).half(), torch.empty(2, 40).half()
    for _ in range(2):
        _check(x, weight, None, out)
        assert not arrivals(x.device, splits).any()


@pytest.mark.usefixtures("splits")
def test_every_tensor_has_its_own_stride() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 80).half()[:, 8:72], torch.randn(20, 72).half()[:, :64]
    out = torch.full((4, 30), float("nan")).half()
    _check(x, weight, None, out[:, 3:23])
    assert out[:, :3].isnan().all()
    assert out[:, 23:].isnan().all()


@pytest.mark.usefixtures("splits")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_what_the_kernel_does_not_take_goes_to_torch(dtype: torch.dtype) -> None:
    """float32, inputs that are no whole tiles, odd strides, many tokens."""
    for tokens, inputs in ((2, 64), (2, 40), (2, 33), (65, 64)):
        x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((tokens, inputs), (7, inputs), (7,)))
        _check(x, weight, bias, torch.empty(tokens, 7, dtype=dtype))


def test_no_tokens_and_wrong_shapes() -> None:
    weight = torch.randn(8, 16)
    linear_triton(torch.empty(0, 16), weight, None, torch.empty(0, 8))
    with pytest.raises(ValueError, match="linear: shapes"):
        linear_triton(torch.empty(2, 16), weight, None, torch.empty(2, 9))
    with pytest.raises(ValueError, match="linear: shapes"):
        linear_triton(torch.empty(2, 16), weight, torch.empty(9), torch.empty(2, 8))
