"""The views that whole processors of transformers cut out of a picture, as hashes of their pixels. The processors are
those that use Pillow.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from transformers.image_processing_utils import select_best_resolution
from transformers.image_utils import SizeDict
from transformers.models.aria.image_processing_pil_aria import AriaImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil
from transformers.models.step3p7.image_processing_step3p7 import Step3p7ImageProcessor

CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
PLAIN = {"do_rescale": False, "do_normalize": False}
Views = list[np.ndarray]
"""[height, width, 3] uint8 each."""


def last(pixels: object) -> Views:
    """From channels first to channels last."""
    return [np.asarray(view).astype(np.uint8).transpose(1, 2, 0) for view in pixels]


def canvas(views: Views, across: int) -> Views:
    """The first view, and all others as the tiles of one."""
    base, *tiles = views
    rows = [np.concatenate(tiles[at : at + across], axis=1) for at in range(0, len(tiles), across)]
    return [base, np.concatenate(rows, axis=0)]


class _StepOfPillow(Step3p7ImageProcessor):
    """The processor of Step 3.7, which resizes as torchvision does, resizing as Pillow does."""

    def resize(self, image: torch.Tensor, size: SizeDict, **_: object) -> torch.Tensor:
        pixels = [Image.fromarray(each.permute(1, 2, 0).numpy()) for each in image]
        # One axis at a time, the horizontal one first.
        first = [each.resize((size.width, each.height), Image.Resampling.BILINEAR) for each in pixels]
        both = [each.resize((size.width, size.height), Image.Resampling.BILINEAR) for each in first]
        return torch.stack([torch.from_numpy(np.array(each)).permute(2, 0, 1) for each in both])


def step(image: Image.Image, files: dict[str, object]) -> Views:
    """The windows, then the whole."""
    out = _StepOfPillow(**files, **PLAIN)(image, return_tensors="pt")
    return last([*out.get("pixel_values_local", []), *out["pixel_values"]])


def aria(image: Image.Image, files: dict[str, object]) -> Views:
    """Without the filling that masks leave out, but for what completes patches of 14 pixels."""
    out = AriaImageProcessorPil(**files, **PLAIN)(image, return_tensors="np")
    height, width = (-(-int(out["pixel_mask"][0].any(axis).sum()) // 14) * 14 for axis in (1, 0))
    return [view[:height, :width] for view in last(out["pixel_values"])]


class _WholePatches(MiniCPMV4_6ImageProcessorPil):
    """The processor of MiniCPM-V 4.6, which makes sides multiples of 4 patches, making them multiples of one as its
    predecessors do. It keeps views before it lays them out patch by patch.
    """

    def find_best_resize(self, image_size, scale_resolution, patch_size, downsample_mode, allow_upscale=False):
        size = super().find_best_resize(image_size, scale_resolution, patch_size / 4, downsample_mode, allow_upscale)
        return int(size[0]), int(size[1])

    def reshape_by_patch(self, image: np.ndarray, patch_size: int) -> np.ndarray:
        self.kept.append(image)
        return super().reshape_by_patch(image, patch_size)


def slices(image: Image.Image, files: dict[str, object]) -> Views:
    """The whole picture, then its slices."""
    processor = _WholePatches(**files, **PLAIN)
    processor.kept = []
    processor(image)
    return last(processor.kept)


def square(image: Image.Image, side: int) -> Views:
    """The whole picture as models that bring no processor have it: resized by Pillow."""
    return [np.array(image.resize((side, side), Image.Resampling.BICUBIC))]


def views(image: Image.Image) -> Iterator[dict[str, object]]:
    size = {"shortest_edge": 28}
    files = {"size": size, "crop_size": {"height": 28, "width": 28}, "resample": 3}
    pixels = CLIPImageProcessorPil(**files, **PLAIN)(image)["pixel_values"]
    yield row({"model_type": "llava", "vision_config": {"patch_size": 14}}, files, last(pixels))
    processor = LlavaImageProcessorPil(**files, do_pad=True, image_mean=CLIP_MEAN, **PLAIN)
    config = {"model_type": "llava_llama", "mm_vision_tower": "clip-vit-large-patch14", "image_aspect_ratio": "pad"}
    config["vision_config"] = {"patch_size": 14, "image_size": 28}
    yield row(config, {}, last(processor(image)["pixel_values"]))
    canvases = [[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]]
    files = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, "resample": 3}
    files["image_grid_pinpoints"] = canvases
    (pixels,) = LlavaNextImageProcessorPil(**files, **PLAIN)(image)["pixel_values"]
    width = select_best_resolution((image.height, image.width), canvases)[1]
    config = {"model_type": "llava_next", "vision_config": {"patch_size": 8}}
    yield row(config, files, canvas(last(pixels), width // 32))
    files = {"size": {"height": 32, "width": 32}, "image_grid_pinpoints": canvases, "resample": 3}
    files["image_mean"] = [0.5, 0.25, 0.75]
    (pixels, _) = LlavaOnevisionImageProcessorPil(**files, **PLAIN)([[image, image]])["pixel_values"]
    config = {"model_type": "llava_onevision", "vision_config": {"patch_size": 8}}
    yield {**row(config, files, last(pixels[:1])), "several": True}
    files = {"size": {"height": 28, "width": 28}, "max_patches": 6, "resample": 3}
    pixels = GotOcr2ImageProcessorPil(**files, crop_to_patches=True, **PLAIN)(image)["pixel_values"]
    yield row({"model_type": "internvl", "vision_config": {"patch_size": 14}}, files, last(pixels))
    for longest in (112, 28):
        files = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": 28}, "resample": 1}
        ((pixels,),) = (Idefics3ImageProcessorPil(**files, **PLAIN)(image)["pixel_values"],)
        yield row({"model_type": "idefics3", "vision_config": {"patch_size": 7}}, files, last(pixels))
    files = {"max_image_size": 490, "min_image_size": 336, "split_image": False, "resample": 3}
    yield row({"model_type": "aria", "vision_config": {"patch_size": 14}}, files, aria(image, files))
    files = {"max_slice_nums": 5, "scale_resolution": 56, "patch_size": 14}
    yield row({"model_type": "minicpmv", "query_num": 64}, files, slices(image, files))
    yield row({"model_type": "qwen", "visual": {"image_size": 28, "n_queries": 4}}, {}, square(image, 28))
    yield row({"architectures": ["InternLMXComposer2ForCausalLM"], "img_size": 42}, {}, square(image, 42))
    for whole, part, longest in ((112, 56, 600), (56, 56, 90), (56, 112, 600)):
        files = {"size": {"height": whole, "width": whole}, "patch_size": part, "max_image_size": longest}
        yield row({"model_type": "step3p7", "vision_config": {"patch_size": 14}}, files, step(image, files))
    files = {"size": {"height": 28, "width": 42}, "resample": 2}
    pixels = Gemma3ImageProcessorPil(**files, **PLAIN)(image)["pixel_values"]
    yield row({"model_type": "gemma3", "mm_tokens_per_image": 6}, files, last(pixels))


def row(config: object, preprocessor: object, pixels: Views) -> dict[str, object]:
    joined = b"".join(view.tobytes() for view in pixels)
    sizes = [view.shape[:2] for view in pixels]
    rgb = hashlib.sha256(joined).hexdigest()
    return {"config": config, "preprocessor": preprocessor, "sizes": sizes, "rgb": rgb}
