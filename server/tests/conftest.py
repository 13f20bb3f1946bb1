"""Fixtures that all test folders share."""

import os
from pathlib import Path

import pytest
import torch
from support.checkpoints import tiny_llama

# The suite runs on small machines, several processes at a time.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with grouped queries, float32, with tokenizer."""
    return tiny_llama(tmp_path_factory)
