"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch

from text_generation_kernels.sampling.embed import embed_torch, embed_triton


@pytest.mark.parametrize("hidden", [8, 1024, 1500])
@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_rows_by_id(tokens: int, hidden: int) -> None:
    table = torch.randn(7, 2 * hidden)[:, :hidden]
    ids = torch.tensor([6, 0, 6])[:tokens]
    for operator in (embed_torch, embed_triton):
        out = torch.full((tokens, hidden), torch.nan)
        operator(ids, table, out)
        assert torch.equal(out, table[ids])


def test_layouts_that_are_refused() -> None:
    table = torch.randn(7, 16)
    with pytest.raises(ValueError, match="embed: out must be contiguous"):
        embed_triton(torch.tensor([1]), table, torch.empty(2, 16))
