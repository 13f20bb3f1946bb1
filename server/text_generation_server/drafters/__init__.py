"""Models that draft tokens for speculation: what `--drafter` names."""

from .base import Drafter, DraftStep, draft_windows
from .load import load_drafter

__all__ = ["DraftStep", "Drafter", "draft_windows", "load_drafter"]
