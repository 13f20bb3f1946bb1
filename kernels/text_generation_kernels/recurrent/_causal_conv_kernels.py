"""Kernels of `causal_conv`: decodes, chunks, and the states that chunks leave.

The token stride of `x`, a slice of a GEMM output, is a constexpr. Of an integer argument Triton knows at most that 16
divides it, and widths such as 3,352 (Mamba 2 of 130M parameters) are multiples of 8: enough for 16-byte loads.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..norm.activations import activation
from ..runtime.batches import find_tile
from ..runtime.launch import launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._recurrence import find_run


@triton.jit
def _load_inputs(
    x_run_ptr,  # of the run's first token
    state_row_ptr,  # [K - 1, CHANNELS]
    first,  # which token of the run
    continued,  # whether the request has tokens before the run
    length,  # of the run
    channels,  # [BLOCK]
    stride_x_token,
    COUNT: tl.constexpr,
    CHANNELS: tl.constexpr,
    K: tl.constexpr,
):
    """Inputs [BLOCK] of K - 1 tokens before `first` and of COUNT tokens from `first` on. Inputs older than the run come
    from the state, or are zero; inputs past its end are zero.
    """
    inputs = ()
    for place in tl.static_range(K - 1 + COUNT):
        index = first + (place - (K - 1))
        held_ptr = state_row_ptr + (K - 1 + index) * CHANNELS
        source_ptr = tl.where(index < 0, held_ptr, x_run_ptr + index * stride_x_token)
        exists = (index < length) & ((index >= 0) | continued)
        loaded = tl.load(source_ptr + channels, mask=exists & (channels < CHANNELS), other=0.0)
        inputs = inputs + (loaded,)  # noqa: RUF005 - Triton knows no star here
    return inputs


@triton.jit
def _load_weights(
    weight_ptr,  # [CHANNELS, K]
    bias_ptr,  # [CHANNELS] or None
    channels,  # [BLOCK]
    stride_weight_channel,
    stride_weight_tap,
    CHANNELS: tl.constexpr,
    K: tl.constexpr,
):
    """Weights of each tap, and the bias, [BLOCK] float32."""
    inside = channels < CHANNELS
    weights = ()
    for tap in tl.static_range(K):
        tap_ptr = weight_ptr + tap * stride_weight_tap
        weight = tl.load(tap_ptr + channels * stride_weight_channel, mask=inside, other=0.0)
        weights = weights + (weight.to(tl.float32),)  # noqa: RUF005 - as above
    bias = tl.zeros_like(weights[0])
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + channels, mask=inside, other=0.0).to(tl.float32)
    return weights, bias


@triton.jit
def _convolve(inputs, place: tl.constexpr, weights, bias, K: tl.constexpr, SILU: tl.constexpr):
    """The result [BLOCK] of one token, float32, from K of `inputs` from `place` on.

    FMAs are explicit: left to the compiler, decodes and chunks might round differently.
    """
    total = bias
    for tap in tl.static_range(K):
        total = tl.fma(weights[tap], inputs[place + tap].to(tl.float32), total)
    return activation(total, "silu") if SILU else total


@triton.jit
def _store_state(state_row_ptr, inputs, first: tl.constexpr, channels, CHANNELS: tl.constexpr, K: tl.constexpr):
    """Stores K - 1 of `inputs` from `first` on, once all threads of the thread block have read the old state."""
    tl.debug_barrier()
    for place in tl.static_range(K - 1):
        tl.store(state_row_ptr + place * CHANNELS + channels, inputs[first + place], mask=channels < CHANNELS)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "kv_lens_ptr"])
def conv_decodes_kernel(
    x_ptr,  # [tokens, CHANNELS]
    weight_ptr,  # [CHANNELS, K]
    bias_ptr,  # [CHANNELS] or None
    state_ptr,  # [rows, K - 1, CHANNELS]
    rows_ptr,  # [runs]
    kv_lens_ptr,  # [runs]
    out_ptr,  # [tokens, CHANNELS]
    stride_x_token: tl.constexpr,
    stride_weight_channel,
    stride_weight_tap,
    stride_out_token,
    CHANNELS: tl.constexpr,
    K: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK channels of one token, and shifts its state by one."""
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    run = tl.program_id(1).to(tl.int64)
    weights, bias = _load_weights(weight_ptr, bias_ptr, channels, stride_weight_channel, stride_weight_tap, CHANNELS, K)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    kv_len = tl.load(kv_lens_ptr + run)
    if kv_len == 0:
        return
    state_row_ptr = state_ptr + tl.load(rows_ptr + run) * ((K - 1) * CHANNELS)
    x_run_ptr = x_ptr + run * stride_x_token
    inputs = _load_inputs(x_run_ptr, state_row_ptr, 0, kv_len > 1, 1, channels, stride_x_token, 1, CHANNELS, K)
    out = _convolve(inputs, 0, weights, bias, K, SILU).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + run * stride_out_token + channels, out, mask=channels < CHANNELS)
    _store_state(state_row_ptr, inputs, 1, channels, CHANNELS, K)


@triton.jit(do_not_specialize=["runs"], do_not_specialize_on_alignment=["rows_ptr", "starts_ptr", "kv_lens_ptr"])
def conv_chunks_kernel(
    x_ptr,  # [tokens, CHANNELS]
    weight_ptr,  # [CHANNELS, K]
    bias_ptr,  # [CHANNELS] or None
    state_ptr,  # [rows, K - 1, CHANNELS], not written
    rows_ptr,  # [runs]
    starts_ptr,  # [runs + 1]
    kv_lens_ptr,  # [runs]
    out_ptr,  # [tokens, CHANNELS]
    stride_x_token: tl.constexpr,
    stride_weight_channel,
    stride_weight_tap,
    stride_out_token,
    runs,
    CHANNELS: tl.constexpr,
    K: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_B: tl.constexpr,  # power of two, at least runs
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK channels of TOKENS tokens of one run, whose inputs it loads all at once."""
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    weights, bias = _load_weights(weight_ptr, bias_ptr, channels, stride_weight_channel, stride_weight_tap, CHANNELS, K)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    run, tile = find_tile(starts_ptr, tl.program_id(1), runs, 1, TOKENS, BLOCK_B)
    if run >= runs:
        return
    start, length, continued, state_row_ptr = find_run(
        run, rows_ptr, starts_ptr, kv_lens_ptr, state_ptr, (K - 1) * CHANNELS
    )
    if length == 0:
        return
    first = tile.to(tl.int64) * TOKENS
    inputs = _load_inputs(
        x_ptr + start * stride_x_token, state_row_ptr, first, continued, length, channels, stride_x_token, TOKENS,
        CHANNELS, K,
    )  # fmt: skip
    for place in tl.static_range(TOKENS):
        out = _convolve(inputs, place, weights, bias, K, SILU).to(out_ptr.dtype.element_ty)
        stored = (first + place < length) & (channels < CHANNELS)
        tl.store(out_ptr + (start + first + place) * stride_out_token + channels, out, mask=stored)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "starts_ptr", "kv_lens_ptr"])
def conv_states_kernel(
    x_ptr,  # [tokens, CHANNELS]
    state_ptr,  # [rows, K - 1, CHANNELS]
    rows_ptr,  # [runs]
    starts_ptr,  # [runs + 1]
    kv_lens_ptr,  # [runs]
    stride_x_token: tl.constexpr,
    CHANNELS: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block stores BLOCK channels of one run's state, after the kernel for its tokens has read it."""
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    start, length, continued, state_row_ptr = find_run(
        tl.program_id(1), rows_ptr, starts_ptr, kv_lens_ptr, state_ptr, (K - 1) * CHANNELS
    )
    if length == 0:
        return
    inputs = _load_inputs(
        x_ptr + start * stride_x_token, state_row_ptr, length.to(tl.int64), continued, length, channels, stride_x_token,
        0, CHANNELS, K,
    )  # fmt: skip
    _store_state(state_row_ptr, inputs, 0, channels, CHANNELS, K)
