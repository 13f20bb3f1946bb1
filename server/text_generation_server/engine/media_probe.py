"""The media parts of a runner, and what they take, for warm-up."""

from dataclasses import dataclass

from ..models.base import CausalLM
from ..models.encoder import Encoder
from .media_cost import encode_once, samples
from .media_plans import MediaChecker, MediaLimits
from .media_pool import MediaPool
from .media_requests import MediaInfo
from .memory import Memory
from .requests import WarmupLimits


@dataclass(frozen=True)
class MediaProbe:
    """Everything about media that depends on the model and on Warmup. It serves none where `info` is None, or where
    `limits` have no rows.
    """

    model: CausalLM
    info: MediaInfo | None
    limits: MediaLimits

    @classmethod
    def of(cls, model: CausalLM, info: MediaInfo | None, asked: WarmupLimits) -> "MediaProbe":
        """Takes the limits that the operator asked for."""
        return cls(model, info, MediaLimits(asked.media_rows, asked.max_media_pixels))

    @property
    def encoder(self) -> Encoder | None:
        """The encoder, where media is served."""
        return self.model.encoder if self.info is not None and self.limits.rows else None

    @property
    def axes(self) -> bool:
        """Whether positions count along axes. Without media all axes are one."""
        return self.encoder is not None and self.encoder.axes

    @property
    def num_bytes(self) -> int:
        """Bytes of the media pool and of pixels that wait."""
        encoder = self.encoder
        return 0 if encoder is None else MediaPool.num_bytes(encoder, self.limits, self.model.dtype)

    def checker(self) -> MediaChecker:
        """Makes a checker of requests and plans."""
        return MediaChecker(self.info, self.limits)

    def pool(self) -> MediaPool | None:
        """Allocates the media pool."""
        encoder, model = self.encoder, self.model
        if encoder is None or self.info is None:
            return None
        return MediaPool(encoder, self.limits, model.dtype, model.device, self.info.packs)

    def encode_samples(self) -> None:
        """Runs every kernel of the encoder."""
        if (encoder := self.encoder) is not None:
            for views in samples(encoder, self.limits.max_pixels):
                encode_once(encoder, views, self.model.device)

    def encode_largest(self, memory: Memory) -> int:
        """Encodes the largest item, and returns the bytes that it needs, of which it releases everything. An item under
        way holds them between steps too.
        """
        encoder = self.encoder
        if encoder is None:
            return 0
        memory.begin_peak()
        held = memory.held()
        encode_once(encoder, encoder.sample(self.limits.max_pixels), self.model.device)
        needed = memory.peak() - held
        memory.release()
        return needed
