"""Parts of a family file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..json_object import JsonObject
from ..names import TensorNames
from ..quantisation import Schemes
from ..spec import DecoderSpec


@dataclass(frozen=True)
class Family:
    """Models whose `config.json` and tensors are read in the same way."""

    title: str
    """For people."""
    decoder: Callable[[JsonObject], DecoderSpec]
    """Raises ConfigurationError or UnsupportedModel."""
    names: TensorNames | Callable[[JsonObject], TensorNames] = field(default_factory=TensorNames)
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """What it means when keys of `config.json` are absent. Sizes have no defaults: they must be given."""
    longest: str = "max_position_embeddings"
    """The key with the number of positions, where the usual one is absent."""
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    """From the usual name of a key to the one that the family has."""
    older: Mapping[str, str] = field(default_factory=dict[str, str])
    """The same, but where both are there the usual one counts."""
    unread: tuple[str, ...] = ()
    """Keys that other families have and the class of this one does not read: in its files they mean nothing."""
    ends: tuple[int, ...] = ()
    """Ids that end a text, where no file says so."""
    tower: str = ""
    """The key that files with an encoder of images have, where the class is that of models of text alone too."""
    schemes: Callable[[JsonObject, Schemes], Schemes] = lambda _, schemes: schemes
    """How its matrices are quantised, where the usual keys do not say all of it."""
    positions: Callable[[JsonObject], int | None] = lambda _: None
    """How many positions there are, where other keys than that say it."""

    def tensor_names(self, config: JsonObject) -> TensorNames:
        """Those of the model with this configuration."""
        return self.names if isinstance(self.names, TensorNames) else self.names(config)
