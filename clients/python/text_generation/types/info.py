"""What a server says of itself (`/info`)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ImageLimits:
    """What images a server takes. None: it does not say.

    Attributes:
        max_image_bytes: Largest file.
        max_image_pixels: Largest width times height.
        max_images_per_request: None also where as many are taken as fit.
        allowed_image_domains: Where images may be fetched from.
    """

    max_image_bytes: int | None = None
    max_image_pixels: int | None = None
    max_images_per_request: int | None = None
    allowed_image_domains: list[str] = field(default_factory=list[str])


@dataclass
class Info:
    """The part of `/info` that this client reads."""

    images: ImageLimits | None = None
