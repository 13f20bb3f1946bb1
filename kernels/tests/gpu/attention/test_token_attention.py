"""The Triton kernel as it serves: through the dispatcher, on the device."""

import pytest
import torch
from kernel_support.pool import Pool

import text_generation_kernels as kernels
from text_generation_kernels.attention.token_attention import token_attention_torch

pytestmark = pytest.mark.gpu
EPS = 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 4, 128), (14, 2, 64), (8, 8, 128)], ids=str)
@pytest.mark.parametrize("kv_len", [1, 2, 128, 129, 513, 3000])
def test_about_as_close_to_the_formula_as_torch(
    kv_len: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    pool = Pool([kv_len], kv_heads, head_dim, dtype, "cuda")
    qkv = torch.randn(1, (heads + 2 * kv_heads) * head_dim, device="cuda")
    angles = 6 * torch.rand(kv_len, head_dim // 2, device="cuda")
    norms = [1 + 0.1 * torch.randn(head_dim, device="cuda") for _ in range(2)]
    position, slot = torch.tensor([kv_len - 1], device="cuda"), pool.slots(0)[-1:].long().cuda()
    tokens = kernels.NewTokens(torch.cat((angles.cos(), angles.sin()), dim=-1), position, slot)
    results: list[torch.Tensor] = []
    for operator, kind in (
        (token_attention_torch, torch.float32),
        (token_attention_torch, dtype),
        (kernels.token_attention, dtype),
    ):
        k, v = pool.k.to(kind), pool.v.to(kind)
        # What was in the slot before means nothing.
        k[slot] = v[slot] = float("nan")
        out = torch.full((1, heads, head_dim), float("nan"), device="cuda", dtype=kind)
        weights = [norm.to(dtype).to(kind) for norm in norms]
        prologue, cache = kernels.QkvPrologue(None, *weights, EPS), kernels.KvCache(k, v)
        operator(qkv.to(dtype).to(kind), prologue, tokens, cache, pool.decodes(4096), head_dim**-0.5, out)
        results.append(out.float())
        # The last slot is nobody's.
        assert not k[:-1].isnan().any()
        assert not v[:-1].isnan().any()
    expected, torch_out, out = results
    assert (out - expected).abs().max() <= 2 * (torch_out - expected).abs().max() + 1e-2
