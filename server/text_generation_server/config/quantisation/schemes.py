"""Quantisation schemes: how one matrix is stored, and which matrices are stored how."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from math import lcm
from typing import Literal

from ...errors import ConfigurationError

WeightScale = Literal["tensor", "channel", "block", "group"]
"""What shares a scale: the whole matrix, a row, a block of 128 x 128, or 32 inputs of a row (MXFP8)."""
ActivationScale = Literal["dynamic", "static", "none"]
"""Activations are quantised with a scale that is measured for each token, with one of the checkpoint, or not at all."""
PackedFormat = Literal[
    "gptq",
    "gptq_v2",
    "awq",
    "compressed-tensors",
    "bnb-nf4",
    "bnb-fp4",
    "bnb-int8",
    "mxfp4",
    "nvfp4",
    "online-int8",
    "online-int4",
    "online-nf4",
    "online-fp4",
]
"""Layouts of group-quantised weights. "online-..." are quantised while a 16-bit checkpoint is read."""
KvCacheType = Literal["fp8_e4m3fn", "int8"]
BLOCK = 128
"""Edge of the blocks that share a scale."""
MX_GROUP = 32
"""Inputs that share a scale in MXFP4 and MXFP8."""
NVFP4_GROUP = 16
BESIDE = (
    "*.input_scale_ub",
    "*.input_scale",
    "*_input_scale",
    "*_activation_scale",
    "*.input_global_scale",
    "*_zero_point",
    "*.k_scale",
    "*.v_scale",
    "*.kv_scale",
    "*.output_scale",
)
"""Tensors that tools write beside quantised matrices, and that need not be read: a bound that the configuration has,
scales of inputs that keep 16 bits, zeros of what is symmetric, and scales of keys and values that are stored so.
"""
_MARKS: dict[PackedFormat, str] = {
    "gptq": "qweight",
    "gptq_v2": "qweight",
    "awq": "qweight",
    "compressed-tensors": "weight_scale",
    "mxfp4": "weight_scale",
    "nvfp4": "weight_scale",
    "bnb-nf4": "weight.absmax",
    "bnb-fp4": "weight.absmax",
    "bnb-int8": "SCB",
}
"""A tensor that every module in the format has."""
_ROW_UNIT = 16
_WORD_UNIT = 32
"""Codes of any number of bits fill whole words of 32 bits."""


@dataclass(frozen=True)
class Fp8:
    """float8_e4m3fn weights."""

    weights: WeightScale = "channel"
    activations: ActivationScale = "dynamic"
    bound: float | None = None
    """Upper bound of a token's largest value when its scale is measured."""
    online: bool = False
    """Whether the weights are stored with 16 bits and quantised while they are read."""
    mark: str = ""
    """A tensor without which a module is stored with 16 bits, where the configuration lists no exceptions."""

    @property
    def align(self) -> int:
        """Inputs of which a rank should have whole multiples: those of a scale, or what instructions read at once."""
        return self.group_size or _ROW_UNIT

    @property
    def group_size(self) -> int:
        """Inputs that share a scale; 0: all of them."""
        return {"block": BLOCK, "group": MX_GROUP}.get(self.weights, 0)

    @property
    def bytes_per_weight(self) -> float:
        """In the memory of the device, about."""
        return 1.0 + 2.0 / MX_GROUP if self.weights == "group" else 1.0


@dataclass(frozen=True)
class Int8:
    """int8 weights."""

    weights: Literal["tensor", "channel"] = "channel"
    activations: ActivationScale = "dynamic"

    @property
    def group_size(self) -> int:
        """See `Fp8`."""
        return 0

    @property
    def align(self) -> int:
        """See `Fp8`."""
        return _ROW_UNIT

    @property
    def bytes_per_weight(self) -> float:
        """In the memory of the device, about."""
        return 1.0


@dataclass(frozen=True)
class Packed:
    """Weight-only quantisation in groups along the inputs, with 16-bit activations."""

    format: PackedFormat
    bits: int
    group_size: int
    """Inputs that share a scale; 0: all of them."""
    symmetric: bool = True
    """False: each group has a zero point."""

    @property
    def align(self) -> int:
        """See `Fp8`: whole groups, and whole words of codes."""
        return lcm(self.group_size or _WORD_UNIT, _WORD_UNIT)

    @property
    def bytes_per_weight(self) -> float:
        """In the memory of the device, about."""
        # Powers of two have 16 bits, scales that are stored as float8 stay so.
        scale = {"mxfp4": 2.0, "nvfp4": 1.0}.get(self.format, 4.0)
        scales = scale / self.group_size if self.group_size else 0.0
        return (0.5 if self.bits <= 4 else 1.0) + scales

    def stored(self, module: str, has: Callable[[str], bool]) -> bool | None:
        """Whether a module is stored so; None: its tensors do not tell. `has` says whether a tensor exists."""
        is_plain, is_packed = has(f"{module}.weight"), has(f"{module}.{_MARKS[self.format]}")
        return is_packed if is_plain != is_packed else None


Scheme = Fp8 | Int8 | Packed
MXFP8 = Fp8("group", "none")
"""OCP Microscaling: a power of two for 32 inputs of a row. Inputs keep 16 bits."""
NVFP4 = Packed("nvfp4", 4, NVFP4_GROUP)
"""Floats of 4 bits with a float8 for 16 inputs of a row and a float32 for the matrix. Inputs keep 16 bits."""


@dataclass(frozen=True)
class Rule:
    """The scheme of the modules that a pattern matches."""

    scheme: Scheme | None
    """None: they are not quantised."""
    how: Literal["all", "exact", "path", "text", "regex", "search", "glob"]
    """How the pattern matches names:

    - "all" matches every name, "exact" this name.
    - "path" matches names that begin or end with it, in whole parts between dots; "text" names that contain it.
    - "regex" is a regular expression that matches from the beginning, "search" one that matches anywhere.
    - "glob" is a wildcard for the whole name.
    """
    pattern: str = ""

    def __post_init__(self) -> None:
        if self.how in ("regex", "search"):
            try:
                re.compile(self.pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise ConfigurationError(
                    f"`quantization_config` in config.json: {self.pattern!r} is no regular expression: {error}"
                ) from error

    def matches(self, module: str) -> bool:
        """Whether the rule is for this name."""
        match self.how:
            case "all":
                return True
            case "exact":
                return module == self.pattern
            case "path":
                whole, part = f".{module}.", f".{self.pattern}."
                return whole.startswith(part) or whole.endswith(part)
            case "text":
                return self.pattern in module
            case "regex":
                return re.match(self.pattern, module) is not None
            case "search":
                return re.search(self.pattern, module) is not None
            case "glob":
                return fnmatchcase(module, self.pattern)


def exceptions(names: Iterable[str]) -> tuple[Rule, ...]:
    """Returns the rules of modules that stay unquantised. Lists of several tools have whole names, beginnings or ends
    of names, and wildcards.
    """
    plain = [Rule(None, "path", name) for name in names]
    wildcards = (rule.pattern for rule in plain if "*" in rule.pattern)
    return (*plain, *(Rule(None, "glob", each) for name in wildcards for each in (name, f"{name}.*")))


@dataclass(frozen=True)
class Schemes:
    """Of one model. The first rule that matches counts; without one a module is not quantised."""

    method: str = ""
    """What the configuration or the command line calls it; empty: nothing is quantised."""
    rules: tuple[Rule, ...] = ()
    online: bool = False
    """Made from 16-bit weights while they are read."""
    kv_cache: KvCacheType | None = None
    """What the checkpoint wants keys and values to be stored as."""

    def of(self, module: str) -> Scheme | None:
        """That of a module, by its name in the checkpoint, without `.weight`: `model.layers.0.self_attn.q_proj`."""
        named = self._named.get(module, len(self.rules))
        place = next((place for place in self._patterns if place >= named or self.rules[place].matches(module)), named)
        place = min(place, named)
        return self.rules[place].scheme if place < len(self.rules) else None

    @cached_property
    def _named(self) -> dict[str, int]:
        """Places of the rules for one name each, of which a mixture may have a hundred thousand."""
        places = reversed(range(len(self.rules)))
        return {self.rules[place].pattern: place for place in places if self.rules[place].how == "exact"}

    @cached_property
    def _patterns(self) -> tuple[int, ...]:
        """Places of all other rules."""
        return tuple(place for place, rule in enumerate(self.rules) if rule.how != "exact")

    def without(self, parts: Iterable[str]) -> "Schemes":
        """Returns the same schemes by names of modules that lack these parts."""
        rules = self.rules
        for part in parts:
            for written in (part, re.escape(part)):
                rules = tuple(replace(rule, pattern=rule.pattern.replace(written, "")) for rule in rules)
        return replace(self, rules=rules)

    def among(self, module: str, has: Callable[[str], bool]) -> Scheme | None:
        """That of a module which is stored. `has`: whether there is a tensor of a name.

        Tensors tell nothing of what is made from 16-bit weights. Of others they have the last word where they tell:
        lists of exceptions often forget modules, and those of AWQ, whose names are parts of names, have some too many,
        as `gate` has `gate_proj`.
        """
        scheme, usual = self.of(module), self.usual
        if self.online:
            return scheme
        if isinstance(scheme, Fp8) and scheme.mark:
            return scheme if has(f"{module}.{scheme.mark}") else None
        if isinstance(scheme, Packed):
            return None if scheme.stored(module, has) is False else scheme
        is_usual = scheme is None and isinstance(usual, Packed) and usual.stored(module, has) is True
        return usual if is_usual else scheme

    @property
    def usual(self) -> Scheme | None:
        """Of modules that no rule but the last one is for."""
        return self.rules[-1].scheme if self.rules else None

    def align(self, *modules: str) -> int:
        """Inputs or outputs of which a rank should have whole multiples in matrices of these names."""
        return lcm(*(scheme.align for scheme in map(self.of, modules) if scheme is not None))

    @property
    def used(self) -> tuple[Scheme, ...]:
        """All schemes of the model."""
        return tuple(dict.fromkeys(rule.scheme for rule in self.rules if rule.scheme is not None))


UNQUANTISED = Schemes()
