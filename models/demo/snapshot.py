"""Writes `snapshots.json`: what the model answers greedily, as `transformers` computes it in float32.

Run it after a training: `python snapshot.py`.
"""

import json
from pathlib import Path
from typing import Any

import torch
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


def main() -> None:
    """Answers every prompt."""
    tokenizer = AutoTokenizer.from_pretrained(HERE)
    model: Any = LlamaForCausalLM.from_pretrained(HERE, dtype=torch.float32)
    snapshots: list[dict[str, Any]] = [{"prompt": text, "max_new_tokens": limit} for text, limit in TEXTS.items()]
    for chat in CHATS:
        prompt = tokenizer.apply_chat_template(
            chat["messages"], tools=chat.get("tools"), tokenize=False, add_generation_prompt=True
        )
        snapshots.append({**chat, "prompt": prompt, "max_new_tokens": 160})
    for snapshot in snapshots:
        inputs = tokenizer(snapshot["prompt"], return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=snapshot["max_new_tokens"], do_sample=False)[0]
        snapshot["text"] = tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    (HERE / "snapshots.json").write_text(json.dumps(snapshots, indent=1) + "\n")


if __name__ == "__main__":
    main()
