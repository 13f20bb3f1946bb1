"""Triton kernel launches: a cache of compiled variants, their count, the compile dry run, and PDL.

Outside a graph, `kernel[grid](...)` spends most of its time on finding the compiled variant for its arguments. A
`Launcher` caches it, so a launch costs the host less than half of that (benchmark/results/launch.json).

Programmatic dependent launch (PDL; CUDA Programming Guide, compute capability 9.0 and later) lets a kernel start while
the previous one in the stream still runs. It prefetches what never changes, such as weights, and calls
`wait_for_previous` (griddepcontrol.wait) before it touches anything else. Every thread block must wait, also one with
nothing to do: the next kernel relies on the whole chain being finished. Each `Launcher` says what its kernel reads
early, and the compile dry run checks the order of launches against that (`launch_order.py`).
"""

# pyright: basic
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .launch_order import Dependents, LaunchOrder, Pdl
from .triton import INSTALLED, cuda, knobs, tl, triton

_ALIGNMENT = 16
# The argument order of a compiled variant's launch function, and the place of the compiler's hash, are those of these
# versions. Other versions launch through Triton.
_DIRECT = triton.__version__.startswith("3.6.")
_compilations = 0
_named: dict[object, Any] | None = None
"""Inside `compile_only`: variants by what they were named for."""
_order: LaunchOrder | None = None
"""Inside `compile_only`: follows the launches."""
_ARRIVALS = 1 << 16
"""Least counters of a device, enough for most models."""
_arrivals: dict[torch.device, list[Tensor]] = {}
"""Counter tensors of each device. Graphs may use any of them; everything else uses the last, which is the largest."""
_FREELY = 48 << 10
"""Bytes of shared memory that a kernel has without opting in to more."""
T = TypeVar("T")


def compilations() -> int:
    """Kernel variants that this process has compiled so far, or loaded from Triton's cache on disk.

    The count must not grow after warm-up.
    """
    return _compilations


def _count(**_: object) -> None:
    global _compilations
    _compilations += 1


knobs.runtime.jit_post_compile_hook = _count


@contextmanager
def compile_only(threads: int) -> Generator[None, None, None]:
    """Compile dry run: launches inside compute nothing. They name the variants they need, and `threads` compile these.

    At the end all are compiled and, where there is a device, loaded. Kernels write nothing, so their outputs may be
    uninitialised memory. Most of a compilation runs outside the interpreter's lock or in other processes, so threads
    are enough. Raises LaunchOrderError where a kernel reads early what an earlier one may still be writing.
    """
    from triton.runtime._async_compile import active_mode

    global _named, _order
    _named, _order = {}, LaunchOrder()
    try:
        with _executor(threads) as executor:
            with triton.AsyncCompileMode(executor), _order:
                yield
            if torch.cuda.is_available():
                list(executor.map(_load, _named.values()))
    finally:
        _named, _order = None, None
        # Triton leaves its mode on when a compilation has failed.
        active_mode.set(None)


def fingerprint_compiler() -> None:
    """Computes Triton's hash of itself, by which it finds compiled kernels, ahead of time: half a second for 400 MB.
    Touches no device, and does nothing where there can be none.
    """
    if INSTALLED and _DIRECT and torch.version.cuda is not None:
        from triton.runtime.cache import triton_key

        triton_key()


def compiling_only() -> bool:
    """Whether a compile dry run is in progress (`compile_only`). An operator that chooses variants by the contents of a
    step then names all of them, because a dry run does not see every step.
    """
    return _named is not None


def alternatives(each: Iterable[T]) -> Iterator[T]:
    """Yields choices of which a step launches one, and a compile dry run all."""
    yield from each if _order is None else _order.alternatives(each)


def _executor(threads: int) -> ThreadPoolExecutor:
    """A thread pool whose threads use the current device."""
    if not torch.cuda.is_available():
        return ThreadPoolExecutor(threads)
    return ThreadPoolExecutor(threads, initializer=torch.cuda.set_device, initargs=(torch.cuda.current_device(),))


def _load(named: Any) -> object:
    """Loads a compiled variant: reading its `run` does, and has the C compiler build the launcher of its signature."""
    kernel: Any = named.result() if isinstance(named, triton.FutureKernel) else named
    return kernel.run


def _operand(parameter: str) -> str:
    return parameter[:-4] if parameter.endswith("_ptr") else parameter.removesuffix("_tiles")


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Waits until all previous kernels have finished and their writes are visible (griddepcontrol.wait)."""
    if PDL:
        cuda.gdc_wait()


@triton.jit
def launch_dependents(PDL: tl.constexpr):
    """Launches dependents early: the next kernel may start once every thread block has called this. Only a hint."""
    if PDL:
        cuda.gdc_launch_dependents()


@triton.jit
def is_last(arrived_ptr, count):
    """Whether this thread block is the last of `count` to arrive. It sees what the others stored before they arrived.

    Loads of that must bypass L1. The counter is zero again for the next kernel.
    """
    tl.debug_barrier()
    last = tl.atomic_add(arrived_ptr, 1, sem="acq_rel") == count - 1
    if last:
        tl.store(arrived_ptr, 0)
    return last


def arrivals(device: torch.device, count: int) -> Tensor:
    """Counters for `is_last`, at least `count`, zero whenever no kernel runs. Kernels of one stream share them.

    Raises RuntimeError when a capture is the first to need this many, because a graph's memory exists only in its
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
    """Shared memory, in bytes, that keeps a kernel that needs `shared` to `max_blocks_per_sm` thread blocks an SM.

    Each takes 1 KiB besides. Kernels have 48 KiB without opting in; for those that need more, Triton opts in to all.
    """
    if max_blocks_per_sm == 0:
        return shared
    capacity = torch.cuda.get_device_properties().shared_memory_per_multiprocessor
    least = capacity // (max_blocks_per_sm + 1) - (1 << 10) + 128
    return max(shared, least if shared > _FREELY else min(least, _FREELY))


class _Operands(NamedTuple):
    """The operands of a launch: see `Launcher.__call__`."""

    tiles: tuple[Any, ...]
    pointers: tuple[Tensor | None, ...]
    sizes: tuple[int, ...]
    values: tuple[float, ...]


class _Compiled(NamedTuple):
    """One compiled variant of a kernel, ready to launch."""

    launch: Callable[..., None]
    function: int
    pdl: bool
    metadata: tuple[int, ...]
    placeholders: tuple[None, ...]
    """In the places of constexprs."""


LAUNCHERS: dict[str, "Launcher"] = {}
"""Those of all kernels, by name."""


class Launcher:
    """Launches one kernel whose parameters are, in this order: tiles, pointers, sizes, values and constexprs.

    The types of pointers, the sizes, the constexprs and options select a compiled variant. Sizes are integers that
    belong to the model, because each combination has its own cache entry; values may change with each call, and the
    kernel must list integers among them in `do_not_specialize`. Kernels with a constexpr `PDL` use programmatic
    dependent launch where the device can. For one thread, and one process a device, as the engine is.
    """

    def __init__(
        self,
        kernel: Any,
        *,
        writes: tuple[str, ...],
        reads_early: tuple[str, ...] = (),
        dependents: Dependents = "before the wait",
        name: str = "",
    ) -> None:
        """`writes`, `reads_early` and `dependents` have the meaning of `Pdl`. `name` is that of the kernel, unless it
        has several launchers. Raises TypeError for operands that are no parameters.
        """
        operands = [_operand(name) for name in kernel.arg_names] if INSTALLED else []
        if INSTALLED and (
            unknown := [each for each in (*writes, *reads_early) if each.partition(":")[0] not in operands]
        ):
            raise TypeError(f"{kernel.__name__} has no parameters {', '.join(unknown)}")
        self.pdl = Pdl(name or kernel.__name__.removesuffix("_kernel"), reads_early, writes, dependents)
        """What the kernel says about programmatic dependent launch."""
        LAUNCHERS[self.pdl.kernel] = self
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
        """Launches on the current stream. `constants`: constexprs and Triton's options. `tiles`: TMA descriptors
        (`TensorDescriptor`), whose sizes follow from the constexprs.

        `max_blocks_per_sm`: 4 or more, or fewer for a kernel that needs more than 48 KiB of shared memory; 0: as many
        as fit. A kernel that starts while others run is not spread evenly: it fills the SMs that are free.
        """
        types = [None if pointer is None else pointer.dtype for pointer in pointers]
        device = pointers[0].device.index  # pyright: ignore[reportOptionalMemberAccess] - only optional ones are None
        key = (device, max_blocks_per_sm, *types, sizes, *constants.items())
        if tiles:
            key = (*key, *(each.base.dtype for each in tiles))
        addresses = [0 if pointer is None else pointer.data_ptr() for pointer in pointers]
        compiled = self._compiled.get(key)
        if compiled is None or _named is not None or self._misaligned(addresses):
            operands = _Operands(tiles, pointers, sizes, values)
            self._launch_by_triton(key, grid, operands, constants, addresses, max_blocks_per_sm)
            return
        x, y, z = (*grid, 1, 1)[:3]
        stream = torch._C._cuda_getCurrentRawStream(device)
        # The hooks of profilers (the last three of these) are left out.
        compiled.launch(
            x, y, z, stream, compiled.function, False, compiled.pdl, None, None, compiled.metadata, None, None, None,
            *tiles, *addresses, *sizes, *values, *compiled.placeholders,
        )  # fmt: skip

    def _misaligned(self, addresses: list[int]) -> bool:
        """Whether a pointer lacks the usual alignment, so that Triton must select the variant."""
        union = 0
        for address, aligned in zip(addresses, self._aligned, strict=False):
            if aligned:
                union |= address
        return union % _ALIGNMENT != 0

    def _launch_by_triton(
        self,
        key: object,
        grid: tuple[int, ...],
        operands: _Operands,
        constants: dict[str, object],
        addresses: list[int],
        max_blocks_per_sm: int,
    ) -> None:
        """Compiles if necessary, launches, and caches the compiled variant."""
        pdl = False
        if "PDL" in self._kernel.arg_names:
            pdl = not self._interpreted and torch.cuda.get_device_capability() >= (9, 0)
            constants |= {"PDL": pdl} | ({"launch_pdl": True} if pdl else {})
        tiles, pointers, sizes, values = operands
        if _order is not None:
            tensors = (*(each.base for each in tiles), *pointers)
            named = zip(map(_operand, self._kernel.arg_names), tensors, strict=False)
            told = self.pdl if pdl else Pdl(self.pdl.kernel, writes=self.pdl.writes)
            _order.launched(told, [(name, tensor) for name, tensor in named if tensor is not None])
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
            variant = (self._kernel, key, *(address % _ALIGNMENT == 0 for address in addresses))
            if variant not in _named:
                _named[variant] = self._kernel.warmup(*arguments, grid=grid, **constants)
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
