"""Tiles of weight-only GEMMs, whose left operand is the weight or, with SWAP, the tokens."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from ..runtime.triton import tl, triton
from .code_conversion import float8_scales


@triton.jit
def add_dot(weight, x, acc, SWAP: tl.constexpr):
    """`acc` plus the matmul of two tiles: [outputs, tokens], or [tokens, outputs] with SWAP."""
    if SWAP:
        return tl.dot(x, weight.T, acc)
    else:
        return tl.dot(weight, x.T, acc)


@triton.jit
def zeros(OUTPUTS: tl.constexpr, TOKENS: tl.constexpr, SWAP: tl.constexpr):
    """The accumulator of `add_dot`, zero."""
    if SWAP:
        return tl.zeros([TOKENS, OUTPUTS], dtype=tl.float32)
    else:
        return tl.zeros([OUTPUTS, TOKENS], dtype=tl.float32)


@triton.jit
def of_outputs(values, SWAP: tl.constexpr):
    """One value for each output, in a shape that broadcasts against `add_dot`."""
    return values[None, :] if SWAP else values[:, None]


@triton.jit
def columns_of(values, COUNT: tl.constexpr):
    """[rows, COUNT] to its columns, as float32."""
    values = values.to(tl.float32)
    rows: tl.constexpr = values.shape[0]
    if COUNT == 2:
        return tl.split(values)
    elif COUNT == 4:
        even, odd = tl.split(tl.reshape(values, [rows, 2, 2]))
        a, c = tl.split(even)
        b, d = tl.split(odd)
        return a, b, c, d
    else:
        even, odd = tl.split(tl.reshape(values, [rows, 4, 2]))
        even = columns_of(even, 4)
        odd = columns_of(odd, 4)
        return even[0], odd[0], even[1], odd[1], even[2], odd[2], even[3], odd[3]


@triton.jit
def pairs_of_columns(values):
    """[rows, 16] to its eight pairs of neighbours, [rows, 2] each."""
    rows: tl.constexpr = values.shape[0]
    pairs = tl.permute(tl.reshape(values, [rows, 8, 2]), (0, 2, 1))
    even, odd = tl.split(tl.reshape(pairs, [rows, 2, 4, 2]))
    a, c = tl.split(tl.reshape(even, [rows, 2, 2, 2]))
    b, d = tl.split(tl.reshape(odd, [rows, 2, 2, 2]))
    a, e = tl.split(a)
    b, f = tl.split(b)
    c, g = tl.split(c)
    d, h = tl.split(d)
    return a, b, c, d, e, f, g, h


@triton.jit
def spread_pair(pair, SIZE: tl.constexpr):
    """[rows, 2] to [rows, 2 * SIZE], each column SIZE times."""
    rows: tl.constexpr = pair.shape[0]
    return tl.reshape(tl.broadcast_to(pair[:, :, None], [rows, 2, SIZE]), [rows, 2 * SIZE])


@triton.jit
def scales_of_groups(values, COUNT: tl.constexpr, dtype: tl.constexpr):
    """Scales or zeros [rows, COUNT] of a block to what `of_plane` takes: columns, or with more than 8 groups pairs of
    columns. int8 are float8, which become 16 bits.
    """
    if values.dtype == tl.int8:
        return pairs_of_columns(float8_scales(values, 0, dtype))
    elif COUNT > 8:
        return pairs_of_columns(values)
    else:
        return columns_of(values, COUNT)


@triton.jit
def of_plane(values, plane: tl.constexpr, HALVES: tl.constexpr, FACTOR: tl.constexpr, dtype: tl.constexpr):
    """Scales or zeros of a plane, times FACTOR unless it is None, to what its weights take. With HALVES two groups have
    16 of its inputs each.
    """
    own = values[plane] if FACTOR is None else values[plane] * FACTOR
    return spread_pair(own.to(dtype), 16) if HALVES else own.to(dtype)[:, None]
