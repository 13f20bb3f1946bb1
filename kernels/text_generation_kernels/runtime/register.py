"""Registration of operators with `torch.library`, and the switch between Triton and torch on CUDA.

`torch.library.Library` has the schema and dispatch of the `custom_op` decorator at less cost, and lets calls outside
`torch.compile` bypass both.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Any, ParamSpec, get_type_hints

import torch

from .triton import INSTALLED

_library = torch.library.Library("text_generation", "DEF")
_triton_enabled = True
_P = ParamSpec("_P")


def use_triton(enabled: bool) -> None:
    """Selects the implementation on CUDA of operators that have both: the Triton kernel (the default) or torch.

    The engine calls it before the first forward pass, from the configuration. Raises ImportError if Triton is selected
    and not installed.
    """
    global _triton_enabled
    if enabled and not INSTALLED:
        raise ImportError("--attention triton needs the package triton, which is not installed; use --attention torch")
    _triton_enabled = enabled


def triton_enabled() -> bool:
    """Whether `use_triton` selected Triton."""
    return _triton_enabled


def register(
    implementation: Callable[_P, None],
    mutates: Sequence[str],
    triton: Callable[_P, None] | None = None,
) -> Callable[_P, None]:
    """Registers an operator under the name of its torch implementation and returns a function that calls it.

    `implementation` runs on CPU, and on CUDA where there is no `triton`. Both have one signature and return nothing.
    The device of the first argument, a tensor or a record with `is_cuda`, selects one.

    Arguments may be records: frozen dataclasses of what torch's schemas know, or of further records. A schema knows no
    classes, so the registered operator takes their fields one by one: `cache_scales` is the field `scales` of the
    argument `cache`. `mutates` names what it writes to in this form.

    Calls go through torch's dispatcher only where `torch.compile` traces them: for implementations in Python it costs
    5 us a call (0.4 without it), which a small model on a CPU feels in every layer.
    """
    name = getattr(implementation, "__name__").removesuffix("_torch")  # noqa: B009
    kinds, parameters = _kinds_of(implementation), signature(implementation).parameters
    leaves = dict(_leaves_of(kinds))
    dispatch = by_device(implementation, triton)
    _library.define(name + torch.library.infer_schema(_prototype(leaves), mutates_args=mutates))
    _library.impl(name, _from_leaves(implementation, kinds), "CPU")
    _library.impl(name, _from_leaves(dispatch, kinds), "CUDA")
    operator = getattr(torch.ops.text_generation, name).default
    defaults = {name: each.default for name, each in parameters.items() if each.default is not Parameter.empty}

    def given(arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        return defaults | dict(zip(kinds, arguments, strict=False)) | named

    def call(*arguments: _P.args, **named: _P.kwargs) -> None:
        if torch.compiler.is_compiling():
            values = given(arguments, named)
            operator(*[_leaf(values[first], inner) for first, *inner in leaves])
        elif named:
            values = given(arguments, named)
            dispatch(*[values[name] for name in kinds])
        else:
            dispatch(*arguments)

    return call


def by_device(implementation: Callable[..., None], triton: Callable[..., None] | None) -> Callable[..., None]:
    """A function that calls `triton` on CUDA, if there is one, else `implementation`.

    Sampling operators need no registration: nobody traces them.

    Both have one signature and return nothing. `is_cuda` of the first argument holds for all of them.
    """

    def dispatch(*arguments: Any) -> None:
        if triton is not None and _triton_enabled and arguments[0].is_cuda:
            triton(*arguments)
        else:
            implementation(*arguments)

    return dispatch


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind)


def _kinds_of(function_or_record: Any) -> dict[str, Any]:
    """The type of each parameter of a function, or of each field of a record."""
    hints = get_type_hints(function_or_record)
    if _is_record(function_or_record):
        return {field.name: hints[field.name] for field in fields(function_or_record)}
    return {name: hints[name] for name in signature(function_or_record).parameters}


def _leaves_of(kinds: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The way to each leaf, from a parameter through the fields of records, and its type."""
    for name, kind in kinds.items():
        if _is_record(kind):
            yield from (((name, *way), inner) for way, inner in _leaves_of(_kinds_of(kind)))
        else:
            yield (name,), kind


def _leaf(value: Any, way: Sequence[str]) -> Any:
    """What lies at the end of the way through records."""
    for name in way:
        value = getattr(value, name)
    return value


def _built(kind: Any, leaves: Iterator[Any]) -> Any:
    """A value of this type, of the next leaves."""
    if _is_record(kind):
        return kind(*(_built(inner, leaves) for inner in _kinds_of(kind).values()))
    return next(leaves)


def _from_leaves(function: Callable[..., None], kinds: dict[str, Any]) -> Callable[..., None]:
    """`function` as the registered operator calls it."""

    def call(*leaves: Any) -> None:
        left = iter(leaves)
        function(*(_built(kind, left) for kind in kinds.values()))

    return call


def _prototype(leaves: dict[tuple[str, ...], Any]) -> Callable[..., None]:
    """A function whose parameters are the leaves, for `infer_schema`."""

    def prototype() -> None: ...

    keyword = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter("_".join(way), keyword, annotation=kind) for way, kind in leaves.items()]
    setattr(prototype, "__signature__", Signature(parameters, return_annotation=None))  # noqa: B010
    return prototype
