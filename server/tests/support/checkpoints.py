"""Tiny random checkpoints in the layout of the hub, made with transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_BASE: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    # Large enough that the tokens' logits differ clearly: greedy choices must not hang on the last bits.
    "initializer_range": 0.3,
}

_CORPUS = [
    "Once upon a time there was a little dog who lived in a small house near the sea.",
    "Every day the dog ran to the beach and played with the waves and the sand.",
    "One day a big storm came, and the dog found a tiny boat: “Hello!” said the boat.",
    "naïve café, 12345, déjà vu, Grüße, 日本語, emoji 🙂, and some code: x = [i * 2 for i in range(10)]",
]


def tiny_llama(tmp_path_factory: pytest.TempPathFactory, **overrides: Any) -> Path:
    """Writes a random Llama and returns its folder; `overrides` are keys of `LlamaConfig`.

    The weights are a function of the configuration. With a vocabulary too small for the tokenizer (below 300), the
    folder has none.
    """
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**_BASE, **overrides})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Transformers starts biases at zero and norms at one, which would hide that they are missing.
            if parameter.dim() == 1:
                parameter.normal_(mean=0.0 if name.endswith(".bias") else 1.0, std=0.2)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=[2, 3])
    model.save_pretrained(folder)
    if model.config.vocab_size >= 300:
        _tokenizer(model.config.vocab_size).save_pretrained(folder)
    return folder


def _tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE: any text can be encoded, and one character may need several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<unk>", "<s>", "</s>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
