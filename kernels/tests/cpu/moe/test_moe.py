"""Mixtures of experts in torch, against the routers of transformers."""

from typing import Any

import pytest
import torch
from kernel_support import reference
from torch import Tensor
from transformers import CONFIG_MAPPING
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4TopKRouter
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.phimoe.modeling_phimoe import sparsemixer
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter

import text_generation_kernels as kernels
from text_generation_kernels import ExpertMatrix, ExpertMlps, RouteOptions, Routing


def _dense(ids: Tensor, weights: Tensor, experts: int) -> Tensor:
    """The weight of every expert: routers may list them in any order."""
    return torch.zeros(len(ids), experts).scatter_(1, ids.long(), weights.float())


def _routed(logits: Tensor, options: RouteOptions, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    routing = Routing.empty(len(logits), options.slots)
    kernels.moe_route(logits, bias, options, routing)
    return routing.ids, routing.weights


def _router(kind: type, model_type: str, **values: Any) -> torch.nn.Module:
    """A router of transformers whose logits are its input."""
    router = kind(CONFIG_MAPPING[model_type](hidden_size=8, **values)).float()
    with torch.no_grad():
        router.weight.copy_(torch.eye(8))
        for name, parameter in router.named_parameters():
            if name == "bias":
                parameter.zero_()
    return router


@pytest.mark.parametrize(
    ("router", "options"),
    [
        (_router(MixtralTopKRouter, "mixtral", num_experts_per_tok=3), RouteOptions(3)),
        (_router(Qwen2MoeTopKRouter, "qwen2_moe", num_experts=8, num_experts_per_tok=3), RouteOptions(3, norm=0)),
        (_router(GptOssTopKRouter, "gpt_oss", num_local_experts=8, num_experts_per_tok=3), RouteOptions(3)),
    ],
)
def test_softmax_routers(router: torch.nn.Module, options: RouteOptions) -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(9, 8)
    _, weights, ids = router(logits)
    torch.testing.assert_close(_dense(*_routed(logits, options), 8), _dense(ids, weights, 8))


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("bias", ["negative", "large"])
def test_sigmoid_routers_rank_with_a_correction_that_is_not_in_the_weights(bias: str, divided: bool) -> None:
    values = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2}
    router = _router(Glm4MoeTopkRouter, "glm4_moe", **values, norm_topk_prob=divided, routed_scaling_factor=2.5)
    torch.manual_seed(0)
    # Scores of 1e-8 beside a correction of 12: whatever is taken from their sum is nothing.
    logits = torch.randn(9, 8) if bias == "negative" else torch.full((9, 8), -18.4) - torch.rand(9, 8)
    correction = -torch.rand(8) - 1 if bias == "negative" else torch.tensor([12.0, 0, 0, 12.5, 0, 11, 0, 0])
    router.e_score_correction_bias.copy_(correction)  # type: ignore[operator]
    _, weights, ids = router(logits)
    options = RouteOptions(2, "sigmoid", norm=int(divided), scale=2.5, groups=4, top_groups=2)
    found = _routed(logits, options, correction)
    torch.testing.assert_close(_dense(*found, 8), _dense(ids, weights, 8))
    assert (found[1] > 0).all()


@pytest.mark.parametrize("factor", [1.0, 12.0])
def test_roots_of_softplus_are_scores_as_far_as_float32_reaches(factor: float) -> None:
    """Of small and of large logits, with a correction that is not in the weights."""
    values = {"n_routed_experts": 8, "num_experts_per_tok": 3, "num_attention_heads": 1, "head_dim": 8}
    router = _router(DeepseekV4TopKRouter, "deepseek_v4", **values, routed_scaling_factor=1.5)
    torch.manual_seed(0)
    logits, correction = factor * torch.randn(9, 8), torch.randn(8)
    router.e_score_correction_bias.copy_(correction)  # type: ignore[operator]
    _, weights, ids = router(logits)
    found = _routed(logits, RouteOptions(3, "sqrtsoftplus", scale=1.5), correction)
    torch.testing.assert_close(_dense(*found, 8), _dense(ids, weights, 8))
    small = kernels.router_scores(torch.tensor([-40.0, -80.0]), "sqrtsoftplus")
    torch.testing.assert_close(small, torch.tensor([-20.0, -40.0]).exp())


def test_sparsemixer() -> None:
    torch.manual_seed(0)
    logits = torch.randn(20, 8)
    weights, ids = sparsemixer(logits, jitter_eps=0.1, training=False)
    found = _routed(logits, RouteOptions(2, "sparsemixer", norm=0, jitter=0.1))
    assert torch.equal(found[0].long(), ids)
    torch.testing.assert_close(found[1], weights)


def test_of_equal_scores_the_lowest_ids_win_and_shared_experts_follow() -> None:
    ids, weights = _routed(torch.zeros(2, 7), RouteOptions(3, shared=2, shared_gate=True))
    assert ids.tolist() == [[0, 1, 2, 6, 7]] * 2
    torch.testing.assert_close(weights, torch.tensor([[1 / 3] * 3 + [0.5] * 2] * 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 9}, "cannot be chosen"),
        ({"top_k": 3, "groups": 4}, "cannot be chosen"),
        ({"top_k": 1, "groups": 3}, "cannot be chosen"),
        ({"top_k": 2, "shared": 1}, "do not fit"),
        ({"top_k": 2, "shared": 1, "first": 4}, "no shared ones"),
    ],
)
def test_what_cannot_be_routed_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.moe_route(torch.zeros(2, 8), None, RouteOptions(**options), Routing.empty(2, options["top_k"]))  # type: ignore[arg-type]


@pytest.mark.parametrize("deterministic", [False, True])
def test_experts_are_their_formula(deterministic: bool) -> None:
    torch.manual_seed(0)
    ids = torch.rand(7, 5).argsort(dim=1)[:, :2].int()
    both = [ExpertMatrix(torch.randn(5, n, k), torch.randn(5, n)) for n, k in ((20, 12), (12, 10))]
    inputs = (torch.randn(7, 12), Routing(ids, torch.rand(7, 2)), ExpertMlps(*both, "clamped_swiglu"))
    out = torch.full((7, 12), float("nan"))
    kernels.moe_experts(*inputs, deterministic, out)
    expected = reference.moe_experts(*inputs)
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=1e-4)


def test_ranks_with_experts_of_their_own_add_up_to_all_of_them() -> None:
    torch.manual_seed(0)
    x, logits, routing = torch.randn(7, 12), torch.randn(7, 5), Routing.empty(7, 2)
    both = [ExpertMatrix(torch.randn(5, n, k), torch.randn(5, n)) for n, k in ((20, 12), (12, 10))]
    total = torch.zeros(7, 12)
    for own in (slice(0, 2), slice(2, 5)):
        kernels.moe_route(logits, None, RouteOptions(2, first=own.start), routing)
        some = [ExpertMatrix(each.weight[own], None if each.bias is None else each.bias[own]) for each in both]
        out = torch.full((7, 12), float("nan"))
        kernels.moe_experts(x, routing, ExpertMlps(*some, "silu", all_experts=5), False, out)
        total += out
    expected = reference.moe_experts(x, Routing(*_routed(logits, RouteOptions(2))), ExpertMlps(*both, "silu"))
    torch.testing.assert_close(total.double(), expected, atol=1e-4, rtol=1e-4)
