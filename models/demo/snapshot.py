"""Writes `snapshots.json` and `adapters/snapshots.json`: what the model and its adapters answer greedily, as
`transformers` computes it in float32.

Run it after a training: `python snapshot.py`.
"""

import json
from pathlib import Path
from typing import Any

import torch
from train_adapters import FOLDER as ADAPTERS
from train_adapters import RECIPES, merge
from transformers import AutoTokenizer, LlamaForCausalLM

HERE = Path(__file__).parent
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    },
]
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
TEXTS = {"Once upon a time": 160, "Hello world": 40, "The cat sat": 40, "One sunny morning,": 60}
QUESTIONS = (
    "Hello!",
    "What is 12 + 30?",
    "What sound does a cow make?",
    "Count from 3 to 9.",
    "Tell me a story about a fox.",
    "Give me a JSON object with name Mina and age 7.",
    "What is this server?",
)
CHATS: list[dict[str, Any]] = [
    *({"messages": [{"role": "user", "content": question}]} for question in QUESTIONS),
    {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": TOOLS},
    {"messages": [{"role": "user", "content": "What is 1234 + 777?"}], "tools": TOOLS},
    {
        "messages": [
            {"role": "user", "content": "What is the weather in Paris?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": '{"temperature": 21, "weather": "sunny"}'},
        ],
        "tools": TOOLS,
    },
]


def answer(model: Any, tokenizer: Any, snapshots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The snapshots with the texts of this model."""
    answered: list[dict[str, Any]] = []
    for snapshot in snapshots:
        inputs = tokenizer(snapshot["prompt"], return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=snapshot["max_new_tokens"], do_sample=False)[0]
        text = tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        answered.append({**snapshot, "text": text})
    return answered


def main() -> None:
    """Answers every prompt; the adapters those without tools."""
    tokenizer = AutoTokenizer.from_pretrained(HERE)
    snapshots: list[dict[str, Any]] = [{"prompt": text, "max_new_tokens": limit} for text, limit in TEXTS.items()]
    for chat in CHATS:
        prompt = tokenizer.apply_chat_template(
            chat["messages"], tools=chat.get("tools"), tokenize=False, add_generation_prompt=True
        )
        snapshots.append({**chat, "prompt": prompt, "max_new_tokens": 160})
    model: Any = LlamaForCausalLM.from_pretrained(HERE, dtype=torch.float32)
    (HERE / "snapshots.json").write_text(json.dumps(answer(model, tokenizer, snapshots), indent=1) + "\n")
    adapted: dict[str, Any] = {}
    for name in RECIPES:
        model = LlamaForCausalLM.from_pretrained(HERE, dtype=torch.float32)
        merge(model, ADAPTERS / name)
        adapted[name] = answer(model, tokenizer, [snapshot for snapshot in snapshots if "tools" not in snapshot])
    (ADAPTERS / "snapshots.json").write_text(json.dumps(adapted, indent=1) + "\n")


if __name__ == "__main__":
    main()
