"""Notes which kernels and library GEMMs an operator calls, with which settings, on a card that is not there."""

# pyright: basic
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from text_generation_kernels.matmul.ladder import Ladder
from text_generation_kernels.runtime import device, launch


class Card(NamedTuple):
    """What choices of kernels depend on."""

    name: str
    capability: tuple[int, int]
    shared_kib: int
    num_sms: int


CARDS = (
    Card("sm_90", (9, 0), 227, 132),
    Card("sm_89", (8, 9), 99, 128),
    Card("sm_80", (8, 0), 163, 108),
)


@contextmanager
def noted_choices(card: Card) -> Iterator[Callable[[Callable[[], object]], tuple[str, ...]]]:
    """Yields a function that calls another one and returns the launches that it made, as text, in their order.

    Tensors of the CPU are taken for tensors of the card. Nothing is computed or compiled, so large operands may be
    uninitialised memory.
    """
    noted: list[str] = []

    def launched(self: Any, grid: object, pointers: tuple, sizes: tuple = (), values: tuple = (), tiles: tuple = (),
                 /, **constants: object) -> None:  # fmt: skip
        names = self._kernel.arg_names
        first = len(tiles) + len(pointers) + len(sizes)
        settings = dict(zip(names[first : first + len(values)], values, strict=True))
        shown = ({"splits": settings["splits"]} if "splits" in settings else {}) | constants
        noted.append(f"{self._kernel.__name__}({', '.join(f'{key}={value}' for key, value in shown.items())})")

    def library(name: str, out_columns: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*arguments: Any, out: Tensor | None = None, **options: Any) -> Tensor:
            # The weight, and how many dimensions its scales have.
            scales = f", scales {arguments[3].dim()}" if len(arguments) > 3 else ""
            noted.append(f"{name}({tuple(arguments[1].shape)}{scales})")
            return out_columns(*arguments) if out is None else out

        return call

    def run(call: Callable[[], object]) -> tuple[str, ...]:
        noted.clear()
        call()
        return tuple(noted)

    with pytest.MonkeyPatch.context() as patch:
        pretend_card(patch, card)
        patch.setattr(launch.Launcher, "__call__", launched)
        patch.setattr(functional, "linear", library("cublas", lambda x, w, *_: x.new_empty(len(x), len(w))))
        patch.setattr(torch, "mm", library("cublas", lambda x, w: x.new_empty(len(x), w.shape[1])))
        for name in ("_scaled_mm", "_int_mm"):
            sums = library(name, lambda x, w, *_: x.new_empty(len(x), w.shape[1], dtype=torch.float32))
            patch.setattr(torch, name, sums)
        yield run


def measured(patch: pytest.MonkeyPatch, module: Any, ladder: Ladder, settings: Mapping[str, int]) -> None:
    """`ladder`, of this module, finds these launch settings in its data files, for every matrix."""
    for name in ("fastest", "nearest"):
        patch.setattr(module, name, lambda *_, **__: settings, raising=False)
    patch.setattr(ladder, "_choices", {})


def pretend_card(patch: pytest.MonkeyPatch, card: Card) -> None:
    """Operators take tensors of the CPU for tensors of `card`."""
    # A test of a whole engine on a CPU may have chosen torch for the process.
    patch.setattr(sys.modules["text_generation_kernels.runtime.register"], "_triton_enabled", True)
    patch.setattr(torch.Tensor, "is_cuda", True)
    patch.setattr(torch.version, "cuda", "12.9")
    patch.setattr(torch.cuda, "get_device_capability", lambda *_: card.capability)
    is_hopper = card.capability == (9, 0)
    known = device.Card(card.shared_kib, card.num_sms, is_hopper, card.capability >= (8, 9), has_block_gemms=is_hopper)
    told = {
        "is_hopper": lambda _: is_hopper,
        "shared_kib": lambda _: card.shared_kib,
        "num_sms": lambda _: card.num_sms,
        "has_fp8_gemms": lambda _: card.capability >= (8, 9),
        "card_of": lambda _: known,
    }
    originals = {name: getattr(device, name) for name in told}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "text_generation_kernels":
            continue
        for each, original in originals.items():
            if getattr(module, each, None) is original:
                patch.setattr(module, each, told[each])


@contextmanager
def dry_run() -> Iterator[None]:
    """Operators name all variants that a compile dry run names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "_named", {})
        yield
