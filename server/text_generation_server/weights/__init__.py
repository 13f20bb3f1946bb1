"""Sources of weights: safetensors files, or random numbers that need none."""

from .dummy import DummySource
from .safetensors import SafetensorsSource
from .source import Slice, WeightSource

__all__ = ["DummySource", "SafetensorsSource", "Slice", "WeightSource"]
