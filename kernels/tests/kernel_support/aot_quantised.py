"""Arguments of kernels that may write 8-bit values beside their results, for compiling them without a GPU."""

import triton

from text_generation_kernels.norm.quantise import TINY

STRIDES = ("stride_out8_token", "stride_scale_token", "stride_scale_group")


def no_eight() -> tuple[dict[str, str], dict[str, int | float | None]]:
    """Types and constants where only 16-bit results are wanted."""
    absent = dict.fromkeys(("out8_ptr", "out_scale_ptr", "static_ptr"))
    return dict.fromkeys(STRIDES, "i32"), {**absent, "GROUP": 0, "BOUND": 0.0, "TINIEST": TINY}


def eight(
    kernel: triton.JITFunction, dtype: str, group: int, static: bool = False, bound: float = 0.0
) -> tuple[dict[str, str], dict[str, int | float | None]]:
    """Types and constants for values of `dtype`. Names of the arguments are those of the kernel."""
    scale = "scale_ptr" if "scale_ptr" in kernel.arg_names else "out_scale_ptr"
    types = {"out8_ptr": f"*{dtype}", scale: "*fp32", **dict.fromkeys(STRIDES, "i32")}
    types |= {"static_ptr": "*fp32"} if static else {}
    constants: dict[str, int | float | None] = {"GROUP": group, "BOUND": bound, "TINIEST": TINY}
    return types, constants | ({} if static else {"static_ptr": None})
