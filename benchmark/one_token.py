"""Times one token's forward pass and logits in a CUDA graph, whole and with parts of it switched off.

    PYTHONPATH=server:kernels python3 benchmark/one_token.py FOLDER... --output-json result.json

FOLDER holds a config.json; weights are random. On a machine without a GPU it computes each setting once, on a folder of
a tiny model: that proves the script.
"""

import argparse
import json
import statistics
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import compact
import torch
from torch import Tensor

from text_generation_kernels import Decodes, compile_only, use_triton
from text_generation_kernels.matmul.ladder import Ladder
from text_generation_kernels.moe.mixture_ladder import MIXTURE
from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.parallel import ParallelConfig
from text_generation_server.distributed.group import init_group
from text_generation_server.layers.infer import Attention, TransformerLayer
from text_generation_server.layers.infer.state import InferState
from text_generation_server.models.base import CausalLM
from text_generation_server.models.registry import load_model

LONGEST = 8192
CONTEXTS = (512, 2048, 4000, 8000)
REPETITIONS = 40
ATTENTION = {"attention": (Attention, "_is_one", lambda *_: False)}
SUMS = {"sums": (TransformerLayer, "_sums_are_plain", property(lambda _: False))}
APART = {"choice": (MIXTURE, "find", lambda *_: None)}
EXPERTS = {"experts": (MIXTURE, "find", Ladder(*MIXTURE.kernels[1:]).find)}
SETTINGS: Mapping[str, Mapping[str, tuple[Any, str, Any]]] = {
    "as it is": {},
    "GEMMs of experts in two kernels": EXPERTS,
    "choice of experts in a kernel before them": APART,
    "attention in two operators": ATTENTION,
    "norms and additions apart": SUMS,
    "both apart": {**ATTENTION, **SUMS},
    "as it is, again": {},
}


@contextmanager
def switched(setting: str) -> Iterator[None]:
    """Inside, layers compute as `setting` says."""
    with ExitStack() as stack:
        for owner, name, value in SETTINGS[setting].values():
            # What only objects have, a property of their class hides.
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        yield


class Pass:
    """One request of a model, whose context is as long as `length` says."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        config = read_model_config(folder, "auto")
        parallel = ParallelConfig(0, 1, folder / "rendezvous")
        group = init_group(parallel, device, 60.0, config.decoder.hidden_size)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.model: CausalLM = load_model(folder, config, group, dtype, device, "dummy", None)
        self.model.reserve_positions(LONGEST)
        self._caches = [shape.allocate(LONGEST, dtype, device) for shape in self.model.caches]
        for cache in self._caches:
            cache.k.normal_()
            cache.v.normal_()
        self._states = [shape.allocate(1, dtype, device) for shape in self.model.states]
        self._table = torch.arange(LONGEST, dtype=torch.int32, device=device).view(1, -1)
        self._row = torch.zeros(1, dtype=torch.int64, device=device)
        self.length = torch.full((1,), 512, dtype=torch.int64, device=device)

    def logits(self) -> Tensor:
        """Of the newest token."""
        position = self.length - 1
        slot = self._table[0, position].to(torch.int64)
        decodes = Decodes(self._table, self._row, self.length.to(torch.int32), LONGEST)
        state = InferState(False, position, slot, decodes, None, self._caches, self._states, None)
        return self.model.logits(self.model.forward(self._row + 7, state))


def microseconds(graph: torch.cuda.CUDAGraph) -> list[float]:
    """Of replays, the first ones left out."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPETITIONS + 10)]
    for begin, end in events:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [1000 * begin.elapsed_time(end) for begin, end in events[10:]]


def measure(folder: Path, device: torch.device) -> Iterator[dict[str, Any]]:
    """A row for each setting and context."""
    one = Pass(folder, device)
    if device.type != "cuda":
        for setting in SETTINGS:
            with switched(setting):
                yield {"model": folder.name, "setting": setting, "largest_logit": one.logits().abs().max().item()}
        return
    with compile_only(threads=8):
        for setting in SETTINGS:
            with switched(setting):
                one.logits()
    for setting in SETTINGS:
        with switched(setting):
            one.logits()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                one.logits()
        for context in CONTEXTS:
            one.length.fill_(context)
            times = microseconds(graph)
            median, least = round(statistics.median(times), 1), round(min(times), 1)
            row = {"model": folder.name, "setting": setting, "context": context}
            yield row | {"median_microseconds": median, "least_microseconds": least}


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--output-json", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    use_triton(device.type == "cuda")
    result: dict[str, Any] = {"command": " ".join(sys.argv), "rows": []}
    for folder in arguments.folders:
        try:
            with torch.inference_mode():
                for row in measure(folder, device):
                    result["rows"].append(row)
                    print(json.dumps(row), flush=True)
        except RuntimeError:
            traceback.print_exc()
        if arguments.output_json is not None:
            arguments.output_json.write_text(compact.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
