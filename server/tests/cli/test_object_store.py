"""Models in an object store: fetched by boto3 from a small server of the protocol."""

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.object_server import ObjectServer, object_server

from text_generation_server.config.adapters import AskedAdapter
from text_generation_server.config.asked_drafter import AskedDrafter
from text_generation_server.config.server import AskedComputation, Environment, HubConfig
from text_generation_server.config.serving import AskedLimits
from text_generation_server.config.shards import AskedShards
from text_generation_server.doctor import adapter_findings
from text_generation_server.doctor.model import model_findings
from text_generation_server.errors import AdapterNotFound, ModelFilesError
from text_generation_server.hub import ModelSource, find_folder, prepare_folder, present_folder, stored_weights
from text_generation_server.hub_adapters import find_adapter, prepare_adapters
from text_generation_server.hub_drafter import find_drafter, prepare_drafter

URL = "s3://models/team/tiny model"
WEIGHTS = bytes(range(256)) * 2**13
MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": b"second",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"once more",
    "README.md": b"words",
    "original/config.json": b"of authors",
}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectServer]:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with object_server() as server:
        server.buckets["models"] = {f"team/tiny model/{name}": content for name, content in MODEL.items()}
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
        yield server


@pytest.fixture
def hub(tmp_path: Path) -> HubConfig:
    return HubConfig(cache_dir=tmp_path / "cache")


def never(_: float) -> None:
    pytest.fail("it waited")


def test_a_model_is_fetched_once_with_what_serving_reads(store: ObjectServer, hub: HubConfig) -> None:
    judged: list[list[str]] = []
    source = ModelSource(URL)
    assert present_folder(source, hub) is None
    folder = prepare_folder(source, hub, lambda at: judged.append(sorted(each.name for each in at.iterdir())), never)
    assert judged == [["config.json", "tokenizer.json"]]
    assert [path.name for path in stored_weights(folder, ".safetensors")] == sorted(
        name for name in MODEL if name.startswith("model-")
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: MODEL[name] for name in MODEL if name.startswith(("config", "tokenizer", "model-"))
    }
    assert all(store.signed)
    fetched = store.fetched()
    assert len(fetched) == 4
    # A shard asks nobody.
    store.requests.clear()
    assert find_folder(source, hub) == folder
    assert store.requests == []
    assert prepare_folder(ModelSource(f"{URL}/"), hub, pause=never) == folder
    assert store.fetched() == []


def test_what_has_changed_is_fetched_alone(store: ObjectServer, hub: HubConfig) -> None:
    before = prepare_folder(ModelSource(URL), hub)
    store.requests.clear()
    store.buckets["models"]["team/tiny model/config.json"] = b"[]"
    after = prepare_folder(ModelSource(URL), hub)
    assert store.fetched() == ["config.json"]
    assert [(each / "config.json").read_bytes() for each in (before, after)] == [b"{}", b"[]"]
    assert find_folder(ModelSource(URL), hub) == after


def test_a_broken_download_goes_on_where_it_ended(store: ObjectServer, hub: HubConfig) -> None:
    store.breaks_after = len(WEIGHTS) // 2
    pauses: list[float] = []
    folder = prepare_folder(ModelSource(URL), hub, pause=pauses.append)
    assert len(pauses) == 1
    assert (folder / "model-00001-of-00002.safetensors").read_bytes() == WEIGHTS
    (ranged,) = (each for each in store.requests if "bytes=" in each)
    start = int(ranged.rpartition("bytes=")[2].rstrip("-"))
    assert 0 < start <= len(WEIGHTS) // 2
    assert not list((hub.cache_dir or Path()).rglob("*.incomplete"))


def test_a_store_without_ranges_begins_again(store: ObjectServer, hub: HubConfig) -> None:
    store.breaks_after, store.knows_ranges = len(WEIGHTS) // 2, False
    folder = prepare_folder(ModelSource(URL), hub, pause=lambda _: None)
    assert (folder / "model-00001-of-00002.safetensors").read_bytes() == WEIGHTS


def test_an_object_that_changes_meanwhile_is_never_mixed(store: ObjectServer, hub: HubConfig) -> None:
    key, other = "team/tiny model/model-00001-of-00002.safetensors", WEIGHTS[::-1]
    store.breaks_after = len(WEIGHTS) // 2

    def replace(_: float) -> None:
        store.buckets["models"][key] = other

    folder = prepare_folder(ModelSource(URL), hub, pause=replace)
    assert (folder / "model-00001-of-00002.safetensors").read_bytes() == other


def test_a_store_that_is_away_leaves_what_was_fetched(
    store: ObjectServer, hub: HubConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare_folder(ModelSource(URL), hub)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert prepare_folder(ModelSource(URL), hub, pause=never) == folder
    with pytest.raises(ModelFilesError, match=r"s3://models/other failed 5 times \(EndpointConnectionError.*AWS_ENDPO"):
        prepare_folder(ModelSource("s3://models/other"), hub, pause=lambda _: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert prepare_folder(ModelSource(URL), hub, pause=never) == folder
    with pytest.raises(ModelFilesError, match="HF_HUB_OFFLINE forbids a download"):
        prepare_folder(ModelSource("s3://models/other"), hub, pause=never)


def test_a_model_is_judged_before_its_weights_are_fetched(store: ObjectServer, hub: HubConfig) -> None:
    def refuse(_: Path) -> None:
        raise ModelFilesError("not this one")

    with pytest.raises(ModelFilesError, match="not this one"):
        prepare_folder(ModelSource(URL), hub, refuse)
    assert store.fetched() == ["config.json", "tokenizer.json"]
    with pytest.raises(ModelFilesError, match="neither a folder nor in the hub cache"):
        find_folder(ModelSource(URL), hub)


def test_public_buckets_need_no_credentials(
    store: ObjectServer, hub: HubConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert prepare_folder(ModelSource(URL), hub)
    assert not any(store.signed)


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((403, "AccessDenied"), r"refuses s3://.*AccessDenied.*AWS_ACCESS_KEY_ID.*may list and read it"),
        ((403, "InvalidAccessKeyId"), r"InvalidAccessKeyId.*AWS_ACCESS_KEY_ID"),
        ((400, "AuthorizationHeaderMalformed"), "AuthorizationHeaderMalformed.*AWS_DEFAULT_REGION"),
        (
            (404, "NoSuchBucket"),
            "there is no bucket of s3://models/team/tiny model: check bucket and prefix, AWS_EN",
        ),
    ],
)
def test_what_stays_refused_is_told_at_once(
    store: ObjectServer, hub: HubConfig, refusal: tuple[int, str], message: str
) -> None:
    store.refuses = refusal
    with pytest.raises(ModelFilesError, match=message):
        prepare_folder(ModelSource(URL), hub, pause=never)


def test_a_busy_store_is_asked_again(store: ObjectServer, hub: HubConfig) -> None:
    store.refuses = (503, "SlowDown")

    def calm(_: float) -> None:
        store.refuses = None

    assert prepare_folder(ModelSource(URL), hub, pause=calm)
    store.refuses = (500, "InternalError")
    with pytest.raises(ModelFilesError, match=r"failed 5 times \(ClientError.*InternalError.*because"):
        prepare_folder(ModelSource(URL), hub, pause=lambda _: None)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (ModelSource("s3://"), "names no bucket: write s3://bucket/prefix"),
        (ModelSource("s3://Models!/x"), "cannot be asked for"),
        (ModelSource(URL, revision="v2"), "has no revisions: leave --revision out"),
        (
            ModelSource("s3://models/nothing/here"),
            "no object directly below s3://models/nothing/here: check its bucket",
        ),
        (ModelSource("s3://models/team/tiny model/original"), r"no \*\.safetensors weights"),
    ],
)
def test_what_names_no_model(store: ObjectServer, hub: HubConfig, source: ModelSource, message: str) -> None:
    with pytest.raises(ModelFilesError, match=message):
        prepare_folder(source, hub, pause=never)


def test_bin_weights_only_when_asked(store: ObjectServer, hub: HubConfig) -> None:
    import io

    import torch

    pickled = io.BytesIO()
    torch.save({"weight": torch.arange(4.0)}, pickled)
    store.buckets["models"] = {"old/config.json": b"{}", "old/pytorch_model.bin": pickled.getvalue()}
    with pytest.raises(ModelFilesError, match="--auto-convert"):
        prepare_folder(ModelSource("s3://models/old"), hub)
    folder = prepare_folder(ModelSource("s3://models/old", auto_convert=True), hub)
    assert [path.name for path in stored_weights(folder, ".safetensors")] == ["model.safetensors"]


def test_a_drafter_may_lie_there_too(store: ObjectServer, hub: HubConfig) -> None:
    """And so may a model that drafts for itself, whose shards are given its URL."""
    folder = prepare_drafter(AskedDrafter(URL, None), hub)
    store.requests.clear()
    assert find_drafter(AskedDrafter(URL, None), hub) == folder
    assert store.requests == []
    with pytest.raises(ModelFilesError, match="names no bucket"):
        find_drafter(AskedDrafter("s3://", None), hub)


ADAPTER = AskedAdapter("mine", "s3://models/adapters/mine")


def test_adapters_may_lie_there_too(store: ObjectServer, hub: HubConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights", "README.md": b"words"}
    store.buckets["models"] = {f"adapters/mine/{name}": content for name, content in files.items()}
    with pytest.raises(AdapterNotFound, match="neither a folder nor in the hub cache"):
        find_adapter(ADAPTER, hub)
    (prepared,) = prepare_adapters([ADAPTER], hub, never)
    assert {path.name for path in prepared.folder.iterdir()} == set(files) - {"README.md"}
    # A shard asks nobody.
    store.requests.clear()
    assert find_adapter(ADAPTER, hub) == prepared
    assert store.requests == []
    for source, message in (("s3://", "names no bucket"), ("s3://models/none", "no object directly below")):
        with pytest.raises((AdapterNotFound, ModelFilesError), match=message):
            prepare_adapters([AskedAdapter("mine", source)], hub, never)


def test_the_doctor_fetches_nothing(store: ObjectServer, tmp_path: Path) -> None:
    environment = Environment.read({"HUGGINGFACE_HUB_CACHE": str(tmp_path)})
    asked = (environment, AskedLimits(None, None), None, AskedShards(1), 2**30)
    (plan,) = model_findings(ModelSource(URL), *asked)
    assert (plan.status, plan.text) == ("plan", f"download {URL} from {store.address} to {tmp_path}")
    assert store.requests == []
    (wrong,) = model_findings(ModelSource("s3://"), *asked)
    assert (wrong.status, "names no bucket" in wrong.text) == ("error", True)
    adapters = AskedComputation(lora_adapters=(ADAPTER, AskedAdapter("other", "s3://")))
    assert [(each.status, each.remedy) for each in adapter_findings(adapters, environment.hub)] == [
        ("warning", "a start downloads it"),
        ("error", "correct what the message names"),
    ]


@pytest.mark.parametrize(("name", "value"), [("AWS_PROFILE", "nobody"), ("AWS_ENDPOINT_URL", "no address")])
def test_the_doctor_finds_settings_that_name_no_store(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    environment = Environment.read({"HUGGINGFACE_HUB_CACHE": str(tmp_path)})
    monkeypatch.setenv(name, value)
    (finding,) = model_findings(ModelSource(URL), environment, AskedLimits(None, None), None, AskedShards(1), 2**30)
    assert finding.status == "error"
    assert value in finding.text
    assert "AWS_" in finding.text
    (finding,) = adapter_findings(AskedComputation(lora_adapters=(ADAPTER,)), environment.hub)
    assert (finding.status, value in finding.text) == ("error", True)


def test_what_the_store_does_not_have_leaves_nothing_in_the_cache(store: ObjectServer, hub: HubConfig) -> None:
    for source in ("s3://models/nothing", "s3://nobody/here"):
        with pytest.raises(ModelFilesError):
            prepare_folder(ModelSource(source), hub, pause=never)
    assert not hub.cache_dir or not hub.cache_dir.exists()


def test_a_prefix_without_a_model_is_told_by_its_name(store: ObjectServer, hub: HubConfig) -> None:
    store.buckets["models"] = {"words/README.md": b"words", "words/tokenizer.json": b"{}"}
    with pytest.raises(ModelFilesError, match=r"^s3://models/words has no config.json: --model-id must name a"):
        prepare_folder(ModelSource("s3://models/words"), hub, lambda _: pytest.fail("it was judged"), never)
    store.buckets["models"] = {"words/config.json": b"{}"}
    with pytest.raises(ModelFilesError, match=r"^s3://models/words has no \*.safetensors weights"):
        prepare_folder(ModelSource("s3://models/words"), hub, pause=never)


def test_an_object_that_is_listed_and_not_there_is_asked_for_twice(store: ObjectServer, hub: HubConfig) -> None:
    store.lacks = "tokenizer.json"
    pauses: list[float] = []
    with pytest.raises(ModelFilesError, match=r"does not have what it lists for s3://models.*NoSuchKey"):
        prepare_folder(ModelSource(URL), hub, pause=pauses.append)
    assert len(pauses) == 1
    store.refuses = (404, "NoSuchKey")
    with pytest.raises(ModelFilesError, match=r"NoSuchKey.*check bucket and prefix, AWS_ENDPOINT_URL"):
        prepare_folder(ModelSource(URL), hub, pause=never)


def test_settings_that_name_no_store(store: ObjectServer, hub: HubConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no address")
    with pytest.raises(ModelFilesError, match=r"AWS_.* name no object store: Invalid endpoint"):
        prepare_folder(ModelSource(URL), hub, pause=never)


def test_an_installation_without_the_client_says_so(
    store: ObjectServer, hub: HubConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("boto"):
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModelFilesError, match=r"need boto3, .* pip install 'text-generation-server\[s3\]'"):
        prepare_folder(ModelSource(URL), hub, pause=never)
