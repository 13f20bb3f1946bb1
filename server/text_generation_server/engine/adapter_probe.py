"""The adapter parts of a runner, and the memory that adapters take, for warm-up."""

from dataclasses import dataclass

from ..distributed import TensorParallelGroup
from ..errors import EngineFailed, InvalidRequest, OutOfMemory
from ..models.adapter_pool import MOST_PAGES, AdapterPool
from ..models.adapters import ModelAdapters
from ..models.base import CausalLM
from .adapter_copies import AdapterCopies
from .adapter_plans import AdapterChecker, Resident
from .adapter_store import WITHOUT_ADAPTERS, AdapterStore
from .adapters import AdapterTables
from .budget import gib
from .memory import is_out_of_memory
from .requests import WarmupLimits

_MOST_NUMBERS = 2**15 - 2
"""Adapters that the tables of a step tell apart."""
_ADDS, _MULTIPLIES = 1, 2
"""Numbers of nobody's adapters, for warm-up."""


@dataclass(frozen=True)
class RunnerAdapters:
    """What a runner has for adapters."""

    tables: AdapterTables
    copies: AdapterCopies
    change_head: bool
    """Whether logits depend on the adapter."""


@dataclass(frozen=True)
class AdapterProbe:
    """Everything about adapters that depends on the model and on Warmup. Requests have none where `pool` is None."""

    store: AdapterStore
    pool: AdapterPool | None = None
    most_pages: int = 0
    """Of the largest adapter that may come."""
    by_output: bool = False
    """Whether an adapter that is here multiplies outputs or changes biases, so that graphs do so."""

    @classmethod
    def of(
        cls, model: CausalLM, store: AdapterStore, asked: WarmupLimits, group: TensorParallelGroup
    ) -> "AdapterProbe":
        """Allocates the pages. Raises `InvalidRequest` for more than there can be, and `OutOfMemory`, or with several
        ranks `EngineFailed`, where they do not fit.
        """
        if not asked.adapter_pages:
            return cls(store)
        if model.adapters is None:
            raise InvalidRequest(
                f"requests of this model can have no adapters: {WITHOUT_ADAPTERS}. Leave out --adapter-pages, "
                "--lora-dir and --allow-adapter-loading (`adapter_pages` must be 0)"
            )
        if asked.adapter_pages > _MOST_NUMBERS:
            raise InvalidRequest(f"`adapter_pages` must be at most {_MOST_NUMBERS}")
        adapters, later = store.all(), asked.adapters_later
        pool = _allocated(model.adapters, store, asked, group)
        most = MOST_PAGES if later else max((each.pages for each in adapters), default=1)
        most = min(most, asked.adapter_pages)
        return cls(store, pool, most, any(each.by_output for each in adapters))

    @property
    def numbers(self) -> list[int]:
        """The adapters whose steps reach every kernel: none, one that adds to outputs, and one that multiplies them, as
        far as there may be such adapters.
        """
        if self.pool is None:
            return [0]
        return [0, _ADDS, _MULTIPLIES] if self.pool.memory.room.rows else [0, _ADDS]

    @property
    def num_bytes(self) -> int:
        """The bytes of the pages of linear layers."""
        return 0 if self.pool is None else self.pool.memory.nbytes

    def checker(self) -> AdapterChecker:
        """Makes a checker of plans. Until it is cleared, `numbers` are nobody's adapters, on the most pages."""
        if (pool := self.pool) is None:
            return AdapterChecker()
        checker = AdapterChecker(pool.memory.room.pages, self.store.get, pool.has_room)
        checker.residents = {
            number: Resident(0, self.most_pages, number == _MULTIPLIES, ready=True) for number in self.numbers if number
        }
        return checker

    def of_runner(self, checker: AdapterChecker) -> RunnerAdapters | None:
        """Makes what a runner with this checker has."""
        if (pool := self.pool) is None:
            return None

        def put(resident: Resident, number: int) -> None:
            if resident.adapter is not None:
                pool.put(resident.adapter, number, resident.first_page)

        tables = AdapterTables(checker, self.most_pages, self.by_output, pool.words)
        return RunnerAdapters(tables, AdapterCopies(put, pool.memory.device), pool.changes_head)


def _allocated(
    model: ModelAdapters, store: AdapterStore, asked: WarmupLimits, group: TensorParallelGroup
) -> AdapterPool:
    adapters = store.all()
    room = model.room(asked.adapter_pages, adapters, asked.adapters_later)
    try:
        return model.allocate(room, adapters)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        message = (
            f"{asked.adapter_pages} pages for adapters take {gib(model.bytes_of(room))}, more than is free: lower "
            "`adapter_pages` (--adapter-pages)"
        )
        # The other ranks wait in a collective.
        raise (OutOfMemory(message) if group.world_size == 1 else EngineFailed(message)) from error
