"""What models say of every token of some prompts, on one rank and on several."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from support.driver import Driver
from support.loading import load
from support.thread_ranks import together
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.models import CausalLM

PROMPTS = [[5, 9, 17, 23, 42, 77, 91], [4], list(range(30, 60))]


def log_probabilities(
    model: CausalLM, group: TensorParallelGroup | None = None, prompts: list[list[int]] = PROMPTS
) -> Tensor:
    """[tokens of all prompts, vocabulary], of prompts that are computed together."""
    driver = Driver(model, max_tokens=64, group=group)
    return driver.prefill({str(i): ids for i, ids in enumerate(prompts)}, all_logits=True).log_softmax(-1)


def of_groups(
    folder: Path, groups: Sequence[TensorParallelGroup], prompts: list[list[int]] = PROMPTS, **how: Any
) -> list[Tensor]:
    """The same of each rank of `groups`, which share the model of `folder`; `how`: as it is loaded."""

    def computed(group: TensorParallelGroup) -> Tensor:
        return log_probabilities(load(folder, group=group, **how), group, prompts)

    return together([partial(computed, group) for group in groups])
