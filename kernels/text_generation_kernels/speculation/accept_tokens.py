"""Accepts the drafts that the model itself chose, and appends what it chose to the sequences.

Let y_j be the token that was chosen at entry j of a window and x_j the draft after it. Entry j + 1 was computed as if
x_j were the next token, so y_{j+1} is the row's choice if and only if y_j = x_j (exact match, Leviathan et al., 2023,
with choices that are functions of logits and seed). So

    count = 1 + (leading j with y_j = x_j and a valid y_{j+1}, within the window)

tokens are appended, and what is appended is what single steps would have appended:

    last_token[r] = y_{count-1},  length[r] += count,  generated[r] += count,  tokens[r, L + j] = y_j
    counts[r, y_j] = (counts[r, y_j] | 1) + 2       for rows with penalties, one token after the other

Rows of length 0 pad batches and stay unchanged, as do rows at their limit: `count` 0.

Layouts: `values.py`; `chosen` int64 and `valid` int32 `[D * width]` with any stride; `outcome` int64 `[D, 4]` is
written: `count`; the drafts of the window; how many drafts were right, of those within the window and the one behind
it, for which there is a choice as well; and whether the drafts were those of a hint, which is used up: `hinted[r]` = 0.

Called once a step. Bytes floor: about 100 a token; the launch dominates.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton
from ..sampling.columns import FLAGS, HAS_PENALTIES, INTS, Flags, Ints
from ..sampling.values import SampledTokens, SamplingColumns
from .values import Drafts, Sequences, Windows

_BLOCK = 64


@triton.jit(do_not_specialize=["batch"], do_not_specialize_on_alignment=["rows_ptr", "caps_ptr"])
def accept_tokens_kernel(
    chosen_ptr,  # [batch * WIDTH]
    valid_ptr,  # [batch * WIDTH]
    rows_ptr,  # [batch]
    caps_ptr,  # [batch]
    last_token_ptr,  # [rows]
    length_ptr,  # [rows]
    generated_ptr,  # [rows]
    tokens_ptr,  # [rows, positions]
    drafts_ptr,  # [rows, most]
    counts_ptr,  # [rows]
    limits_ptr,  # [rows]
    hinted_ptr,  # [rows]
    ints_ptr,  # [rows, INTS]
    penalties_ptr,  # [rows, vocab]
    outcome_ptr,  # [batch, 4]
    vocab,
    positions,
    most,
    stride_chosen,
    stride_valid,
    batch,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread accepts the tokens of one row."""
    wait_for_previous(PDL)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = place < batch
    row = tl.load(rows_ptr + place, mask=exists, other=0)
    cap = tl.load(caps_ptr + place, mask=exists, other=1)
    length = tl.load(length_ptr + row, mask=exists, other=0)
    limit = tl.load(limits_ptr + row, mask=exists, other=0)
    drafted = tl.load(counts_ptr + row, mask=exists, other=0)
    usable = tl.minimum(tl.minimum(drafted, cap - 1), limit - length - 1)
    still = exists & (length > 0) & (length < limit)
    active = still
    count = still.to(tl.int64)
    right = count * 0
    for j in tl.static_range(WIDTH):
        chosen = tl.load(chosen_ptr + (place * WIDTH + j) * stride_chosen, mask=still, other=-1)
        draft = tl.load(drafts_ptr + row * most + j, mask=still & (j < drafted), other=-2)
        still = still & (chosen == draft)
        right += still.to(tl.int64)
        if j < WIDTH - 1:
            sound = tl.load(valid_ptr + (place * WIDTH + j + 1) * stride_valid, mask=still, other=0)
            still = still & (j < usable) & (sound == 1)
            count += still.to(tl.int64)
    penalised = active & ((tl.load(ints_ptr + row * INTS + FLAGS, mask=active, other=0) & HAS_PENALTIES) != 0)
    token = tl.load(last_token_ptr + row, mask=active, other=0)
    for j in tl.static_range(WIDTH):
        taken = active & (j < count)
        token = tl.load(chosen_ptr + (place * WIDTH + j) * stride_chosen, mask=taken, other=0)
        tl.store(last_token_ptr + row, token, mask=taken)
        tl.store(tokens_ptr + row * positions + length + j, token.to(tl.int32), mask=taken & (length + j < positions))
        penalty_ptr = penalties_ptr + row * vocab + token
        before = tl.load(penalty_ptr, mask=taken & penalised, other=0)
        tl.store(penalty_ptr, (before | 1) + 2, mask=taken & penalised)
    generated = tl.load(generated_ptr + row, mask=active, other=0)
    tl.store(length_ptr + row, length + count, mask=active)
    tl.store(generated_ptr + row, generated + count, mask=active)
    hinted = tl.load(hinted_ptr + row, mask=active, other=0)
    tl.store(hinted_ptr + row, 0, mask=active)
    tl.store(outcome_ptr + place * 4, count, mask=exists)
    tl.store(outcome_ptr + place * 4 + 1, tl.where(active, tl.maximum(usable, 0), 0), mask=exists)
    tl.store(outcome_ptr + place * 4 + 2, right, mask=exists)
    tl.store(outcome_ptr + place * 4 + 3, hinted, mask=exists)


_launch = Launcher(
    accept_tokens_kernel,
    writes=("last_token", "length", "generated", "tokens", "hinted", "penalties", "outcome"),
    dependents="at the end",
)


def accept_tokens_triton(
    windows: Windows,
    sampled: SampledTokens,
    sequences: Sequences,
    drafts: Drafts,
    columns: SamplingColumns,
    outcome: Tensor,
) -> None:
    """Triton implementation."""
    batch = windows.rows.shape[0]
    if batch == 0:
        return
    _launch(
        (triton.cdiv(batch, _BLOCK),),
        (
            sampled.tokens, sampled.valid, windows.rows, windows.caps, sequences.last_token, sequences.length,
            sequences.generated, drafts.tokens, drafts.ids, drafts.counts, drafts.limits, drafts.hinted, columns.ints,
            columns.counts, outcome,
        ),
        (columns.vocab_size, drafts.tokens.stride(0), drafts.most, sampled.tokens.stride(0), sampled.valid.stride(0)),
        (batch,),
        WIDTH=windows.width,
        BLOCK=_BLOCK,
        num_warps=2,
    )  # fmt: skip


def accept_tokens_torch(
    windows: Windows,
    sampled: SampledTokens,
    sequences: Sequences,
    drafts: Drafts,
    columns: SamplingColumns,
    outcome: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    width = windows.width
    penalised = (columns.ints[windows.rows, Ints.FLAGS] & int(Flags.PENALTIES) != 0).tolist()
    caps, rows = windows.caps.tolist(), windows.rows.tolist()
    chosen = sampled.tokens.view(-1, width).tolist()
    valid = sampled.valid.view(-1, width).tolist()
    for place, row in enumerate(rows):
        length, limit = int(sequences.length[row]), int(drafts.limits[row])
        count = usable = right = hinted = 0
        if 0 < length < limit:
            drafted = drafts.ids[row, : int(drafts.counts[row])].tolist()
            usable = max(0, min(len(drafted), caps[place] - 1, limit - length - 1))
            accepted, right = _matching(chosen[place], drafted[:width], valid[place], usable)
            count, hinted = 1 + accepted, int(drafts.hinted[row])
            drafts.hinted[row] = 0
            taken = chosen[place][:count]
            sequences.last_token[row] = taken[-1]
            end = min(length + count, drafts.tokens.shape[1])
            drafts.tokens[row, length:end] = torch.tensor(taken[: end - length], dtype=torch.int32)
            sequences.length[row] += count
            sequences.generated[row] += count
            for token in taken if penalised[place] else ():
                columns.counts[row, token] = (columns.counts[row, token] | 1) + 2
        outcome[place] = torch.tensor([count, usable, right, hinted])


def _matching(chosen: list[int], drafts: list[int], valid: list[int], usable: int) -> tuple[int, int]:
    """Returns how many drafts are accepted, and how many are right."""
    for j, draft in enumerate(drafts):
        if chosen[j] != draft:
            return j, j
        if j >= usable or valid[j + 1] != 1:
            return j, j + 1
    return len(drafts), len(drafts)


accept_tokens = by_device(accept_tokens_torch, accept_tokens_triton)
