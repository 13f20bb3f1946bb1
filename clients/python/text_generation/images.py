"""Images for messages and prompts."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from stat import S_ISREG
from typing import Any

from text_generation.errors import ValidationError
from text_generation.types import Chunk, ImageUrl

_SIGNATURES = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png", b"GIF87a": "gif", b"GIF89a": "gif"}


@dataclass
class Image(Chunk):
    """An image as a part of a message: JPEG, PNG, WebP or GIF, of which models see the first frame.

    >>> from text_generation.types import Message
    >>> cat = Image.from_url("https://example.org/cat.jpg")
    >>> message = Message("user", [cat, Chunk("text", text="What is it?")])

    In a prompt of `Client.generate` it is `markdown`.
    """

    type: str = "image_url"

    @classmethod
    def from_path(cls, path: str | PathLike[str], *, detail: str | None = None, max_bytes: int | None = None) -> Image:
        """Read the image from a file.

        Args:
            path: The file.
            detail: As in `ImageUrl`.
            max_bytes: Refuse a larger file without reading it.

        Raises:
            ValidationError: The file cannot be read, is larger than `max_bytes`, or is no image that servers take.
        """
        file, name = Path(path), fspath(path)
        try:
            status = file.stat()
            if not S_ISREG(status.st_mode):
                raise ValidationError(f"cannot read the image {name}: it is no file")
            size = status.st_size
            if max_bytes is not None and size > max_bytes:
                raise ValidationError(f"the image {name} has {size:,} bytes; the server takes up to {max_bytes:,}")
            data = file.read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise ValidationError(f"cannot read the image {name}: {reason or error}") from error
        return cls._of(data, name, detail)

    @classmethod
    def from_bytes(cls, data: bytes, *, detail: str | None = None) -> Image:
        """Take the bytes of an image file; raises `ValidationError` if they are none that servers take."""
        return cls._of(data, "the data", detail)

    @classmethod
    def from_url(cls, url: str, *, detail: str | None = None) -> Image:
        """Take a data URL, or a link, which a server must be allowed to follow (`--allowed-image-domains`).

        Raises:
            ValidationError: It is neither.
        """
        if not url.lower().startswith(("data:", "http://", "https://")):
            raise ValidationError(
                f"an image needs a URL that begins with data:, http:// or https://. Given: {url[:100]!r}"
            )
        return cls(image_url=ImageUrl(url, detail))

    @classmethod
    def _of(cls, data: bytes, name: str, detail: str | None) -> Image:
        kind = _kind(data)
        if kind is None:
            raise ValidationError(f"{name} is no JPEG, PNG, WebP or GIF, which are the images that servers take")
        return cls(image_url=ImageUrl(f"data:image/{kind};base64,{base64.b64encode(data).decode()}", detail))

    @property
    def url(self) -> str:
        """The data URL or link."""
        image: ImageUrl | Mapping[str, Any] = self.image_url or {}
        return image.url if isinstance(image, ImageUrl) else str(image.get("url", ""))

    @property
    def markdown(self) -> str:
        """The image as TGI has it in prompts: `![](URL)`. `detail` has no place there."""
        return f"![]({self.url})"


def _kind(data: bytes) -> str | None:
    """The type that the first bytes of a file tell."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((kind for signature, kind in _SIGNATURES.items() if data.startswith(signature)), None)
