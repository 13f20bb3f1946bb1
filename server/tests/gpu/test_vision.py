"""Vision towers on a GPU: in float32 the rows of transformers on a CPU, in bfloat16 close to them."""

from pathlib import Path

import pytest
import torch
from support.vision_cases import VISION_CASES, expected, views_of

from text_generation_server.config.implementation import read_model_config
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.models.registry import load_model

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", VISION_CASES)
def test_rows_are_those_of_transformers(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    case, device = VISION_CASES[name], torch.device("cuda")
    reference = case.write(tmp_path)
    with torch.inference_mode():
        group = TensorParallelGroup(0, 1, device)
        model = load_model(tmp_path, read_model_config(tmp_path), group, dtype, device, "auto")
    encoder = model.encoder
    assert encoder is not None
    for item in case.items:
        views = views_of(item.views)
        state = encoder.begin([view.to(device) for view in views], item.grid)
        encoder.run(state, 0, encoder.layers)
        rows = encoder.finish(state)
        assert (rows.dtype, rows.device.type) == (dtype, "cuda")
        wanted = expected(case, reference, views, item)
        error = (rows.float().cpu() - wanted).norm() / wanted.norm()
        assert error < (case.rounding if dtype == torch.bfloat16 else 1e-3)
