"""Sharding plan of a class's matrices: the plan of the class, else one derived from what its modules compute."""

import torch
from torch import nn
from transformers import PreTrainedModel

from .trial import HIDDEN, INNER, outcome, random_matrices

Plan = dict[str, str]
"""Maps names of modules and parameters, in which `*` stands for a number, to the sharding styles of Transformers."""

_OUTPUTS = ("o_proj", "out_proj", "dense")


def plan_of(model: PreTrainedModel) -> Plan:
    """Returns the plan without embedding and head, which we shard ourselves. Every rank holds whole what it omits."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    names = {name for name, module in model.named_modules() if module in ends}
    plan = {key: style for key, style in (model.tp_plan or {}).items() if key not in names}
    if plan:
        return plan
    for path, module in model.named_modules():
        styles = _attention(module) or _network(module)
        plan |= {f"{path}.{name}": style for name, style in styles.items()}
    return plan


def _attention(module: nn.Module) -> Plan:
    """Returns the plan of an attention module with independent heads: its other parameters are of one head."""
    linears = _linears(module)
    outputs = [name for name in linears if name in _OUTPUTS]
    if linears != {"q_proj", "k_proj", "v_proj", *outputs} or len(outputs) != 1:
        return {}
    others = [p for name, p in module.named_parameters() if name.split(".")[0] not in linears]
    if any(tuple(each.shape) != (getattr(module, "head_dim", None),) for each in others):
        return {}
    return {**dict.fromkeys(("q_proj", "k_proj", "v_proj"), "colwise"), outputs[0]: "rowwise"}


def _network(module: nn.Module) -> Plan:
    """Returns the plan of a feed-forward module, found by trial: results of two shards must add up."""
    linears = _linears(module)
    if not 2 <= len(linears) <= 3:
        return {}
    for last in sorted(linears):
        first = sorted(linears - {last})
        whole = random_matrices({**dict.fromkeys(first, (INNER, HIDDEN)), last: (HIDDEN, INNER)})
        halves = [
            {name: matrix.chunk(2, dim=1 if name == last else 0)[half] for name, matrix in whole.items()}
            for half in range(2)
        ]
        results = [outcome(module, matrices) for matrices in (whole, *halves)]
        outputs = [each[1] for each in results if each is not None]
        if len(outputs) == 3 and torch.allclose(outputs[1] + outputs[2], outputs[0], rtol=1e-4, atol=1e-4):
            return {**dict.fromkeys(first, "colwise"), last: "rowwise"}
    return {}


def _linears(module: nn.Module) -> set[str]:
    return {name for name, child in module.named_children() if type(child) is nn.Linear}
