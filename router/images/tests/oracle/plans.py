"""What transformers makes of pictures of 10,000 sizes: the sizes that they are resized to, and tokens of the prompt."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from types import SimpleNamespace

import numpy as np
import torch
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.image_utils import SizeDict
from transformers.models.aria.image_processing_aria import AriaImageProcessor
from transformers.models.gemma4.image_processing_gemma4 import get_aspect_ratio_preserving_size
from transformers.models.glm4v.image_processing_glm4v import smart_resize as glm_resize
from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas
from transformers.models.idefics3.image_processing_idefics3 import Idefics3ImageProcessor, get_resize_output_image_size
from transformers.models.kimi_k25.image_processing_kimi_k25 import navit_resize
from transformers.models.llama4.image_processing_llama4 import (
    find_supported_resolutions,
    get_best_fit,
    get_max_res_without_distortion,
)
from transformers.models.llama4.processing_llama4 import Llama4Processor
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.minicpmv4_6.image_processing_minicpmv4_6 import MiniCPMV4_6ImageProcessor
from transformers.models.ovis2.image_processing_ovis2 import get_min_tile_covering_grid
from transformers.models.ovis2.processing_ovis2 import Ovis2Processor
from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size as pixtral_size
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.models.step3p7.image_processing_step3p7 import Step3p7ImageProcessor
from transformers.models.step3p7.processing_step3p7 import Step3p7Processor

Line = Callable[[int, int], str]
"""Of a picture of one height and width: the sizes that it is resized to for a view, one after the other, of each view
where they differ from those of the view before; then the tokens.
"""
Size = Sequence[int]


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


def line(views: Sequence[Sequence[Size]], tokens: int) -> str:
    words = ["/".join(f"{h}x{w}" for h, w in view) for view in views]
    return " ".join([word for word, _ in groupby(words)] + [str(tokens)])


def picture(height: int, width: int) -> np.ndarray:
    """Has a size, and takes no memory. As height x width x channels, of which no size can be mistaken."""
    return np.broadcast_to(np.uint8(0), (height, width, 3))


def pixtral(longest: int, patch: int) -> Line:
    def of(height: int, width: int) -> str:
        h, w = pixtral_size(picture(height, width), (longest, longest), (patch, patch), "channels_last")
        # transformers makes nothing of a picture that is thinner than a pixel once it is resized; one patch here.
        h, w = max(h, patch), max(w, patch)
        return line([[(h, w)]], (w // patch + 1) * (h // patch))

    return of


def qwen(factor: int, least: int, most: int) -> Line:
    def of(height: int, width: int) -> str:
        if max(height, width) / min(height, width) > 200:
            return "refused"
        h, w = smart_resize(height, width, factor, least, most)
        return line([[(h, w)]], h // factor * (w // factor))

    return of


def glm(least: int, most: int) -> Line:
    def of(height: int, width: int) -> str:
        try:
            h, w = glm_resize(2, height, width, 2, 28, least, most)
        except ValueError:
            return "refused"
        return line([[(h, w)]], h // 28 * (w // 28))

    return of


def clip(shortest: int, rows: int) -> Line:
    def of(height: int, width: int) -> str:
        short, long = sorted((height, width))
        scaled = int(shortest * long / short)
        h, w = (scaled, shortest) if width <= height else (shortest, scaled)
        return line([[(h, w)]], rows)

    return of


def gemma4(height: int, width: int) -> str:
    h, w = get_aspect_ratio_preserving_size(height, width, 16, 280 * 9, 3)
    # The markers stand in the prompt already.
    return line([[(h, w)]], h // 16 * (w // 16) // 9)


def kimi(most: int, side: int) -> Line:
    def of(height: int, width: int) -> str:
        resized, padded = navit_resize(height, width, 14, 2, most, side)
        return line([[resized]], padded[0] // 28 * (padded[1] // 28))

    return of


def pinpoints(tile: int, patch: int, canvases: list[list[int]], max_tiles: int | None) -> Line:
    processor = object.__new__(LlavaNextProcessor if max_tiles is None else LlavaOnevisionProcessor)
    processor.image_processor = SimpleNamespace(image_grid_pinpoints=canvases)
    processor.patch_size, processor.num_additional_image_tokens = patch, 0
    processor.num_image_tokens, processor.vision_aspect_ratio = (tile // patch) ** 2, f"anyres_max_{max_tiles}"

    def of(height: int, width: int) -> str:
        canvas = select_best_resolution((height, width), canvases)
        side, down, across = tile // patch, canvas[0] // tile, canvas[1] // tile
        if processor._get_unpadded_features(height, width, side, side, down, across)[0] == 0:
            # Nothing is left of a picture this thin but the frame.
            return "refused"
        tokens = processor._get_number_of_features(height, width, tile, tile)
        resized = get_patch_output_size(picture(height, width), canvas, "channels_last")
        return line([[(tile, tile)], [resized]], tokens)

    return of


def tiles(tile: int, most: int, rows: int) -> Line:
    def of(height: int, width: int) -> str:
        across, down = get_optimal_tiled_canvas((height, width), (tile, tile), 1, most)
        views = [[(down * tile, across * tile)]]
        if down * across > 1:
            views.append([(tile, tile)])
        return line(views, rows * (down * across + (down * across > 1)))

    return of


def chunks(tile: int, most: int, rows: int, fills: bool) -> Line:
    canvases = torch.tensor(find_supported_resolutions(most, SizeDict(height=tile, width=tile)))

    def of(height: int, width: int) -> str:
        canvas = get_best_fit((height, width), canvases, resize_to_max_canvas=fills)
        limit = tuple(min(max(side, tile), most) for side, most in zip((height, width), canvas, strict=True))
        resized = get_max_res_without_distortion((height, width), canvas if fills else limit)
        down, across = (int(side) // tile for side in canvas)
        views = [[tuple(max(int(side), 1) for side in resized)]]
        prompt = Llama4Processor._prompt_split_image(None, (down, across), rows)
        if down * across > 1:
            views.append([(tile, tile)])
        return line(views, prompt.count("<|"))

    return of


def covered(tile: int, most: int, rows: int) -> Line:
    processor = object.__new__(Ovis2Processor)
    processor.image_seq_length = rows

    def of(height: int, width: int) -> str:
        across, down = get_min_tile_covering_grid((height, width), tile, most)
        views = [[(tile, tile)]]
        if down * across > 1:
            views.append([(down * tile, across * tile)])
        grids = {"grids": [SimpleNamespace(tolist=lambda: [down, across])]}
        return line(views, processor.replace_image_token(grids, 0).count("<IMG_"))

    return of


class _Sizes(Idefics3ImageProcessor):
    """Resizes nothing, and remembers to which sizes."""

    def resize(self, image, size, **kwargs):
        self.resized.append((size.height, size.width))
        return torch.empty((*image.shape[:-2], size.height, size.width), device="meta")


def splits(longest: int, tile: int, rows: int) -> Line:
    processor = _Sizes(size={"longest_edge": longest}, max_image_size={"longest_edge": tile})

    def of(height: int, width: int) -> str:
        processor.resized = []
        image = torch.empty((1, 3, height, width), device="meta")
        first = get_resize_output_image_size(image, longest)
        image = processor.resize_for_vision_encoder(torch.empty((1, 3, *first), device="meta"), tile)
        (second,) = processor.resized
        _, down, across = processor.split_images(image, {"longest_edge": tile})
        if down == [0]:
            return line([[first, second]], rows + 3)
        # "\n\n" is one token.
        tokens = rows + 3 + down[0] * ((rows + 2) * across[0] + 1)
        return line([[first, second], [first, *processor.resized]], tokens)

    return of


class _Filled(AriaImageProcessor):
    """Resizes nothing, and remembers to which size."""

    def resize(self, image, size, *_):
        self.resized = (size.height, size.width)
        return torch.empty((*image.shape[:-2], size.height, size.width), device="meta")


def filled(longest: int, rows: int) -> Line:
    processor = _Filled(max_image_size=longest)
    processor.rescale_and_normalize = lambda images, *_: images

    def of(height: int, width: int) -> str:
        image = torch.empty((3, height, width), device="meta")
        processor._preprocess([image], *[None] * 6, None, max_image_size=longest)
        return line([[processor.resized]], rows)

    return of


def windows(whole: int, part: int, longest: int) -> Line:
    processor = Step3p7ImageProcessor(size={"height": whole, "width": whole}, patch_size=part, max_image_size=longest)
    words = object.__new__(Step3p7Processor)
    words.image_feature_placeholder = "<im_patch>" * (whole // 56) ** 2
    words.patch_feature_placeholder = "<im_patch>" * (part // 56) ** 2

    def of(height: int, width: int) -> str:
        if max(height, width) > 35 * min(height, width) and min(height, width) >= 32:
            # The processor has no limit, and dozens of windows for them.
            return "refused"
        (w, h), (crop_w, crop_h), _, across, down, squared = processor._plan_patches(width, height, whole, part)
        given = (max(height, width),) * 2 if squared else (height, width)
        count = across * down
        newlines = [[column == across - 1 and row < down - 1 for row in range(down) for column in range(across)]]
        prompt = words.replace_image_token({"num_local_patches": [count], "patch_newline_masks": newlines}, 0)
        views = [[(crop_h, crop_w)] * 2] if count else []
        views.append([*([(h, w)] if (h, w) != given else []), (whole, whole)])
        return line(views, prompt.count("<"))

    return of


def slices(side: int, patch: int, most: int, rows: int, is_numbered: bool) -> Line:
    processor = MiniCPMV4_6ImageProcessor()
    # That of version 4.6 makes sides multiples of 4 patches; this one, as its predecessors, of one.
    quarter, mode = patch / 4, "16x"

    def of(height: int, width: int) -> str:
        if max(height, width) > 200 * min(height, width):
            # The processor makes views of thousands of patches in a row.
            return "refused"
        grid = processor.get_sliced_grid((height, width), most, side)
        whole = processor.find_best_resize((height, width), side, quarter, mode, allow_upscale=grid is None)
        views, tokens = [[tuple(map(int, whole))]], rows + 2 + 3 * is_numbered
        if grid is not None:
            resized = processor.get_refine_size((height, width), grid, side, quarter, mode, allow_upscale=True)
            views.append([tuple(map(int, resized))])
            tokens += grid[0] * grid[1] * (rows + 2) + grid[0] - 1
        return line(views, tokens)

    return of


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
    preprocessor = {"size": {"shortest_edge": 12_544, "longest_edge": 9_633_792}, "patch_size": 14, "merge_size": 2}
    yield plan({"model_type": "glm4v"}, preprocessor, glm(12_544, 9_633_792))
    yield plan({"model_type": "gemma4"}, {"max_soft_tokens": 280}, gemma4)
    yield plan({"model_type": "kimi_k25"}, {"size": {"max_height": 512, "max_width": 512}}, kimi(16_384, 512))
    preprocessor = {"in_token_limit": 4096, "patch_size": 14, "merge_kernel_size": [2, 2], "pad_input": True}
    # The authors' code refuses sides of 512 patches and more.
    yield plan({"model_type": "kimi_vl"}, preprocessor, kimi(4096, 510))
    preprocessor = {"max_image_size": 980, "min_image_size": 336, "split_image": False}
    yield plan({"model_type": "aria", "vision_config": {"patch_size": 14}}, preprocessor, filled(980, 256))
    # The size of published files is not what they were trained with.
    preprocessor = {"size": [672, 672], "patch_size": 14, "merge_size": 2}
    yield plan({"model_type": "minimax_m3_vl"}, preprocessor, qwen(28, 4 * 28 * 28, 451_584))
    yield from tiled_plans()


def tiled_plans() -> Iterator[dict[str, object]]:
    canvases = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    preprocessor = {
        "size": {"shortest_edge": 336},
        "crop_size": {"height": 336, "width": 336},
        "image_grid_pinpoints": canvases,
    }
    config = {"model_type": "llava_next", "vision_config": {"patch_size": 14}}
    yield plan(config, preprocessor, pinpoints(336, 14, canvases, None))
    sides = range(384, 2305, 384)
    canvases = [[down, across] for down in sides for across in sides]
    preprocessor = {"size": {"height": 384, "width": 384}, "image_grid_pinpoints": canvases}
    config = {"model_type": "llava_onevision", "vision_config": {"patch_size": 14}}
    yield plan(config, preprocessor, pinpoints(384, 14, canvases, 9))
    config = {"model_type": "internvl", "vision_config": {"patch_size": [14, 14]}, "downsample_ratio": 0.5}
    preprocessor = {"size": {"height": 448, "width": 448}, "max_patches": 12}
    yield plan(config, preprocessor, tiles(448, 12, 256))
    original = {"model_type": "llava_llama", "mm_vision_tower": "openai/clip-vit-large-patch14-336"}
    canvases = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    config = {**original, "image_aspect_ratio": "anyres", "image_grid_pinpoints": canvases}
    yield plan(config, {}, pinpoints(336, 14, canvases, None))
    yield plan({**original, "image_aspect_ratio": "pad"}, {}, lambda _, __: line([[(336, 336)]], 576))
    yield plan(original, {}, clip(336, 576))
    config = {"model_type": "internvl_chat", "vision_config": {"patch_size": 14, "image_size": 448}}
    config |= {"dynamic_image_size": True, "use_thumbnail": True, "max_dynamic_patch": 6, "downsample_ratio": 0.5}
    yield plan(config, {"size": 448, "crop_size": 448, "do_center_crop": True, "resample": 3}, tiles(448, 6, 256))
    config = {"model_type": "ovis2", "vision_config": {"patch_size": 14, "hidden_stride": 2}}
    preprocessor = {"size": {"height": 448, "width": 448}, "crop_to_patches": True, "max_patches": 9}
    yield plan(config, preprocessor, covered(448, 9, 256))
    preprocessor = {"max_slice_nums": 9, "scale_resolution": 448, "patch_size": 14, "use_image_id": True}
    config = {"model_type": "minicpmv", "query_num": 64}
    yield plan(config, {**preprocessor, "image_feature_size": 64, "slice_mode": True}, slices(448, 14, 9, 64, True))
    yield plan(config, {**preprocessor, "use_image_id": False, "slice_mode": False}, slices(448, 14, 1, 64, False))
    yield plan({"model_type": "qwen", "visual": {"image_size": 448}}, {}, lambda *_: line([[(448, 448)]], 256))
    config = {"architectures": ["InternLMXComposer2ForCausalLM"], "img_size": 490}
    yield plan(config, {}, lambda *_: line([[(490, 490)]], 1225))
    config = {"model_type": "step3p7", "vision_config": {"patch_size": 14}}
    preprocessor = {"size": {"height": 728, "width": 728}, "patch_size": 504, "max_image_size": 3024}
    yield plan(config, preprocessor, windows(728, 504, 3024))
    config = {"model_type": "llama4", "vision_config": {"patch_size": 14, "pixel_shuffle_ratio": 0.5}}
    for fills in (False, True):
        preprocessor = {"size": {"height": 336, "width": 336}, "max_patches": 16, "resize_to_max_canvas": fills}
        yield plan(config, preprocessor, chunks(336, 16, 144, fills))
    config = {"model_type": "idefics3", "vision_config": {"patch_size": 14}, "scale_factor": 2}
    preprocessor = {"size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}, "resample": 1}
    yield plan(config, preprocessor, splits(1456, 364, 169))
    config = {"model_type": "smolvlm", "vision_config": {"patch_size": 16}, "scale_factor": 4}
    preprocessor = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}, "resample": 1}
    yield plan(config, preprocessor, splits(2048, 512, 64))
    preprocessor = {"size": {"longest_edge": 1333}, "max_image_size": {"longest_edge": 512}, "resample": 1}
    yield plan(config, preprocessor, splits(1333, 512, 64))


def plan(config: object, preprocessor: object, of: Line) -> dict[str, object]:
    lines = "".join(f"{h} {w} {of(h, w)}\n" for h, w in sizes(10_000))
    digest = hashlib.sha256(lines.encode()).hexdigest()
    return {"config": config, "preprocessor": preprocessor, "first": lines.splitlines()[:40], "lines": digest}
