"""The torch implementation beside the classes of transformers, and what the operator refuses."""

import pytest
import torch
from torch import Tensor, nn
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1RMSNormGated
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearRMSNormGated
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated
from transformers.models.zamba2.modeling_zamba2 import Zamba2RMSNormGated

import text_generation_kernels as kernels
from text_generation_kernels.norm.gated_norm import gated_norm_triton

EPS = 1e-5
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def _inputs(groups: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x, and a gate that is a slice of a GEMM output."""
    torch.manual_seed(0)
    x, product = torch.randn(7, groups, size).to(dtype), 2 * torch.randn(7, 3 * groups * size).to(dtype)
    return x, product[:, groups * size : 2 * groups * size].view(7, groups, size)


def _check(oracle: nn.Module, x: Tensor, gate: Tensor, weight: Tensor, gate_first: bool, flat: bool) -> None:
    """Rounded where the oracle rounds: but for the last bits of statistics, values are the same."""
    with torch.no_grad():
        oracle.weight.copy_(weight.flatten() if flat else weight)
        expected = oracle(x.flatten(1), gate.flatten(1)).view(x.shape) if flat else oracle(x, gate)
    out = torch.full_like(x, float("nan"))
    kernels.gated_norm(x, gate, weight, EPS, gate_first, out)
    torch.testing.assert_close(out, expected, atol=TOLERANCE[x.dtype], rtol=TOLERANCE[x.dtype])
    if x.dtype != torch.float32:
        assert (out == expected).float().mean() > 0.99
    kernels.gated_norm(x, gate, weight, EPS, gate_first, x)
    assert torch.equal(x, out)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_norm_before_the_gate(dtype: torch.dtype) -> None:
    x, gate = _inputs(4, 48, dtype)
    _check(Qwen3NextRMSNormGated(48, EPS).to(dtype), x, gate, torch.rand(48).to(dtype), gate_first=False, flat=False)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_gate_before_the_norm_of_all_channels(dtype: torch.dtype) -> None:
    x, gate = _inputs(1, 96, dtype)
    _check(MambaRMSNormGated(96, 96, EPS).to(dtype), x, gate, torch.rand(96).to(dtype), gate_first=True, flat=True)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_gate_before_the_norm_of_groups_with_weights_of_their_own(dtype: torch.dtype) -> None:
    x, gate = _inputs(4, 24, dtype)
    _check(Zamba2RMSNormGated(96, 24, EPS).to(dtype), x, gate, torch.rand(4, 24).to(dtype), gate_first=True, flat=True)


@pytest.mark.parametrize("gate_first", [False, True])
def test_a_float32_weight_leaves_one_rounding(gate_first: bool) -> None:
    x, gate = _inputs(4, 24, torch.bfloat16)
    oracle = FalconH1RMSNormGated(96, EPS, n_groups=4, norm_before_gate=not gate_first)
    _check(oracle, x, gate, torch.rand(4, 24), gate_first, flat=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opened_by_the_sigmoid(dtype: torch.dtype) -> None:
    """The weight is never rounded there, so it has 32 bits here."""
    (x, gate), weight = _inputs(4, 48, dtype), torch.rand(48)
    oracle = KimiLinearRMSNormGated(48, EPS)
    with torch.no_grad():
        oracle.weight.copy_(weight)
        expected = oracle(x, gate)
    kernels.gated_norm(x, gate, weight, EPS, False, x, "sigmoid")
    torch.testing.assert_close(x, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_what_the_kernel_does_not_read_is_refused() -> None:
    x, weight = torch.randn(5, 4, 8), torch.ones(8)
    with pytest.raises(ValueError, match="gated_norm: unknown opening 'tanh'"):
        gated_norm_triton(x, x, weight, EPS, True, x, "tanh")
    with pytest.raises(ValueError, match="gated_norm: shapes of x, gate, weight, out do not fit"):
        gated_norm_triton(x, x, torch.ones(4), EPS, True, x)
    with pytest.raises(ValueError, match="gated_norm: the groups of a token must be contiguous"):
        gated_norm_triton(x, torch.randn(5, 4, 9)[..., :8], weight, EPS, True, x)
    with pytest.raises(ValueError, match="gated_norm: weight must be contiguous"):
        gated_norm_triton(x, x, torch.ones(16)[::2], EPS, True, x)
