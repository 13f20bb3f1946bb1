"""Makes what the tests of this crate compare with: pictures drawn here, and what Pillow and transformers make of them.

    pip install "pillow==12.3.0" "torchvision==0.26.0" "transformers==5.24.0" && python make.py

Pixels and counts are kept as SHA-256, so that the files stay small.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from plans import plans
from views import views

HERE = Path(__file__).parent
PICTURES = HERE / "pictures"
RNG = np.random.default_rng(1)


def photo(height: int, width: int, channels: int = 3) -> np.ndarray:
    """Smooth colours with some noise and hard edges, as photographs have them: [height, width, channels] uint8."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    layers = []
    for channel in range(channels):
        waves = np.sin(x * (5 + 3 * channel)) + np.cos(y * (7 - channel)) + np.sin((x + y) * 11 * (channel + 1))
        layers.append(128 + 40 * waves)
    pixels = np.stack(layers, axis=-1) + RNG.normal(0, 4, (height, width, channels))
    pixels[height // 4 : height // 2, width // 3 : width // 2] = (
        255 - pixels[height // 4 : height // 2, width // 3 : width // 2]
    )
    return np.clip(pixels, 0, 255).astype(np.uint8)


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def draw() -> None:
    """Writes the pictures."""
    PICTURES.mkdir(exist_ok=True)
    rgb, odd = Image.fromarray(photo(48, 64)), Image.fromarray(photo(37, 53))
    for name, sampling in (("444", 0), ("422", 1), ("420", 2)):
        odd.save(PICTURES / f"{name}.jpg", quality=85, subsampling=sampling)
    odd.save(PICTURES / "progressive.jpg", quality=80, progressive=True)
    odd.convert("L").save(PICTURES / "grey.jpg", quality=90)
    Image.fromarray(photo(32, 40, 4), "CMYK").save(PICTURES / "cmyk.jpg", quality=90)
    odd.save(PICTURES / "restart.jpg", quality=85, restart_marker_blocks=2)
    for orientation in range(1, 9):
        Image.fromarray(photo(16, 24)).save(PICTURES / f"exif{orientation}.jpg", exif=exif(orientation), quality=85)
    rgb.save(PICTURES / "rgb.png")
    rgb.save(PICTURES / "exif6.png", exif=exif(6))
    Image.fromarray(photo(20, 30, 4), "RGBA").save(PICTURES / "rgba.png")
    Image.fromarray(photo(20, 30, 2), "LA").save(PICTURES / "la.png")
    rgb.convert("L").save(PICTURES / "l.png")
    rgb.convert("1").save(PICTURES / "1.png")
    rgb.quantize(17).save(PICTURES / "palette.png")
    palette = rgb.quantize(17)
    palette.info["transparency"] = 3
    palette.save(PICTURES / "palette-transparent.png", transparency=3)
    rgb.quantize(40).save(PICTURES / "one.gif")
    frames = [Image.fromarray(photo(24, 24)).quantize(30) for _ in range(3)]
    frames[0].save(PICTURES / "three.gif", save_all=True, append_images=frames[1:], duration=50)
    rgb.save(PICTURES / "lossless.webp", lossless=True)
    rgb.save(PICTURES / "lossy.webp", quality=80)
    Image.fromarray(photo(24, 32, 4), "RGBA").save(PICTURES / "rgba.webp", lossless=True)
    frames = [Image.fromarray(photo(24, 24)) for _ in range(3)]
    frames[0].save(PICTURES / "three.webp", save_all=True, append_images=frames[1:], lossless=True)
    Image.new("1", (20_000, 20_000)).save(PICTURES / "bomb.png")
    Image.fromarray(photo(20, 151)).save(PICTURES / "wide.png")


def decoded(path: Path) -> Image.Image:
    """The first frame, upright, on white."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode in ("RGBA", "LA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        white.paste(image, mask=image.getchannel("A"))
        return white.convert("RGB")
    return image.convert("RGB")


def digest(image: Image.Image) -> str:
    return hashlib.sha256(np.asarray(image).tobytes()).hexdigest()


def pictures() -> Iterator[dict[str, object]]:
    for path in sorted(PICTURES.iterdir()):
        if path.stem != "bomb":
            image = decoded(path)
            yield {"name": path.name, "height": image.height, "width": image.width, "rgb": digest(image)}


def axes(image: Image.Image, height: int, width: int, filter_: int) -> Image.Image:
    """Resized in two calls of one axis each, the horizontal one first, whatever the version of Pillow prefers."""
    return image.resize((width, image.height), filter_).resize((width, height), filter_)


def resizes() -> Iterator[dict[str, object]]:
    image = decoded(PICTURES / "rgb.png")
    for name, filter_ in (("Bilinear", 2), ("Bicubic", 3), ("Lanczos", 1)):
        for height, width in (
            (24, 32),
            (96, 128),
            (48, 20),
            (17, 64),
            (31, 200),
            (150, 10),
            (1, 1),
            (47, 65),
            (480, 3),
        ):
            resized = axes(image, height, width, filter_)
            yield {"filter": name, "height": height, "width": width, "rgb": digest(resized)}


def prepared() -> Iterator[dict[str, object]]:
    """What whole processors make of some pictures."""
    for name in ("rgb.png", "444.jpg", "wide.png", "exif6.jpg"):
        image = decoded(PICTURES / name)
        yield from ({"name": name, **row} for row in views(image))


def main() -> None:
    draw()
    tables = (("pictures", pictures()), ("resizes", resizes()), ("plans", plans()), ("views", prepared()))
    for name, rows in tables:
        (HERE / f"{name}.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    assert sum(each.stat().st_size for each in PICTURES.iterdir()) < 200_000


if __name__ == "__main__":
    main()
