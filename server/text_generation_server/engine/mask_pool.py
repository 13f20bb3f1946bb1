"""Device pool of token masks. The router decides which slot holds which mask."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from text_generation_kernels import mask_words

from .requests import MaskForm, MaskWrite
from .transfer import upload

MOST_MASKS = 2048
"""Upper bound of mask slots: 32 MiB at 128k ids. A few thousand tokens of JSON need some tens of masks."""


def mask_bytes(vocab_size: int) -> int:
    """Returns the device memory of one mask."""
    return torch.int32.itemsize * mask_words(vocab_size)


def fitting_masks(vocab_size: int, room: int) -> int:
    """Returns the masks of a pool of `room` bytes: at least slot 0 and one more."""
    return max(2, min(MOST_MASKS, room // mask_bytes(vocab_size)))


class MaskPool:
    """The masks, `bits` int32 [max_masks, mask_words] (`mask_words` explains the bits). The engine thread owns them.

    Slot 0 allows everything. Another slot allows nothing until it is written.
    """

    def __init__(self, max_masks: int, vocab_size: int, device: torch.device) -> None:
        self.bits = torch.zeros(max_masks, mask_words(vocab_size), dtype=torch.int32, device=device)
        self.bits[0] = -1

    def write(self, writes: Sequence[MaskWrite]) -> None:
        """Queues one copy that fills all slots. `masks.check_masks` has checked the writes."""
        if not writes:
            return
        words = self.bits.shape[1]
        # Each row holds the slot, then the bits of its mask.
        packed = np.zeros((len(writes), 1 + words), dtype=np.int32)
        packed[:, 0] = [write.slot for write in writes]
        for row, write in zip(packed[:, 1:], writes, strict=True):
            row[:] = self._words(write)
        uploaded = upload(packed, self.bits.device)
        self.bits.index_copy_(0, uploaded[:, 0].to(torch.int64), uploaded[:, 1:])

    def _words(self, write: MaskWrite) -> NDArray[np.int32]:
        """Returns the words of one mask."""
        size = 4 * self.bits.shape[1]
        if write.form is MaskForm.BITS:
            packed = np.zeros(size, dtype=np.uint8)
            packed[: len(write.content)] = write.content
            return packed.view(np.int32)
        bits = np.full(8 * size, write.form is MaskForm.EXCEPT)
        bits[write.content] = write.form is MaskForm.ONLY
        return np.packbits(bits, bitorder="little").view(np.int32)
