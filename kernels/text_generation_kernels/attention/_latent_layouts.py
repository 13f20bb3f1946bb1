"""Layout checks shared by the kernels of multi-head latent attention."""

from torch import Tensor


def check_latent_layouts(name: str, q: Tensor, cache: Tensor, slot_table: Tensor, out: Tensor) -> None:
    """Raises ValueError for what the kernels do not read."""
    (tokens, heads, width), (_, kv_heads, cached) = q.shape, cache.shape
    if kv_heads != 1 or cached != width or out.shape[:2] != (tokens, heads) or not 0 < out.shape[2] < width:
        shapes = [tuple(each.shape) for each in (q, cache, out)]
        raise ValueError(f"{name}: shapes of q, cache, out do not fit: {shapes}")
    if not q.stride(2) == cache.stride(2) == out.stride(2) == slot_table.stride(1) == 1:
        raise ValueError(f"{name}: the last dimension of every tensor must have stride 1")
