"""Finding, downloading and converting model folders; huggingface_hub is a stub."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

from text_generation_server.config.server import HubConfig
from text_generation_server.errors import ModelFilesError
from text_generation_server.hub import ModelSource, find_folder, prepare_folder, stored_weights

HUB = HubConfig()


def make_folder(folder: Path, *weights: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    for name in weights:
        tensors = {"weight": torch.arange(4.0)}
        if name.endswith(".bin"):
            torch.save(tensors, folder / name)
        else:
            save_file(tensors, folder / name)
    return folder


class Snapshots:
    """Stands in for `snapshot_download`: serves `remote`, filtered as the library does, and records the calls."""

    def __init__(self, remote: Path, *failures: Exception) -> None:
        self.remote = remote
        self.failures = list(failures)
        self.calls: list[dict[str, Any]] = []

    def __call__(self, repo_id: str, **arguments: Any) -> str:
        self.calls.append({"repo_id": repo_id, **arguments})
        if self.failures:
            raise self.failures.pop(0)
        if arguments.get("local_files_only"):
            raise errors.LocalEntryNotFoundError("not cached")
        target = self.remote.parent / "snapshot"
        target.mkdir(exist_ok=True)
        files = [path.relative_to(self.remote) for path in self.remote.rglob("*") if path.is_file()]
        filters = {name: arguments[name] for name in ("allow_patterns", "ignore_patterns")}
        for path in filter_repo_objects(files, **filters, key=lambda path: path.as_posix()):
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes((self.remote / path).read_bytes())
        return str(target)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Snapshots]:
    def install(*failures: Exception, weights: tuple[str, ...] = ("model.safetensors",)) -> Snapshots:
        snapshots = Snapshots(make_folder(tmp_path / "remote", *weights), *failures)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshots)
        return snapshots

    return install


def test_a_local_folder_is_used_as_it_is(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "model.safetensors")
    assert prepare_folder(ModelSource(str(folder)), HUB) == folder
    assert find_folder(ModelSource(str(folder)), HUB) == folder


@pytest.mark.parametrize("name", ["./demo", "../demo", "/models/demo", "~/demo", "models/llama/demo", "demo/", "a b"])
def test_a_name_that_no_hub_could_have_is_a_missing_folder(stub: Callable[..., Snapshots], name: str) -> None:
    snapshots = stub()
    for find in (prepare_folder, find_folder):
        with pytest.raises(ModelFilesError, match="no such folder here: " + name):
            find(ModelSource(name), HUB)
    assert snapshots.calls == []


def test_a_missing_folder_is_named_once_where_its_path_is_whole(stub: Callable[..., Snapshots]) -> None:
    stub()
    for name, repeats in (("/models/demo", False), ("./demo", True)):
        with pytest.raises(ModelFilesError) as caught:
            find_folder(ModelSource(name), HUB)
        assert (", that is /" in str(caught.value)) == repeats


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    with pytest.raises(ModelFilesError, match="is a file"):
        prepare_folder(ModelSource(str(path)), HUB)


def refuse(folder: Path) -> None:
    assert (folder / "config.json").is_file()
    raise ModelFilesError("not this one")


def test_a_model_is_judged_before_its_weights_are_downloaded(stub: Callable[..., Snapshots], tmp_path: Path) -> None:
    snapshots = stub()
    with pytest.raises(ModelFilesError, match="not this one"):
        prepare_folder(ModelSource("some/model"), HUB, refuse)
    (call,) = snapshots.calls
    assert not any("safetensors" in pattern for pattern in call["allow_patterns"])
    folder = make_folder(tmp_path / "model", "pytorch_model.bin")
    with pytest.raises(ModelFilesError, match="not this one"):
        prepare_folder(ModelSource(str(folder), auto_convert=True), HUB, refuse)
    assert not stored_weights(folder, ".safetensors")


def test_the_override_folder_wins(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "model.safetensors")
    assert prepare_folder(ModelSource("some/model"), HubConfig(override_dir=folder)) == folder
    with pytest.raises(ModelFilesError, match="WEIGHTS_CACHE_OVERRIDE"):
        prepare_folder(ModelSource("some/model"), HubConfig(override_dir=tmp_path / "missing"))


def test_what_a_folder_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"no config\.json"):
        prepare_folder(ModelSource(str(tmp_path)), HUB)
    make_folder(tmp_path)
    with pytest.raises(ModelFilesError, match=r"no \*\.safetensors weights"):
        prepare_folder(ModelSource(str(tmp_path)), HUB)
    assert prepare_folder(ModelSource(str(tmp_path), load_format="dummy"), HUB) == tmp_path
    make_folder(tmp_path, "pytorch_model.bin")
    with pytest.raises(ModelFilesError, match="--auto-convert"):
        prepare_folder(ModelSource(str(tmp_path)), HUB)


def test_gguf_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.Q4_K_M.gguf").touch()
    with pytest.raises(ModelFilesError, match="weights as GGUF, which is not read: use the model's safetensors"):
        prepare_folder(ModelSource(str(tmp_path)), HUB, refuse)


def test_an_index_that_names_files_elsewhere_is_no_want_of_weights(tmp_path: Path) -> None:
    make_folder(tmp_path, "outside.safetensors")
    folder = make_folder(tmp_path / "model")
    index = {"weight_map": {"weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFilesError, match=r"names '\.\./outside\.safetensors', which is not in the model folder"):
        prepare_folder(ModelSource(str(folder)), HUB)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path / "model", name)
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelFilesError, match=f"{name} is only a pointer of Git LFS"):
        prepare_folder(ModelSource(str(folder), auto_convert=True), HUB)


def test_gguf_beside_weights_that_are_read_is_no_harm(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "model.Q4_K_M.gguf")
    assert prepare_folder(ModelSource(str(folder), load_format="dummy"), HUB) == folder
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(ModelFilesError, match="pass --auto-convert"):
        prepare_folder(ModelSource(str(folder)), HUB)
    (folder / "model.safetensors").touch()
    assert prepare_folder(ModelSource(str(folder)), HUB) == folder


def test_a_folder_that_may_not_be_looked_at_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Root, who may run this, may look everywhere.
    monkeypatch.setattr(Path, "is_dir", refused)
    with pytest.raises(ModelFilesError, match=r"cannot be looked at \(Permission denied\)"):
        find_folder(ModelSource(str(tmp_path / "model")), HUB)


def test_a_pipe_is_no_weights(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    os.mkfifo(folder / "pytorch_model.bin")
    with pytest.raises(ModelFilesError, match="a pipe"):
        prepare_folder(ModelSource(str(folder), auto_convert=True), HUB)


def test_leftovers_of_training_are_no_weights(tmp_path: Path) -> None:
    make_folder(tmp_path, "training_args.bin", "pytorch_model.bin")
    assert [path.name for path in stored_weights(tmp_path, ".bin")] == ["pytorch_model.bin"]


def test_bin_files_are_converted_with_every_name_of_a_tensor(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    embedding = torch.randn(6, 4)
    first = {"head.weight": embedding, "part.weight": torch.randn(8, 4)[2:4], "embed.weight": embedding}
    torch.save(first, folder / "pytorch_model-00001-of-00002.bin")
    torch.save({"norm.weight": torch.ones(4).half()}, folder / "pytorch_model-00002-of-00002.bin")
    assert prepare_folder(ModelSource(str(folder), auto_convert=True), HUB) == folder
    converted = load_file(folder / "model-00001-of-00002.safetensors")
    assert sorted(converted) == ["embed.weight", "head.weight", "part.weight"]
    assert torch.equal(converted["embed.weight"], embedding)
    assert torch.equal(converted["head.weight"], embedding)
    assert torch.equal(converted["part.weight"], first["part.weight"])
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"]["norm.weight"] == "model-00002-of-00002.safetensors"
    assert sorted(index["weight_map"]) == ["embed.weight", "head.weight", "norm.weight", "part.weight"]


class Malicious:
    """Would run code when unpickled."""

    ran = False

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (setattr, (Malicious, "ran", True))


def test_a_pickle_with_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    torch.save({"weight": Malicious()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelFilesError, match="damaged, or holds more than tensors"):
        prepare_folder(ModelSource(str(folder), auto_convert=True), HUB)
    assert not Malicious.ran
    (folder / "pytorch_model.bin").write_bytes(b"junk")
    with pytest.raises(ModelFilesError, match="damaged"):
        prepare_folder(ModelSource(str(folder), auto_convert=True), HUB)
    assert stored_weights(folder, ".safetensors") == []


def test_a_hub_model_is_downloaded_with_what_serving_reads(stub: Callable[..., Snapshots], tmp_path: Path) -> None:
    snapshots = stub()
    hub = HubConfig(cache_dir=tmp_path / "cache")
    folder = prepare_folder(ModelSource("some/model", revision="v2"), hub)
    assert stored_weights(folder, ".safetensors")
    small, call = snapshots.calls
    assert not any("safetensors" in pattern for pattern in small["allow_patterns"])
    assert (call["repo_id"], call["revision"], call["cache_dir"]) == ("some/model", "v2", tmp_path / "cache")
    assert "*.safetensors" in call["allow_patterns"]
    assert "*.bin" not in call["allow_patterns"]


def test_weights_in_the_layout_of_their_authors_are_neither_downloaded_nor_read(
    stub: Callable[..., Snapshots],
) -> None:
    """Meta and Mistral publish them beside the others, or in `original/`."""
    snapshots = stub(weights=("model.safetensors", "consolidated.safetensors"))
    authors = snapshots.remote / "original"
    for name in ("params.json", "tokenizer.model", "consolidated.00.pth", "model.safetensors"):
        authors.mkdir(exist_ok=True)
        (authors / name).write_bytes(b"{}")
    folder = prepare_folder(ModelSource("some/model"), HUB)
    assert sorted(path.name for path in folder.rglob("*")) == ["config.json", "model.safetensors"]
    # A folder that somebody else has downloaded may hold all of it.
    local = prepare_folder(ModelSource(str(snapshots.remote)), HUB)
    assert [path.name for path in stored_weights(local, ".safetensors")] == ["model.safetensors"]


def test_a_slow_download_says_how_many_files_are_there(
    stub: Callable[..., Snapshots], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = stub()
    prepare_folder(ModelSource("org/model"), HUB)
    monkeypatch.setattr("text_generation_server.telemetry.PROGRESS_INTERVAL_S", 0.0)
    caplog.set_level("INFO")
    bar = snapshots.calls[-1]["tqdm_class"]
    with bar(total=0, unit="B") as in_bytes, bar(total=4, desc="files") as files:
        in_bytes.update(1000)
        for _ in range(3):
            files.update(1)
    told = [(record.__dict__["phase"], record.__dict__["percent"]) for record in caplog.records]
    assert told == [("downloading", 25), ("downloading", 50), ("downloading", 75)]


def test_dummy_weights_download_no_weights(stub: Callable[..., Snapshots]) -> None:
    snapshots = stub()
    folder = prepare_folder(ModelSource("some/model", load_format="dummy"), HUB)
    assert not stored_weights(folder, ".safetensors")
    assert not any("safetensors" in pattern for pattern in snapshots.calls[0]["allow_patterns"])


def test_bin_weights_of_a_hub_model_only_when_asked(stub: Callable[..., Snapshots]) -> None:
    stub(weights=("pytorch_model.bin",))
    with pytest.raises(ModelFilesError, match="--auto-convert"):
        prepare_folder(ModelSource("some/model"), HUB)
    folder = prepare_folder(ModelSource("some/model", auto_convert=True), HUB)
    assert [path.name for path in stored_weights(folder, ".safetensors")] == ["model.safetensors"]


def http_error(kind: type[errors.HfHubHTTPError]) -> Exception:
    return kind("no", response=httpx2.Response(404, request=httpx2.Request("GET", "http://hub")))


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (http_error(errors.RepositoryNotFoundError), "neither a local folder nor a model of the hub"),
        (http_error(errors.GatedRepoError), "gated"),
        (http_error(errors.RevisionNotFoundError), "check --revision"),
    ],
)
def test_errors_that_stay_are_not_retried(stub: Callable[..., Snapshots], failure: Exception, message: str) -> None:
    snapshots = stub(failure)
    with pytest.raises(ModelFilesError, match=message):
        prepare_folder(ModelSource("some/model"), HUB, pause=lambda _: None)
    assert len(snapshots.calls) == 1


def test_faults_of_the_network_are_retried(stub: Callable[..., Snapshots]) -> None:
    pauses: list[float] = []
    snapshots = stub(httpx2.ConnectError("no route"), ConnectionResetError())
    prepare_folder(ModelSource("some/model"), HUB, pause=pauses.append)
    assert (len(snapshots.calls), len(pauses)) == (2 + 2, 2)
    snapshots = stub(*[httpx2.ConnectError("no route")] * 9)
    with pytest.raises(ModelFilesError, match="failed 5 times"):
        prepare_folder(ModelSource("some/model"), HUB, pause=pauses.append)
    assert len(snapshots.calls) == 5


def test_a_full_disk_is_no_fault_of_the_network(stub: Callable[..., Snapshots]) -> None:
    snapshots = stub(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(ModelFilesError, match="the disk is full: some/model does not fit into the hub cache"):
        prepare_folder(ModelSource("some/model"), HUB, pause=lambda _: pytest.fail("it waited"))
    assert len(snapshots.calls) == 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_cache_that_cannot_be_written_to_is_named_and_not_retried(
    stub: Callable[..., Snapshots], tmp_path: Path, number: int
) -> None:
    snapshots = stub(OSError(number, os.strerror(number), str(tmp_path / "models--some--model")))
    said = f"{tmp_path}/models--some--model cannot be written to .* make that writable .* --huggingface-hub-cache"
    with pytest.raises(ModelFilesError, match=said):
        prepare_folder(ModelSource("some/model"), HubConfig(tmp_path), pause=lambda _: pytest.fail("it waited"))
    assert len(snapshots.calls) == 1


def hub_error(status: int, message: str | None = None, hidden: bool = False) -> Exception:
    """An answer of the hub; `hidden`: as the library shows it where it looks into the cache next."""
    response = httpx2.Response(status, request=httpx2.Request("GET", "http://hub"))
    error = errors.HfHubHTTPError("no", response=response, server_message=message)
    if not hidden:
        return error
    told = errors.LocalEntryNotFoundError("not in the cache either")
    told.__cause__ = error
    return told


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    ("status", "message", "said"),
    [
        (401, "Invalid credentials in Authorization header", r"401 Unauthorized \(Invalid credentials .* set HF_TOKEN"),
        (403, "You must accept the licence", r"403 Forbidden \(You must accept .* HF_TOKEN .* licence"),
        (410, None, "the hub refuses some/model: 410 Gone"),
    ],
)
def test_what_the_hub_refuses_is_not_retried(
    stub: Callable[..., Snapshots], status: int, message: str | None, said: str, hidden: bool
) -> None:
    snapshots = stub(hub_error(status, message, hidden))
    with pytest.raises(ModelFilesError, match=said):
        prepare_folder(ModelSource("some/model"), HUB, pause=lambda _: pytest.fail("it waited"))
    assert len(snapshots.calls) == 1


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    ("status", "said"),
    [(503, "the hub answers 503 Service Unavailable; try again later"), (429, "429 Too Many Requests .*HF_TOKEN")],
)
def test_a_hub_that_is_ill_or_busy_is_asked_again(
    stub: Callable[..., Snapshots], status: int, said: str, hidden: bool
) -> None:
    snapshots = stub(*[hub_error(status, "slow down" if status == 429 else None, hidden)] * 3)
    prepare_folder(ModelSource("some/model"), HUB, pause=lambda _: None)
    assert len(snapshots.calls) == 3 + 2
    snapshots = stub(*[hub_error(status, "slow down" if status == 429 else None, hidden)] * 9)
    with pytest.raises(ModelFilesError, match=f"failed 5 times: .*{said}"):
        prepare_folder(ModelSource("some/model"), HUB, pause=lambda _: None)
    assert len(snapshots.calls) == 5


def test_a_download_that_has_begun_is_no_name_of_a_folder(stub: Callable[..., Snapshots]) -> None:
    snapshots = stub(*[errors.IncompleteSnapshotError("no answer", "/cache/snapshots/1")] * 3)
    prepare_folder(ModelSource("some/model"), HUB, pause=lambda _: None)
    snapshots = stub(*[errors.IncompleteSnapshotError("no answer", "/cache/snapshots/1")] * 9)
    with pytest.raises(ModelFilesError, match=r"failed 5 times .*check the network"):
        prepare_folder(ModelSource("some/model"), HUB, pause=lambda _: None)
    assert len(snapshots.calls) == 5


def test_a_hub_that_cannot_be_reached_is_asked_once_more(stub: Callable[..., Snapshots]) -> None:
    snapshots = stub(*[errors.LocalEntryNotFoundError("no answer")] * 9)
    with pytest.raises(ModelFilesError, match=r"there is no folder some/model in .* cannot be reached"):
        prepare_folder(ModelSource("some/model"), HUB, pause=lambda _: None)
    assert len(snapshots.calls) == 2


def test_offline_is_not_retried(stub: Callable[..., Snapshots], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    snapshots = stub(errors.LocalEntryNotFoundError("offline"))
    with pytest.raises(ModelFilesError, match="HF_HUB_OFFLINE"):
        prepare_folder(ModelSource("some/model"), HUB, pause=lambda _: None)
    assert len(snapshots.calls) == 1


def test_serve_downloads_nothing(stub: Callable[..., Snapshots]) -> None:
    snapshots = stub()
    with pytest.raises(ModelFilesError, match="download-weights some/model"):
        find_folder(ModelSource("some/model"), HUB)
    assert all(call["local_files_only"] for call in snapshots.calls)


def test_a_model_that_has_mistrals_files_alone_is_downloaded_with_their_weights(stub: Callable[..., Snapshots]) -> None:
    snapshots = stub(weights=("consolidated.safetensors",))
    (snapshots.remote / "config.json").rename(snapshots.remote / "params.json")
    folder = prepare_folder(ModelSource("some/model"), HUB)
    assert [path.name for path in stored_weights(folder, ".safetensors")] == ["consolidated.safetensors"]
    assert "*.safetensors" not in snapshots.calls[0]["allow_patterns"]
