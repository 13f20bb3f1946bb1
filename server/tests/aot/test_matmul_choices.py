"""Which kernels compute which matmul, without a GPU."""

# pyright: basic
from functools import partial

import pytest
import torch
from kernel_support.choices import CARDS, Card, dry_run, noted_choices
from support.matmul_cases import DRY_TOKENS, LLAMA_8B, TOKENS, cases


def _kernels(launches: tuple[str, ...]) -> set[str]:
    return {each for each in launches if "_kernel(" in each}


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
@torch.inference_mode()
def test_a_compile_dry_run_names_what_any_number_of_tokens_needs(card: Card) -> None:
    """Of each matmul, at a few numbers of tokens. A variant that it does not name stalls a request."""
    with noted_choices(card) as launches:
        for name, compute in cases((*LLAMA_8B[:4], (1000, 2048), (96, 264))):
            with dry_run():
                named = {each for count in DRY_TOKENS for each in _kernels(launches(partial(compute, count)))}
            for count in TOKENS:
                missing = _kernels(launches(partial(compute, count))) - named
                assert not missing, (name, count)
