"""Launching Triton kernels: a cache of compiled forms, their count, and programmatic dependent launch.

Outside a graph, `kernel[grid](...)` spends most of its time on finding out which compiled form the arguments need. A
`Launcher` keeps the answer, so a launch costs the host less than half of that (benchmark/results/launch.json).

Programmatic dependent launch (CUDA Programming Guide, compute capability 9.0 and later) lets a kernel start while the
one before it in the stream still runs. It then reads what never changes, such as weights, and waits with
`wait_for_previous` before it touches anything else. Every program of such a kernel must wait, also one that has
nothing to do: the kernel after it relies on the whole chain being finished.
"""

# pyright: basic
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .triton import INSTALLED, cuda, knobs, tl, triton

_ALIGNMENT = 16
# The order of arguments of a compiled form's launch function, and the place of the compiler's hash, are those of these
# versions. Others launch as usual.
_DIRECT = triton.__version__.startswith("3.6.")
_compilations = 0
_named: dict[object, Any] | None = None
"""Inside `compile_only`: forms by what they were named for."""
_ARRIVALS = 1 << 16
"""Counters that a device has at least, so that few models ever ask for more."""
_arrivals: dict[torch.device, list[Tensor]] = {}
"""Counters of each device. Graphs may use all of them, everything else the last, which are the most."""
_FREELY = 48 << 10
"""Bytes of shared memory that a kernel has without asking for more."""


def compilations() -> int:
    """Forms of kernels that this process has compiled so far, or loaded from Triton's cache on disk.

    It must not grow any more after warm-up.
    """
    return _compilations


def _count(**_: object) -> None:
    global _compilations
    _compilations += 1


knobs.runtime.jit_post_compile_hook = _count


@contextmanager
def compile_only(threads: int) -> Generator[None, None, None]:
    """Launches in here compute nothing: they name the forms that are needed, and `threads` compile them side by side.

    At the end all are compiled and, where there is a device, loaded. What kernels would have written stays as it was,
    which may be memory never written to. Most of a compilation runs outside the interpreter's lock or in other
    processes, so threads are enough.
    """
    from triton.runtime._async_compile import active_mode

    global _named
    _named = {}
    try:
        with _executor(threads) as executor:
            with triton.AsyncCompileMode(executor):
                yield
            if torch.cuda.is_available():
                list(executor.map(_load, _named.values()))
    finally:
        _named = None
        # Triton leaves its mode on when a compilation has failed.
        active_mode.set(None)


def fingerprint_compiler() -> None:
    """Triton finds what it has compiled by a hash of itself, which it computes once: half a second for 400 MB. Touches
    no device, and does nothing where there can be none.
    """
    if INSTALLED and _DIRECT and torch.version.cuda is not None:
        from triton.runtime.cache import triton_key

        triton_key()


def compiling_only() -> bool:
    """Whether launches only name forms just now. An operator that chooses forms by what is in a step then names all of
    its forms, because a rehearsal is not made of every step.
    """
    return _named is not None


def _executor(threads: int) -> ThreadPoolExecutor:
    """Its threads use the device of this one."""
    if not torch.cuda.is_available():
        return ThreadPoolExecutor(threads)
    return ThreadPoolExecutor(threads, initializer=torch.cuda.set_device, initargs=(torch.cuda.current_device(),))


def _load(named: Any) -> object:
    """Asking a compiled form for `run` loads it, and has the C compiler build what launches forms of its signature."""
    kernel: Any = named.result() if isinstance(named, triton.FutureKernel) else named
    return kernel.run


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Until the kernels before this one are finished and what they wrote is visible."""
    if PDL:
        cuda.gdc_wait()


@triton.jit
def launch_dependents(PDL: tl.constexpr):
    """The next kernel may start as soon as every program of this one has said so. A hint: it changes no result."""
    if PDL:
        cuda.gdc_launch_dependents()


@triton.jit
def is_last(arrived_ptr, count):
    """Whether this program is the last of `count` that come here. It sees what the others stored before they came.

    Loads of that must go past the L1 cache. The counter is zero again for the next kernel.
    """
    tl.debug_barrier()
    last = tl.atomic_add(arrived_ptr, 1, sem="acq_rel") == count - 1
    if last:
        tl.store(arrived_ptr, 0)
    return last


def arrivals(device: torch.device, count: int) -> Tensor:
    """Counters for `is_last`, at least `count`, zero whenever no kernel runs. Kernels of one stream share them.

    Raises RuntimeError when a capture is the first to ask for so many, because a graph's memory is not there before its
    replay.
    """
    held = _arrivals.setdefault(device, [])
    if not held or held[-1].numel() < count:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("run the operator once before it is captured")
        size = 1 << (max(count, _ARRIVALS) - 1).bit_length()
        held.append(torch.zeros(size, dtype=torch.int32, device=device))
    return held[-1]


def _least_shared(max_blocks_per_sm: int, shared: int) -> int:
    """Bytes of shared memory with which no more programs fit on a processor, of a kernel that needs `shared`.

    Each takes 1 KiB besides, and kernels have 48 KiB without asking for more. For those that need more Triton asks for
    all that there is.
    """
    if max_blocks_per_sm == 0:
        return shared
    capacity = torch.cuda.get_device_properties().shared_memory_per_multiprocessor
    least = capacity // (max_blocks_per_sm + 1) - (1 << 10) + 128
    return max(shared, least if shared > _FREELY else min(least, _FREELY))


class _Compiled(NamedTuple):
    """One form of a kernel, ready to launch."""

    launch: Callable[..., None]
    function: int
    pdl: bool
    metadata: tuple[int, ...]
    placeholders: tuple[None, ...]
    """In the places of constexprs."""


class Launcher:
    """Launches one kernel whose parameters are, in this order, tiles, pointers, sizes, values and constexprs.

    A compiled form is chosen by the types of the pointers, the sizes, and the constexprs and options. Sizes are
    integers that belong to the model, because each combination of theirs has an entry of its own; values may be
    different in each call, and the kernel must name integers among them in `do_not_specialize`.
    A kernel with a constexpr `PDL` is launched dependently where the device can.
    For one thread, and one process a device, as the engine is.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._interpreted = not isinstance(kernel, triton.JITFunction)
        self._compiled: dict[object, _Compiled] = {}
        params = [] if self._interpreted else kernel.params
        # Tiles come first, and are always aligned.
        self._aligned = [not each.do_not_specialize_on_alignment for each in params if not each.name.endswith("_tiles")]

    def __call__(
        self,
        grid: tuple[int, ...],
        pointers: tuple[Tensor | None, ...],
        sizes: tuple[int, ...] = (),
        values: tuple[float, ...] = (),
        tiles: tuple[Any, ...] = (),
        /,
        *,
        max_blocks_per_sm: int = 0,
        **constants: object,
    ) -> None:
        """Launches on the current stream. `constants` are constexprs and Triton's options. `tiles` are descriptors of
        matrices (`TensorDescriptor`), whose sizes follow from the constexprs.

        `max_blocks_per_sm`: how many may be on a processor at a time, 4 or more, or fewer of a kernel that needs more than
        48 KiB of shared memory; 0: as many as fit. A kernel that starts while others run is not spread evenly: it fills
        the processors that are free.
        """
        types = [None if pointer is None else pointer.dtype for pointer in pointers]
        device = pointers[0].device.index  # pyright: ignore[reportOptionalMemberAccess] - only optional ones are None
        key = (device, max_blocks_per_sm, *types, sizes, *constants.items())
        if tiles:
            key = (*key, *(each.base.dtype for each in tiles))
        addresses = [0 if pointer is None else pointer.data_ptr() for pointer in pointers]
        compiled = self._compiled.get(key)
        if compiled is None or _named is not None or self._misaligned(addresses):
            self._launch_by_triton(key, grid, tiles, pointers, sizes, values, constants, addresses, max_blocks_per_sm)
            return
        x, y, z = (*grid, 1, 1)[:3]
        stream = torch._C._cuda_getCurrentRawStream(device)
        # The hooks of profilers (the last three of these) are left out.
        compiled.launch(
            x, y, z, stream, compiled.function, False, compiled.pdl, None, None, compiled.metadata, None, None, None,
            *tiles, *addresses, *sizes, *values, *compiled.placeholders,
        )  # fmt: skip

    def _misaligned(self, addresses: list[int]) -> bool:
        """Whether a pointer needs another form than usual: it is left to Triton to find."""
        union = 0
        for address, aligned in zip(addresses, self._aligned, strict=False):
            if aligned:
                union |= address
        return union % _ALIGNMENT != 0

    def _launch_by_triton(
        self,
        key: object,
        grid: tuple[int, ...],
        tiles: tuple[Any, ...],
        pointers: tuple[Tensor | None, ...],
        sizes: tuple[int, ...],
        values: tuple[float, ...],
        constants: dict[str, object],
        addresses: list[int],
        max_blocks_per_sm: int,
    ) -> None:
        """Compiles if need be, launches, and keeps the compiled form."""
        if "PDL" in self._kernel.arg_names:
            pdl = not self._interpreted and torch.cuda.get_device_capability() >= (9, 0)
            constants |= {"PDL": pdl} | ({"launch_pdl": True} if pdl else {})
        arguments = (*tiles, *pointers, *sizes, *values)
        if self._interpreted:
            self._kernel[grid](*arguments, **constants)
            return
        for parameter, value in zip(self._kernel.params[len(arguments) - len(values) :], values, strict=False):
            if isinstance(value, int) and not parameter.do_not_specialize:
                raise TypeError(
                    f"{self._kernel.__name__}: name {parameter.name} in do_not_specialize, or it recompiles"
                )
        if _named is not None:
            named = (self._kernel, key, *(address % _ALIGNMENT == 0 for address in addresses))
            if named not in _named:
                _named[named] = self._kernel.warmup(*arguments, grid=grid, **constants)
            return
        kernel = self._kernel[grid](*arguments, **constants)
        if not _DIRECT:
            return
        launcher = kernel.run
        # Scratch memory is allocated for each launch: such a kernel stays with Triton.
        if not self._misaligned(addresses) and not (launcher.global_scratch_size or launcher.profile_scratch_size):
            placeholders = (None,) * (len(self._kernel.params) - len(arguments))
            num_warps, num_ctas, shared = kernel.packed_metadata
            metadata = num_warps, num_ctas, _least_shared(max_blocks_per_sm, shared)
            self._compiled[key] = _Compiled(
                launcher.launch, kernel.function, launcher.launch_pdl, metadata, placeholders
            )
