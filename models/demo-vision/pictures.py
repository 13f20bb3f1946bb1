"""Pictures that the demo model for images learns from: one or two things on a pale ground, drawn by a seed.

Run it to see some, as PNG files: `python pictures.py --output <folder> --count 20`.
"""

import argparse
import random
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from outlines import DIGITS, SHAPES, Placing, cover

SIDE = 84
"""Pixels along a side of what the model reads."""
COLOURS = {
    "red": (215, 35, 40), "green": (40, 150, 60), "blue": (35, 75, 205), "yellow": (240, 205, 30),
    "orange": (240, 130, 25), "purple": (120, 45, 150), "pink": (245, 120, 175), "black": (20, 20, 20),
}  # fmt: skip
ONE = {
    "in the middle": (0.5, 0.5), "on the left": (0.22, 0.5), "on the right": (0.78, 0.5), "at the top": (0.5, 0.22),
    "at the bottom": (0.5, 0.78), "at the top left": (0.22, 0.22), "at the top right": (0.78, 0.22),
    "at the bottom left": (0.22, 0.78), "at the bottom right": (0.78, 0.78),
}  # fmt: skip
"""Where a single thing may be: the middle of it, from the top left corner."""
TWO = (("on the left", "on the right"), ("at the top", "at the bottom"))
KINDS = (*SHAPES, *DIGITS)


@dataclass(frozen=True)
class Thing:
    """What stands in a picture."""

    kind: str
    """A shape, or a digit."""
    colour: str
    place: str

    @property
    def is_digit(self) -> bool:
        """Whether it is a digit and no shape."""
        return self.kind in DIGITS

    @property
    def key(self) -> str:
        """What is held out: a kind of a colour at a place."""
        return f"{self.colour} {self.kind} {self.place}"


Picture = tuple[Thing, ...]
"""One thing, or two, the left or upper one first."""


def held_out(picture: Picture) -> bool:
    """Whether a picture is kept for measuring: one in ten things is, by its text alone."""
    return any(zlib.crc32(thing.key.encode()) % 10 == 0 for thing in picture)


def make_picture(rng: random.Random, held: bool = False) -> Picture:
    """Things for a picture, of those that are held out or of the others."""
    while True:
        places = rng.choice(TWO)
        if rng.random() < 0.65:
            places = ["in the middle" if rng.random() < 0.3 else rng.choice(list(ONE))]
        kinds = [rng.choice(list(DIGITS if rng.random() < 0.45 else SHAPES)) for _ in places]
        things = zip(kinds, rng.sample(list(COLOURS), len(places)), places, strict=True)
        picture = tuple(Thing(*thing) for thing in things)
        if held_out(picture) == held:
            return picture


@dataclass(frozen=True)
class Drawn:
    """A picture as pixels."""

    pixels: NDArray[np.uint8]
    """[side, side, 3]"""
    covers: list[NDArray[np.float32]]
    """Of each thing, which share of each pixel it covers, [side, side]."""


def draw(picture: Picture, rng: random.Random, side: int = SIDE) -> Drawn:
    """Draws a picture; size, place, slant, shade and ground vary by `rng`."""
    ground = rng.choice([(255, 255, 255), tuple(rng.randint(215, 255) for _ in range(3))])
    pixels = np.broadcast_to(np.array(ground, np.float32), (side, side, 3))
    covers: list[NDArray[np.float32]] = []
    for thing in picture:
        outline = (DIGITS if thing.is_digit else SHAPES)[thing.kind]
        covers.append(cover(outline, _placing(thing, rng), side))
        shade = [min(255, max(0, value + rng.randint(-18, 18))) for value in COLOURS[thing.colour]]
        share = covers[-1][..., None]
        pixels = pixels * (1 - share) + np.array(shade, np.float32) * share
    return Drawn(np.rint(pixels).astype(np.uint8), covers)


def _placing(thing: Thing, rng: random.Random) -> Placing:
    """A single thing in the middle may be large; the others leave their neighbours alone."""
    x, y = ONE[thing.place]
    radius = rng.uniform(0.15, 0.4) if thing.place == "in the middle" else rng.uniform(0.13, 0.19)
    digit = thing.is_digit
    return Placing(
        x + rng.uniform(-0.04, 0.04),
        y + rng.uniform(-0.04, 0.04),
        radius,
        turn=rng.uniform(-0.15, 0.15),
        width=rng.uniform(0.8, 1.2) if digit else rng.uniform(0.92, 1.08),
        slant=rng.uniform(-0.15, 0.2) if digit else 0.0,
        stroke=rng.uniform(0.1, 0.22) if digit else rng.uniform(0.18, 0.3),
    )


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of pixels, [height, width, 3]."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    ends = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines, 9)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(ends)


def main() -> None:
    """Writes some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--side", type=int, default=4 * SIDE, help="pixels along a side")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rng = random.Random(options.seed)
    for index in range(options.count):
        picture = make_picture(rng)
        (options.output / f"{index}.png").write_bytes(png(draw(picture, rng, options.side).pixels))
        print(index, " and ".join(thing.key for thing in picture))


if __name__ == "__main__":
    main()
