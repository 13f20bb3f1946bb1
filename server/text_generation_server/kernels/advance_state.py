"""Appends the chosen tokens to their sequences: newest token, lengths, and how often the token was seen.

    last_token[r] = token,  length[r] += 1,  generated[r] += 1
    counts[r, token] = (counts[r, token] | 1) + 2       for rows with penalties

Rows of length 0 belong to nobody: batches are padded with them, in several positions at once, and they stay as they
are. Every other row stands in one position only.

Layouts: `tokens` int64 `[N]` with any stride, `rows` int64 `[N]`; `last_token`, `length`, `generated` int64 and `ints`
int32 by row; `counts` int32 `[rows, vocab]`.

Called once a step. Bytes floor: about 100 a position; only the launch costs anything.
"""

# pyright: basic, reportArgumentType=false
from torch import Tensor

from ._register import register
from ._sampling import Flags, Ints


def advance_state_torch(
    tokens: Tensor,
    rows: Tensor,
    last_token: Tensor,
    length: Tensor,
    generated: Tensor,
    ints: Tensor,
    counts: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    owned = length[rows] > 0
    tokens, rows = tokens[owned], rows[owned]
    last_token[rows] = tokens
    length[rows] += 1
    generated[rows] += 1
    penalised = ints[rows, Ints.FLAGS] & Flags.PENALTIES != 0
    where = rows[penalised], tokens[penalised]
    counts[where] = (counts[where] | 1) + 2


advance_state = register(advance_state_torch, mutates=("last_token", "length", "generated", "counts"))
"""advance_state(tokens, rows, last_token, length, generated, ints, counts)"""
