"""Adapters of a model without an engine."""

from collections.abc import Sequence
from pathlib import Path

import torch

from text_generation_server.engine.adapter_plans import AdapterChecker, Resident
from text_generation_server.models import CausalLM


@torch.inference_mode()
def on_device(model: CausalLM, folders: Sequence[Path]) -> AdapterChecker:
    """Brings adapters to the device, as numbers 1, 2, ... on pages next to each other."""
    known = model.adapters
    assert known is not None
    adapters = [known.pack(known.read(each.name, each, untrusted=False)) for each in folders]
    pages = sum(each.pages for each in adapters)
    pool = known.allocate(known.room(pages, adapters, later=False), adapters)
    checker, first, residents = AdapterChecker(pages), 0, dict[int, Resident]()
    for number, each in enumerate(adapters, 1):
        pool.put(each, number, first)
        residents[number] = Resident(first, each.pages, each.by_output, each, ready=True)
        first += each.pages
    checker.residents = residents
    return checker
