"""A rank's shard of each tensor, by the plan of a class."""

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from ...config.fallback import unsupported
from ...distributed import TensorParallelGroup
from ...errors import ConfigurationError
from ...layers.weights import even_span
from .dry_run import AttentionCall
from .plan import Plan, plan_of

logger = logging.getLogger(__name__)

Shape = tuple[int, ...]

_WHOLE = (
    "replicated_with_grad_allreduce",
    "replicate",
    "replicated",
    # The class would gather the results and split them again: each rank may as well compute all of them.
    "colwise_gather_output",
    "rowwise_split_input",
)
_CUT = ("colwise", "packed_colwise", "rowwise")
_SUMMED = ("rowwise", "moe_tp_experts")
_EXPERTS = "moe_tp_experts"


@dataclass(frozen=True)
class Cut:
    """A rank's shard of a tensor."""

    whole: Shape
    """The shape of the stored tensor."""
    dim: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    """Ranges along `dim`, which are concatenated; none: all of it."""


@dataclass(frozen=True)
class Sharding:
    """How the ranks share a whole model."""

    cuts: dict[str, Cut]
    """The shard of every tensor that is read, by name."""
    summed: frozenset[str]
    """Modules whose results must be all-reduced."""


def unshared(model: PreTrainedModel) -> Sharding:
    """Of a rank that has everything."""
    return Sharding({name: Cut(tuple(tensor.shape)) for name, tensor in model.state_dict().items()}, frozenset())


def shard(
    model: PreTrainedModel,
    group: TensorParallelGroup,
    calls: Mapping[str, AttentionCall],
    whole: Collection[str] = (),
) -> Sharding:
    """Brings the parameters of `model`, on the meta device, to the shapes of this rank. `calls`: how the whole model
    calls attention; `whole`: modules that are not shared.

    Raises UnsupportedModel where the class cannot be shared, ConfigurationError where this many ranks cannot.
    """
    cuts = unshared(model).cuts
    plan = plan_of(model)
    summed: set[str] = set()
    for path, module in list(model.named_modules()):
        if any(f"{path}.".startswith(f"{each}.") for each in whole):
            continue
        style = _style(plan, path)
        if style in _SUMMED:
            summed.add(path)
        for name, parameter in list(module.named_parameters(recurse=False)):
            each = f"{path}.{name}"
            own = _style(plan, each) or (None if style == _EXPERTS else style)
            if own is None or own in _WHOLE or (own == "rowwise" and parameter.dim() == 1):
                continue
            if own not in _CUT or (own == style and type(module) is not nn.Linear):
                raise unsupported(
                    type(model).__name__, f"its plan for several shards has {own!r} for {each}; set --num-shard to 1"
                )
            if (call := calls.get(path.rpartition(".")[0])) is not None:
                _check_heads(call, group.world_size)
            cuts[each] = _cut(each, tuple(parameter.shape), own, group)
            _resize(module, name, cuts[each])
    return Sharding(cuts, frozenset(summed))


def say_what_is_whole(model: PreTrainedModel, cuts: Mapping[str, Cut]) -> None:
    """Logs the matrices of layers that each rank holds whole, so that nobody wonders where memory goes."""
    whole = {
        general(f"{path}.weight")
        for path, module in model.named_modules()
        if type(module) is nn.Linear and module is not model.get_output_embeddings()
        if not cuts[f"{path}.weight"].ranges
    }
    if whole:
        logger.warning(
            "every shard holds some matrices whole: the class has no sharding plan for them",
            extra={"matrices": sorted(whole)},
        )


def _check_heads(call: AttentionCall, world_size: int) -> None:
    if call.heads % world_size or call.kv_heads % world_size:
        raise ConfigurationError(
            f"{world_size} shards cannot share {call.heads} attention heads with {call.kv_heads} key-value heads "
            f"evenly ({call.module}): set --num-shard to a divisor of both numbers"
        )


def _style(plan: Plan, name: str) -> str | None:
    return plan.get(name) or plan.get(general(name))


def general(name: str) -> str:
    """The name with a star for each number."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _cut(name: str, shape: Shape, style: str, group: TensorParallelGroup) -> Cut:
    dim = len(shape) - 1 if style == "rowwise" else max(0, len(shape) - 2)
    pieces = 2 if style == "packed_colwise" else 1
    size = shape[dim] // pieces
    if size % group.world_size or shape[dim] % pieces:
        raise ConfigurationError(
            f"{group.world_size} shards cannot share `{name}` of shape {list(shape)} evenly: "
            f"set --num-shard to a divisor of {size}"
        )
    start, stop = even_span(size, group.rank, group.world_size)
    return Cut(shape, dim, tuple((start + piece * size, stop + piece * size) for piece in range(pieces)))


def _resize(module: nn.Module, name: str, cut: Cut) -> None:
    parameter = module.get_parameter(name)
    shape = local_shape(cut)
    setattr(module, name, nn.Parameter(torch.empty(shape, dtype=parameter.dtype, device="meta"), requires_grad=False))
    if isinstance(module, nn.Linear) and name == "weight":
        module.out_features, module.in_features = shape


def local_shape(cut: Cut) -> Shape:
    """Returns the shape of the rank's shard."""
    if not cut.ranges:
        return cut.whole
    size = sum(stop - start for start, stop in cut.ranges)
    return tuple(size if dim == cut.dim else each for dim, each in enumerate(cut.whole))
