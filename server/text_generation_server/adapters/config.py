"""Contents of PEFT's `adapter_config.json`, checked: whatever is not computed is refused by name."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ..config.json_object import JsonObject
from ..errors import AdapterError, ConfigurationError, ModelFilesError

CONFIG_FILE = "adapter_config.json"
_LONGEST_PATTERN = 512
_MOST_ALPHA = 1e9
"""What is learnt is multiplied by it: more would be beyond the range of numbers of 16 bits."""
_MOST_PATTERNS = 100_000
_MOST_TOKENS = 1_000_000
_HINTS = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "r",
        "rank_pattern",
        "revision",
        "target_modules",
        "task_type",
    }
)
"""Keys that training reads, or that repeat what the tensors say: the tensors count."""
_NOT_COMPUTED: Mapping[str, str] = {
    "alora_invocation_tokens": "activated LoRA, whose adapter begins in the middle of a prompt",
    "use_qalora": "QA-LoRA, which pools the inputs of groups",
    "use_bdlora": "block-diagonal LoRA",
    "kasa_config": "KaSA, which truncates the base weights",
    "velora_config": "VeLoRA",
    "monteclora_config": "MonteCLoRA",
    "layer_replication": "layer replication, which changes the model's layers",
    "arrow_config": "Arrow, which routes among several adapters",
    "megatron_config": "layers of Megatron",
}
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that also change the base weights: the adapter means nothing beside the published ones."""


@dataclass(frozen=True)
class AdapterConfig:
    """What an adapter's configuration says beyond its tensors."""

    path: Path
    alpha: float
    alpha_pattern: tuple[tuple[re.Pattern[str], float], ...] = ()
    """Other alphas, by module; the first pattern that matches counts."""
    rslora: bool = False
    """Whether s is alpha / sqrt(r) instead of alpha / r."""
    dora: bool = False
    lora_bias: bool = False
    fan_in_fan_out: bool = False
    """Whether targeted matrices are stored [inputs, outputs]."""
    modules_to_save: tuple[str, ...] = ()
    target_parameters: tuple[str, ...] = ()
    token_indices: Mapping[str, tuple[int, ...]] | None = None
    """Tokens with new rows, by the end of the name of their table."""
    base_model: str = ""
    """Which model it was trained on, for messages."""

    def scale(self, module: str, rank: int) -> float:
        """Returns s of a module. The rank is that of its tensors: the file's `r` may be another module's."""
        matching = (alpha for pattern, alpha in self.alpha_pattern if pattern.match(module))
        alpha = next(matching, self.alpha)
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def parameter_of(self, module: str) -> str:
        """Returns the name by which patterns know `module`: its weight's, where that was targeted as a parameter."""
        weight = f"{module}.weight"
        return weight if any(_ends(weight, each) for each in self.target_parameters) else module

    def tokens_of(self, module: str) -> tuple[int, ...] | None:
        """Returns the tokens that have new rows in the table `module`; None: nothing says so."""
        for name, tokens in (self.token_indices or {}).items():
            if _ends(module, name):
                return tokens
        return None


def read_config(folder: Path) -> AdapterConfig:
    """Reads the configuration of the adapter in `folder`. Raises AdapterError."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        what = "is a model, not an adapter" if (folder / "config.json").is_file() else "holds no adapter"
        raise AdapterError(f"{folder} {what}: a folder with {CONFIG_FILE} beside adapter_model.safetensors is needed")
    try:
        return _parse(JsonObject.from_file(path), path)
    except (ConfigurationError, ModelFilesError) as error:
        raise AdapterError(str(error)) from error


def _parse(config: JsonObject, path: Path) -> AdapterConfig:
    kind = config.string("peft_type", default="LORA")
    if kind != "LORA":
        raise AdapterError(f"{path}: `peft_type` is {kind!r}, and only LORA is computed: convert the adapter to LoRA")
    for key, meaning in _NOT_COMPUTED.items():
        if config.plain().get(key):
            raise AdapterError(
                f"{path}: `{key}` asks for {meaning}, which is not computed: merge the adapter into its model with "
                "PEFT, or train it without"
            )
    _check_init(config, path)
    bias = config.string("bias", default="none")
    if bias not in ("none", "all", "lora_only"):
        raise config.error("bias", "none, all or lora_only")
    found = AdapterConfig(
        path=path,
        alpha=config.number("lora_alpha", default=8.0, maximum=_MOST_ALPHA),
        alpha_pattern=_patterns(config.child("alpha_pattern")),
        rslora=config.boolean("use_rslora", default=False),
        dora=config.boolean("use_dora", default=False),
        lora_bias=config.boolean("lora_bias", default=False),
        fan_in_fan_out=config.boolean("fan_in_fan_out", default=False),
        modules_to_save=config.strings("modules_to_save"),
        target_parameters=config.strings("target_parameters"),
        token_indices=_token_indices(config),
        base_model=config.string("base_model_name_or_path", default=""),
    )
    _refuse_unknown(config, path)
    return found


def _check_init(config: JsonObject, path: Path) -> None:
    init = config.plain().get("init_lora_weights", True)
    if isinstance(init, str) and init.lower().startswith(_CHANGE_THE_BASE):
        raise AdapterError(
            f"{path}: `init_lora_weights` {init!r} has changed the base weights at training, so this adapter does not "
            "belong to the published ones: save it with PEFT's `path_initial_model_for_weight_conversion`, which makes "
            "a plain LoRA of it"
        )


def _patterns(config: JsonObject) -> tuple[tuple[re.Pattern[str], float], ...]:
    if len(keys := list(config)) > _MOST_PATTERNS:
        raise AdapterError(f"{config.source} has {len(keys)} patterns, and at most {_MOST_PATTERNS} are read")
    return tuple((_pattern(config, key), config.number(key, maximum=_MOST_ALPHA)) for key in keys)


def _pattern(config: JsonObject, key: str) -> re.Pattern[str]:
    """Compiles PEFT's pattern of modules. Those that could take exponential time are refused: a file is untrusted."""
    if len(key) > _LONGEST_PATTERN or re.search(r"\)[*+{]", key) or len(re.findall(r"[*+{]", key)) > 4:
        raise AdapterError(
            f"{config.source}: the pattern {key[:80]!r} repeats a group or too much: write it with at most four "
            "repetitions of single characters, or list modules by name"
        )
    try:
        return re.compile(rf"(.*\.)?({key})$")
    except (re.error, OverflowError, RecursionError) as error:
        raise AdapterError(f"{config.source}: {key!r} is no regular expression: {error}") from error


def _token_indices(config: JsonObject) -> Mapping[str, tuple[int, ...]] | None:
    value = config.plain().get("trainable_token_indices")
    config.token_ids("trainable_token_indices") if isinstance(value, list) else config.child("trainable_token_indices")
    if not value:
        return None
    by_module = cast("dict[str, object]", value) if isinstance(value, dict) else {"embed_tokens": value}
    indices = {name: JsonObject({name: ids}, config.source).token_ids(name) for name, ids in by_module.items()}
    for name, ids in indices.items():
        if len(ids) > _MOST_TOKENS or len(set(ids)) < len(ids):
            raise AdapterError(f"{config.source}: `trainable_token_indices` of {name!r} names a token twice")
    return indices


def _refuse_unknown(config: JsonObject, path: Path) -> None:
    """Keys of a newer PEFT may change the formula: those that are set to something are refused."""
    known = _HINTS | set(_NOT_COMPUTED) | {"init_lora_weights"}
    unknown = [key for key in config.never_asked() if key not in known and config.plain()[key]]
    if unknown:
        raise AdapterError(
            f"{path}: `{unknown[0]}` is not known, and may change what the adapter means: remove it if it does not"
        )


def _ends(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")
