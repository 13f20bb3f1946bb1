"""Packing of prompts: padding, as graphs need it, changes nothing of what requests get."""

from pathlib import Path

import torch
from support.engine_driver import make_request
from support.loading import load

from text_generation_server.engine.batches import RunningRequest
from text_generation_server.engine.kv_pool import KVPool, allocate_pool
from text_generation_server.engine.requests import SlotRange
from text_generation_server.engine.rows import RowTable
from text_generation_server.engine.steps import PackedPrompts, part_lengths, prefill_input
from text_generation_server.engine.transfer import upload_parts

CPU = torch.device("cpu")
PROMPTS = [[7, 8, 9, 10, 11], [42], [99, 3, 64]]
NUM_ROWS, NUM_SLOTS = 8, 40


def running(table: RowTable) -> list[RunningRequest]:
    """The prompts, the second with a copy, the third with log-probabilities of its prompt."""
    requests, slot = [], 0
    for number, prompt in enumerate(PROMPTS):
        slots = [SlotRange(slot, len(prompt))]
        slot += len(prompt)
        request = make_request(number, prompt, slots, prefill_logprobs=number == 2)
        requests.append(RunningRequest(request, table.take()))
    requests.append(RunningRequest(requests[1].request, table.take(), copy_of=requests[1]))
    table.open(requests)
    table.grant([(r, r.request.slots) for r in requests])
    return requests


def test_padding_changes_no_hidden_state(llama_folder: Path) -> None:
    model = load(llama_folder)
    table = RowTable(NUM_ROWS, 16, NUM_SLOTS, CPU)
    prompts = PackedPrompts.of(running(table))
    # Row by row: the ends of the three prompts, the copy's, and every token of the third prompt.
    assert prompts.logit_indices.tolist() == [4, 5, 8, 5, 6, 7, 8]

    def forward(packed: PackedPrompts) -> tuple[torch.Tensor, KVPool]:
        pool = allocate_pool(model, NUM_SLOTS)
        # What was never written to must not matter.
        for cache in (*pool.k_cache, *pool.v_cache):
            cache.fill_(torch.nan)
        return model.forward(*prefill_input(upload_parts(packed.parts, CPU), 5, table, pool, False)), pool

    hidden, pool = forward(prompts)
    larger = prompts.padded(tokens=16, requests=6, logits=9, padding_row=NUM_ROWS)
    assert [len(part) for part in larger.parts] == part_lengths(tokens=16, requests=6, logits=9)
    padded, padded_pool = forward(larger)

    torch.testing.assert_close(padded[: len(hidden)], hidden)
    assert len(padded) == 9
    written = sum(len(prompt) for prompt in PROMPTS)
    torch.testing.assert_close(padded_pool.k_cache[1][:written], pool.k_cache[1][:written])
    assert padded_pool.v_cache[1][written:NUM_SLOTS].isnan().all()
