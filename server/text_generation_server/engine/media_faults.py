"""Rows of the media pool that are not finite, and the requests that read them. Only the replies thread uses it."""

from collections.abc import Sequence

import numpy as np

from ..errors import NumericalError
from .media_pool import EncodedItem
from .media_positions import pool_rows
from .requests import RequestFailure
from .running import Computed, failure

_NOT_FINITE = NumericalError("the encoder's embeddings of an item of `media` hold NaN or infinite values")


class MediaFaults:
    """Follows the steps in their order: a row is as its last owner left it."""

    def __init__(self, num_rows: int) -> None:
        self._are_faulty = np.zeros(num_rows, dtype=np.bool_)

    def follow(self, encoded: Sequence[EncodedItem], chunks: Sequence[Computed]) -> list[RequestFailure]:
        """Takes what a step has encoded. Returns the failures of requests whose chunks read rows that are not finite,
        once for each request.
        """
        for item in encoded:
            self._are_faulty[item.row : item.row + item.rows] = not item.is_finite.wait().item()
        if not self._are_faulty.any():
            return []
        failures: list[RequestFailure] = []
        for each in chunks:
            if not each.owner.failed and self._reads_faulty(each):
                each.owner.failed = True
                failures.append(failure(each.owner.request, _NOT_FINITE))
        return failures

    def _reads_faulty(self, computed: Computed) -> bool:
        chunk, media = computed.chunk, computed.owner.request.media
        read = pool_rows(media, chunk.first, chunk.count)
        return any(self._are_faulty[row : row + inside.stop - inside.start].any() for inside, row in read)
