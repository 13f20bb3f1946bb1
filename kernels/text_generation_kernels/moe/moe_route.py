"""Router of a mixture of experts: the ids and weights of each token's top-k experts (Shazeer et al., 2017).

    score = softmax(logits), sigmoid(logits) or sqrt(softplus(logits))
    ids = the top_k largest of score + bias, among the best groups of experts where there are groups
    weights = score[ids] / norm(score[ids]) * scale

The bias only ranks: it balances the load of experts and is not in a weight (DeepSeek-V3, 2024). Of equal scores the
lowest id wins; a softmax without bias and groups is ranked by its logits, whose order is the same and which rounding
has not made equal. A softmax over the chosen logits alone, as Mixtral and gpt-oss define it, is the softmax of all
whose chosen ones are divided by their sum. "sparsemixer" is the inference rule of Liu et al. (2023): each of the chosen
has the softmax weight that it has among the experts that are close enough to it.

Experts that every token uses are appended: `shared` ids after the others, each with weight 1 or with the sigmoid of one
more logit.

Layouts: `logits` `[tokens, experts]`, with one more column where the shared experts have a gate, any floating type,
unit stride in the last dimension; `bias` `[experts]` float32 or None; `routing` with top_k + shared slots. Computed in
float32. Ids are valid whatever the logits are, also NaN. They are
counted from `first`, the first expert of this rank under expert parallelism. ValueError for shapes that do not fit.

A layer calls it once, with a thread block for each token: latency bounds it.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..norm.activations import sigmoid, sqrt_softplus
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.triton import tl, triton
from .routing import Routing

SCORES = ("softmax", "sigmoid", "sqrtsoftplus", "sparsemixer")
GROUP_SCORES = ("max", "top2")
TINY = 1e-20
"""Keeps sums of scores that are all zero from dividing by zero; as DeepSeek-V3 and GLM-4-MoE have it."""


@dataclass(frozen=True)
class RouteOptions:
    """The router of a family. Raises ValueError for options that contradict each other."""

    top_k: int
    score: str = "softmax"
    """One of `SCORES`."""
    norm: int = 1
    """By which norm of the chosen scores they are divided: 0 none, 1 their sum, 2 the root of the sum of squares."""
    scale: float = 1.0
    groups: int = 1
    """Equally many neighbouring experts each; only those of the best `top_groups` can be chosen."""
    top_groups: int = 1
    group_score: str = "top2"
    """A group is as good as its best expert ("max", DeepSeek-V2) or as the sum of its best two ("top2")."""
    jitter: float = 0.0
    """Of "sparsemixer": experts further below the best one than twice this, as a ratio, count as absent."""
    shared: int = 0
    """Experts that every token uses."""
    shared_gate: bool = False
    """Whether their weight is the sigmoid of the last logit."""
    first: int = 0
    """Number of the first expert that this rank has: ids are counted from it, so that those of other ranks' experts are
    negative or too large. Shared experts would not be counted right."""

    def __post_init__(self) -> None:
        if self.score not in SCORES or self.group_score not in GROUP_SCORES or self.norm not in (0, 1, 2):
            raise ValueError(f"routing by {self.score!r}, {self.group_score!r} and norm {self.norm} is not known")
        if self.first and self.shared:
            raise ValueError("moe_route: a rank of some experts has no shared ones among them")
        if not 1 <= self.top_groups <= self.groups or self.top_k < 1:
            raise ValueError(f"{self.top_groups} of {self.groups} groups, {self.top_k} experts cannot be chosen")

    @property
    def slots(self) -> int:
        """Experts that compute each token."""
        return self.top_k + self.shared


def moe_route(logits: Tensor, bias: Tensor | None, options: RouteOptions, routing: Routing) -> None:
    """Writes `routing`. Raises ValueError for shapes that do not fit."""
    tokens, columns = logits.shape
    experts = columns - options.shared_gate
    shape, (ids, weights) = (tokens, options.slots), (routing.ids, routing.weights)
    if ids.shape != shape or weights.shape != shape or (bias is not None and bias.shape != (experts,)):
        shapes = [tuple(each.shape) for each in (logits, bias, ids, weights) if each is not None]
        raise ValueError(f"moe_route: shapes of logits, bias, ids, weights do not fit: {shapes}")
    if options.top_k * options.groups > experts * options.top_groups or experts % options.groups:
        raise ValueError(f"moe_route: {options.top_k} of {experts} experts in {options.groups} groups cannot be chosen")
    if tokens:
        _moe_route(logits, bias, options, routing)


@triton.jit
def _best(values, valid):
    """The largest of the valid values and its place; of equal ones the first. All NaN counts as the first place.

    Floats are compared as the integers of the same order, for whose maximum a warp has an instruction.
    """
    values = tl.where(valid & (values == values), values, float("-inf")) + 0.0
    bits = values.to(tl.int32, bitcast=True)
    keys = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    best = tl.max(keys, axis=0)
    place = tl.min(tl.where(keys == best, tl.arange(0, values.shape[0]), values.shape[0]), axis=0)
    return tl.where(best < 0, best ^ 0x7FFFFFFF, best).to(tl.float32, bitcast=True), place


@triton.jit
def _in_best_groups(ranking, lanes, EXPERTS: tl.constexpr, GROUPS: tl.constexpr, TOP: tl.constexpr, TWO: tl.constexpr):
    """Which experts belong to the best groups. Groups are ranked one after another: there are few."""
    SIZE: tl.constexpr = EXPERTS // GROUPS
    group_of = lanes // SIZE
    score = tl.full(lanes.shape, float("-inf"), tl.float32)
    for group in tl.static_range(GROUPS):
        inside = group_of == group
        total, place = _best(ranking, inside)
        if TWO:
            second, _ = _best(ranking, inside & (lanes != place))
            total += second
        # Each group's score stands at the lane of its number.
        score = tl.where(lanes == group, total, score)
    chosen = lanes < 0
    for _ in tl.static_range(TOP):
        _, group = _best(score, lanes < GROUPS)
        chosen = chosen | (group_of == group)
        score = tl.where(lanes == group, float("-inf"), score)
    return chosen & (lanes < EXPERTS)


@triton.jit
def route_token(
    logits_ptr,  # [EXPERTS + SHARED_GATE], of one token
    bias_ptr,  # [EXPERTS] float32 or None
    scale,
    jitter,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    SCORE: tl.constexpr,
    NORM: tl.constexpr,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    GROUP_SCORE: tl.constexpr,
    SHARED: tl.constexpr,
    SHARED_GATE: tl.constexpr,
    BLOCK_E: tl.constexpr,  # power of two, at least EXPERTS
    BLOCK_K: tl.constexpr,  # power of two, at least TOP_K + SHARED
    TINY: tl.constexpr,
):
    """Ids, counted from the first of all experts, and weights of a token: [BLOCK_K] each."""
    lanes = tl.arange(0, BLOCK_E)
    slots = tl.arange(0, BLOCK_K)
    valid = lanes < EXPERTS
    logits = tl.load(logits_ptr + lanes, mask=valid, other=float("-inf")).to(tl.float32)
    if SCORE == "softmax":
        best, _ = _best(logits, valid)
        exps = tl.where(valid, tl.exp(logits - best), 0.0)
        scores = exps / tl.sum(exps, axis=0)
    elif SCORE == "sigmoid":
        scores = tl.sigmoid(logits)
    elif SCORE == "sqrtsoftplus":
        # Of small numbers log(1 + x) would lose all bits.
        power = tl.exp(-tl.abs(logits))
        log = tl.where(power < 1e-3, power * (1.0 - 0.5 * power), tl.log(1.0 + power))
        scores = tl.sqrt(tl.maximum(logits, 0.0) + log)
    else:
        scores = logits
    ranking = scores
    if bias_ptr is not None:
        ranking += tl.load(bias_ptr + lanes, mask=valid, other=0.0)
    elif SCORE == "softmax" and GROUPS == 1:
        ranking = logits
    open_lanes = valid
    if GROUPS > 1:
        open_lanes = _in_best_groups(ranking, lanes, EXPERTS, GROUPS, TOP_GROUPS, GROUP_SCORE == "top2")

    ids = tl.full([BLOCK_K], 0, tl.int32)
    weights = tl.zeros([BLOCK_K], tl.float32)
    for slot in tl.static_range(TOP_K):
        best, place = _best(ranking, open_lanes)
        if SCORE == "sparsemixer":
            far = (best - logits) / tl.maximum(tl.abs(logits), best) > 2.0 * jitter
            # Written with "not", so that 0 / 0 is near.
            weight = 1.0 / tl.sum(tl.where(open_lanes & (far == 0), tl.exp(logits - best), 0.0), axis=0)
        else:
            weight = tl.sum(tl.where(lanes == place, scores, 0.0), axis=0)
        ids = tl.where(slots == slot, place, ids)
        weights = tl.where(slots == slot, weight, weights)
        open_lanes = open_lanes & (lanes != place)
    if NORM == 1:
        weights = weights / (tl.sum(weights, axis=0) + TINY)
    elif NORM == 2:
        weights = weights / (tl.sqrt(tl.sum(weights * weights, axis=0)) + TINY)
    weights *= scale
    if SHARED > 0:
        gate = 1.0
        if SHARED_GATE:
            gate = tl.sigmoid(tl.load(logits_ptr + EXPERTS).to(tl.float32))
        ids = tl.where(slots < TOP_K, ids, EXPERTS + slots - TOP_K)
        weights = tl.where(slots < TOP_K, weights, gate)
    return ids, weights


@triton.jit(do_not_specialize=["first"])
def moe_route_kernel(
    logits_ptr,  # [tokens, EXPERTS + SHARED_GATE]
    bias_ptr,  # [EXPERTS] float32 or None
    ids_ptr,  # [tokens, TOP_K + SHARED] int32
    weights_ptr,  # likewise float32
    stride_logits_token,
    scale,
    jitter,
    first,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    SCORE: tl.constexpr,
    NORM: tl.constexpr,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    GROUP_SCORE: tl.constexpr,
    SHARED: tl.constexpr,
    SHARED_GATE: tl.constexpr,
    BLOCK_E: tl.constexpr,  # power of two, at least EXPERTS
    BLOCK_K: tl.constexpr,  # power of two, at least TOP_K + SHARED
    TINY: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block routes one token."""
    token = tl.program_id(0).to(tl.int64)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    ids, weights = route_token(
        logits_ptr + token * stride_logits_token, bias_ptr, scale, jitter, EXPERTS, TOP_K, SCORE, NORM, GROUPS,
        TOP_GROUPS, GROUP_SCORE, SHARED, SHARED_GATE, BLOCK_E, BLOCK_K, TINY,
    )  # fmt: skip
    slots = tl.arange(0, BLOCK_K)
    places = token * (TOP_K + SHARED) + slots
    tl.store(ids_ptr + places, ids - first, mask=slots < TOP_K + SHARED)
    tl.store(weights_ptr + places, weights, mask=slots < TOP_K + SHARED)


_launch = Launcher(moe_route_kernel, writes=("ids", "weights"))


def moe_route_triton(logits: Tensor, bias: Tensor | None, options: RouteOptions, routing: Routing) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    ids, weights = routing.ids, routing.weights
    if logits.stride(1) != 1 or not (ids.is_contiguous() and weights.is_contiguous()):
        raise ValueError("moe_route: logits need stride 1 in the last dimension, ids and weights must be contiguous")
    experts = logits.shape[1] - options.shared_gate
    block = triton.next_power_of_2(experts)
    _launch(
        (logits.shape[0],),
        (logits, bias, ids, weights),
        (logits.stride(0),),
        (float(options.scale), float(options.jitter), options.first),
        EXPERTS=experts,
        TOP_K=options.top_k,
        SCORE=options.score,
        NORM=options.norm,
        GROUPS=options.groups,
        TOP_GROUPS=options.top_groups,
        GROUP_SCORE=options.group_score,
        SHARED=options.shared,
        SHARED_GATE=options.shared_gate,
        BLOCK_E=block,
        BLOCK_K=triton.next_power_of_2(options.slots),
        TINY=TINY,
        num_warps=1 if block <= 256 else 4,
    )


def router_scores(logits: Tensor, score: str) -> Tensor:
    """Returns the scores of logits [T, experts] float32. Those of "sparsemixer" depend on the choice; here they are the
    logits.
    """
    return _FORMULAS.get(score, lambda same: same)(logits)


_FORMULAS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(dim=1),
    "sigmoid": sigmoid,
    "sqrtsoftplus": sqrt_softplus,
}


def moe_route_torch(logits: Tensor, bias: Tensor | None, options: RouteOptions, routing: Routing) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    ids, weights, top_k, score = routing.ids, routing.weights, options.top_k, options.score
    experts = logits.shape[1] - options.shared_gate
    routed = logits[:, :experts].float()
    scores = router_scores(routed, score)
    ranking = routed if score == "softmax" and options.groups == 1 else scores
    if bias is not None:
        ranking = scores + bias
    ranking = ranking.nan_to_num(nan=float("-inf"))
    if options.groups > 1:
        ranking = ranking.masked_fill(~_best_groups(ranking, options), float("-inf"))
    # A stable sort leaves equal scores in the order of their ids, which `topk` does not.
    chosen = ranking.argsort(dim=1, descending=True, stable=True)[:, :top_k]
    taken = _sparsemixer(routed, chosen, options.jitter) if score == "sparsemixer" else scores.gather(1, chosen)
    if options.norm:
        taken = taken / (torch.linalg.vector_norm(taken, ord=options.norm, dim=1, keepdim=True) + TINY)
    ids[:, :top_k] = chosen - options.first
    weights[:, :top_k] = taken * options.scale
    if options.shared:
        ids[:, top_k:] = torch.arange(experts, experts + options.shared, device=ids.device)
        weights[:, top_k:] = sigmoid(logits[:, experts:].float()) if options.shared_gate else 1.0


def _best_groups(ranking: Tensor, options: RouteOptions) -> Tensor:
    """Which experts belong to the best groups: [tokens, experts] bool."""
    members = ranking.view(len(ranking), options.groups, -1)
    best_of_each = 2 if options.group_score == "top2" else 1
    score = members.topk(min(best_of_each, members.shape[2]), dim=2).values.sum(dim=2)
    best = score.argsort(dim=1, descending=True, stable=True)[:, : options.top_groups]
    mask = torch.zeros_like(score, dtype=torch.bool).scatter_(1, best, True)
    return mask[:, :, None].expand_as(members).reshape(ranking.shape)


def _sparsemixer(logits: Tensor, chosen: Tensor, jitter: float) -> Tensor:
    """The weight of each chosen expert among those near it that were not chosen before it."""
    left, weights = logits.clone(), []
    for place in chosen.split(1, dim=1):
        best = left.gather(1, place)
        far = (best - logits) / torch.maximum(logits.abs(), best) > 2 * jitter
        weights.append(left.masked_fill(far, float("-inf")).softmax(dim=1).gather(1, place))
        left.scatter_(1, place, float("-inf"))
    return torch.cat(weights, dim=1)


_moe_route = register(moe_route_torch, mutates=("routing_ids", "routing_weights"), triton=moe_route_triton)
