"""Product of a few tokens with a weight matrix, left in parts for the operator behind it.

    sum of out over its first dimension = x @ weight.T

Layouts: `x`, `weight` as of `skinny_linear`; `out` float32 `[parts, tokens, outputs]`, contiguous, `splits` as
`linear_splits` says.

Where the outputs are few, the programs that share rows of a matrix divide its inputs. `skinny_linear` lets the last one
add up what all of them have found, which has to go to memory, be waited for and come back. The operator behind
(`qkv_postprocess`, `add_rms_norm`) waits for all programs anyway, and reads the parts instead.

Called for 2 to 64 tokens, for query, key and value, and on one card for the output product of attention and the second
one of the feed-forward network. Bytes floor: outputs * inputs * element size.
Measured on an H200 with attention over 2,048 positions: a layer of an 8B takes 257.9 us instead of 260.6 with 64
tokens, 4 us of 194 less with 32, and 155.6 instead of 157.5 with 16; one of two ranks of a 70B, whose 5120 outputs for
query, key and value are too few tiles, 300.8 instead of 302.9 with 64. A product and the norm behind it, in four parts,
64 tokens: 1024 x 2048 5.5 us instead of 7.0, 2048 x 8192 13.5 instead of 15.0 (benchmark/results/linear_layers.json).
Tried and left out: parts of the two products of a rank of the 70B that are summed over the ranks, added up by a norm
instead: 226 to 233 us a layer, where it was 226 to 227. Query, key and value of the 8B in two to five parts: 129 to 134
us instead of 129; of the 70B with 64 or 256 rows a tile, in two to six parts: 225 to 232 instead of 226.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.device import shared_kib
from ..runtime.register import register, triton_enabled
from ..runtime.settings import nearest
from ._partials import check_partials
from .skinny_linear import MAX_TOKENS, filled_splits, launch, reads
from .w8a8_gemm import padded_tokens


def linear_splits(x: Tensor, weight: Tensor) -> int:
    """Into how many parts this product is best divided, 1 where `skinny_linear` is for it."""
    if not (x.is_cuda and triton_enabled() and 1 < len(x) <= MAX_TOKENS):
        return 1
    tile, splits = _settings(x, weight)
    return splits if reads(x, weight, x, tile["BLOCK_K"]) else 1


def _settings(x: Tensor, weight: Tensor) -> tuple[dict[str, int], int]:
    """The tile of a program, and into how many parts inputs are divided."""
    outputs, inputs = weight.shape
    sizes = {"outputs": outputs, "inputs": inputs, "tokens": padded_tokens(len(x))}
    config = dict(nearest("linear_split_k", shared_kib=shared_kib(x.device), **sizes))
    return config, filled_splits(inputs, config["BLOCK_K"], config.pop("splits"))


def linear_split_k_triton(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for another number of parts than `linear_splits` says."""
    tile, splits = _settings(x, weight)
    check_partials("linear_split_k", out, splits, len(x), len(weight))
    launch(x, weight, None, out, tile, splits)


def linear_split_k_torch(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Torch implementation: everything is in the first part."""
    out.zero_()
    torch.mm(x.float(), weight.float().t(), out=out[0])


linear_split_k = register(linear_split_k_torch, mutates=("out",), triton=linear_split_k_triton)
