"""Appends the sampled tokens to their sequences: newest token, lengths and token counts.

    last_token[r] = token,  length[r] += 1,  generated[r] += 1
    counts[r, token] = (counts[r, token] | 1) + 2       for rows with penalties

Rows of length 0 pad batches, several times in one batch, and stay unchanged. Every other row occurs once in a batch.

Layouts: `tokens` int64 `[N]` with any stride, `rows` int64 `[N]`; `last_token`, `length`, `generated` int64 by row;
`columns` as in `values.py`.

Called once a step. Bytes floor: about 100 a token; the launch dominates.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton
from .columns import FLAGS, HAS_PENALTIES, INTS, Flags, batch_indices, flags_of
from .values import SamplingColumns


@triton.jit(do_not_specialize=["batch"], do_not_specialize_on_alignment=["tokens_ptr", "rows_ptr"])
def advance_state_kernel(
    tokens_ptr,  # [batch]
    rows_ptr,  # [batch]
    last_token_ptr,  # [rows]
    length_ptr,  # [rows]
    generated_ptr,  # [rows]
    ints_ptr,  # [rows, INTS]
    counts_ptr,  # [rows, vocab]
    vocab,
    stride_tokens,
    batch,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block advances BLOCK tokens."""
    wait_for_previous(PDL)
    launch_dependents(PDL)
    batch_index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = batch_index < batch
    row = tl.load(rows_ptr + batch_index, mask=valid, other=0)
    token = tl.load(tokens_ptr + batch_index * stride_tokens, mask=valid, other=0)
    length = tl.load(length_ptr + row, mask=valid, other=0)
    owned = length > 0
    generated = tl.load(generated_ptr + row, mask=owned, other=0)
    tl.store(last_token_ptr + row, token, mask=owned)
    tl.store(length_ptr + row, length + 1, mask=owned)
    tl.store(generated_ptr + row, generated + 1, mask=owned)
    penalised = owned & ((tl.load(ints_ptr + row * INTS + FLAGS, mask=owned, other=0) & HAS_PENALTIES) != 0)
    count_ptr = counts_ptr + row * vocab + token
    count = tl.load(count_ptr, mask=penalised, other=0)
    tl.store(count_ptr, (count | 1) + 2, mask=penalised)


_BLOCK = 64
_launch = Launcher(
    advance_state_kernel, writes=("last_token", "length", "generated", "counts"), dependents="after the wait"
)


def advance_state_triton(
    tokens: Tensor,
    rows: Tensor,
    last_token: Tensor,
    length: Tensor,
    generated: Tensor,
    columns: SamplingColumns,
) -> None:
    """Triton implementation."""
    batch = rows.shape[0]
    if batch == 0:
        return
    _launch(
        (triton.cdiv(batch, _BLOCK),),
        (tokens, rows, last_token, length, generated, columns.ints, columns.counts),
        (columns.vocab_size, tokens.stride(0)),
        (batch,),
        BLOCK=_BLOCK,
        num_warps=2,
    )


def advance_state_torch(
    tokens: Tensor,
    rows: Tensor,
    last_token: Tensor,
    length: Tensor,
    generated: Tensor,
    columns: SamplingColumns,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    owned = [batch_index for batch_index, n in enumerate(length.index_select(0, rows).tolist()) if n > 0]
    if len(owned) < rows.shape[0]:
        tokens, rows = tokens[owned], rows[owned]
    one = torch.ones_like(rows)
    last_token.index_copy_(0, rows, tokens)
    length.index_add_(0, rows, one)
    generated.index_add_(0, rows, one)
    if penalised := batch_indices(flags_of(columns.ints, rows), Flags.PENALTIES):
        where = rows[penalised], tokens[penalised]
        columns.counts[where] = (columns.counts[where] | 1) + 2


advance_state = by_device(advance_state_torch, advance_state_triton)
