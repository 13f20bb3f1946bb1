"""Model families and their loading."""

from .base import CausalLM
from .registry import load_model

__all__ = ["CausalLM", "load_model"]
