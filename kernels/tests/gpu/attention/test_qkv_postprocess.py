"""The Triton kernel as it serves: through the dispatcher, on the device."""

import pytest
import torch
from kernel_support.codes import INT4, OF_8_BITS
from kernel_support.qkv import Case

import text_generation_kernels as kernels
from text_generation_kernels.attention.qkv_postprocess import qkv_postprocess_torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("with_bias", "with_norms"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("tokens", [1, 100])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(32, 8, 128), (4, 1, 128), (29, 2, 64), (32, 32, 80), (5, 5, 96), (8, 4, 256), (6, 2, 20)],
)
def test_as_close_to_the_formula_as_torch(
    heads: int, kv_heads: int, head_dim: int, tokens: int, with_bias: bool, with_norms: bool, dtype: torch.dtype
) -> None:
    case = Case(tokens, heads, kv_heads, head_dim, dtype, with_bias, "cuda", with_norms)
    case.check(kernels.qkv_postprocess, qkv_postprocess_torch)


def test_offsets_beyond_32_bits() -> None:
    case = Case(2, 4, 1, 64, torch.bfloat16, with_bias=False, device="cuda")
    storage = torch.empty(2**31 + 128, device="cuda", dtype=torch.bfloat16)
    k_cache, v_cache = (storage[start:].as_strided((3, 1, 64), (2**30, 64, 1)) for start in (0, 64))
    k_cache.fill_(float("nan"))
    v_cache.fill_(float("nan"))
    slots = torch.tensor([2, 0], device="cuda")
    qkv = case.qkv.clone()

    case.change(slots=slots)
    kernels.qkv_postprocess(qkv, case.prologue, case.tokens, kernels.KvCache(k_cache, v_cache))

    assert torch.equal(v_cache[slots, 0], case.qkv[:, -64:])
    assert k_cache[slots].isfinite().all()
    assert k_cache[1].isnan().all()


def test_replays_in_a_graph_with_new_positions_and_slots() -> None:
    case = Case(4, 8, 2, 128, torch.bfloat16, with_bias=False, device="cuda")
    start = case.qkv.clone()
    kernels.qkv_postprocess(*case.arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.qkv_postprocess(*case.arguments)
    case.qkv.copy_(start)
    case.cache.k.fill_(float("nan"))
    case.cache.v.fill_(float("nan"))
    case.tokens.positions.copy_(case.tokens.positions.flip(0))
    case.tokens.slots.copy_((case.tokens.slots + 1) % case.num_slots)
    case.check(lambda *_: graph.replay(), qkv_postprocess_torch)


@pytest.mark.parametrize("norm_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("norm_of_each_head", [False, True])
@pytest.mark.parametrize("norm_after_rope", [False, True])
@pytest.mark.parametrize("head_dim", [96, 128, 512])
def test_norms_of_heads(head_dim: int, norm_after_rope: bool, norm_of_each_head: bool, norm_dtype: torch.dtype) -> None:
    norms = (True, norm_of_each_head, norm_after_rope, norm_dtype)
    case = Case(20, 29, 2, head_dim, torch.bfloat16, True, "cuda", *norms)
    case.check(kernels.qkv_postprocess, qkv_postprocess_torch)


@pytest.mark.parametrize("codes", OF_8_BITS, ids=str)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (8, 1, 96), (4, 2, 256)])
def test_codes(heads: int, kv_heads: int, head_dim: int, given: bool, codes: torch.dtype) -> None:
    case = Case(70, heads, kv_heads, head_dim, torch.bfloat16, False, "cuda", codes=codes, given=given)
    case.check_codes(kernels.qkv_postprocess, qkv_postprocess_torch)


@pytest.mark.parametrize("codes", OF_8_BITS, ids=str)
@pytest.mark.parametrize("given", [False, True])
def test_codes_and_scales_of_the_same_values_are_those_of_torch(given: bool, codes: torch.dtype) -> None:
    case = Case(300, 32, 8, 128, torch.bfloat16, False, "cuda", codes=codes, given=given)
    case.qkv *= (10 ** (torch.rand(300, 1) * 6 - 3)).to(case.qkv)
    case.check_same_codes(kernels.qkv_postprocess, qkv_postprocess_torch)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 4, 128), (14, 2, 64)])
@pytest.mark.parametrize("with_norms", [False, True])
def test_split_k_partials_are_added_up(with_norms: bool, heads: int, kv_heads: int, head_dim: int, parts: int) -> None:
    """As if their sum had come, rounded; q goes where the caller says."""
    case = Case(50, heads, kv_heads, head_dim, torch.bfloat16, True, "cuda", with_norms)
    left = torch.randn(parts, *case.qkv.shape, device="cuda")
    total = left[0]
    for part in left[1:]:
        total = total + part
    case.qkv = total.bfloat16()
    cache, slots = case.copied_cache(), case.tokens.slots
    kernels.qkv_postprocess(*case.arguments)
    q = torch.full((50, heads * head_dim), float("nan"), device="cuda", dtype=torch.bfloat16)

    kernels.qkv_postprocess(left, case.prologue, case.tokens, cache, q)

    assert torch.equal(q, case.qkv[:, : heads * head_dim])
    for got, expected in ((cache.k, case.cache.k), (cache.v, case.cache.v)):
        assert torch.equal(got[slots], expected[slots])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(32, 8, 128), (8, 8, 64), (4, 2, 96), (6, 2, 80), (4, 2, 256)]
)
def test_int4(heads: int, kv_heads: int, head_dim: int) -> None:
    case = Case(70, heads, kv_heads, head_dim, torch.bfloat16, False, "cuda", with_norms=True, codes=INT4)
    case.check_int4(kernels.qkv_postprocess, qkv_postprocess_torch)


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_int4_of_the_same_values_is_that_of_torch(head_dim: int) -> None:
    case = Case(300, 32, 8, head_dim, torch.bfloat16, False, "cuda", codes=INT4)
    case.qkv *= (10 ** (torch.rand(300, 1) * 6 - 3)).to(case.qkv)
    case.check_same_codes(kernels.qkv_postprocess, qkv_postprocess_torch)
