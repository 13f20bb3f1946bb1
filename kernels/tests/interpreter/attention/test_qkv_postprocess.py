"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's rounding to it differs from the hardware's."""

import pytest
import torch
from kernel_support.codes import INT4, OF_8_BITS
from kernel_support.qkv import Case

from text_generation_kernels.attention.kv_quantisation import split_scales
from text_generation_kernels.attention.qkv_postprocess import qkv_postprocess_torch, qkv_postprocess_triton
from text_generation_kernels.runtime.settings import nearest

BLOCK = nearest("qkv_postprocess", half=1)["BLOCK_HEADS"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("with_bias", "with_norms"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [
        (1, 1, 2),
        (BLOCK - 3, 1, 20),
        (BLOCK - 4, 2, 32),
        (BLOCK - 3, 2, 18),
        (3, 3, 30),
        (5, 1, 34),
        (32, 8, 128),
        (6, 2, 80),
        (8, 1, 256),
    ],
)
def test_tile_boundaries(
    heads: int, kv_heads: int, head_dim: int, with_bias: bool, with_norms: bool, dtype: torch.dtype
) -> None:
    case = Case(5, heads, kv_heads, head_dim, dtype, with_bias, with_norms=with_norms)
    case.check(qkv_postprocess_triton, qkv_postprocess_torch)


@pytest.mark.parametrize("norm_dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("norm_of_each_head", [False, True])
@pytest.mark.parametrize("norm_after_rope", [False, True])
def test_norms_of_heads(norm_after_rope: bool, norm_of_each_head: bool, norm_dtype: torch.dtype) -> None:
    norms = (True, norm_of_each_head, norm_after_rope, norm_dtype)
    case = Case(3, BLOCK - 3, 2, 20, torch.float16, True, "cpu", *norms)
    case.check(qkv_postprocess_triton, qkv_postprocess_torch)


@pytest.mark.parametrize("layout", ["interleaved", "head_major"])
def test_every_tensor_has_its_own_strides(layout: str) -> None:
    case = Case(4, 5, 2, 12, torch.float32, with_bias=True)
    padded = torch.full((4, case.qkv.shape[1] + 20), float("nan"))
    padded[:, 7:-13] = case.qkv
    case.qkv = padded[:, 7:-13]
    cos_sin = case.tokens.cos_sin
    case.change(cos_sin=torch.cat((cos_sin, torch.full_like(cos_sin, float("nan"))), dim=1)[:, :12])
    if layout == "interleaved":  # K and V of a token side by side
        caches = torch.full((case.num_slots, 2, 2, 12), float("nan"))
        case.change(k=caches[:, 0], v=caches[:, 1])
    else:
        caches = torch.full((2, 2, case.num_slots, 12), float("nan"))
        k, v = caches.transpose(2, 3).permute(0, 3, 1, 2)
        case.change(k=k, v=v)
    case.check(qkv_postprocess_triton, qkv_postprocess_torch)
    assert padded[:, :7].isnan().all()
    assert padded[:, -13:].isnan().all()


def test_one_token_whose_slot_comes_from_a_column() -> None:
    case = Case(1, 4, 2, 8, torch.float32, with_bias=False)
    case.change(slots=torch.stack((case.tokens.slots, case.tokens.slots), dim=1)[:, 1])
    case.check(qkv_postprocess_triton, qkv_postprocess_torch)


@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("codes", [None, torch.uint8])
def test_split_k_partials_are_added_up(codes: torch.dtype | None, with_norms: bool) -> None:
    """As if their sum had come, rounded; q goes where the caller says."""
    case = Case(3, 5, 2, 12, torch.float16, with_bias=True, with_norms=with_norms, codes=codes)
    parts = torch.randn(3, 3, case.qkv.shape[1])
    case.qkv = ((parts[0] + parts[1]) + parts[2]).half()
    cache, slots = case.copied_cache(), case.tokens.slots
    qkv_postprocess_triton(*case.arguments)

    q = torch.full((3, 60), float("nan")).half()
    qkv_postprocess_triton(parts, case.prologue, case.tokens, cache, q)

    assert torch.equal(q, case.qkv[:, :60])
    written = [(cache.k, case.cache.k), (cache.v, case.cache.v)]
    if cache.scales is not None and case.cache.scales is not None:
        written.append((cache.scales, case.cache.scales))
    for got, expected in written:
        assert torch.equal(got[slots], expected[slots])


def test_split_k_partials_need_q_out() -> None:
    case = Case(2, 4, 2, 8, torch.float16, with_bias=False)
    parts, q = case.qkv.float().unsqueeze(0), torch.empty(2, 32).half()
    for qkv, q_out in ((parts, None), (case.qkv, q), (parts, q[:, :16])):
        with pytest.raises(ValueError, match=r"q_out must be \[2, 32\]"):
            qkv_postprocess_triton(qkv, *case.arguments[1:], q_out)


def test_no_tokens() -> None:
    case = Case(0, 4, 2, 8, torch.float32, with_bias=False)
    qkv_postprocess_triton(*case.arguments)
    assert case.cache.k.isnan().all()


def test_a_value_that_is_not_finite_stays_in_its_head() -> None:
    case = Case(2, 4, 2, 8, torch.float32, with_bias=False)
    case.qkv[0, -1] = float("inf")  # last element of the last v head
    qkv_postprocess_triton(*case.arguments)
    v = case.cache.v[case.tokens.slots[0]]
    assert v[-1, -1] == float("inf")
    assert torch.equal(v.flatten()[:-1], case.qkv[0, -16:-1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bias", torch.zeros(63)),
        ("q_norm", torch.zeros(7)),
        ("k_norm", torch.zeros(16)),
        ("k_norm", None),
        ("q_norm", torch.zeros(4, 8)),
        ("k_norm", torch.zeros(8, dtype=torch.float16)),
        ("cos_sin", torch.zeros(9, 6)),
        ("positions", torch.zeros(3, dtype=torch.int64)),
        ("slots", torch.zeros(1, dtype=torch.int64)),
        ("v", torch.zeros(9, 1, 8)),
        ("qkv", torch.zeros(2, 60)),
        ("qkv", torch.zeros(2, 32)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_shapes_that_do_not_fit_are_refused(name: str, value: torch.Tensor | None) -> None:
    case = Case(2, 4, 2, 8, torch.float32, with_bias=True, with_norms=True)
    if name == "qkv" and value is not None:
        case.qkv = value
    else:
        case.change(**{name: value})
    with pytest.raises(ValueError, match="shapes do not fit"):
        qkv_postprocess_triton(*case.arguments)


def test_strides_that_the_kernel_cannot_read_are_refused() -> None:
    case = Case(2, 4, 2, 8, torch.float32, with_bias=False)
    case.change(k=torch.zeros(case.num_slots, 8, 2).transpose(1, 2))
    with pytest.raises(ValueError, match="stride 1"):
        qkv_postprocess_triton(*case.arguments)


def test_positions_choose_the_angle() -> None:
    """One head whose pairs are (1, 0) becomes the row of the table itself."""
    case = Case(6, 1, 1, 4, torch.float32, with_bias=False)
    case.qkv[:, :4] = torch.tensor([1.0, 1.0, 0.0, 0.0])
    qkv_postprocess_triton(*case.arguments)
    assert torch.equal(case.qkv[:, :4], case.tokens.cos_sin[case.tokens.positions])


@pytest.mark.parametrize("codes", OF_8_BITS, ids=str)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(BLOCK - 3, 2, 20), (3, 3, 36), (32, 8, 128)])
def test_codes(heads: int, kv_heads: int, head_dim: int, given: bool, codes: torch.dtype) -> None:
    case = Case(5, heads, kv_heads, head_dim, torch.float32, True, with_norms=True, codes=codes, given=given)
    # Heads of every size, one of zeros.
    case.qkv *= 10 ** (torch.rand(5, 1) * 6 - 3)
    case.change(bias=None)
    case.qkv[0, -head_dim:] = 0.0
    case.check_codes(qkv_postprocess_triton, qkv_postprocess_torch)


@pytest.mark.parametrize("codes", OF_8_BITS, ids=str)
@pytest.mark.parametrize("given", [False, True])
def test_codes_and_scales_of_the_same_values_are_those_of_torch(given: bool, codes: torch.dtype) -> None:
    case = Case(40, 3, 2, 20, torch.float32, with_bias=False, codes=codes, given=given)
    # Values so coarse that some scales need no rounding.
    case.qkv = (case.qkv * 10 ** (torch.rand(40, 1) * 6 - 3)).bfloat16().float()
    case.check_same_codes(qkv_postprocess_triton, qkv_postprocess_torch)


@pytest.mark.parametrize("codes", OF_8_BITS, ids=str)
def test_a_value_that_is_not_finite_makes_the_scale_of_its_head_nan(codes: torch.dtype) -> None:
    # NaN as NVIDIA cards make it, and with all bits set: a scale that is rounded up must not carry them to 0.
    nans = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    for bad in (torch.tensor(float("nan")), torch.tensor(float("inf")), *nans):
        case = Case(2, 4, 2, 8, torch.float32, with_bias=False, codes=codes)
        case.qkv[0, -1] = bad
        qkv_postprocess_triton(*case.arguments)
        assert case.cache.scales is not None
        found = case.cache.scales[case.tokens.slots]
        assert found[0, 1, 1].isnan()
        assert found.isnan().sum() == 1


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(BLOCK - 3, 2, 16), (3, 3, 40), (5, 1, 80), (4, 2, 96), (32, 8, 128), (2, 1, 192), (2, 1, 256), (1, 1, 512)],
)
def test_int4(heads: int, kv_heads: int, head_dim: int) -> None:
    case = Case(5, heads, kv_heads, head_dim, torch.float32, True, with_norms=True, codes=INT4)
    # Heads of every size, one of zeros.
    case.qkv *= 10 ** (torch.rand(5, 1) * 6 - 3)
    case.change(bias=None)
    case.qkv[0, -head_dim:] = 0.0
    case.check_int4(qkv_postprocess_triton, qkv_postprocess_torch)


@pytest.mark.parametrize("head_dim", [8, 32, 40, 128])
def test_int4_of_the_same_values_is_that_of_torch(head_dim: int) -> None:
    case = Case(40, 3, 2, head_dim, torch.float32, with_bias=False, codes=INT4)
    case.qkv = (case.qkv * 10 ** (torch.rand(40, 1) * 6 - 3) + torch.randn(40, 1)).bfloat16().float()
    case.check_same_codes(qkv_postprocess_triton, qkv_postprocess_torch)


def test_int4_of_a_value_that_is_not_finite_makes_the_scale_of_its_group_nan() -> None:
    for bad in (float("nan"), float("inf"), float("-inf")):
        case = Case(2, 4, 2, 128, torch.float32, with_bias=False, codes=INT4)
        case.qkv[0, -1] = bad  # last element of the last v head, of its second group
        qkv_postprocess_triton(*case.arguments)
        assert case.cache.scales is not None
        of_keys, of_values = split_scales(case.cache, case.cache.scales[case.tokens.slots])
        assert not of_keys.isnan().any()
        assert of_values[0, 1, 2].isnan()
        assert not of_values[..., ::2].flatten()[[0, 1, 2, 4, 5, 6, 7]].isnan().any()
