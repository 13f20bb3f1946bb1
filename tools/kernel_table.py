"""Tables of kernels, docs/kernels.md, from what ladders and launchers say of them.

    python tools/kernel_table.py [--check]

`make kernel-table` writes the page. `make lint` runs it with `--check`, which fails where the page is not current.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import text_generation_kernels  # noqa: F401  all kernels are known once it is imported
from text_generation_kernels.matmul.bf16_ladder import BF16
from text_generation_kernels.matmul.ladder import Ladder, MatmulKernel
from text_generation_kernels.matmul.w8a8_ladder import W8A8
from text_generation_kernels.matmul.weight_only_ladder import WEIGHT_ONLY
from text_generation_kernels.moe.experts_ladder import EXPERTS
from text_generation_kernels.moe.mixture_ladder import MIXTURE
from text_generation_kernels.runtime.launch import LAUNCHERS
from text_generation_kernels.runtime.launch_order import Pdl

PAGE = Path(__file__).parent.parent / "docs" / "kernels.md"
LADDERS: dict[str, Ladder] = {
    "16-bit matrices": BF16,
    "W8A8": W8A8,
    "Weight-only quantised matrices (W4A16, W8A16)": WEIGHT_ONLY,
    "A mixture of experts and its router, for one token": MIXTURE,
    "Up and down GEMM of experts": EXPERTS,
}
HEAD = """# Kernels

Ladders choose which kernel computes a matmul: the first that takes the matrix and the number of tokens, which counts
as the size to which kernels pad it. `text-generation-server explain MODEL --card h100 --tokens 1,8,64` prints the
choices for a model, and why not the kernels before, from `config.json` alone. The data files in `tuned/` of the package
have what was measured.

With programmatic dependent launch (PDL, compute capability 9.0) a kernel starts while previous ones run. It may read
operands early, before it waits for them. It launches the next one before the wait, so that several kernels overlap;
after the wait, when all kernels before it are finished; or at its end. A kernel must not read early what another one
that may still run writes: warm-up checks the launches of every kind of step, and ends the start where one does.
`cache:older` is a part of an operand; parts of one tensor do not overlap within a step.

`make kernel-table` writes this page from the ladders and launchers of `kernels/text_generation_kernels`.
"""
OTHERS = """## All kernels, as warm-up checks their order

Writes are those that the next kernel may not have seen: what is stored before dependents are launched is not among
them.
"""


def row(*cells: str) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |\n"


def head(*names: str) -> str:
    """The first two lines of a table."""
    return row(*names) + row(*["---"] * len(names))


def operands(names: Iterable[str]) -> str:
    """Operands as a cell of a table."""
    return ", ".join(f"`{name}`" for name in names) or "none"


def ladder_rows(kernels: Iterable[MatmulKernel]) -> Iterator[str]:
    """A line for each kernel of a ladder. Of several that it launches, the first one starts early, and the last one
    launches the kernel that follows.
    """
    for kernel in kernels:
        fuses = ", ".join(sorted(kernel.fuses)) or "none"
        early, following = "none", "a library"
        if told := kernel.kernels:
            early, following = operands(told[0].reads_early), told[-1].dependents
        yield row(
            f"`{kernel.name}`" if kernel.name in LAUNCHERS else kernel.name, kernel.takes, fuses, early, following
        )


def kernel_rows() -> Iterator[str]:
    """A line for each kernel, by name."""
    told: list[Pdl] = [LAUNCHERS[name].pdl for name in sorted(LAUNCHERS)]
    for each in told:
        yield row(f"`{each.kernel}`", operands(each.reads_early), operands(each.writes), each.dependents)


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, ladder in LADDERS.items():
        columns = head("kernel", "computes", "fused with", "reads early", "launches the next")
        parts.append(f"## {title}\n\n{columns}{''.join(ladder_rows(ladder.kernels))}")
    columns = head("kernel", "reads early", "writes", "launches the next")
    parts.append(f"{OTHERS}\n{columns}{''.join(kernel_rows())}")
    return "\n".join(parts)


def main() -> None:
    """Writes the page, or checks that it is current."""
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/kernels.md is not what the kernels say of themselves: run `make kernel-table`")


if __name__ == "__main__":
    main()
