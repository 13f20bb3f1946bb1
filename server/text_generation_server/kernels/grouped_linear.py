"""Product of tokens with a weight matrix that is stored as codes in groups; the tokens keep their 16 bits.

    out = x[:, perm] @ weight.T + bias, weight = (code - zero) * scale or table[code] * scale

Layouts: `x` `[tokens, inputs]`, `out` `[tokens, outputs]`, unit stride in the last dimension, one floating type;
`packed` as `pack_codes` makes it, or float8 `[outputs, inputs]`; `scales` and `zeros` as `pack_scales` makes them
(`[groups, outputs]`), of `group_size` inputs a group (0: all inputs are one group); `table` [16] float32, `perm`
[inputs] int64, `bias` `[outputs]`, each or None. Zeros that are not given are 2 ** (bits - 1).
"""

from torch import Tensor

from ._groups import group_values
from ._register import register


def grouped_linear_torch(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    table: Tensor | None,
    perm: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    group_size: int,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Computes in float32."""
    x = (x if perm is None else x[:, perm]).float()
    result = x @ group_values(packed, scales, zeros, table, x.shape[1], group_size).t()
    out.copy_(result if bias is None else result + bias.float())


grouped_linear = register(grouped_linear_torch, mutates=("out",))
