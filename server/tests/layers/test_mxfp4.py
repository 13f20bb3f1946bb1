"""What MXFP4 stands for, against transformers."""

import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from text_generation_server.layers.weights.mxfp4 import dequantise


def test_mxfp4_is_read_as_transformers_does() -> None:
    torch.manual_seed(0)
    blocks = torch.randint(256, (3, 6, 2, 16), dtype=torch.uint8)
    scales = torch.randint(110, 140, (3, 6, 2), dtype=torch.uint8)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).transpose(1, 2)
    assert torch.equal(dequantise(blocks, scales, torch.bfloat16), theirs)
