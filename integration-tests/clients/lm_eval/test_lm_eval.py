"""lm-eval's `local-completions`: log-likelihoods of given texts, and generations."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
# The program cuts texts into tokens itself, and sends ids.
TOKENIZER = Path(__file__).parents[3] / "models" / "demo"


def test_log_likelihoods_and_generations(api, tmp_path):
    for path in [*FOLDER.glob("*.yaml"), *FOLDER.glob("*.jsonl")]:
        shutil.copy(path, tmp_path)
    model = f"model=demo,base_url={api.v1}/completions,tokenizer={TOKENIZER},tokenizer_backend=huggingface"
    model += ",num_concurrent=2,max_retries=1,max_length=1024"
    command = [Path(sys.prefix) / "bin" / "lm_eval", "run", "--model", "local-completions", "--model_args", model]
    command += ["--tasks", "ends,sounds", "--include_path", ".", "--batch_size", "2", "--output_path", "results.json"]
    environment = {**os.environ, "OPENAI_API_KEY": api.key, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path)}
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (written,) = tmp_path.rglob("results*.json")
    results = json.loads(written.read_text())["results"]
    assert results["ends"]["acc,none"] == 1
    assert results["sounds"]["exact_match,none"] == 1
