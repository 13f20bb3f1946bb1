"""The new tokens of several requests, concatenated, as recurrent operators read them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """A run is the new tokens of one request in a step. The engine owns all tensors; all layers of a step share them.

    A run as long as its request begins it, with a zero state, whatever the pool holds. Nothing is read or written for a
    run without tokens or of a request of length 0, nor for tokens of no run. A row belongs to one run; the torch
    implementations compute runs one after the other, so there several decodes may be tokens of one row.
    """

    rows: Tensor
    """[R] int64, the row of each request in the pool of states."""
    starts: Tensor | None
    """[R + 1] int32: run i is tokens `starts[i] : starts[i + 1]`, maybe none (chunks). None: it is token i alone
    (decodes).
    """
    kv_lens: Tensor
    """[R] int32, the tokens of each request after the step; 0 for padding."""
    max_len: int
    """About the length of the longest run; it only chooses kernels."""
