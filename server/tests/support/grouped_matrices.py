"""Single matrices in files, and the parts that readers of formats make of them."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from torch import Tensor

from text_generation_server.config.quantisation import Packed
from text_generation_server.layers.weights.formats import Groups, MatrixShard, read_groups
from text_generation_server.weights import SafetensorsSource


def module(tensors: dict[str, Tensor], shape: tuple[int, int]) -> MatrixShard:
    """The whole matrix of the module `m` that has these tensors in a file."""
    with TemporaryDirectory() as folder:
        save_file(
            {f"m.{suffix}": tensor.contiguous() for suffix, tensor in tensors.items()},
            Path(folder, "model.safetensors"),
        )
        # The file stays mapped when its name is gone.
        source = SafetensorsSource(Path(folder), torch.float32, torch.device("cpu"))
    return MatrixShard.whole(source, "m", shape)


def assert_every_part(
    tensors: dict[str, Tensor], scheme: Packed, expected: Tensor, rows: Iterable[int], columns: Iterable[int]
) -> Groups:
    """The whole matrix and all its parts between these edges are the parts of `expected`, bit for bit.

    Columns are places in the order that the matrix is stored in. Returns the whole.
    """
    part = module(tensors, (expected.shape[0], expected.shape[1]))
    whole = read_groups(part, scheme)
    assert torch.equal(whole.dequantised(), expected)
    stored = expected if whole.perm is None else expected[:, whole.perm]
    for cut in _between(rows, expected.shape[0]):
        found = read_groups(MatrixShard(part.source, part.name, part.shape, cut, part.columns), scheme)
        assert torch.equal(found.dequantised(), expected[slice(*cut)]), f"rows {cut}"
    for cut in _between(columns, expected.shape[1]):
        found = read_groups(MatrixShard(part.source, part.name, part.shape, part.rows, cut), scheme)
        assert torch.equal(found.stored(), stored[:, slice(*cut)]), f"columns {cut}"
    return whole


def _between(edges: Iterable[int], size: int) -> list[tuple[int, int]]:
    bounds = [0, *edges, size]
    return list(pairwise(bounds))
