"""Sources of weights: safetensors files, random numbers or bare shapes, which need none."""

from .dummy import DummySource
from .safetensors import SafetensorsSource
from .shapes import ShapeSource
from .source import Slice, WeightSource
from .stacked import StackedSource

__all__ = ["DummySource", "SafetensorsSource", "ShapeSource", "Slice", "StackedSource", "WeightSource"]
