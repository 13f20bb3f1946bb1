"""The adapters that a model serves beside its base: where their factors lie, and the layers that add them."""

from collections.abc import Sequence
from dataclasses import dataclass

from text_generation_kernels import RANK_UNITS, AdapterPages

from ..adapters import Adapter, highest_rank
from ..config.adapters import AdapterInfo
from ..errors import AdapterError
from ..layers.infer import Layer
from ..layers.weights import AdaptedLinear, CurrentAdapters, Linear, Matrices, Site, SitePages, low_rank_pages, unplaced


@dataclass(frozen=True)
class NamedAdapter:
    """An adapter, and what requests call it."""

    name: str
    source: str
    """The folder or hub id that the operator gave."""
    adapter: Adapter


@dataclass(frozen=True)
class ServedAdapters:
    """The adapters of a model, which stay where they are while it lives."""

    infos: Sequence[AdapterInfo]
    """Of adapters 1, 2, ..."""
    pages: AdapterPages
    """On the host: of adapter `number` those with index `number - 1`."""

    @property
    def most_pages(self) -> int:
        """The pages of the largest adapter."""
        starts = self.pages.starts
        return int((starts[1:] - starts[:-1]).max())


@dataclass(frozen=True)
class AdaptedLayers:
    """The layers for steps in which tokens use adapters."""

    layers: Sequence[Layer]
    served: ServedAdapters
    current: CurrentAdapters


def place(adapters: Sequence[NamedAdapter], layers: Sequence[Layer], checkpoint: Matrices) -> AdaptedLayers:
    """Brings the factors of all adapters to this rank's device, next to each other in rank pages. Raises AdapterError
    for one that changes a tensor for which requests cannot have factors of their own.
    """
    pages = _pages([each.adapter for each in adapters])
    sites: list[Site] = []
    current = CurrentAdapters()

    def wrap(linear: Linear) -> Linear:
        if (site := linear.site) is None:
            return linear
        sites.append(site)
        made = [
            low_rank_pages(checkpoint, site, each.adapter.changes, RANK_UNITS, len(own))
            for each, own in zip(adapters, pages, strict=True)
        ]
        if not any(made):
            return linear
        return AdaptedLinear(linear, SitePages(site, made, pages, linear.bias), current)

    adapted = [layer.adapted(wrap) for layer in layers]
    for each in adapters:
        if names := unplaced(each.adapter.changes, sites):
            raise AdapterError(
                f"adapter `{each.name}` changes {_listed(names)}, for which requests have no factors of their own: "
                "merge it into the weights with --merge-adapter"
            )
    infos = [_info(number, each) for number, each in enumerate(adapters, 1)]
    return AdaptedLayers(adapted, ServedAdapters(infos, AdapterPages.of(pages)), current)


def _pages(adapters: Sequence[Adapter]) -> list[list[int]]:
    found: list[list[int]] = []
    first = 0
    for adapter in adapters:
        count = max(1, -(-_rank(adapter) // RANK_UNITS))
        found.append(list(range(first, first + count)))
        first += count
    return found


def _info(number: int, each: NamedAdapter) -> AdapterInfo:
    generation = int(each.adapter.digest[:16], 16) or 1
    return AdapterInfo(each.name, number, generation, _rank(each.adapter), each.source)


def _rank(adapter: Adapter) -> int:
    return max(map(highest_rank, adapter.changes.values()), default=0)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} others"
