"""Sharding plan of a class's matrices: the one that it brings, else one from what its modules compute."""

import torch
from torch import nn
from transformers import PreTrainedModel

from .trial import HIDDEN, INNER, outcome, random_matrices

Plan = dict[str, str]
"""From names of modules and parameters, in which `*` stands for a number, to the style of transformers."""

_OUTPUTS = ("o_proj", "out_proj", "dense")


def plan_of(model: PreTrainedModel) -> Plan:
    """Without embedding and head, which we share in our own way. What it does not name, every rank holds whole."""
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
    """Of heads that do not know each other: what else the module has is for one head."""
    linears = _linears(module)
    outputs = [name for name in linears if name in _OUTPUTS]
    if linears != {"q_proj", "k_proj", "v_proj", *outputs} or len(outputs) != 1:
        return {}
    others = [p for name, p in module.named_parameters() if name.split(".")[0] not in linears]
    if any(tuple(each.shape) != (getattr(module, "head_dim", None),) for each in others):
        return {}
    return {**dict.fromkeys(("q_proj", "k_proj", "v_proj"), "colwise"), outputs[0]: "rowwise"}


def _network(module: nn.Module) -> Plan:
    """Of a module in whose last matrix the halves of all others add up to the whole, found by trying."""
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
