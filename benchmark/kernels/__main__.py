"""Times operators, as a fraction of what a copy or a large GEMM reaches in the same run.

    python -m benchmark.kernels NAME [--dry-run] > result.json
    python -m benchmark.kernels --list

Run it in the root of the repository. It prints one JSON object, also where an error ends it: what was measured by then.
"""

import argparse
import sys

import torch

from . import (
    attention,
    attention_options,
    indexer,
    kv_cache,
    latent_attention,
    linear_layers,
    lora,
    norms,
    recurrent,
    sampling,
    skinny_linear,
    w8a8_layers,
    w8a8_linear,
    weight_only_linear,
)
from .report import of_plan, print_rows
from .timing import DRY_PLAN, GPU_PLAN, Row, copy_bandwidth

MODULES = (
    *(norms, attention, kv_cache, latent_attention, indexer, attention_options, recurrent, sampling),
    *(skinny_linear, weight_only_linear, w8a8_linear, linear_layers, w8a8_layers, lora),
)
BARS = {name: bar for module in MODULES for name, bar in module.BARS.items()}


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", choices=list(BARS))
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on CPU, no Triton")
    arguments = parser.parse_args()
    if arguments.list:
        sys.stdout.writelines(f"{name}: {bar.about}\n" for name, bar in BARS.items())
        return
    if arguments.name is None:
        parser.error("name a bar, or use --list")
    plan = DRY_PLAN if arguments.dry_run else GPU_PLAN
    if not plan.dry_run and not torch.cuda.is_available():
        parser.error("no CUDA device: use --dry-run")
    ceiling = copy_bandwidth(plan, plan.ceiling_bytes)
    rows: list[Row] = []
    try:
        for row in BARS[arguments.name].rows(plan, ceiling):
            rows.append(row)
    finally:
        print_rows(rows, benchmark=arguments.name, **of_plan(plan), copy_gigabytes_per_second=ceiling / 1e9)


if __name__ == "__main__":
    main()
