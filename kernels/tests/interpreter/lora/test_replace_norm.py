"""The kernel of norms that adapters replace in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support.norms import replaced

from text_generation_kernels.lora.replace_norm import replace_norm_triton

TOLERANCE = {torch.float16: 2e-3, torch.float32: 1e-5}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("is_rms", "has_bias"), [(True, False), (False, False), (False, True)])
def test_tokens_get_the_norm_of_their_adapter(is_rms: bool, has_bias: bool, dtype: torch.dtype) -> None:
    found, expected = replaced(replace_norm_triton, is_rms, has_bias, dtype)
    torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=1e-3, equal_nan=True)
