"""Decision whether shards keep 16-bit copies of weight-only quantised matrices (`layers/weights/copies.py`)."""

from ..config.copies import are_affordable
from ..distributed import TensorParallelGroup
from ..errors import OutOfMemory
from ..models.base import CausalLM
from .options import EngineOptions
from .probe import Probe
from .requests import WarmupLimits


def fitting_slots(
    model: CausalLM, group: TensorParallelGroup, probe: Probe, asked: WarmupLimits, options: EngineOptions
) -> int:
    """Returns the slots that fit on every rank. It makes the copies where the operator asks for them, or where every
    rank has ample memory and neither the limits nor the longest request shrink.

    All ranks call it together. Raises `OutOfMemory` where copies that the operator asks for do not fit.
    """
    known = asked.max_batch_total_tokens if asked.regained else None
    if not _may_have_copies(model, group, options):
        return known or group.min_int(probe.fitting_slots())
    slots = group.min_int(probe.fitting_slots())
    size, is_asked = model.copies.nbytes, options.dequantised_copies == "on"
    ample = probe.budget is not None and are_affordable(size, probe.budget.room(chosen=True))
    beside = group.min_int(probe.fitting_slots(size) if ample or is_asked else 0)
    least = asked.max_batch_total_tokens or asked.max_total_tokens or min(model.max_context_length, slots)
    if not is_asked and beside < least:
        # This sets the budget back to one without copies.
        probe.fitting_slots()
        return known or slots
    if beside < 2:
        raise OutOfMemory(
            f"no room for a KV pool is left beside --dequantised-copies on: {probe.budget}; leave it out, or use more "
            "shards (--num-shard)"
        )
    model.copies.make()
    return known or beside


def _may_have_copies(model: CausalLM, group: TensorParallelGroup, options: EngineOptions) -> bool:
    """Whether a rank has matrices to copy and the options allow it. Deterministic mode has no copies: GEMMs with a copy
    add in another order than GEMMs with codes.
    """
    if options.deterministic or options.dequantised_copies == "off":
        return False
    return group.max_ints([model.copies.nbytes])[0] > 0
