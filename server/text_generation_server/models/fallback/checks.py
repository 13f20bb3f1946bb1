"""Whether a class can be served, without its weights."""

import torch

from ...config.fallback import FallbackConfig
from .rehearsal import rehearse
from .skeleton import build_skeleton


def check_runnable(config: FallbackConfig) -> None:
    """Raises UnsupportedModel or ConfigurationError, with the reason."""
    rehearse(build_skeleton(config, torch.float32))
