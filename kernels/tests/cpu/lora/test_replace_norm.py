"""Norms that adapters replace, in torch, and what the operator refuses."""

import pytest
import torch
from kernel_support.norms import EPS, replaced

from text_generation_kernels import replace_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("is_rms", "has_bias"), [(True, False), (False, False), (False, True)])
def test_tokens_get_the_norm_of_their_adapter(is_rms: bool, has_bias: bool, dtype: torch.dtype) -> None:
    found, expected = replaced(replace_norm, is_rms, has_bias, dtype)
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_shapes_that_do_not_fit_are_named() -> None:
    x, ints = torch.zeros(2, 4), torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="replace_norm: shapes do not fit"):
        replace_norm(x, ints, ints, torch.zeros(1, 5), None, EPS, True, x)
    with pytest.raises(ValueError, match="replace_norm: tokens of x and out"):
        replace_norm(x.t().contiguous().t(), ints, ints, torch.zeros(1, 4), None, EPS, True, x)
