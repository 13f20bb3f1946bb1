"""With --deterministic a token's all-reduce does not depend on the tokens beside it."""

from pathlib import Path

import torch
import torch.multiprocessing as mp
from support.deterministic_ranks import DTYPES, TOKENS, WORLD, part, save_sums, write_model


def test_all_reduces_of_four_ranks_are_the_same_to_the_bit_in_messages_of_any_size(tmp_path: Path) -> None:
    write_model(tmp_path)
    mp.spawn(save_sums, (tmp_path,), nprocs=WORLD)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD)]
    for dtype in DTYPES:
        whole = ranks[0][dtype, max(TOKENS)]
        exact = torch.stack([part(rank, dtype) for rank in range(WORLD)]).double().sum(0)
        torch.testing.assert_close(whole.double(), exact, atol=1e-5, rtol=2.0**-8 if dtype == torch.bfloat16 else 1e-5)
        for found in ranks:
            assert all(torch.equal(found[dtype, tokens], whole[:tokens]) for tokens in TOKENS)
