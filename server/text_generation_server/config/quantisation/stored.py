"""Quantisation that only tensors of a checkpoint tell of. What Hugging Face's TGI quantised has a `config.json` as
before, and `gptq_bits`, `gptq_groupsize` and, from later versions, `gptq_sym` beside the weights.
"""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from ...errors import ModelFilesError
from ..files import tensor_files
from ..json_object import JsonObject
from ..pointer import refuse_pointer
from .grouped import gptq
from .schemes import Schemes

_BITS, _SIZE, _SYMMETRIC = "gptq_bits", "gptq_groupsize", "gptq_sym"


def stored_schemes(folder: Path) -> Schemes | None:
    """Those that tensors in `folder` tell of, or None. Raises ModelFilesError where such a tensor cannot be read, and
    what `gptq` raises for its value.
    """
    files = tensor_files(folder)
    if _BITS not in files or _SIZE not in files:
        return None
    # Before there was the third tensor, zeros were always stored as they are.
    symmetric = bool(_number(files[_SYMMETRIC], _SYMMETRIC)) if _SYMMETRIC in files else False
    config = {"bits": _number(files[_BITS], _BITS), "group_size": _number(files[_SIZE], _SIZE), "sym": symmetric}
    return gptq(JsonObject(config, str(folder)))


def _number(path: Path, name: str) -> int:
    try:
        with safe_open(path, framework="numpy") as file:
            return int(file.get_tensor(name).item())
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        refuse_pointer(path)
        raise ModelFilesError(f"{path}: `{name}` must be one whole number: {error}") from error
