"""The Triton kernels as they serve: through the dispatcher, on the device."""

import pytest
import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.matmul import nvfp4_gemv
from text_generation_kernels.matmul.nvfp4_small_hopper import nvfp4_small_hopper
from text_generation_kernels.matmul.w4a16_small_hopper import w4a16_small_hopper
from text_generation_kernels.runtime.device import is_hopper
from text_generation_server.layers.weights import Activations, mxfp4
from text_generation_server.layers.weights.weight_only import WeightOnlyLinear

pytestmark = pytest.mark.gpu
KINDS = ["symmetric", "zeros", "table", "eight", "eight zeros", "float8"]
SHAPES = [(6144, 4096), (4096, 14336), (1000, 2048), (50, 264), (70, 100)]


def _weight(kind: str, outputs: int, inputs: int, group_size: int) -> kernels.PackedMatrix:
    torch.manual_seed(outputs)
    bits = 8 if kind in ("eight", "eight zeros", "float8") else 4
    groups = -(-inputs // (group_size or inputs))
    codes = torch.randint(0, 2**bits, (outputs, inputs), dtype=torch.uint8, device="cuda")
    packed = kernels.pack_codes(codes, bits)
    if kind == "float8":
        packed = torch.randn(outputs, inputs, device="cuda").to(torch.float8_e4m3fn)
    values = (torch.rand(outputs, groups, device="cuda") + 0.5).bfloat16() / 64
    scales, size = kernels.pack_scales(values, inputs, group_size)
    points = torch.randint(0, 2**bits, (outputs, groups), device="cuda")
    zeros = kernels.pack_scales(points, inputs, group_size)[0] if "zeros" in kind else None
    table = torch.randn(16, device="cuda") if kind == "table" else None
    return kernels.PackedMatrix(packed, scales, zeros, table, size)


def _nvfp4(outputs: int, inputs: int) -> kernels.PackedMatrix:
    """Random codes, with scales of every size: also 0 and those without a leading one."""
    weight = _weight("symmetric", outputs, inputs, 16)
    scales = torch.rand(weight.scales.shape, device="cuda").mul_(20).exp2_().div_(2**11).clamp_(max=448)
    scales[:, ::7, ::3] = 0
    factors = (torch.rand(outputs, device="cuda") + 0.5) / 2**12
    table = mxfp4.table(torch.device("cuda"))
    return kernels.PackedMatrix(weight.packed, scales.to(torch.float8_e4m3fn), None, table, 16, factors)


def _check(weight: kernels.PackedMatrix, x: Tensor, outputs: int, extra: bool) -> None:
    inputs = x.shape[1]
    bias = torch.randn(outputs, device="cuda").to(x.dtype) if extra else None
    perm = torch.randperm(inputs, device="cuda") if extra else None
    out = torch.full((x.shape[0], outputs), float("nan"), device="cuda", dtype=x.dtype)
    kernels.weight_only_linear(x, weight, perm, bias, out)
    matrix = weight.values(inputs).double()
    expected = (x if perm is None else x[:, perm]).double() @ matrix.t() + (0 if bias is None else bias.double())
    bound = 5e-3 if x.dtype == torch.bfloat16 else 1e-3
    assert (out.double() - expected).norm() <= bound * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 9, 17, 64, 65, 200, 300])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_close_to_the_formula(outputs: int, inputs: int, kind: str, tokens: int, dtype: torch.dtype) -> None:
    weight = _weight(kind, outputs, inputs, 128)
    _check(weight, torch.randn(tokens, inputs, device="cuda").to(dtype), outputs, extra=tokens in (9, 65))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [9, 15, 16, 17, 32])
@pytest.mark.parametrize("kind", ["symmetric", "zeros"])
def test_few_tokens_of_many_outputs(kind: str, tokens: int, dtype: torch.dtype) -> None:
    weight = _weight(kind, 28672, 4096, 128)
    _check(weight, torch.randn(tokens, 4096, device="cuda").to(dtype), 28672, extra=tokens in (9, 32))


@pytest.mark.parametrize("tokens", [1, 9, 16])
@pytest.mark.parametrize(("outputs", "inputs"), [(1000, 2048), (50, 256), (130, 768)])
def test_few_tokens_by_the_kernel_of_hopper_cards(outputs: int, inputs: int, tokens: int) -> None:
    if not is_hopper(torch.device("cuda")):
        pytest.skip("the card is no Hopper card")
    weight = _weight("zeros", outputs, inputs, 128)
    x = torch.randn(tokens, inputs, device="cuda").bfloat16()
    # Rows of other tensors stand in front and behind, and must not count.
    out = torch.full((tokens + 2, outputs + 8), float("nan"), device="cuda", dtype=x.dtype)
    config = {"BLOCK_M": 16, "BLOCK_N": 128, "num_warps": 4, "num_stages": 3}
    w4a16_small_hopper(x, weight, None, out[1:-1, :outputs], config)
    expected = x.double() @ weight.values(inputs).double().t()
    assert (out[1:-1, :outputs].double() - expected).norm() <= 5e-3 * expected.norm()
    around = torch.cat((out[0], out[-1], out[:, outputs:].flatten()))
    assert around.isnan().all()


@pytest.mark.parametrize("inputs", [4096, 1300])
@pytest.mark.parametrize("kind", ["symmetric", "zeros", "float8", "nvfp4"])
def test_the_activation_of_a_single_token(kind: str, inputs: int) -> None:
    weight = _nvfp4(2044, inputs) if kind == "nvfp4" else _weight(kind, 2044, inputs, 128)
    x = torch.randn(1, inputs, device="cuda").bfloat16()
    product, out = torch.empty(1, 2044, device="cuda").bfloat16(), torch.empty(1, 1022, device="cuda").bfloat16()
    expected = torch.empty_like(out)
    kernels.weight_only_linear(x, weight, None, None, product)
    kernels.act_and_mul(product, "silu", expected)
    kernels.weight_only_linear(x, weight, None, None, out, "silu")
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_nvfp4(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    weight = _nvfp4(outputs, inputs)
    for tokens in (1, 9, 17, 33, 150, 600):
        _check(weight, torch.randn(tokens, inputs, device="cuda").to(dtype), outputs, extra=tokens in (1, 9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e3, 1e30])
def test_a_token_of_any_size_by_nvfp4(size: float, dtype: torch.dtype) -> None:
    if dtype == torch.float16 and not 1e-4 < size < 1e2:
        pytest.skip("float16 does not hold them")
    weight = _nvfp4(300, 4096)
    # Some inputs of a block are a thousandth of others.
    x = torch.randn(1, 4096, device="cuda") * 10 ** torch.randn(1, 4096, device="cuda") * size
    _check(weight, x.to(dtype), 300, extra=False)


@pytest.mark.parametrize(("rows", "ahead", "warps"), [(16, 1, 4), (32, 2, 8), (32, 1, 4), (16, 3, 2), (16, 4, 4)])
@pytest.mark.parametrize(("outputs", "inputs"), [(1000, 4096), (50, 2600)])
def test_launch_settings_of_a_token_by_nvfp4(
    outputs: int, inputs: int, rows: int, ahead: int, warps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = -(-inputs // (warps * 256))
    config = {"BLOCK_N": rows, "AHEAD": min(ahead, steps), "STEPS": steps, "num_warps": warps, "maxnreg": 255}
    monkeypatch.setattr(nvfp4_gemv, "nvfp4_blocks", lambda *_: config)
    _check(_nvfp4(outputs, inputs), torch.randn(1, inputs, device="cuda").bfloat16(), outputs, extra=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "warps"), [(16, 8), (32, 4), (64, 8)])
@pytest.mark.parametrize(("tokens", "block"), [(2, 8), (8, 8), (13, 16), (32, 32)])
@pytest.mark.parametrize(("outputs", "inputs"), [(1000, 4096), (50, 2600)])
def test_launch_settings_of_few_tokens_by_nvfp4(
    outputs: int, inputs: int, tokens: int, block: int, rows: int, warps: int, dtype: torch.dtype
) -> None:
    weight = _nvfp4(outputs, inputs)
    x = torch.randn(tokens, inputs, device="cuda").to(dtype)
    # Rows of other tensors stand in front and behind, and must not count.
    out = torch.full((tokens + 2, outputs + 8), float("nan"), device="cuda", dtype=dtype)
    config = {"BLOCK_M": block, "BLOCK_N": rows, "num_warps": warps, "maxnreg": 255}
    nvfp4_small_hopper(x, weight, None, out[1:-1, :outputs], config)
    expected = x.double() @ weight.values(inputs).double().t()
    bound = 5e-3 if dtype == torch.bfloat16 else 1e-3
    assert (out[1:-1, :outputs].double() - expected).norm() <= bound * expected.norm()
    around = torch.cat((out[0], out[-1], out[:, outputs:].flatten()))
    assert around.isnan().all()


def test_a_token_of_zeros_and_one_that_is_not_finite_by_nvfp4() -> None:
    weight = _nvfp4(300, 4096)
    x, out = torch.zeros(1, 4096, device="cuda").bfloat16(), torch.ones(1, 300, device="cuda").bfloat16()
    kernels.weight_only_linear(x, weight, None, None, out)
    assert not out.any()
    for bad in (float("nan"), float("inf")):
        x[0, 3000] = bad
        kernels.weight_only_linear(x, weight, None, None, out)
        assert not out.isfinite().any()


@pytest.mark.parametrize("group_size", [16, 32, 64, 0, 48, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_sizes_of_groups(kind: str, group_size: int) -> None:
    weight = _weight(kind, 1000, 2048, group_size)
    for tokens in (1, 12, 33, 150):
        _check(weight, torch.randn(tokens, 2048, device="cuda").bfloat16(), 1000, extra=False)


@pytest.mark.parametrize(("kind", "padded"), [("symmetric", 16), ("float8", 16), ("symmetric", 256)])
@pytest.mark.parametrize(("outputs", "inputs"), [*SHAPES[:2], (28672, 4096)])
def test_same_bits_for_every_number_of_tokens_of_one_padded_size(
    outputs: int, inputs: int, kind: str, padded: int
) -> None:
    weight = _weight(kind, outputs, inputs, 128)
    x = torch.randn(padded, inputs, device="cuda").bfloat16()
    results: list[Tensor] = []
    for tokens in (padded // 2 + 1, padded // 2 + 2, padded - 3, padded):
        out = torch.empty(tokens, outputs, device="cuda", dtype=x.dtype)
        for _ in range(3):
            kernels.weight_only_linear(x[:tokens], weight, None, None, out)
            results.append(out[0].clone())
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("tokens", [3, 100])
def test_a_graph_of_products_that_depend_on_each_other(tokens: int) -> None:
    weights = [_weight("symmetric", 4096, 4096, 128) for _ in range(4)]
    matrices = [weight.values(4096).double() for weight in weights]
    states = torch.zeros(5, tokens, 4096, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        for index, weight in enumerate(weights):
            kernels.weight_only_linear(states[index], weight, None, None, states[index + 1])

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(5):
        states[1:] = float("nan")
        states[0].normal_()
        expected = states[0].double()
        for matrix in matrices:
            expected = expected @ matrix.t()
        graph.replay()
        assert (states[4].double() - expected).norm() <= 2e-2 * expected.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_products_with_a_copy_are_those_with_codes(kind: str) -> None:
    inputs, outputs = 4096, 6144
    weight = _weight(kind, outputs, inputs, 128)
    perm, bias = torch.randperm(inputs, device="cuda"), torch.randn(outputs, device="cuda").bfloat16()
    matrix = WeightOnlyLinear(inputs, weight, perm, bias)
    x = Activations(torch.randn(200, inputs, device="cuda").bfloat16())
    by_codes = matrix.apply(x).double()
    matrix.copy = matrix.dequantised(torch.bfloat16)
    assert (matrix.apply(x).double() - by_codes).norm() <= 5e-3 * by_codes.norm()
