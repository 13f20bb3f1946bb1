"""Feed-forward networks of a decoder: dense ones, and mixtures of experts."""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
""""gelu" is exact, with the error function, "gelu_tanh" is its approximation, "relu2" is the square of relu."""

GatedActivation = Literal[
    "silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu", "silu_within_7", "silu_within_16", "silu_below_10"
]
"""The last four have formulas of their own (`text_generation_kernels/norm/activations.py`)."""


@dataclass(frozen=True)
class DenseSpec:
    """A dense feed-forward network."""

    inner: int
    activation: Activation | GatedActivation
    gated: bool = True
    in_bias: bool = False
    out_bias: bool = False
    gate_factor: float = 1.0
    """What gates are multiplied by before the activation."""
    out_factor: float = 1.0
    """What the output is multiplied by."""
    cutoff: float | None = None
    """Gates below the mean of their row plus so many standard deviations are 0, and others are lessened by that
    (Gemma 3n); None: gates are as they are."""


@dataclass(frozen=True)
class RouteSpec:
    """The router of a mixture: which experts compute a token, and with which weights. `moe/moe_route.py` of the kernels
    has the formulas.
    """

    top_k: int
    score: Literal["softmax", "sigmoid", "sqrtsoftplus", "sparsemixer"] = "softmax"
    norm: Literal[0, 1, 2] = 1
    """How the top-k scores are normalised: not at all (0), by their sum (1), or by the root of their sum of squares
    (2)."""
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "top2"
    jitter: float = 0.0
    bias: bool = False
    """Whether the logits have a bias."""
    correction: bool = False
    """Whether each expert has a float32 correction, which is added to its score for the top-k alone."""
    wide: bool = False
    """Whether logits are computed in float32."""
    by_token: bool = False
    """Whether a table has the experts of each token id; logits make their weights alone."""


@dataclass(frozen=True)
class MoeSpec:
    """A mixture of experts (MoE)."""

    experts: int
    inner: int
    """The inner size of one expert."""
    activation: Activation | GatedActivation
    route: RouteSpec
    bias: bool = False
    """Whether both matrices of an expert have a bias."""
    shared_inner: int = 0
    """The inner size of the shared expert, which every token passes; 0: the mixture has none."""
    shared_gate: bool = False
    """Whether the sigmoid of one more logit gates the shared expert."""
    shared_activation: GatedActivation | None = None
    """That of the shared expert; None: it has that of the others."""
    gated: bool = True
    """Whether experts are gated."""
    latent: int = 0
    """Elements of the narrower state that routed experts read and write (latent mixture); 0: they read hidden states.
    The shared expert reads hidden states in any case."""
    weighs_inputs: bool = False
    """Whether the sigmoid of its logit multiplies the input of the one expert that computes a token, not its output."""
    identity: int = 0
    """Further experts to choose from, which change nothing: their output is their input."""
    expert_scales: bool = False
    """Whether the output of each expert is multiplied by a learned number."""

    @property
    def shared(self) -> DenseSpec | None:
        """The shared expert as a dense network."""
        if not self.shared_inner:
            return None
        return DenseSpec(self.shared_inner, self.shared_activation or self.activation, self.gated)


FeedForwardSpec = DenseSpec | MoeSpec
