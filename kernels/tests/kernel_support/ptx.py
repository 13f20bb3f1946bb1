"""Runs the few PTX instructions of code conversions, on numbers of 32 bits."""

import re
from collections.abc import Sequence

import torch

_WORD = 0xFFFFFFFF
_PAIRS = {"f16x2": torch.float16, "bf16x2": torch.bfloat16}


def run(program: str, inputs: Sequence[int], outputs: int) -> list[int]:
    """The values of registers $0 to `outputs` - 1, where those after them are `inputs`."""
    registers = {f"${outputs + index}": value for index, value in enumerate(inputs)}

    def value(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    for line in program.strip("{ }").split(";"):
        name, _, rest = line.strip().partition(" ")
        if not name or name == ".reg":
            continue
        target, *operands = (each.strip() for each in rest.split(","))
        registers[target] = _result(name, [value(each) for each in operands]) & _WORD
    return [registers[f"${index}"] for index in range(outputs)]


def _result(name: str, operands: list[int]) -> int:
    first, *others = operands
    if name == "mov.b32":
        return first
    if name == "and.b32":
        return first & others[0]
    if name == "shl.b32":
        return first << others[0]
    if name == "shr.u32":
        return first >> others[0]
    if name == "mul.lo.u32":
        return first * others[0]
    if name == "mad.lo.u32":
        return first * others[0] + others[1]
    if name == "lop3.b32" and others[2] == 0xEA:
        return first & others[0] | others[1]
    if name == "prmt.b32":
        both = first | others[0] << 32
        chosen = (others[1] >> 4 * byte & 7 for byte in range(4))
        return sum((both >> 8 * byte & 255) << 8 * place for place, byte in enumerate(chosen))
    if found := re.fullmatch(r"(mul|fma)\.rn\.(\w+)", name):
        left, right, *rest = (pair(each, _PAIRS[found[2]]).double() for each in operands)
        exact = left * right + (rest[0] if rest else 0.0)
        return as_word(exact.to(_PAIRS[found[2]]))
    raise ValueError(f"the instruction {name} is not known here")


def pair(word: int, dtype: torch.dtype) -> torch.Tensor:
    """Both numbers of 16 bits in a word, the lower half first."""
    return torch.tensor([word], dtype=torch.int64).to(torch.int32).view(dtype)


def as_word(numbers: torch.Tensor) -> int:
    """The inverse of `pair`."""
    return int(numbers.view(torch.int32)) & _WORD
