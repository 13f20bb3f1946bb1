"""Reading of an adapter: every tensor of its files becomes a change of a tensor of the model, or all is refused."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ..errors import AdapterError
from .base import BaseModel
from .config import AdapterConfig, read_config
from .delta import Change, Delta, EmbeddingDelta, Replaced, TokenRows, highest_rank
from .experts import expert_changes, stacked_changes
from .files import read_contents
from .keys import Part, Site, sites
from .resolve import listed, resolve
from .threads import give_way

HIGHEST_RANK = 256


@dataclass(frozen=True)
class Adapter:
    """An adapter that fits a model."""

    path: Path
    """Its folder."""
    digest: str
    """A hash of everything that makes its answers; two adapters with the same one are the same."""
    changes: Mapping[str, Change]
    """By the name of the tensor in the checkpoint, or that which a quantised matrix would have with 16 bits."""


def read_adapter(folder: Path, base: BaseModel, allow_pickle: bool = False) -> Adapter:
    """Reads the adapter in `folder` for a model. `allow_pickle`: an operator named it, no client. Raises AdapterError,
    and ModelFilesError where the model itself cannot be read.
    """
    config = read_config(folder)
    contents = read_contents(folder, allow_pickle)
    found = sites(contents.tensors)
    names = resolve((site.module for site in found), base.known_names(), contents.path)
    give_way()
    reading = _Reading(base, config, contents.path, contents.tensors)
    for site in found:
        reading.add(site, names[site.module])
    give_way()
    reading.check_whole()
    meaning = (config.alpha, config.rslora, sorted((each.pattern, alpha) for each, alpha in config.alpha_pattern))
    indices = sorted((config.token_indices or {}).items())
    digest = contents.digest(json.dumps([meaning, config.target_parameters, indices]))
    return Adapter(folder, digest, reading.changes)


@dataclass(frozen=True)
class _Reading:
    base: BaseModel
    config: AdapterConfig
    path: Path
    tensors: Mapping[str, Tensor]
    changes: dict[str, Change] = field(default_factory=dict[str, Change])
    whole: list[str] = field(default_factory=list[str])
    """Modules that are replaced, by the names of the trained model."""

    def add(self, site: Site, module: str) -> None:
        """Makes changes of the tensors of a site, whose module is `module` in the checkpoint."""
        left = dict(site.tensors)

        def take(part: Part) -> Tensor | None:
            return None if (name := left.pop(part, None)) is None else self.tensors[name]

        if (bias := take("base_bias")) is not None:
            self._replace(f"{module}.bias", bias)
        if (whole := take("whole")) is not None:
            self.whole.append(site.module.rpartition(".")[0])
            self._replace(module, whole)
        elif "tokens" in left:
            self._tokens(site, module, take("tokens"))
        elif "embedding_a" in left or "embedding_b" in left:
            pair = take("embedding_a"), take("embedding_b")
            self._embedding(site, module, *self._complete(site, *pair), take("magnitude"), take("base"))
        elif "a" in left or "b" in left:
            pair = self._complete(site, take("a"), take("b"))
            self._matrix(site, module, *pair, take("magnitude"), take("bias"), take("base"))
        if left:
            raise AdapterError(
                f"{self.path}: {listed(sorted(left.values()))} belong to no pair of factors: the file is incomplete, "
                "or of another method than LoRA"
            )

    def check_whole(self) -> None:
        """Checks that nothing that the configuration promises is absent."""
        for name in self.config.modules_to_save:
            if not any(f".{module}".endswith(f".{name}") for module in self.whole):
                raise self._error(
                    f"`modules_to_save` names {name!r}, but no tensor of it is in the file: save it again"
                )
        for name in self.config.token_indices or {}:
            if not any(isinstance(each, TokenRows) and name in tensor for tensor, each in self.changes.items()):
                raise self._error(f"`trainable_token_indices` names {name!r}, but its rows are not in the file")
        if not self.changes:
            raise self._error("the file has no tensors: save the adapter again with PEFT")

    def _complete(self, site: Site, a: Tensor | None, b: Tensor | None) -> tuple[Tensor, Tensor]:
        if a is None or b is None:
            lacks = "lora_A" if a is None else "lora_B"
            raise self._error(f"`{site.module}` has no `{lacks}`: the file is incomplete, save the adapter again")
        is_matrix = a.dim() == b.dim() == 2
        if not is_matrix or a.shape[0] != b.shape[1]:
            raise self._error(f"`{site.module}` has factors {list(a.shape)} and {list(b.shape)}, which do not multiply")
        return a, b

    def _matrix(
        self,
        site: Site,
        module: str,
        a: Tensor,
        b: Tensor,
        magnitude: Tensor | None,
        bias: Tensor | None,
        whole: Tensor | None,
    ) -> None:
        name = f"{module}.weight"
        stored = self.base.shape(name)
        if stored is None and self._is_group(module):
            if magnitude is not None or bias is not None or whole is not None:
                raise self._error(_NO_OPTIONS.format(site.module))
            for tensor, change in expert_changes(self.base, self.config, site, module, a, b).items():
                self._put(tensor, change)
            return
        if (stacked := stacked_changes(self.base, self.config, site, module, a, b)) is not None:
            if magnitude is not None or bias is not None or whole is not None:
                raise self._error(_NO_OPTIONS.format(site.module))
            self._put(name, stacked)
            return
        self._check_options(site, magnitude, bias, len(b))
        delta = Delta(
            a,
            b,
            self.config.scale(self.config.parameter_of(site.module), len(a)),
            magnitude,
            bias,
            self.base.is_transposed(name),
            self._trained(name, whole),
        )
        if delta.bias is not None and self.base.shape(f"{module}.bias") is None:
            raise self._error(f"`{site.module}` has `lora_bias`, but its layer in the model has no bias to add it to")
        self._put_delta(site, name, delta, stored)

    def _is_group(self, module: str) -> bool:
        """Whether a module without a weight has others inside: it is no quantised matrix then."""
        decoder = self.base.decoder
        return decoder is None or (decoder.experts_of(module) is not None and module.endswith("experts"))

    def _embedding(
        self, site: Site, module: str, a: Tensor, b: Tensor, magnitude: Tensor | None, whole: Tensor | None
    ) -> None:
        name = f"{module}.weight"
        self._check_options(site, magnitude, None, len(b))
        scale, base = self.config.scale(site.module, len(a)), self._trained(name, whole)
        self._put_delta(site, name, EmbeddingDelta(a, b, scale, magnitude, None, True, base), self.base.shape(name))

    def _check_options(self, site: Site, magnitude: Tensor | None, bias: Tensor | None, outputs: int) -> None:
        """Checks that a pair has what the configuration says, and nothing else."""
        is_embedding = "embedding_a" in site.tensors
        for key, asked, tensor in (
            ("use_dora", self.config.dora, magnitude),
            ("lora_bias", self.config.lora_bias and not is_embedding, bias),
        ):
            if asked != (tensor is not None):
                what = "no tensor for it" if asked else "a tensor for it"
                raise self._error(f"`{key}` is {str(asked).lower()}, but `{site.module}` has {what}: save it again")
            if tensor is not None and tensor.shape != (outputs,):
                raise self._error(f"`{site.module}`: the tensor of `{key}` has shape {list(tensor.shape)}")

    def _put_delta(self, site: Site, name: str, delta: Delta, stored: tuple[int, ...] | None) -> None:
        if stored is not None and stored != delta.shape:
            raise self._error(
                f"`{site.module}` has factors of a tensor {list(delta.shape)}, but `{name}` of the model is "
                f"{list(stored)}: the adapter is of another model{self._trained_on()}"
            )
        self._put(name, delta)

    def _trained(self, name: str, whole: Tensor | None) -> Tensor | None:
        """Returns the whole weight that PEFT saves below a change of embedding or head, where it is another one."""
        if whole is None:
            return None
        self._check_shape(name, whole)
        return None if self.base.holds(name, whole) else whole

    def _tokens(self, site: Site, module: str, rows: Tensor | None) -> None:
        name, tokens = f"{module}.weight", self.config.tokens_of(site.module)
        stored = self.base.shape(name)
        if tokens is None or rows is None:
            raise self._error(f"`trainable_token_indices` does not say which tokens the rows of `{site.module}` are of")
        width = None if stored is None else stored[1]
        if rows.dim() != 2 or len(rows) != len(tokens) or rows.shape[1] != (width or rows.shape[1]):
            raise self._error(
                f"`{site.module}` has new rows {list(rows.shape)}, but `trainable_token_indices` names {len(tokens)} "
                f"tokens, and rows have {width} elements"
            )
        if stored is not None and tokens and max(tokens) >= stored[0]:
            raise self._error(
                f"`trainable_token_indices` names token {max(tokens)}, and the model has {stored[0]}: {_NEW_TOKENS}"
            )
        self._put(name, TokenRows(tokens, rows))

    def _replace(self, name: str, tensor: Tensor) -> None:
        self._check_shape(name, tensor)
        self._put(name, Replaced(tensor))

    def _check_shape(self, name: str, tensor: Tensor) -> None:
        stored = self.base.shape(name)
        if stored is None:
            raise self._error(
                f"the adapter replaces `{name}`, which the model does not have in 16 or 32 bits: {self._other(name)}"
            )
        if stored != tuple(tensor.shape):
            resized = stored[1:] == tuple(tensor.shape[1:]) and tensor.dim() == 2
            remedy = _NEW_TOKENS if resized else f"the adapter is of another model{self._trained_on()}"
            raise self._error(f"`{name}` has shape {list(tensor.shape)}, but {list(stored)} in the model: {remedy}")

    @staticmethod
    def _other(name: str) -> str:
        return "it is of another model" if name.endswith(".bias") else "use the unquantised checkpoint"

    def _put(self, name: str, change: Change) -> None:
        if name in self.changes:
            raise self._error(f"`{name}` of the model is changed in two ways, and only one is computed")
        if (rank := highest_rank(change)) > HIGHEST_RANK:
            raise self._error(f"the change of `{name}` has rank {rank}, and at most {HIGHEST_RANK} are computed")
        self.changes[name] = change

    def _trained_on(self) -> str:
        return f" (it was trained on {self.config.base_model!r})" if self.config.base_model else ""

    def _error(self, text: str) -> AdapterError:
        return AdapterError(f"{self.path}: {text}")


_NO_OPTIONS = "`{}`: experts have neither DoRA nor biases, in PEFT or here"
_NEW_TOKENS = "tokens that the adapter adds need a model with as many rows: merge both with PEFT"
