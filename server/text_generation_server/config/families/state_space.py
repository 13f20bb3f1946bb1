"""State spaces of Mamba 2 among the layers of a family."""

import math
from collections.abc import Mapping
from typing import cast

from ..json_object import JsonObject
from ..names import TensorNames
from ..recurrent import Mamba2Spec
from .common import MOST_HEADS, MOST_KERNEL, MOST_STATE, silu_alone

NAMES = TensorNames(
    mamba_in="mamba.in_proj",
    mamba_conv="mamba.conv1d",
    mamba_rate="mamba.A_log",
    mamba_skip="mamba.D",
    mamba_bias="mamba.dt_bias",
    mamba_norm="mamba.norm",
    mamba_out="mamba.out_proj",
)
"""Of Bamba and Granite 4."""
KEYS: Mapping[str, str] = {
    "mamba_num_heads": "mamba_n_heads",
    "mamba_head_dim": "mamba_d_head",
    "n_groups": "mamba_n_groups",
    "ssm_state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "mamba_hidden_act": "hidden_act",
    "use_bias": "mamba_proj_bias",
    "use_conv_bias": "mamba_conv_bias",
}
"""From the keys that `state_space` reads, which are those of Nemotron-H, to theirs."""


def state_space(
    config: JsonObject, eps: float, steps: tuple[float, float] | None = None, head_dim: int | None = None
) -> Mamba2Spec:
    """One layer's. `steps`: bounds of time steps, and `head_dim`: channels of a head, where the file does not say
    them.
    """
    silu_alone(config, "mamba_hidden_act")
    heads = config.integer("mamba_num_heads", maximum=MOST_HEADS)
    groups = config.integer("n_groups")
    if heads % groups:
        raise config.error("n_groups", f"a divisor of the number of heads ({heads})")
    least, most = steps or _bounds(config)
    return Mamba2Spec(
        heads,
        head_dim or _head_dim(config, heads),
        groups,
        config.integer("ssm_state_size", maximum=MOST_STATE),
        config.integer("conv_kernel", minimum=2, maximum=MOST_KERNEL),
        eps,
        bias=config.boolean("use_bias", default=False),
        conv_bias=config.boolean("use_conv_bias", default=True),
        least_step=least,
        most_step=most,
    )


def _head_dim(config: JsonObject, heads: int) -> int:
    """A number, or "auto": what heads have of a width that the file gives."""
    stored = config.plain()
    if stored.get("mamba_d_head", "auto") != "auto" or "mamba_expand" not in config:
        return config.integer("mamba_head_dim", maximum=MOST_STATE)
    width = config.integer("mamba_expand", maximum=64) * config.integer("hidden_size")
    if width % heads:
        raise config.error("mamba_num_heads", f"a divisor of `mamba_expand` * `hidden_size` ({width})")
    return width // heads


def _bounds(config: JsonObject) -> tuple[float, float]:
    """Two numbers, the second of which may be infinite."""
    values = config.plain().get("time_step_limit")
    if values is None:
        return 0.0, math.inf
    bounds = cast("list[object]", values) if isinstance(values, list) else []
    numbers = [float(each) for each in bounds if isinstance(each, (int, float)) and not isinstance(each, bool)]
    if len(numbers) != len(bounds) or len(numbers) != 2 or not 0.0 <= numbers[0] < numbers[1]:
        raise config.error("time_step_limit", "a list of two numbers from 0 on, the first one smaller")
    return numbers[0], numbers[1]
