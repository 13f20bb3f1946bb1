"""Models that draft tokens for speculation: what `--drafter` names."""

from .base import Drafter, DraftStep, draft_windows
from .draft_model import DraftModel
from .load import load_drafter
from .mtp import ModelEnds, MtpDrafter, MtpLayer

__all__ = ["DraftModel", "DraftStep", "Drafter", "ModelEnds", "MtpDrafter", "MtpLayer", "draft_windows", "load_drafter"]
