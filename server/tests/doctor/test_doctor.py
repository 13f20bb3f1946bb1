"""What the doctor says of machines and models, good and bad."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from support.families import model_of, write
from support.family_cases import CASES

from text_generation_server.config.adapters import AskedAdapter
from text_generation_server.config.asked_drafter import AskedDrafter
from text_generation_server.config.copies import DequantisedCopies
from text_generation_server.config.kv_cache import KvCacheDtype
from text_generation_server.config.server import AskedComputation, Environment, HubConfig, LoadFormat
from text_generation_server.config.serving import AskedLimits
from text_generation_server.config.shards import ONE_SHARD, AskedShards
from text_generation_server.doctor import adapter_findings, drafter_findings, flag_findings
from text_generation_server.doctor.devices import Card, Devices, device_findings, memory_of
from text_generation_server.doctor.finding import Finding
from text_generation_server.doctor.model import missing_model, model_findings
from text_generation_server.doctor.software import software_findings
from text_generation_server.doctor.storage import folder_finding, storage_findings
from text_generation_server.hub import ModelSource

GIB = 2**30
H200 = Card("NVIDIA H200", (9, 0), 140 * GIB, 139 * GIB)
DEMO = Path(__file__).parents[3] / "models" / "demo"


def devices(*cards: Card, driver: int = 0, built_for: str | None = "13.0", problem: str | None = None) -> Devices:
    return Devices(cards, driver or len(cards), built_for, 64 * GIB, problem, "535.183.06")


def by_status(findings: list[Finding], status: str) -> list[str]:
    return [finding.text for finding in findings if finding.status == status]


def test_a_good_machine_has_no_warning() -> None:
    findings = list(device_findings(devices(H200, H200), 2))
    assert not by_status(findings, "warning")
    assert not by_status(findings, "error")
    assert by_status(findings, "plan") == ["run 2 shards on cuda:0, cuda:1"]


@pytest.mark.parametrize(
    ("found", "shards", "status", "text", "remedy"),
    [
        (devices(H200), 2, "error", "2 shards for 1 visible devices", "--num-shard 1"),
        (devices(Card("V100", (7, 0), 32 * GIB, 32 * GIB)), 1, "error", "compute capability 7.0", "Ampere"),
        (devices(Card("A100", (8, 0), 80 * GIB, 8 * GIB)), 1, "warning", "8.0 of 80.0 GiB free", "nvidia-smi"),
        (devices(H200), 1, "ok", "driver 535.183.06, and torch for CUDA 13.0", ""),
        (
            devices(driver=1, problem="too old"),
            1,
            "error",
            "too old (driver 535.183.06)",
            "apt-get install nvidia-driver-580",
        ),
        (devices(driver=1, built_for="14.1"), 1, "error", "cannot be used", "release notes of CUDA 14.1 name"),
        (devices(driver=1, built_for=None), 1, "error", "cannot be used", "torch with CUDA"),
        (devices(), 1, "plan", "1 shard on the CPU", ""),
    ],
)
def test_devices_that_cannot_be_used_are_named_with_what_to_do(
    found: Devices, shards: int, status: str, text: str, remedy: str
) -> None:
    (finding,) = [finding for finding in device_findings(found, shards) if text in finding.text]
    assert finding.status == status
    assert remedy in (finding.remedy or "")


def test_a_missing_library_is_an_error_and_names_the_command() -> None:
    def version_of(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    findings = list(software_findings(version_of, lambda _: None))
    (missing,) = [finding for finding in findings if finding.status == "error"]
    assert (missing.text, missing.remedy) == (
        "torch is not installed",
        "pip install torch, or install text-generation-server again",
    )
    assert by_status(findings, "warning") == [
        "there is no C compiler, with which Triton builds the launchers of its kernels on GPUs"
    ]


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    file.touch()
    finding = folder_finding("downloads", file / "hub", "HF_HOME")
    assert finding.status == "error"
    assert f"{file / 'hub'}, for downloads, cannot be written to" == finding.text
    assert finding.remedy == f"remove {file}, which is not a folder, or name another folder with HF_HOME"
    finding = folder_finding("downloads", tmp_path / "not" / "yet", "HF_HOME")
    assert finding.status in ("ok", "warning")
    assert "GiB free" in finding.text
    assert os.listdir(tmp_path) == ["cache"]


def test_what_is_above_a_folder_stays_with_those_it_belongs_to() -> None:
    # Not even root can write there.
    finding = folder_finding("downloads", Path("/proc/1/task/hub/cache"), "HF_HOME")
    assert finding.status == "error"
    assert finding.remedy is not None
    assert "chown" not in finding.remedy
    assert "install -d -o" in finding.remedy
    finding = folder_finding("downloads", Path("/proc"), "HF_HOME")
    assert "chown -R" in (finding.remedy or "")


def test_a_folder_below_one_that_may_not_be_searched_is_no_crash(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from text_generation_server.doctor.storage import folder_finding\n"
        # Root may search every folder: as somebody else, to whom it belongs no more than to others.
        "if os.getuid() == 0: os.setuid(65534)\n"
        "print(folder_finding('downloads', Path(sys.argv[1]), 'HF_HOME').status)\n"
    )
    tmp_path.chmod(0o000)
    try:
        arguments = [sys.executable, "-c", code, str(closed / "hub")]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    finally:
        tmp_path.chmod(0o700)
    assert (done.stdout, done.stderr) == ("error\n", "")


def test_only_folders_that_a_start_needs_count(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    def found(downloads: bool | None, on_gpus: bool) -> list[tuple[str, str]]:
        findings = storage_findings(HubConfig(cache_dir=file / "hub"), downloads, on_gpus)
        return [(finding.status, finding.text.split(",")[1]) for finding in findings]

    assert found(downloads=False, on_gpus=False) == []
    assert found(downloads=True, on_gpus=False) == [("error", " for downloads")]
    assert found(downloads=None, on_gpus=False) == [("warning", " for downloads")]
    assert [purpose for _, purpose in found(downloads=False, on_gpus=True)] == [" for compiled kernels"]
    assert missing_model(None, HubConfig()) is None
    assert missing_model(ModelSource(str(DEMO)), HubConfig()) is False
    assert missing_model(ModelSource("./nowhere"), HubConfig()) is False
    assert missing_model(ModelSource("organisation/name"), HubConfig(cache_dir=tmp_path)) is True


@pytest.mark.parametrize(
    ("asked", "found", "said"),
    [
        (AskedComputation(cuda_graphs="abc"), devices(H200), "--cuda-graphs must be"),
        (AskedComputation(deterministic=True, dequantised_copies="on"), devices(H200), "--dequantised-copies on"),
        (AskedComputation(attention="triton"), devices(), "--attention triton runs on CUDA devices only"),
        (AskedComputation(attention="triton"), devices(H200), None),
        (AskedComputation(attention="torch", cuda_graphs="1,2", deterministic=True), devices(), None),
    ],
)
def test_flags_that_no_model_can_be_served_with(asked: AskedComputation, found: Devices, said: str | None) -> None:
    findings = list(flag_findings(asked, Environment.read({}), found))
    assert [finding.status for finding in findings] == (["error"] if said else [])
    assert all((said or "") in finding.text for finding in findings)


def test_a_path_that_is_not_there_is_an_error_and_a_name_of_the_hub_a_warning(tmp_path: Path) -> None:
    hub = HubConfig(cache_dir=tmp_path / "hub")
    for source, status in (("/nonexistent", "error"), ("./nope", "error"), ("org/name", "warning")):
        asked = AskedComputation(lora_adapters=(AskedAdapter("a", source),), drafter=AskedDrafter(source), speculate=2)
        findings = [*adapter_findings(asked, hub), *drafter_findings(asked, None, hub)]
        assert [each.status for each in findings] == [status, status]


def test_adapters_that_are_merged_or_served(tmp_path: Path) -> None:
    merged = AskedAdapter("a", str(tmp_path), flag="--merge-adapter")
    asked = AskedComputation(merge_adapter=merged, lora_adapters=(AskedAdapter("pirate", str(tmp_path)),))
    error, served = adapter_findings(asked, HubConfig())
    assert error.status == served.status == "error"
    assert "--lora-adapters" in (served.remedy or "")
    assert "holds no adapter" in error.text
    assert "--merge-adapter" in (error.remedy or "")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert [each.status for each in adapter_findings(asked, HubConfig())] == ["plan", "plan"]


def test_a_drafter_that_a_start_refuses_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    def finding(drafter: AskedDrafter) -> Finding:
        computation = AskedComputation(speculate=2, drafter=drafter)
        return next(drafter_findings(computation, ModelSource(str(DEMO)), HubConfig()))

    named = (str(DEMO / "drafter"), str(DEMO), str(tmp_path), "nobody/nothing")
    findings = {name: finding(AskedDrafter(name)) for name in named}
    of_another_kind = finding(AskedDrafter(str(DEMO / "drafter"), kind="medusa"))
    assert (of_another_kind.status, "set `method` to eagle3" in of_another_kind.text) == ("error", True)
    assert [each.status for each in findings.values()] == ["plan", "plan", "error", "warning"]
    assert "layers for multi-token prediction, and this is something else" in findings[str(tmp_path)].text
    changed = json.loads((DEMO / "tokenizer.json").read_text())
    changed["model"]["vocab"]["never seen"] = changed["model"]["vocab"].pop("a")
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    (tmp_path / "config.json").write_text((DEMO / "config.json").read_text())
    assert "names a model with another vocabulary" in finding(AskedDrafter(str(tmp_path))).text


def of_model(
    model_id: str,
    *,
    memory: int = GIB,
    shards: int = 1,
    limits: AskedLimits | None = None,
    kv_cache_dtype: KvCacheDtype = "auto",
    quantize: str | None = None,
    copies: DequantisedCopies = "auto",
    load_format: LoadFormat = "auto",
    is_shared: bool = False,
    speculate: int = 0,
) -> list[Finding]:
    source, environment = ModelSource(model_id, load_format=load_format), Environment.read({})
    asked = limits or AskedLimits()
    asked_shards = AskedShards(shards)
    how = {"quantize": quantize, "kv_cache_dtype": kv_cache_dtype, "copies": copies, "is_shared": is_shared}
    how["speculate"] = speculate
    return list(model_findings(source, environment, asked, "float32", asked_shards, memory, **how))  # type: ignore[arg-type]


@pytest.mark.parametrize(("kv_cache_dtype", "element", "scale"), [("auto", 4, 0), ("int8", 1, 2)])
def test_a_model_is_set_beside_the_memory(kv_cache_dtype: KvCacheDtype, element: int, scale: int) -> None:
    plan, memory = of_model(str(DEMO), kv_cache_dtype=kv_cache_dtype)
    assert plan.status == "plan"
    assert plan.text == f"serve LlamaForCausalLM from {DEMO}"
    config = json.loads((DEMO / "config.json").read_text())
    stored = sum(file.stat().st_size for file in DEMO.glob("*.safetensors"))
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    a_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * (head_dim * element + scale)
    tokens = (GIB - 2 * stored) // a_token
    assert memory.status == "ok"
    said = int(memory.text.split("about ")[1].split(" tokens")[0].replace(",", ""))
    # The file has a header beside its tensors.
    assert said == pytest.approx(tokens, rel=1e-3)


def test_what_takes_back_drafts_from_states_takes_memory(tmp_path: Path) -> None:
    write(CASES["qwen3.5"], model_of("qwen3.5"), tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text((DEMO / "tokenizer.json").read_text())

    def said(speculate: int) -> str:
        return of_model(str(tmp_path / "model"), speculate=speculate)[-1].text

    assert "MiB of states for each request" in said(0)
    assert "--speculate" not in said(0)
    # Two layers read so many numbers of each of 128 windows of four tokens.
    kept = 128 * 4 * 2 * (80 + 48 + 8) * 4
    assert f"{kept / 2**20:.1f} MiB to take back rejected drafts from them (--speculate)" in said(3)


def test_16_bit_copies_take_memory_where_a_start_would_keep_them() -> None:
    def tokens(copies: DequantisedCopies, memory: int = GIB) -> int:
        text = of_model(str(DEMO), memory=memory, quantize="bitsandbytes-nf4", copies=copies)[-1].text
        assert ("of 32-bit copies" in text) == (copies == "on" or (copies == "auto" and memory == GIB))
        return int(text.split("about ")[1].split(" tokens")[0].replace(",", ""))

    assert tokens("auto") == tokens("on") < tokens("off")
    # All but a little is taken by weights, and copies would be more than a fifth of the rest.
    assert tokens("auto", GIB // 32) == tokens("off", GIB // 32)


@pytest.mark.parametrize(
    ("beside_the_weights", "status", "remedy"),
    [(-1, "error", "--num-shard 2"), (2**20, "warning", "--max-total-tokens")],
)
def test_too_little_memory(beside_the_weights: int, status: str, remedy: str) -> None:
    weights = 2 * sum(file.stat().st_size for file in DEMO.glob("*.safetensors"))
    finding = of_model(str(DEMO), memory=weights + beside_the_weights)[-1]
    assert finding.status == status
    assert remedy in (finding.remedy or "")


def test_more_shards_are_no_remedy_where_they_share_the_memory() -> None:
    finding = of_model(str(DEMO), memory=2**20, is_shared=True)[-1]
    assert finding.status == "error"
    assert (finding.remedy or "").startswith("set --quantize")


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "OlmoeForCausalLM"])
def test_random_weights_take_what_the_configuration_says(architecture: str, tmp_path: Path) -> None:
    """Through a class of Transformers too, which alone knows its sizes."""
    config = {**json.loads((DEMO / "config.json").read_text()), "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 100, "model_type": "auto"}))
    (tmp_path / "tokenizer.json").touch()
    finding = of_model(str(tmp_path), memory=2**20, load_format="dummy")[-1]
    assert finding.status == "error"
    assert "GiB of weights in float32 for each shard" in finding.text


def test_more_shards_are_as_many_as_can_share_the_heads() -> None:
    """Seven parts would fit beside the embedding, which every shard has whole, and the heads are eight."""
    weights = 2 * sum(file.stat().st_size for file in DEMO.glob("*.safetensors"))
    finding = of_model(str(DEMO), memory=weights * 3 // 10)[-1]
    assert "set --num-shard 8 or more" in (finding.remedy or "")


def test_a_model_that_a_start_would_refuse_is_refused_in_the_same_words(tmp_path: Path) -> None:
    (finding,) = of_model(str(tmp_path / "nothing"))
    assert finding.status == "error"
    assert "no such folder here" in finding.text
    (finding,) = of_model(str(DEMO), limits=AskedLimits(max_total_tokens=10**6))
    assert finding.status == "error"
    assert "--max-total-tokens 1000000 is too many" in finding.text
    (finding,) = of_model(str(DEMO), shards=3)
    assert finding.status == "error"
    assert "3 shards cannot share" in finding.text


def test_a_model_for_images_is_served_with_them_where_its_tower_is_read(tmp_path: Path) -> None:
    text = json.loads((DEMO / "config.json").read_text())
    whole = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "model.safetensors").write_bytes(bytes(2**20))
    plan, memory = of_model(str(tmp_path))
    assert "its model of text alone, without images and sound (the model folder has no preprocessor" in plan.text
    assert memory.status == "ok"
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}')
    plan, _ = of_model(str(tmp_path))
    assert plan.text.endswith(", with images")


def test_a_model_of_the_hub_is_not_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", str(tmp_path))
    source = ModelSource("organisation/name")
    findings = list(model_findings(source, Environment.read(), AskedLimits(), None, ONE_SHARD, GIB))
    assert findings[0].status == "plan"
    assert findings[0].text.startswith("download organisation/name from ")
    assert os.listdir(tmp_path) == []


def test_memory_of_a_shard() -> None:
    assert memory_of(devices(H200, H200), 0.5, 2) == 139 * GIB // 2
    assert memory_of(devices(), 1.0, 2) == 32 * GIB
