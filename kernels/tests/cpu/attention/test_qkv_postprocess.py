import pytest
import torch
from kernel_support import reference
from kernel_support.qkv import Case

import text_generation_kernels as kernels

HEADS, KV_HEADS, HEAD_DIM, TOKENS = 6, 2, 8, 5
EPS = 1e-5
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2}


@pytest.mark.parametrize(("with_bias", "with_norms"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_heads_are_rotated_and_keys_and_values_reach_their_slots(
    dtype: torch.dtype, with_bias: bool, with_norms: bool
) -> None:
    torch.manual_seed(0)
    size = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    qkv = torch.randn(TOKENS, size).to(dtype)
    bias = torch.randn(size).to(dtype) if with_bias else None
    positions, slots = torch.tensor([0, 9, 3, 3, 31]), torch.tensor([7, 0, 11, 2, 5])
    angles = torch.rand(32, HEAD_DIM // 2, dtype=torch.float64) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1).float()
    heads = (qkv.double() + (0 if bias is None else bias.double())).view(TOKENS, -1, HEAD_DIM)
    q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
    q_norm, k_norm = (torch.rand(HEAD_DIM).to(dtype) if with_norms else None for _ in range(2))
    if q_norm is not None and k_norm is not None:
        q, k = reference.rms_norm(q, q_norm, EPS), reference.rms_norm(k, k_norm, EPS)
    expected_q, expected_k = (reference.rotate(each, angles[positions]) for each in (q, k))
    caches = [torch.full((12, KV_HEADS, HEAD_DIM), float("nan"), dtype=dtype) for _ in range(2)]
    prologue, tokens = kernels.QkvPrologue(bias, q_norm, k_norm, EPS), kernels.NewTokens(cos_sin, positions, slots)

    kernels.qkv_postprocess(qkv, prologue, tokens, kernels.KvCache(*caches))

    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    q = qkv.view(TOKENS, -1, HEAD_DIM)[:, :HEADS]
    torch.testing.assert_close(q.double(), expected_q, **tolerance)
    torch.testing.assert_close(caches[0][slots].double(), expected_k, **tolerance)
    torch.testing.assert_close(caches[1][slots].double(), v, **tolerance)
    others = [slot for slot in range(12) if slot not in slots.tolist()]
    assert caches[0][others].isnan().all()
    assert caches[1][others].isnan().all()


@pytest.mark.parametrize("norm_dtype", [None, torch.float32])
@pytest.mark.parametrize("norm_of_each_head", [False, True])
@pytest.mark.parametrize("norm_after_rope", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_norms_of_heads(
    dtype: torch.dtype, norm_after_rope: bool, norm_of_each_head: bool, norm_dtype: torch.dtype | None
) -> None:
    norms = (True, norm_of_each_head, norm_after_rope, norm_dtype)
    case = Case(TOKENS, HEADS, KV_HEADS, HEAD_DIM, dtype, True, "cpu", *norms)
    expected = case.expected()
    kernels.qkv_postprocess(*case.arguments)
    for got, want in zip(case.results(), expected, strict=True):
        torch.testing.assert_close(got.double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
