"""The Triton kernel as it serves: through the dispatcher, on the device."""

import pytest
import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.matmul.linear import linear_torch

pytestmark = pytest.mark.gpu
SHAPES = [(6144, 4096), (4096, 4096), (4096, 14336), (1000, 2048), (50, 256), (70, 100), (4096, 7168)]


def _inputs(tokens: int, outputs: int, inputs: int, dtype: torch.dtype, with_bias: bool) -> tuple[Tensor | None, ...]:
    torch.manual_seed(tokens)
    x, weight = (torch.randn(rows, inputs, device="cuda").to(dtype) for rows in (tokens, outputs))
    return x, weight, torch.randn(outputs, device="cuda").to(dtype) if with_bias else None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 5, 16, 17, 33, 64])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_as_close_to_the_formula_as_torch(
    outputs: int, inputs: int, tokens: int, with_bias: bool, dtype: torch.dtype
) -> None:
    x, weight, bias = _inputs(tokens, outputs, inputs, dtype, with_bias)
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    out, torch_out = (torch.full((tokens, outputs), float("nan"), device="cuda", dtype=dtype) for _ in range(2))
    linear_torch(x, weight, bias, torch_out)

    kernels.linear(x, weight, bias, out)

    assert (out.double() - expected).norm() <= 1.5 * (torch_out.double() - expected).norm() + 1e-5 * expected.norm()


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "clamped_swiglu", "silu_within_7", "silu_below_10"])
@pytest.mark.parametrize("tokens", [1, 17, 64])
@pytest.mark.parametrize(("outputs", "inputs"), [(28672, 4096), (14336, 8192), (1000, 2048), (50, 256), (2816, 512)])
def test_fused_activation_as_if_it_were_another_operator(
    outputs: int, inputs: int, tokens: int, activation: str
) -> None:
    x, weight, bias = _inputs(tokens, outputs, inputs, torch.bfloat16, with_bias=True)
    linear = torch.empty(tokens, outputs, device="cuda", dtype=torch.bfloat16)
    out, expected = torch.full((2, tokens, outputs // 2), float("nan"), device="cuda", dtype=torch.bfloat16)
    kernels.linear(x, weight, bias, linear)
    kernels.act_and_mul(linear, activation, expected)

    kernels.linear(x, weight, bias, out, activation)

    assert torch.equal(out, expected)


# With more tokens 4096 x 4096 is for cuBLAS, which chooses its algorithm by their number.
@pytest.mark.parametrize(
    ("outputs", "inputs", "counts"),
    [*((*shape, (2, 7, 16)) for shape in SHAPES[:3]), *((*shape, (33, 50, 64)) for shape in (SHAPES[0], SHAPES[2]))],
)
def test_same_bits_for_every_number_of_tokens_of_one_padded_size(
    outputs: int, inputs: int, counts: tuple[int, ...]
) -> None:
    x, weight, _ = _inputs(counts[-1], outputs, inputs, torch.bfloat16, with_bias=False)
    results: list[Tensor] = []
    for tokens in counts:
        out = torch.empty(tokens, outputs, device="cuda", dtype=torch.bfloat16)
        for _ in range(3):
            kernels.linear(x[:tokens], weight, None, out)
            results.append(out[0].clone())
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [2, 16, 17, 33, 64])
@pytest.mark.parametrize(("outputs", "inputs"), [*SHAPES, (5120, 8192), (6144, 4096)])
def test_partials_add_up_to_the_gemm(outputs: int, inputs: int, tokens: int, dtype: torch.dtype) -> None:
    x, weight, _ = _inputs(tokens, outputs, inputs, dtype, with_bias=False)
    splits = kernels.linear_splits(x, weight)
    if splits == 1:
        pytest.skip("this GEMM is fastest without splits")
    out = torch.full((splits, tokens, outputs), float("nan"), device="cuda")
    kernels.linear_split_k(x, weight, out)
    expected = x.double() @ weight.double().t()
    assert (out.double().sum(0) - expected).norm() <= 3e-5 * expected.norm()


def test_a_graph_of_partials_and_norms_that_add_them_up() -> None:
    torch.manual_seed(0)
    weights = torch.randn(8, 4096, 4096, device="cuda", dtype=torch.bfloat16) / 64
    start, norm = torch.empty(40, 4096, device="cuda").bfloat16(), torch.rand(4096, device="cuda").bfloat16()
    residual, read, result = torch.empty_like(start), torch.empty_like(start), torch.empty_like(start)

    def run() -> None:
        residual.copy_(start)
        kernels.rms_norm(residual, norm, 1e-5, read)
        for weight in weights:
            splits = kernels.linear_splits(read, weight)
            assert splits > 1
            out = torch.empty(splits, *read.shape, device="cuda")
            kernels.linear_split_k(read, weight, out)
            kernels.add_rms_norm(out, residual, norm, 1e-5, read)
        result.copy_(residual)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(10):
        start.normal_()
        result.fill_(float("nan"))
        expected = start.double()
        for weight in weights:
            scaled = expected * (expected.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * norm.double()
            expected = expected + scaled @ weight.double().t()
        graph.replay()
        assert (result.double() - expected).norm() <= 2e-2 * expected.norm()


@pytest.mark.parametrize("tokens", [3, 50])
def test_a_graph_of_gemms_that_depend_on_each_other(tokens: int) -> None:
    torch.manual_seed(0)
    weights = torch.randn(8, 4096, 4096, device="cuda", dtype=torch.bfloat16) / 64
    states = torch.zeros(9, tokens, 4096, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        for index in range(8):
            kernels.linear(states[index], weights[index], None, states[index + 1])

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(10):
        states[1:] = float("nan")
        states[0].normal_()
        expected = states[0].double()
        for weight in weights:
            expected = expected @ weight.double().t()
        graph.replay()
        assert (states[8].double() - expected).norm() <= 2e-2 * expected.norm()
