"""Dry run of a class's forward pass on the meta device, where nothing is computed.

Code that needs the value of a tensor on the host fails there. A model that passes, and makes no tensor of numbers on
the host either, can be captured in a CUDA graph.
"""

# Switches of the library have names with an underscore.
# pyright: reportPrivateUsage=false

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from ...config.fallback import unsupported
from ...errors import UnsupportedModel
from .experts import check_experts
from .gated import GatedNetwork, recognise_gated
from .interfaces import DRY_RUN, SERVING, Mask
from .rotation import can_be_postponed
from .skeleton import Given, decoder_name, layers_of

_TOKENS = 37
"""Tokens of the dry run, a number that no dimension of a model is likely to have."""
_QUERIES = (0, 5, 130, 4097, 9001, 70_001)
_IGNORED = {"dropout", "is_causal", "position_ids", "cache_position", "position_embeddings", "max_seqlen_q"}
"""Arguments of attention that it may ignore."""


@dataclass(frozen=True)
class AttentionCall:
    """How one layer calls attention."""

    module: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int
    softcap: float


@dataclass(frozen=True)
class DryRun:
    """What the dry run saw."""

    calls: tuple[AttentionCall, ...]
    """Calls of attention, in the order of the layers."""
    experts: tuple[str, ...]
    """Modules that compute experts."""
    linears: tuple[tuple[str, ...], ...]
    """Linear modules, grouped by the tensor that they read."""
    networks: tuple[GatedNetwork, ...]
    """Gated feed-forward networks."""
    rotated_by_attention: bool
    """Whether attention can apply the rotary embedding."""
    copies_numbers: bool
    """Whether a step copies numbers from the host to the device, which a CUDA graph cannot."""


def dry_run(model: PreTrainedModel) -> DryRun:
    """Runs the class dry. Raises UnsupportedModel for a class that fails, or that would be served wrongly without an
    error.
    """
    name = type(model).__name__
    path = decoder_name(model)
    copied, recorder = Recorder.of(model)
    with explained(name):
        recorder.run_with_masks(path)
        recorder.run(path)
        _run_head(copied, path)
    layers = layers_of(model)
    if len(recorder.calls) != layers:
        raise unsupported(
            name,
            f"{len(recorder.calls)} of its {layers} layers call attention through the library's interface; others keep "
            "a state, or have an attention of their own",
        )
    rotated = can_be_postponed(model, copied, list(recorder.calls), lambda: recorder.forward(path))
    calls, experts = tuple(recorder.calls.values()), tuple(recorder.experts)
    return DryRun(calls, experts, recorder.linears(), recorder.networks(), rotated, recorder.copies_numbers)


@contextmanager
def explained(name: str) -> Generator[None, None, None]:
    """Around a dry run of the class `name`: raises UnsupportedModel for whatever fails in it."""
    try:
        with torch.no_grad():
            yield
    except UnsupportedModel:
        raise
    except Exception as error:  # a class may fail in any way where it asks a tensor for its values
        text = " ".join(str(error).split())[:300]
        raise unsupported(
            name, f"its forward pass needs values on the host, or cannot take a step of many requests ({text})"
        ) from error


def _run_head(model: PreTrainedModel, path: str) -> None:
    decoder = model.get_submodule(path)
    given = Given()
    given.hidden = torch.empty(5, model.config.get_text_config().hidden_size, dtype=model.dtype, device="meta")
    model.set_submodule(path, given)
    logits = model(inputs_embeds=given.hidden[None], use_cache=False).logits
    model.set_submodule(path, decoder)
    if logits.shape != (1, 5, model.config.get_text_config().vocab_size):
        raise unsupported(type(model).__name__, f"its head returns logits of shape {list(logits.shape)}")


class Recorder:
    """Records the calls of every module of a copy on the meta device."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self.model_name = type(model).__name__
        self._masks: dict[str, Mask] = {}
        self.calls: dict[str, AttentionCall] = {}
        self.experts: list[str] = []
        self.copies_numbers = False
        self._called: list[str] = []
        self._reads: list[tuple[str, Tensor, int]] = []
        """Each module, its input, and the input's version. The tensors stay alive, so that no two have one identity."""
        for name, module in model.named_modules():
            module.served_by = _Place(name, module, self)  # type: ignore[assignment]

    @classmethod
    def of(cls, model: PreTrainedModel) -> "tuple[PreTrainedModel, Recorder]":
        """A copy of `model` on the meta device, and what records its calls."""
        copied = copy.deepcopy(model)
        nn.Module.to(copied, "meta")
        return copied, cls(copied)

    def run_with_masks(self, path: str) -> dict[str, AttentionCall]:
        """Runs the class with masks, and learns which masks its layers ask for. Returns how they call attention."""
        self._set(DRY_RUN)
        self.forward(path, attention_mask=torch.ones(1, _TOKENS, dtype=torch.int64, device="meta"))
        calls, self.calls, self.experts = self.calls, {}, []
        return calls

    def run(self, path: str) -> None:
        """Runs the class as it is served."""
        self._set(SERVING)
        handles = [
            module.register_forward_pre_hook(self._reading(name)) for name, module in self._model.named_modules()
        ]
        with _Watch(self.model_name), _Copies() as copies:
            self.forward(path)
        self.copies_numbers = copies.found
        for handle in handles:
            handle.remove()

    def linears(self) -> tuple[tuple[str, ...], ...]:
        """Groups the linear modules that are called once by their input."""
        groups: dict[tuple[int, int], list[str]] = {}
        names = [name for name, _, _ in self._reads]
        for name, tensor, version in self._reads:
            if names.count(name) == 1:
                groups.setdefault((id(tensor), version), []).append(name)
        return tuple(map(tuple, groups.values()))

    def networks(self) -> tuple[GatedNetwork, ...]:
        """Returns the gated networks that are called as a whole."""
        networks = (recognise_gated(name, self._model.get_submodule(name)) for name in dict.fromkeys(self._called))
        return tuple(each for each in networks if each is not None)

    def _set(self, name: str) -> None:
        self._model.config._attn_implementation = name
        self._model.config._experts_implementation = name

    def forward(self, path: str, **inputs: Tensor) -> None:
        """Runs the module at `path` once."""
        ids = torch.zeros(1, _TOKENS, dtype=torch.int64, device="meta")
        self._model.get_submodule(path)(input_ids=ids, position_ids=ids, use_cache=False, **inputs)

    def _reading(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._called.append(name)
            if inputs and type(module) is nn.Linear:
                self._reads.append((name, inputs[0], inputs[0]._version))

        return hook

    def attended(self, name: str, call: AttentionCall, mask: object, causal: bool) -> None:
        """Checks the call of attention by one layer."""
        model = self.model_name
        if not causal:
            raise unsupported(model, f"attention of {name} looks ahead")
        if name in self.calls:
            raise unsupported(model, f"{name} calls attention more than once in a step")
        if self._model.config._attn_implementation == DRY_RUN:
            if not isinstance(mask, Mask):
                raise unsupported(model, f"attention of {name} has no mask of the library")
            self._masks[name] = mask
        else:
            if mask is not None:
                raise unsupported(model, f"attention of {name} has a mask of its own")
            _check_mask(model, call, self._masks[name])
        self.calls[name] = call


class _Place:
    """Stands in for attention or experts of one module, and records the call."""

    def __init__(self, name: str, module: nn.Module, recorder: Recorder) -> None:
        self._name = name
        self._module = module
        self._recorder = recorder

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: object, options: dict[str, Any]) -> Tensor:
        """See `AttentionLayer`."""
        model = self._recorder.model_name
        (batch, heads, tokens, head_dim), (_, kv_heads, keys, _) = q.shape, k.shape
        if batch != 1 or tokens != _TOKENS or keys != _TOKENS or heads % kv_heads:
            raise unsupported(
                model, f"{self._name} calls attention with queries {list(q.shape)} and keys {list(k.shape)}"
            )
        known = {"scaling": None, "sliding_window": None, "softcap": None, "s_aux": None}
        values = {**known, **options}
        others = [
            key for key, value in values.items() if key not in known and key not in _IGNORED and _says_something(value)
        ]
        if others:
            raise unsupported(model, f"{self._name} gives attention {', '.join(others)}, which ours does not have")
        call = AttentionCall(
            self._name,
            heads,
            kv_heads,
            head_dim,
            v.shape[-1],
            scale=head_dim**-0.5 if values["scaling"] is None else float(values["scaling"]),
            window=int(values["sliding_window"] or 0),
            softcap=float(values["softcap"] or 0.0),
        )
        causal = getattr(self._module, "is_causal", True) and options.get("is_causal") is not False
        self._recorder.attended(self._name, call, mask, bool(causal))
        return q.new_empty(1, tokens, heads, v.shape[-1])

    def compute(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002 - as in `ExpertsLayer`
        """See `ExpertsLayer`."""
        check_experts(self._recorder.model_name, self._name, self._module)
        self._recorder.experts.append(self._name)
        return torch.empty_like(x)


def _says_something(value: object) -> bool:
    return value is not None and value is not False


def _check_mask(model: str, call: AttentionCall, mask: Mask) -> None:
    """Checks that our attention allows what the library's mask allows."""
    for query in _QUERIES:
        edges = (query, query - call.window) if call.window else (query,)
        keys = {*(edge + step for edge in edges for step in (-1, 0, 1)), 0, 1, query // 2, query + 1000}
        for key in sorted(key for key in keys if key >= 0):
            seen = query - call.window < key <= query if call.window else key <= query
            allowed = mask.allows(0, 0, torch.tensor(query), torch.tensor(key))
            if bool(allowed) != seen:
                raise unsupported(
                    model,
                    f"attention of {call.module} {'sees' if allowed else 'does not see'} position {key} from {query}, "
                    "which is neither all positions before it nor a window",
                )


class _Watch(TorchDispatchMode):
    """Finds operators outside of attention that mix the tokens of a step, or count them."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._name = model

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "convolution":
            raise unsupported(self._name, "it has a convolution over tokens, which keeps a state")
        if name == "arange" and result.numel() == _TOKENS:
            raise unsupported(self._name, "it counts the tokens of a step, which are of many requests")
        return result


class _Copies(TorchFunctionMode):
    """Notes whether tensors on the device are made of numbers on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            self.found |= not isinstance(args[0], Tensor)
        return func(*args, **kwargs)
