"""Prompts with images, and what the classes of transformers make of them when they are given the embeddings."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from support.engine_driver import directly
from support.families import model_of
from support.media import SERVING, FakeEncoder, Image, Prompt, bring, media_stream
from support.router import Router, Stream
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.media_positions import rope_positions

TALL, WIDE, SMALL = Image(12, 4, 1), Image(8, 12, 2), Image(4, 8, 3)
TWO = Prompt(((5, 6), TALL, (17, 30, 8), WIDE, (44, 12)))
SWAPPED = Prompt(((5, 6), WIDE, (17, 30, 8), TALL, (44, 12)))
FIRST = Prompt((SMALL, (3, 70)))
TEXT = Prompt(((50, 4, 61),))
NEW_TOKENS = 4


@dataclass(frozen=True)
class Kind:
    """What the encoder of a case is like."""

    levels: int = 1
    whole_spans: bool = False
    axes: bool = False

    def encoder(self, device: str = "cpu") -> FakeEncoder:
        return FakeEncoder(32, self.levels, self.whole_spans, self.axes, device=device)


KINDS = {
    "llava": Kind(),
    "qwen2.5 vl": Kind(axes=True),
    "qwen3 vl": Kind(levels=3, axes=True),
    "qwen3.5 images": Kind(axes=True),
    "gemma3 images": Kind(whole_spans=True),
}


@cache
@torch.inference_mode()
def expected(name: str, prompt: Prompt, answer: tuple[int, ...]) -> Tensor:
    """Log-probabilities [length, vocabulary] of transformers' model of text, which is given images as embeddings."""
    kind, model = KINDS[name], model_of(name)
    ids = torch.tensor([[*prompt.ids, *answer]])
    spans = prompt.spans([0] * len(prompt.images))
    are_media = torch.zeros_like(ids, dtype=torch.bool)
    for span in spans:
        are_media[0, span.first : span.end] = True
    encoder = kind.encoder()
    parts = [image.embeddings(encoder) for image in prompt.images]
    rows = torch.cat(parts) if parts else torch.empty(0, kind.levels, 32)
    embeds = model.get_input_embeddings()(ids)
    embeds[are_media] = rows[:, 0]
    if kind.whole_spans:
        return model(inputs_embeds=embeds, token_type_ids=are_media.int()).logits[0].log_softmax(-1)
    options = {}
    if kind.axes:
        options["position_ids"] = torch.from_numpy(rope_positions(spans, 0, ids.shape[1]))[:, None]
    if kind.levels > 1 and parts:
        options |= {"visual_pos_masks": are_media, "deepstack_visual_embeds": list(rows[:, 1:].unbind(1))}
    hidden = model.model.language_model(inputs_embeds=embeds, use_cache=False, **options).last_hidden_state
    return model.lm_head(hidden)[0].log_softmax(-1)


def router(engine: Engine, number: int, **options: object) -> Router:
    info = engine.info
    spans = info.media is not None and info.media.whole_spans
    return Router(
        directly(engine), SERVING, number=number, recurrent=info.recurrent, whole_spans=spans, vocab_size=99, **options
    )  # type: ignore[arg-type]


def generations(engine: Engine, *prompts: Prompt, scored: bool = True, **options: object) -> list[Stream]:
    rows, number = bring(engine, [image for prompt in prompts for image in prompt.images])
    streams = [
        media_stream(index, prompt, rows, NEW_TOKENS, top_n_tokens=3, prefill_logprobs=scored)
        for index, prompt in enumerate(prompts)
    ]
    router(engine, number, **options).run(*streams)
    return streams


def assert_is_expected(name: str, prompt: Prompt, stream: Stream) -> None:
    assert stream.failure is None
    logprobs = expected(name, prompt, tuple(stream.tokens))[:-1]
    first = len(prompt.ids) - 1
    assert stream.tokens == logprobs[first:].argmax(-1).tolist()
    found = torch.tensor(stream.logprobs)
    of_tokens = logprobs[torch.arange(len(logprobs)), torch.tensor([*prompt.ids, *stream.tokens][1:])]
    torch.testing.assert_close(found, of_tokens[first:], atol=1e-3, rtol=0)
    if stream.pauses == 0 and stream.scores:
        torch.testing.assert_close(torch.tensor(stream.prompt_logprobs), of_tokens[:first], atol=1e-3, rtol=0)
