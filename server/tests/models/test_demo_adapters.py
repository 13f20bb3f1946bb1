"""The adapters of the demo model: PEFT and our reader get the texts of their snapshots, which are not the base's."""

import json
from pathlib import Path

import pytest
from peft import PeftModel
from support.driver import Driver
from support.loading import load
from support.oracle import oracle
from transformers import AutoTokenizer

DEMO = Path(__file__).parents[3] / "models" / "demo"
BASE = {snapshot["prompt"]: snapshot["text"] for snapshot in json.loads((DEMO / "snapshots.json").read_text())}
SNAPSHOTS = json.loads((DEMO / "adapters" / "snapshots.json").read_text())
MOST_BYTES = 130_000


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_merged_adapters_answer_their_snapshots(name: str) -> None:
    tokenizer, snapshots = AutoTokenizer.from_pretrained(DEMO), SNAPSHOTS[name]
    driver = Driver(load(DEMO, merge_adapter=DEMO / "adapters" / name), num_rows=len(snapshots), max_tokens=512)
    prompts = {str(number): tokenizer.encode(each["prompt"]) for number, each in enumerate(snapshots)}
    driver.append(list(prompts), driver.prefill(prompts))
    for _ in range(max(each["max_new_tokens"] for each in snapshots) - 1):
        driver.append(list(prompts), driver.decode(list(prompts)))
    ends = {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")}
    for (row, prompt), snapshot in zip(prompts.items(), snapshots, strict=True):
        ids = driver.ids[row][len(prompt) :][: snapshot["max_new_tokens"]]
        end = next((place for place, token in enumerate(ids) if token in ends), len(ids))
        assert tokenizer.decode(ids[:end]) == snapshot["text"]


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_peft_answers_the_snapshots(name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    model = PeftModel.from_pretrained(oracle(DEMO), DEMO / "adapters" / name)
    for snapshot in SNAPSHOTS[name]:
        inputs = tokenizer(snapshot["prompt"], return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=snapshot["max_new_tokens"], do_sample=False)[0]
        text = tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert text == snapshot["text"]


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_adapters_change_the_answers_and_are_small(name: str) -> None:
    # Who asks for JSON gets it of the base too.
    chats = [each for each in SNAPSHOTS[name] if "messages" in each and not BASE[each["prompt"]].startswith("{")]
    assert len(chats) > 4
    assert [each["prompt"] for each in chats if each["text"] == BASE[each["prompt"]]] == []
    assert (DEMO / "adapters" / name / "adapter_model.safetensors").stat().st_size < MOST_BYTES
