"""Fixtures that all test folders share."""

import os
import sys
from pathlib import Path

import pytest
import torch
from support.checkpoints import tiny_llama

# Interpreted kernels need TRITON_INTERPRET=1 before Triton is imported, and compiled ones must not have it; GPU tests
# need a device. `make test` runs the first in a pytest of their own.
collect_ignore = []
if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore.append("interpreter")
else:
    collect_ignore.append("aot")
if not torch.cuda.is_available():
    collect_ignore.append("gpu")
if sys.version_info < (3, 11):
    # The oracle, compressed-tensors, does not install.
    collect_ignore += ["layers/formats", "layers/test_w8.py", "layers/test_experts.py"]
    of_models = ("damaged_quantised", "indexer_files", "latent_attention", "packed")
    of_models += ("published", "published_mixtures", "quantised")
    collect_ignore += [f"models/test_{name}.py" for name in of_models]

# Tensors here are tiny: more threads only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with grouped queries, float32, with tokenizer."""
    return tiny_llama(tmp_path_factory)
