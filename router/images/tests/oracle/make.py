"""Makes what the tests of this crate compare with: pictures drawn here, and what Pillow and transformers make of them.

    pip install "pillow==12.3.0" "torchvision==0.26.0" "transformers==5.24.0" && python make.py

Pixels and counts are kept as SHA-256, so that the files stay small.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

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


def sizes(count: int) -> Iterator[tuple[int, int]]:
    """Heights and widths, the same in the test: a linear congruential generator of 64 bits."""
    state = 1
    for _ in range(count):
        pair = []
        for _ in range(2):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            # Every second side is small, where rounding matters most.
            pair.append(1 + (state >> 33) % (4000 if (state >> 40) % 2 else 300))
        yield pair[0], pair[1]


def pixtral(longest: int, patch: int) -> Callable[[int, int], str]:
    def line(height: int, width: int) -> str:
        # As height x width x channels, of which no size can be mistaken.
        h, w = get_resize_output_image_size(
            np.broadcast_to(np.uint8(0), (height, width, 3)), (longest, longest), (patch, patch), "channels_last"
        )
        # transformers makes nothing of a picture that is thinner than a pixel once it is resized; one patch here.
        h, w = max(h, patch), max(w, patch)
        return f"{h} {w} {(w // patch + 1) * (h // patch)}"

    return line


def qwen(factor: int, least: int, most: int) -> Callable[[int, int], str]:
    def line(height: int, width: int) -> str:
        if max(height, width) / min(height, width) > 200:
            return "refused"
        h, w = smart_resize(height, width, factor, least, most)
        return f"{h} {w} {h // factor * (w // factor)}"

    return line


def clip(shortest: int, rows: int) -> Callable[[int, int], str]:
    def line(height: int, width: int) -> str:
        short, long = sorted((height, width))
        scaled = int(shortest * long / short)
        h, w = (scaled, shortest) if width <= height else (shortest, scaled)
        return f"{h} {w} {rows}"

    return line


def plans() -> Iterator[dict[str, object]]:
    preprocessor = {"size": {"longest_edge": 1540}, "patch_size": 14}
    yield plan({"model_type": "mistral3", "spatial_merge_size": 2}, preprocessor, pixtral(1540, 28))
    preprocessor = {"size": {"longest_edge": 1024}, "patch_size": {"height": 16, "width": 16}}
    yield plan({"model_type": "llava", "vision_config": {"model_type": "pixtral"}}, preprocessor, pixtral(1024, 16))
    preprocessor = {"min_pixels": 3136, "max_pixels": 12_845_056, "patch_size": 14, "merge_size": 2}
    yield plan({"model_type": "qwen2_5_vl"}, preprocessor, qwen(28, 3136, 12_845_056))
    preprocessor = {"size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}, "patch_size": 16, "merge_size": 2}
    yield plan({"model_type": "qwen3_vl"}, preprocessor, qwen(32, 65_536, 16_777_216))
    preprocessor = {"size": {"shortest_edge": 3136, "longest_edge": 200_704}, "patch_size": 14, "merge_size": 2}
    yield plan({"model_type": "qwen2_vl"}, preprocessor, qwen(28, 3136, 200_704))
    preprocessor = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}, "resample": 3}
    config = {"model_type": "llava", "vision_config": {"model_type": "clip_vision_model", "patch_size": 14}}
    yield plan(config, preprocessor, clip(336, 576))


def plan(config: object, preprocessor: object, line: Callable[[int, int], str]) -> dict[str, object]:
    lines = "".join(f"{h} {w} {line(h, w)}\n" for h, w in sizes(10_000))
    digest = hashlib.sha256(lines.encode()).hexdigest()
    return {"config": config, "preprocessor": preprocessor, "first": lines.splitlines()[:40], "lines": digest}


def main() -> None:
    draw()
    for name, rows in (("pictures", pictures()), ("resizes", resizes()), ("plans", plans())):
        (HERE / f"{name}.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    assert sum(each.stat().st_size for each in PICTURES.iterdir()) < 200_000


if __name__ == "__main__":
    main()
