"""Sources of weights: safetensors files, random numbers or bare shapes, which need none."""

from .dummy import DummySource
from .expert_stacks import STACK_SCALES, ExpertStacks, ExpertStacksSource
from .safetensors import SafetensorsSource
from .shapes import ShapeSource
from .source import Slice, WeightSource
from .stacked import StackedSource

__all__ = [
    "STACK_SCALES",
    "DummySource",
    "ExpertStacks",
    "ExpertStacksSource",
    "SafetensorsSource",
    "ShapeSource",
    "Slice",
    "StackedSource",
    "WeightSource",
]
