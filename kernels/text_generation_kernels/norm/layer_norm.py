"""LayerNorm (Ba et al., 2016).

    out = (x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + eps) * weight + bias

Layouts: `x`, `out` `[tokens, hidden]`, unit stride in the last dimension, any stride between tokens; `weight`, and
`bias` where there is one, `[hidden]`. `out` may be `x`. One floating type for all, but `weight` and `bias` may be
float32 beside 16-bit `x`. Computed in float32, rounded once.

Called once a forward pass, for the first layer, which has no residual yet, or twice a layer where blocks are parallel.
Raises ValueError for layouts that the kernel does not read. Bytes floor: 2 * tokens * hidden * element size (read x,
write out). It takes the launch settings of `rms_norm`; not measured on a device yet.
"""

# pyright: basic, reportGeneralTypeIssues=false
from torch import Tensor
from torch.nn import functional

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.triton import tl, triton


@triton.jit
def load_weights(
    weight_ptr,  # [hidden]
    bias_ptr,  # [hidden] or None
    columns,  # [BLOCK]
    valid,  # [BLOCK]
):
    """Weight and bias [BLOCK] in float32."""
    weight = tl.load(weight_ptr + columns, mask=valid, other=0.0).to(tl.float32)
    bias = tl.zeros_like(weight)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + columns, mask=valid, other=0.0).to(tl.float32)
    return weight, bias


@triton.jit
def normalise_row(
    row,  # [BLOCK] float32, zero from hidden on
    weight,  # [BLOCK] float32
    bias,  # [BLOCK] float32
    valid,  # [BLOCK]
    hidden,
    eps,
):
    """The formula above for one token in registers, float32."""
    centred = tl.where(valid, row - tl.sum(row, axis=0) / hidden, 0.0)
    return centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / hidden + eps) * weight + bias


@triton.jit
def layer_norm_kernel(
    x_ptr,  # [tokens, hidden]
    weight_ptr,  # [hidden]
    bias_ptr,  # [hidden] or None
    out_ptr,  # [tokens, hidden]
    hidden,
    stride_x_token,
    stride_out_token,
    eps,
    BLOCK: tl.constexpr,  # power of two, at least hidden
    PDL: tl.constexpr,
):
    """One thread block normalises one token, held in registers."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    valid = columns < hidden
    weight, bias = load_weights(weight_ptr, bias_ptr, columns, valid)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    x = tl.load(x_ptr + token * stride_x_token + columns, mask=valid, other=0.0).to(tl.float32)
    out = normalise_row(x, weight, bias, valid, hidden, eps)
    tl.store(out_ptr + token * stride_out_token + columns, out.to(out_ptr.dtype.element_ty), mask=valid)


_launch = Launcher(layer_norm_kernel, writes=("out",), reads_early=("weight", "bias"))


def check_layouts(name: str, tokens: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None) -> None:
    """Raises ValueError for layouts that the kernels do not read. Every one of `tokens` is [tokens, hidden]."""
    weights = (weight,) if bias is None else (weight, bias)
    hidden = tokens[0].shape[1]
    if any(each.shape != tokens[0].shape for each in tokens) or any(each.shape != (hidden,) for each in weights):
        raise ValueError(f"{name}: shapes do not fit: {[tuple(tensor.shape) for tensor in (*tokens, *weights)]}")
    if any(tensor.stride(-1) != 1 for tensor in (*tokens, *weights)):
        raise ValueError(f"{name}: the last dimension of every tensor must have stride 1")


def layer_norm_triton(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    check_layouts("layer_norm", (x, out), weight, bias)
    tokens, hidden = x.shape
    if tokens == 0:
        return
    block = triton.next_power_of_2(hidden)
    _launch(
        (tokens,),
        (x, weight, bias, out),
        (hidden, x.stride(0), out.stride(0)),
        (eps,),
        BLOCK=block,
        **nearest("rms_norm", block=block),
    )


def normalise(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
    """The formula above in torch. `out` may be `x`."""
    wide_bias = None if bias is None else bias.float()
    out.copy_(functional.layer_norm(x.float(), weight.shape, weight.float(), wide_bias, eps))


def layer_norm_torch(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    normalise(x, weight, bias, eps, out)


layer_norm = register(layer_norm_torch, mutates=("out",), triton=layer_norm_triton)
