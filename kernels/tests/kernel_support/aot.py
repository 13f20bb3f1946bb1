"""Compiles kernels for a GPU that is not there, and reads what came out."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.tools.disasm import get_sass

SM_90 = GPUTarget("cuda", 90, 32)
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227}
"""Shared memory of a thread block, KiB, by compute capability (CUDA Programming Guide, technical specifications)."""


@dataclass(frozen=True)
class Compiled:
    shared_bytes: int
    shared_limit: int
    cubin: bytes

    @cached_property
    def sass(self) -> str:
        """The instructions. Disassembled on first use, which takes half a second."""
        return get_sass(self.cubin)

    def count(self, instruction: str) -> int:
        return len(re.findall(rf"\b{instruction}\b", self.sass))

    def check(self, max_spills: int = 0) -> None:
        """Registers suffice (at most `max_spills` stores to local memory and loads each) and shared memory fits."""
        if max(self.count("STL"), self.count("LDL")) > max_spills:
            raise AssertionError(f"{self.count('STL')} spill stores, {self.count('LDL')} spill loads")
        self.check_shared()

    def check_shared(self) -> None:
        """Shared memory fits."""
        if self.shared_bytes > self.shared_limit:
            raise AssertionError(f"{self.shared_bytes} bytes of shared memory exceed {self.shared_limit}")


def compile_offline(
    kernel: triton.JITFunction,
    types: dict[str, str],
    constants: Mapping[str, int | float | str | None],
    num_warps: int,
    num_stages: int = 3,
    target: GPUTarget = SM_90,
    max_registers: int | None = None,
) -> Compiled:
    """`types` names the Triton type of every argument that is no constant; `target` is another card than sm_90;
    `max_registers`: of a thread.

    Pointers and 32-bit integers are taken as multiples of 16, as they are for real models, but for those that the
    kernel says not to specialise. Kernels that can be launched dependently are.
    """
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    if "PDL" in kernel.arg_names:
        constants = {**constants, "PDL": target.arch >= SM_90.arch}
    aligned = {
        (parameter.num,): [["tt.divisibility", 16]]
        for parameter in kernel.params
        if (signature[parameter.name].startswith("*") or signature[parameter.name] == "i32")
        and not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
    }
    source = (GluonASTSource if kernel.is_gluon() else ASTSource)(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs=aligned,
    )
    options = {"num_warps": num_warps, "num_stages": num_stages, "maxnreg": max_registers}
    compiled = triton.compile(source, target=target, options=options)
    _check_tiles(compiled.asm["ttgir"])
    _check_words(compiled.asm["ttgir"])
    limit = SHARED_KIB[target.arch] * 1024
    return Compiled(compiled.metadata.shared, limit, compiled.asm["cubin"])


def _check_tiles(ttgir: str) -> None:
    """No tile in shared memory is read by an asynchronous GEMM and by a load in the same loop: for such a tile Triton
    3.6 takes one buffer too few, and the copy of a later tile overwrites what the GEMM still reads.
    """
    loaded = set(re.findall(r"ttg\.local_load (%\w+)", ttgir))
    gemms = re.findall(r"ttng\.warp_group_dot (%\w+), (%\w+),.*isAsync = true", ttgir)
    if shared := loaded.intersection(name for operands in gemms for name in operands):
        raise AssertionError(f"asynchronous GEMMs and loads share the tiles {', '.join(sorted(shared))}")


def _check_words(ttgir: str) -> None:
    """Each word that a thread block waits for is loaded by one thread alone (`lora/shrunk_words.py`)."""
    layouts = dict(re.findall(r"^(#\w+) = #ttg.blocked<\{(.*?)\}>$", ttgir, re.MULTILINE))
    waits = r"tt\.load .*isVolatile = true.* tensor<([\dx]+)x!tt\.ptr<i(?:32|64)>, (#\w+)>"
    for shape, layout in re.findall(waits, ttgir):
        threads = re.findall(r"(?:threadsPerWarp|warpsPerCTA) = \[([\d, ]+)\]", layouts[layout])
        of_threads = math.prod(int(each) for sizes in threads for each in sizes.split(", "))
        if math.prod(map(int, shape.split("x"))) < of_threads:
            raise AssertionError(f"{of_threads} threads wait for {shape} words, and would have copies of some")
