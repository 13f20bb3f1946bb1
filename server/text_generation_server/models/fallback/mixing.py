"""Operators that join what shards hold parts of, such as the mean over a row of which each rank has a half.

No shape is wrong there, and every number is. So the operators of one rank's dry run are compared with those of the
whole model: a dimension that differs is one that ranks share, and none but our all-reduces may work along it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from ...config.fallback import unsupported
from .dry_run import AttentionCall, Recorder, explained
from .skeleton import decoder_name

Shapes = tuple[tuple[int, ...], ...]

_LAYOUT = {
    *("view", "_unsafe_view", "reshape", "clone", "_to_copy", "t", "transpose", "permute", "expand", "unsqueeze"),
    *("squeeze", "alias", "detach", "as_strided", "lift_fresh", "empty", "empty_like", "new_empty", "empty_strided"),
    *("new_empty_strided", "zeros", "zeros_like", "new_zeros", "ones_like", "new_ones", "full_like", "new_full"),
}
"""Operators that read no number, or leave all as they are. Which of them run depends on sizes."""
_ALONG = {
    *("_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort", "flip", "roll"),
    *("cat", "slice", "split", "split_with_sizes", "chunk", "unbind", "select"),
}
"""Operators that keep a dimension, or parts of it, and are other ones for a part of it."""


@dataclass(frozen=True)
class Operator:
    """One call."""

    module: str
    """In whose forward pass."""
    name: str
    inputs: Shapes
    outputs: Shapes
    along: tuple[int, ...]
    """Dimensions of the first input that it names."""


@dataclass(frozen=True)
class Trace:
    """A dry run."""

    operators: tuple[Operator, ...]
    calls: Mapping[str, AttentionCall]
    """Of attention, by module."""


def trace(model: PreTrainedModel) -> Trace:
    """Raises UnsupportedModel for a class that cannot be served."""
    path = decoder_name(model)
    copied, recorder = Recorder.of(model)
    watch = _Watch()
    for name, module in copied.named_modules():
        watch.follow(name, module)
    with explained(type(model).__name__), watch:
        calls = recorder.run_with_masks(path)
    return Trace(tuple(watch.operators), calls)


def joining(whole: Trace, part: Trace, summed: frozenset[str]) -> Iterator[Operator]:
    """Operators of a rank that join what others have parts of. `summed`: modules whose results ranks add up."""
    pairs = zip(whole.operators, part.operators, strict=True)
    return (own for entire, own in pairs if own.module not in summed and _joins(entire, own))


def check_alike(model: str, whole: Trace, part: Trace, shards: int) -> None:
    """Raises UnsupportedModel where a rank does something else than its part of what the whole model does."""
    names = [[(each.module, each.name) for each in run.operators] for run in (whole, part)]
    if names[0] != names[1]:
        raise unsupported(model, f"it computes in another way on {shards} shards; set --num-shard to 1")
    for module, call in whole.calls.items():
        own = part.calls[module]
        count = shards if own.heads != call.heads else 1
        if replace(own, heads=own.heads * count, kv_heads=own.kv_heads * count) != call:
            raise unsupported(model, f"{module} has other heads on {shards} shards; set --num-shard to 1")


def _joins(whole: Operator, part: Operator) -> bool:
    if whole.inputs == part.inputs:
        return False
    if part.name in _ALONG:
        keeps_all = part.name == "slice" and part.outputs == part.inputs[:1]
        return not keeps_all and any(whole.inputs[0][dim] != part.inputs[0][dim] for dim in part.along)
    return any(one == other for one, other in zip(whole.outputs, part.outputs, strict=True))


@dataclass
class _Watch(TorchDispatchMode):
    operators: list[Operator] = field(default_factory=list[Operator])
    _inside: list[str] = field(default_factory=lambda: [""])

    def __post_init__(self) -> None:
        super().__init__()

    def follow(self, name: str, module: nn.Module) -> None:
        """Notes when the module is at work."""

        def enter(_: nn.Module, __: object) -> None:
            self._inside.append(name)

        def leave(_: nn.Module, __: object, ___: object) -> None:
            self._inside.pop()

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        inputs = _shapes((args, kwargs))
        if name not in _LAYOUT and inputs:
            along = _along(func, args, kwargs, len(inputs[0]))
            self.operators.append(Operator(self._inside[-1], name, inputs, _shapes(result), along))
        return result


def _shapes(values: object) -> Shapes:
    return tuple(tuple(each.shape) for each in tree_leaves(values) if isinstance(each, Tensor))


def _along(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dims: int) -> tuple[int, ...]:
    for index, argument in enumerate(func._schema.arguments):
        if argument.name in ("dim", "dims"):
            value = kwargs.get(argument.name, args[index] if index < len(args) else argument.default_value)
            values = value if isinstance(value, (list, tuple)) else [value]
            return tuple(each % dims for each in values if isinstance(each, int) and dims)
    return ()
