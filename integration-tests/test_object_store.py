"""The demo model from an object store: launcher, shard and router have what a local folder gives them."""

from __future__ import annotations

import json
from pathlib import Path

from harness import DEMO, serving

# conftest.py puts it onto the path.
from support.object_server import object_server

STORY = json.loads((DEMO / "snapshots.json").read_text())[0]


def test_the_demo_model_is_served_from_an_object_store(tmp_path: Path) -> None:
    with object_server() as store:
        files = [path for path in DEMO.iterdir() if path.suffix in (".json", ".jinja", ".safetensors")]
        store.buckets["models"] = {f"team/demo/{path.name}": path.read_bytes() for path in files}
        environment = {
            "AWS_ENDPOINT_URL": store.address,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_CONFIG_FILE": str(tmp_path / "none"),
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
            "HUGGINGFACE_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": "0",
        }
        url = "s3://models/team/demo"
        with serving(url, tmp_path, environment=environment) as server:
            answer = server.generate(STORY["prompt"], max_new_tokens=STORY["max_new_tokens"])
            assert answer["generated_text"] == STORY["text"]
            info = server.client.get("/info").json()
            assert info["model_id"] == url
            assert (tmp_path / "cache" / "s3--models--team%2Fdemo" / "snapshots" / info["model_sha"]).is_dir()
        assert store.fetched().count("model.safetensors") == 1
