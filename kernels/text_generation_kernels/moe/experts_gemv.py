"""GEMVs of single tokens with the weights of their experts, and the router's top-k fused into the first.

`expert_gemv` computes gate and up with the activation as epilogue, `expert_gemv_sum` down, and adds up the experts of a
token in the order of a tree over its slots. Layouts and rounding are those of `moe_experts.py`, which calls them for
few tokens and 16-bit weights; `mixture.py` calls them for one token. How a thread block reads its rows says
`bf16_gemv.py`.

With a `FusedRouter` each thread block of `expert_gemv` finds the expert of its slot in the logits, and one of them
stores all ids and weights for `expert_gemv_sum`. Down cannot fuse it, as each of its thread blocks needs all ids.

Bytes floor: 3 * experts hit * inner * hidden * bytes of a weight. Lab: docs/lab/2026-11-single-token-decode.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from dataclasses import dataclass

from torch import Tensor

from ..matmul.bf16_gemv import add_rest_of_rows, load_residual, read_weights, store_with_residual
from ..matmul.gemv_blocks import gemv_blocks, routing_blocks, sum_blocks
from ..matmul.rows import weight_rows_of
from ..norm.activations import activation as activation_of
from ..norm.activations import gated_activation, is_gated, plain_name
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._grouped_gemm_tiles import is_here
from .expert_matrix import ExpertMatrix
from .expert_rows import ExpertRows
from .moe_route import TINY, RouteOptions, route_token
from .routing import Routing

MOST_EXPERTS = 256
"""The most experts of a mixture whose routing is fused."""


@dataclass(frozen=True, slots=True, eq=False)
class FusedRouter:
    """The router of one token, fused into `expert_gemv`."""

    logits: Tensor
    """[1, experts], of 16 bits, with unit stride; columns after those of the experts are not read."""
    options: RouteOptions
    """A softmax without groups, whose shared experts have no gate."""
    routing: Routing
    """Of the token, to be written."""

    @property
    def constants(self) -> dict[str, object]:
        """Constexprs of the kernel."""
        experts = self.logits.shape[1] - self.options.shared_gate
        return {
            "EXPERTS": experts,
            "TOP_K": self.options.top_k,
            "NORM": self.options.norm,
            "SHARED": self.options.shared,
            "BLOCK_E": triton.next_power_of_2(experts),
            "BLOCK_S": triton.next_power_of_2(self.options.slots),
            "TINY": TINY,
        }


@triton.jit
def _expert_of(
    logits_ptr,
    slot,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The expert of a slot, as `route_token` ranks them.

    16 bits of a logit, as an integer of the same order, and its place make a key that no other logit has. Every warp
    has all keys, so that none waits for another: a warp has an instruction for the largest of its integers.
    """
    lanes = tl.arange(0, BLOCK_E)
    copies = tl.zeros([WARPS, 1], tl.int32)
    valid = (lanes < EXPERTS)[None, :] & (copies == 0)
    TYPE: tl.constexpr = logits_ptr.dtype.element_ty
    logits = tl.load(logits_ptr + copies + lanes[None, :], mask=valid, other=float("-inf")).to(tl.float32)
    # Adding 0 turns -0 into 0.
    logits = tl.where(logits == logits, logits, float("-inf")) + 0.0
    bits = logits.to(TYPE).to(tl.int16, bitcast=True).to(tl.int32)
    ordered = tl.where(bits < 0, bits ^ 0x7FFF, bits)
    keys = tl.where(valid, ordered * 65536 + 65535 - lanes[None, :], -(2**31))
    best = tl.max(keys, axis=1)
    for _ in range(tl.minimum(slot, TOP_K - 1)):
        keys = tl.where(keys == best[:, None], -(2**31), keys)
        best = tl.max(keys, axis=1)
    # Shared experts follow the routed ones.
    return tl.where(slot < TOP_K, 65535 - (tl.max(best, axis=0) & 65535), EXPERTS + slot - TOP_K)


@triton.jit
def _store_routing(
    logits_ptr,
    ids_ptr,
    shares_ptr,
    scale,
    first,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    NORM: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_S: tl.constexpr,
    TINY: tl.constexpr,
):
    """Stores ids and weights of the token, which down may read as soon as this thread block launches dependents."""
    ids, shares = route_token(
        logits_ptr, None, scale, 0.0, EXPERTS, TOP_K, "softmax", NORM, 1, 1, "top2", SHARED, False, BLOCK_E, BLOCK_S,
        TINY,
    )  # fmt: skip
    slots = tl.arange(0, BLOCK_S)
    tl.store(ids_ptr + slots, ids - first, mask=slots < TOP_K + SHARED)
    tl.store(shares_ptr + slots, shares, mask=slots < TOP_K + SHARED)
    # All threads have stored, and then other SMs see all that they stored.
    tl.debug_barrier()
    tl.atomic_add(ids_ptr, 0, sem="acq_rel")
    tl.debug_barrier()


@triton.jit(do_not_specialize=["first"])
def expert_gemv_kernel(
    x_ptr,  # [rows / SLOTS, inputs]
    weight_ptr,  # [experts, outputs, inputs]
    bias_ptr,  # [experts, outputs] or None
    logits_ptr,  # [EXPERTS] of the fused router, or None
    ids_ptr,  # [rows] int32, read, or with `logits_ptr` written
    shares_ptr,  # [rows] float32, written with `logits_ptr`
    out_ptr,  # [rows, outputs / 2], without a gate [rows, outputs]
    inputs,
    outputs,
    stride_x_row,
    scale,
    first,
    SLOTS: tl.constexpr,  # rows of one token
    HELD: tl.constexpr,  # experts of this rank, where other ranks have some; else None
    ACTIVATION: tl.constexpr,  # key of GATED or ALONE
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WHOLE: tl.constexpr,  # whether BLOCK_K is at least `inputs`
    MASK: tl.constexpr,  # whether a thread block has inputs or experts that are not there
    WARPS: tl.constexpr,
    PDL: tl.constexpr,
    EXPERTS: tl.constexpr = 0,
    TOP_K: tl.constexpr = 0,
    NORM: tl.constexpr = 0,
    SHARED: tl.constexpr = 0,
    BLOCK_E: tl.constexpr = 0,
    BLOCK_S: tl.constexpr = 0,
    TINY: tl.constexpr = 0.0,
):
    """One thread block computes BLOCK_N outputs of one row, and their activation."""
    block = tl.program_id(0)
    row = tl.program_id(1)
    wait_for_previous(PDL)
    if logits_ptr is None:
        expert = tl.load(ids_ptr + row)
    else:
        expert = _expert_of(logits_ptr, row, EXPERTS, TOP_K, BLOCK_E, WARPS) - first
    read = inputs
    if HELD is not None:
        # A row of another rank's expert reads nothing, and nobody reads what it stores.
        read = tl.where(is_here(expert, HELD), inputs, 0)
        expert = tl.where(is_here(expert, HELD), expert, 0)
    PAIRS: tl.constexpr = is_gated(ACTIVATION)
    weight_rows = weight_rows_of(block, outputs, BLOCK_N, PAIRS)
    columns = tl.arange(0, BLOCK_K)
    rows_ptr = weight_ptr + expert.to(tl.int64) * outputs * inputs
    weight_ptrs = rows_ptr + weight_rows.to(tl.int64)[:, None] * inputs + columns[None, :]
    weight = read_weights(weight_ptrs, (columns < read)[None, :], MASK)
    if logits_ptr is not None and (block == 0) & (row == 0):
        _store_routing(
            logits_ptr, ids_ptr, shares_ptr, scale, first, EXPERTS, TOP_K, NORM, SHARED, BLOCK_E, BLOCK_S, TINY
        )
    # Not earlier: the next kernel relies on all kernels before this one being finished, and on the ids.
    launch_dependents(PDL)
    x_ptrs = x_ptr + (row // SLOTS).to(tl.int64) * stride_x_row + columns
    x = tl.load(x_ptrs, mask=columns < read, other=0.0).to(tl.float32)
    acc = tl.sum(weight.to(tl.float32) * x[None, :], axis=1)
    if not WHOLE:
        acc = add_rest_of_rows(acc, weight_ptrs, x_ptrs, columns, read, BLOCK_K, MASK)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + expert * outputs + weight_rows).to(tl.float32)
    if PAIRS:
        gate, up = tl.split(tl.reshape(acc, [BLOCK_N // 2, 2]))
        out = gated_activation(gate, up, ACTIVATION)
    else:
        out = activation_of(acc, plain_name(ACTIVATION))
    WIDTH: tl.constexpr = BLOCK_N // 2 if PAIRS else BLOCK_N
    size = outputs // 2 if PAIRS else outputs
    places = block * WIDTH + tl.arange(0, WIDTH)
    out = out.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row.to(tl.int64) * size + places, out, mask=places < size)


@triton.jit
def expert_gemv_sum_kernel(
    x_ptr,  # [tokens * SLOTS, inputs]
    weight_ptr,  # [experts, outputs, inputs]
    bias_ptr,  # [experts, outputs] or None
    ids_ptr,  # [tokens * SLOTS] int32
    shares_ptr,  # [tokens * SLOTS] float32
    out_ptr,  # [tokens, outputs]
    inputs,
    outputs,
    ADDS: tl.constexpr,  # as above
    SLOTS: tl.constexpr,
    HELD: tl.constexpr,
    BLOCK_S: tl.constexpr,  # power of two, at least SLOTS
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WHOLE: tl.constexpr,  # whether BLOCK_K is at least `inputs`
    MASK: tl.constexpr,  # whether a thread block has inputs or experts that are not there
    REST: tl.constexpr,  # inputs besides the BLOCK_K ones, where they are a power of two; else 0
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N outputs of one token, of all its experts at once.

    Ids are read while the previous kernel may still run: it has waited for them, or stored them before it launched
    dependents.
    """
    token = tl.program_id(1)
    slots = tl.arange(0, BLOCK_S)
    rows = token * SLOTS + slots
    here = slots < SLOTS
    ids = tl.load(ids_ptr + rows, mask=here, other=0, cache_modifier=".cg")
    if HELD is not None:
        here = here & is_here(ids, HELD)
    places = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    outs = ids.to(tl.int64)[:, None] * outputs + tl.minimum(places, outputs - 1)[None, :]
    weight_ptrs = weight_ptr + outs[:, :, None] * inputs
    weight = read_weights(
        weight_ptrs + columns[None, None, :], (here[:, None] & (columns < inputs)[None, :])[:, None, :], MASK
    )
    if REST:
        rest = BLOCK_K + tl.arange(0, REST)
        weight_rest = read_weights(weight_ptrs + rest[None, None, :], here[:, None, None], HELD is not None)
    wait_for_previous(PDL)
    launch_dependents(PDL)
    shares = tl.load(shares_ptr + rows, mask=here, other=0.0)
    out_ptrs = out_ptr + token.to(tl.int64) * outputs + places
    before = load_residual(out_ptrs, places < outputs, ADDS)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * inputs
    read = here[:, None] & (columns < inputs)[None, :]
    x = tl.load(x_ptrs + columns[None, :], mask=read, other=0.0).to(tl.float32)
    acc = tl.sum(weight.to(tl.float32) * x[:, None, :], axis=2)
    if REST:
        x = tl.load(x_ptrs + rest[None, :], mask=here[:, None], other=0.0).to(tl.float32)
        acc += tl.sum(weight_rest.to(tl.float32) * x[:, None, :], axis=2)
    elif not WHOLE:
        for begin in range(BLOCK_K, inputs, BLOCK_K):
            read = here[:, None] & (columns < inputs - begin)[None, :]
            weight = read_weights(weight_ptrs + begin + columns[None, None, :], read[:, None, :], MASK)
            x = tl.load(x_ptrs + begin + columns[None, :], mask=read, other=0.0).to(tl.float32)
            acc += tl.sum(weight.to(tl.float32) * x[:, None, :], axis=2)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + outs, mask=here[:, None], other=0.0).to(tl.float32)
    acc *= shares[:, None]
    out = tl.sum(acc.to(out_ptr.dtype.element_ty).to(tl.float32), axis=0)
    store_with_residual(out_ptrs, out, before, places < outputs, ADDS)


_launch = Launcher(expert_gemv_kernel, writes=("out", "shares"), dependents="after the wait")
_launch_sum = Launcher(
    expert_gemv_sum_kernel, writes=("out",), reads_early=("ids", "weight"), dependents="after the wait"
)


def expert_gemv(
    x: Tensor, matrix: ExpertMatrix, rows: ExpertRows, out: Tensor, router: FusedRouter | None = None
) -> None:
    """Launches the gate and up GEMV of each row of `out`. With `router` the rows are those of one token, whose ids and
    weights are written.
    """
    weight, held = matrix.weight, rows.held
    _, outputs, inputs = weight.shape
    config = gemv_blocks(weight) if router is None else routing_blocks(weight)
    logits, shares, options = (
        (None, None, None) if router is None else (router.logits, router.routing.weights, router.options)
    )
    _launch(
        (triton.cdiv(outputs, config["BLOCK_N"]), len(out)),
        (x, weight, matrix.bias, logits, rows.ids, shares, out),
        (inputs, outputs, x.stride(0)),
        (1.0, 0) if options is None else (float(options.scale), options.first),
        SLOTS=rows.ids.shape[1],
        HELD=held,
        ACTIVATION=rows.activation,
        MASK=held is not None or inputs % config["BLOCK_K"] != 0,
        WARPS=config["num_warps"],
        **config,
        **({} if router is None else router.constants),
    )


def expert_gemv_sum(x: Tensor, matrix: ExpertMatrix, rows: ExpertRows, out: Tensor) -> None:
    """Launches the down GEMV of experts, whose results are weighted and added up, after `expert_gemv` with the same
    ids.
    """
    weight, held = matrix.weight, rows.held
    _, outputs, inputs = weight.shape
    tokens, slots = rows.ids.shape
    block_s: int = triton.next_power_of_2(slots)  # pyright: ignore[reportAssignmentType]
    config = sum_blocks(weight, block_s)
    _launch_sum(
        (triton.cdiv(outputs, config["BLOCK_N"]), tokens),
        (x, weight, matrix.bias, rows.ids, rows.weights, out),
        (inputs, outputs),
        ADDS=rows.adds,
        SLOTS=slots,
        HELD=held,
        BLOCK_S=block_s,
        MASK=held is not None or slots < block_s or (inputs - config["REST"]) % config["BLOCK_K"] != 0,
        **config,
    )
