"""Which folders are collected, for all of them."""

import os

import torch

# Interpreted kernels need TRITON_INTERPRET=1 before Triton is imported, and compiled ones must not have it; GPU tests
# need a device. `make test` runs the first in a pytest of their own.
collect_ignore = ["interpreter"] if os.environ.get("TRITON_INTERPRET") != "1" else ["aot"]
if not torch.cuda.is_available():
    collect_ignore.append("gpu")

# Tensors here are tiny: more threads only wait for each other.
torch.set_num_threads(1)
