"""Outlines of shapes and digits as points, and the pixels that they cover, with smooth edges."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Points = list[tuple[float, float]]
SEGMENTS = 24
"""Of a whole ellipse."""


@dataclass(frozen=True)
class Outline:
    """Lines of points between -1 and 1, x to the right and y down: the edge of an area, or the middle of strokes."""

    lines: tuple[Floats, ...]
    """[points, 2] each."""
    filled: bool


@dataclass(frozen=True)
class Placing:
    """Where an outline is drawn, and how it is bent. Lengths are shares of the picture's side."""

    x: float
    y: float
    radius: float
    turn: float = 0.0
    """Radians, clockwise."""
    width: float = 1.0
    """Of the outline, to its height."""
    slant: float = 0.0
    """How far the top moves to the right, in radii."""
    stroke: float = 0.18
    """Half of a stroke's width, in radii."""

    def place(self, points: Floats) -> Floats:
        """The points in the picture."""
        cos, sin = math.cos(self.turn), math.sin(self.turn)
        bent = np.array([[self.width, -self.slant], [0.0, 1.0]])
        matrix = np.array([[cos, -sin], [sin, cos]]) @ bent * self.radius
        return (points @ matrix.T + [self.x, self.y]).astype(np.float32)


def cover(outline: Outline, placing: Placing, side: int) -> Floats:
    """Which share of each pixel the outline covers, [side, side]."""
    lines = [placing.place(line) for line in outline.lines]
    starts = np.concatenate([line[:-1] for line in lines])
    ends = np.concatenate([line[1:] for line in lines])
    stroke = 0.0 if outline.filled else placing.stroke * placing.radius
    both = np.concatenate([starts, ends])
    first = np.clip(np.floor((both.min(0) - stroke) * side) - 1, 0, side).astype(int)
    last = np.clip(np.ceil((both.max(0) + stroke) * side) + 1, 0, side).astype(int)
    x, y = ((np.arange(low, high, dtype=np.float32) + 0.5) / side for low, high in zip(first, last, strict=True))
    pixels = np.stack(np.broadcast_arrays(x[None, :], y[:, None]), axis=-1)[:, :, None]
    distances = _distances(pixels, starts, ends)
    inside = distances * _signs(pixels, starts, ends) if outline.filled else distances - stroke
    covered = np.zeros((side, side), np.float32)
    covered[first[1] : last[1], first[0] : last[0]] = np.clip(0.5 - inside * side, 0.0, 1.0)
    return covered


def _distances(pixels: Floats, starts: Floats, ends: Floats) -> Floats:
    """From each pixel to the nearest of the segments."""
    along = ends - starts
    share = ((pixels - starts) * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-12)
    nearest = starts + np.clip(share, 0.0, 1.0)[..., None] * along
    return np.sqrt(((pixels - nearest) ** 2).sum(-1).min(-1))


def _signs(pixels: Floats, starts: Floats, ends: Floats) -> Floats:
    """-1 within the area, 1 outside: a ray to the right crosses its edge an odd number of times."""
    x, y = pixels[..., 0], pixels[..., 1]
    crosses = (starts[:, 1] > y) != (ends[:, 1] > y)
    rise = np.where(ends[:, 1] == starts[:, 1], 1.0, ends[:, 1] - starts[:, 1])
    right = x < starts[:, 0] + (y - starts[:, 1]) / rise * (ends[:, 0] - starts[:, 0])
    return np.where((crosses & right).sum(-1) % 2 == 1, -1.0, 1.0)


def _arc(x: float, y: float, wide: float, high: float, first: float = 0.0, last: float = 1.0) -> Points:
    """A part of an ellipse; `first` and `last` are shares of the way round, which starts at the right and goes down."""
    count = max(2, round(abs(last - first) * SEGMENTS) + 1)
    angles = [2 * math.pi * (first + (last - first) * index / (count - 1)) for index in range(count)]
    return [(x + wide * math.cos(angle), y + high * math.sin(angle)) for angle in angles]


def _star(points: int, inner: float) -> Points:
    radii = [1.0, inner] * points
    angles = [math.pi * (index / points - 0.5) for index in range(2 * points)]
    return [(radius * math.cos(angle), radius * math.sin(angle)) for radius, angle in zip(radii, angles, strict=True)]


def _heart() -> Points:
    turns = [math.pi * index / SEGMENTS for index in range(2 * SEGMENTS)]
    return [(math.sin(t) ** 3, -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t)) / 16) for t in turns]


def _area(points: Points) -> Outline:
    return Outline((np.array([*points, points[0]], np.float32),), filled=True)


def _strokes(*lines: Sequence[tuple[float, float]]) -> Outline:
    return Outline(tuple(np.array(line, np.float32) for line in lines), filled=False)


SHAPES = {
    "circle": _area(_arc(0, 0, 0.9, 0.9)[:-1]),
    "ring": _strokes(_arc(0, 0, 0.78, 0.78)),
    "square": _area([(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)]),
    "triangle": _area([(0, -0.95), (0.95, 0.75), (-0.95, 0.75)]),
    "star": _area(_star(5, 0.42)),
    "cross": _strokes([(-0.75, 0), (0.75, 0)], [(0, -0.75), (0, 0.75)]),
    "heart": _area(_heart()),
}
DIGITS = {
    "0": _strokes(_arc(0, 0, 0.55, 0.85)),
    "1": _strokes([(-0.35, -0.5), (0.05, -0.85), (0.05, 0.85)]),
    "2": _strokes([*_arc(0, -0.4, 0.5, 0.45, 0.5, 1.08), (-0.5, 0.85), (0.55, 0.85)]),
    "3": _strokes(_arc(-0.05, -0.42, 0.48, 0.43, 0.58, 1.25), _arc(-0.05, 0.43, 0.55, 0.43, 0.75, 1.42)),
    "4": _strokes([(0.25, 0.85), (0.25, -0.85), (-0.55, 0.35), (0.6, 0.35)]),
    "5": _strokes([(0.45, -0.85), (-0.4, -0.85), (-0.45, -0.05), *_arc(-0.02, 0.3, 0.52, 0.55, 0.65, 1.4)]),
    "6": _strokes(_arc(0, 0.35, 0.5, 0.5), [(0.35, -0.85), (-0.1, -0.5), (-0.4, 0), (-0.5, 0.35)]),
    "7": _strokes([(-0.5, -0.85), (0.5, -0.85), (-0.15, 0.85)]),
    "8": _strokes(_arc(0, -0.44, 0.4, 0.41), _arc(0, 0.42, 0.5, 0.45)),
    "9": _strokes(_arc(0, -0.35, 0.5, 0.5), [(0.5, -0.35), (0.4, 0.0), (0.1, 0.5), (-0.35, 0.85)]),
}
"""Filled areas, and strokes, whose width varies."""
