"""What the server says of itself: `GET /info`."""

from __future__ import annotations

from typing import Any

from text_generation.codec import decode
from text_generation.endpoints.call import Answer, Call
from text_generation.types import ImageLimits, Info


def image_limits(_client: object) -> Answer[ImageLimits | None]:
    """What images the server takes; None where its model reads text alone, or where it does not say, as with TGI.

    >>> client.image_limits().max_image_bytes
    20000000

    Raises:
        TextGenerationError: The server refused or failed, has no `/info`, or cannot be reached; see `errors`.
    """
    return Call("/info", None, False, _images)


def _images(payload: Any) -> ImageLimits | None:
    return decode(Info, payload).images
