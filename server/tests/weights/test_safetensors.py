"""Damaged and hostile model folders are refused with the file and the tensor in the message."""

import json
import logging
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.driver import Driver
from support.loading import CPU, load

from text_generation_server.errors import ModelFilesError
from text_generation_server.weights import SafetensorsSource, Slice

TENSOR = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))


def _rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replaces tensors of the single file, or removes them."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in changes.items():
        del tensors[name]
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, path)


def _split_in_two(folder: Path) -> dict[str, str]:
    """Turns the single file into two with an index, and returns the index's map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    for file in sorted(set(weight_map.values())):
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, folder / file)
    _write_index(folder, weight_map)
    return weight_map


def _write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_several_files_with_an_index_are_one_model(folder: Path, llama_folder: Path) -> None:
    _split_in_two(folder)
    split, single = (Driver(load(path)).prefill({"a": [5, 6, 7]}) for path in (folder, llama_folder))
    assert torch.equal(split, single)


def test_a_part_of_a_tensor_is_read(folder: Path) -> None:
    source = SafetensorsSource(folder, torch.float16, CPU)
    whole = load_file(folder / "model.safetensors")[TENSOR]
    part = source.read(TENSOR, tuple(whole.shape), Slice(1, 10, 30))
    assert torch.equal(part, whole[:, 10:30].half())


def test_a_missing_tensor_is_named(folder: Path) -> None:
    _rewrite(folder, **{TENSOR: None})
    with pytest.raises(ModelFilesError, match=TENSOR):
        load(folder)


def test_a_wrong_shape_is_named_with_its_file(folder: Path) -> None:
    _rewrite(folder, **{TENSOR: torch.zeros(64, 95)})
    with pytest.raises(
        ModelFilesError, match=rf"model\.safetensors: tensor `{TENSOR}` has shape \[64, 95\].*\[64, 96\]"
    ):
        load(folder)


def test_a_type_that_is_no_weight_is_refused(folder: Path) -> None:
    _rewrite(folder, **{TENSOR: torch.zeros(64, 96, dtype=torch.int8)})
    with pytest.raises(ModelFilesError, match=rf"`{TENSOR}` has type I8"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 5_000])
def test_a_truncated_file_is_named(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelFilesError, match=r"model\.safetensors is damaged"):
        load(folder)


def test_a_header_that_promises_too_much_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(ModelFilesError, match=r"model\.safetensors is damaged"):
        load(folder)


def test_tensors_that_share_bytes_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"a": whole, "b": {**whole, "data_offsets": [4, 12]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    with pytest.raises(ModelFilesError, match=r"model\.safetensors is damaged"):
        load(folder)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "pytorch_model.bin", ""]
)
def test_an_index_may_only_name_files_beside_it(folder: Path, name: str) -> None:
    shutil.copy(folder / "model.safetensors", folder.parent / "outside.safetensors")
    weight_map = _split_in_two(folder)
    _write_index(folder, {**weight_map, TENSOR: name})
    is_beside = name in ("pytorch_model.bin", "")
    reason = "not the name of a safetensors file" if is_beside else "not in the model folder itself"
    with pytest.raises(ModelFilesError, match=f"names {re.escape(repr(name))}, which is {reason}"):
        load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_pointer_of_git_lfs_is_called_one(folder: Path, name: str) -> None:
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelFilesError, match=f"{re.escape(name)} is only a pointer of Git LFS"):
        load(folder)


def test_an_index_that_names_an_absent_file_is_refused(folder: Path) -> None:
    weight_map = _split_in_two(folder)
    (folder / weight_map[TENSOR]).unlink()
    with pytest.raises(ModelFilesError, match=weight_map[TENSOR]):
        load(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": []}', "{}", "[" * 100_000])
def test_an_unreadable_index_is_refused(folder: Path, text: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(Exception, match=r"model\.safetensors\.index\.json") as caught:
        load(folder)
    assert type(caught.value).__name__ in ("ModelFilesError", "ConfigurationError")


def test_a_folder_without_weights_tells_how_to_get_them(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelFilesError, match="--auto-convert"):
        load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "weights.safetensors"])
def test_weights_in_the_layout_of_their_authors_are_not_read(folder: Path, llama_folder: Path, name: str) -> None:
    """Meta and Mistral publish them beside the others, or in `original/`."""
    (folder / "model.safetensors").rename(folder / name)
    (folder / "original").mkdir()
    for path in ("consolidated.safetensors", "original/consolidated.00.pth", "original/model.safetensors"):
        (folder / path).write_bytes(b"not to be opened")
    beside, alone = (Driver(load(path)).prefill({"a": [5, 6, 7]}) for path in (folder, llama_folder))
    assert torch.equal(beside, alone)


def test_tensors_that_nothing_asks_for_are_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder / "model.safetensors"
    extra = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64), "rotary_emb.inv_freq": torch.zeros(8)}
    save_file({**load_file(path), **extra}, path)
    with caplog.at_level(logging.WARNING):
        load(folder)
    assert "q_proj.bias" in caplog.text
    assert "inv_freq" not in caplog.text


def test_slow_loading_reports_its_progress(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    times = iter(range(0, 1000))
    source = SafetensorsSource(folder, torch.float32, CPU, clock=lambda: float(next(times)))
    names = sorted(load_file(folder / "model.safetensors"))
    with caplog.at_level(logging.INFO):
        for name in names:
            source.read(name, tuple(load_file(folder / "model.safetensors")[name].shape))
    percents = [record.__dict__["percent"] for record in caplog.records if "loading weights" in record.message]
    assert percents == sorted(percents)
    assert len(percents) == len(names) // 2


def test_a_pipe_in_place_of_weights_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ModelFilesError, match=r"model\.safetensors is not a regular file: a pipe"):
        SafetensorsSource(tmp_path, torch.float32, CPU)


def test_weights_that_are_no_numbers_are_in_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(folder)
        assert not caplog.records
        tensor = load_file(folder / "model.safetensors")[TENSOR]
        for value, dtype, cause in (
            (float("nan"), torch.float32, "float32"),
            (float("-inf"), torch.float32, "float32"),
            (1e6, torch.float16, "float16"),
        ):
            tensor[3, 5] = value
            _rewrite(folder, **{TENSOR: tensor})
            load(folder, dtype)
            expected = f"1 tensors of the model hold NaN or infinite numbers as {cause}, such as {TENSOR}"
            assert expected in caplog.records[-1].getMessage()
        assert len(caplog.records) == 3
