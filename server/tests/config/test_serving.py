"""A model that cannot be served as asked is refused from its small files alone."""

import json
import re
import shutil
from pathlib import Path

import pytest

from text_generation_server.config import memory
from text_generation_server.config.fallback import FallbackConfig
from text_generation_server.config.files import stored_bytes
from text_generation_server.config.implementation import ModelImpl, read_model_config
from text_generation_server.config.model import ModelConfig
from text_generation_server.config.server import Environment, check_attention
from text_generation_server.config.serving import AskedLimits, check_servable
from text_generation_server.config.shards import AskedShards
from text_generation_server.config.sizes import bytes_of_rank, served_bytes, weight_bytes
from text_generation_server.errors import ConfigurationError, ModelFilesError, OutOfMemory, UnsupportedModel

ROUTER_TOKENIZERS = Path(__file__).parents[3] / "router/python/python/text_generation_router/published_tokenizers.py"


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A model of 256 positions without its weights."""
    return Path(shutil.copytree(llama_folder, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))


def check(folder: Path, limits: AskedLimits | None = None, **variables: str) -> None:
    check_servable(folder, Environment.read(variables), limits or AskedLimits())


def test_what_can_be_served_passes(folder: Path) -> None:
    check(folder)
    check(folder, AskedLimits(255, 256))


def test_an_architecture_that_is_not_there(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"architectures": ["BertModel"], "n_embd": 8}))
    says = r"'BertModel' is not supported: it makes embeddings, .*Llama.*docs/models\.md"
    with pytest.raises(UnsupportedModel, match=says):
        check(folder)


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"architectures": ["MllamaForConditionalGeneration"], "text_config": {}, "vision_config": {}}, "images"),
        ({"architectures": ["PaliGemmaForConditionalGeneration"], "vision_config": {}}, "images"),
        ({"architectures": ["AyaVisionForConditionalGeneration"], "text_config": {}, "vision_config": {}}, "images"),
        ({"architectures": ["Qwen2AudioForConditionalGeneration"], "audio_config": {}}, "images or sound"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "an encoder"),
    ],
)
def test_a_model_that_is_not_of_text_alone(folder: Path, values: dict[str, object], cause: str) -> None:
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(UnsupportedModel, match=f"is not supported: .*{cause}.*only .*; .*docs/models"):
        check(folder)


def test_weights_for_images_are_not_read_and_do_not_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.loads((folder / "config.json").read_text())
    whole = {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}, "text_config": text}
    (folder / "config.json").write_text(json.dumps(whole))
    index = {"metadata": {"total_size": 150 * 2**30}, "weight_map": {}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    monkeypatch.setattr(memory, "cuda_memory", lambda: [80 * 2**30])
    check(folder)


def test_a_model_without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFilesError, match=r"has no tokenizer: .* fetch the tokenizer\.json"):
        check(folder)
    for name in ("tokenizer.model", "tekken.json", "qwen.tiktoken"):
        (folder / name).touch()
        check(folder)
        (folder / name).unlink()


@pytest.mark.parametrize("names", ["tokenization_x.TheirTokenizer", ["tokenization_x.TheirTokenizer", None]], ids=str)
def test_a_tokenizer_that_only_code_of_the_model_can_read(folder: Path, names: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": names}}))
    check(folder)
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    with pytest.raises(ModelFilesError, match=r"code of the model \(TheirTokenizer\), .*put a tokenizer\.json"):
        check(folder)


def test_tokenizers_of_models_that_the_router_knows_pass(folder: Path) -> None:
    reading = ROUTER_TOKENIZERS.read_text()
    known = re.findall(r'^    "(\w+Tokenizer)": _', reading, re.MULTILINE)
    assert {"BaichuanTokenizer", "QWenTokenizer"} < set(known)
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    for name in known:
        (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": [f"x.{name}", None]}}))
        check(folder)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (AskedLimits(None, 257), "--max-total-tokens 257 is too many for the 256 positions .* at most 256"),
        (AskedLimits(256, None), "--max-input-tokens 256 is too many for the 256 positions .* at most 255"),
    ],
)
def test_limits_beyond_the_context(folder: Path, limits: AskedLimits, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check(folder, limits)
    check(folder, limits, ROPE_SCALING="linear", ROPE_FACTOR="2")


CHOOSING = {"architectures": ["Glm5NextForCausalLM"], "num_hidden_layers": 4, "kv_lora_rank": 12, "q_lora_rank": 10}
MIXTURE = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 3, "intermediate_size": 48}


@pytest.mark.parametrize(
    ("values", "shards", "message"),
    [
        ({}, AskedShards(3), "3 shards cannot share 4 attention heads evenly: set --num-shard to a divisor"),
        ({}, AskedShards(2, expert_parallel=True), "the model has no experts: leave it out"),
        (
            {"architectures": ["OlmoeForCausalLM"]},
            AskedShards(2, expert_parallel=True),
            "runs through Transformers: leave it out",
        ),
        ({}, AskedShards(2, context_parallel=True), "LlamaForCausalLM has none: leave it out"),
        (CHOOSING, AskedShards(2, context_parallel=True), "positions that an indexer chooses: leave it out"),
        (MIXTURE, AskedShards(4, expert_parallel=True), "4 shards cannot each have one of 3 experts: leave"),
        ({**MIXTURE, "intermediate_size": 2}, AskedShards(4), "cannot share the inner size 2 of the experts: set"),
    ],
)
def test_shards_that_cannot_share_the_model(
    folder: Path, values: dict[str, object], shards: AskedShards, message: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 4, **values}))
    with pytest.raises(ConfigurationError, match=message):
        check_servable(folder, Environment.read({}), AskedLimits(), shards=shards)
    check_servable(folder, Environment.read({}), AskedLimits(), shards=AskedShards(2))


def test_weights_that_no_device_can_hold_are_refused_from_the_index(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = {"metadata": {"total_size": 150 * 2**30}, "weight_map": {}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    monkeypatch.setattr(memory, "cuda_memory", lambda: [80 * 2**30] * 2)
    check(folder)
    monkeypatch.setattr(memory, "cuda_memory", lambda: [80 * 2**30])
    with pytest.raises(
        OutOfMemory, match=r"take 150\.0 GiB, and all 1 CUDA devices together have 80\.0 GiB: .*--dtype"
    ):
        check(folder)
    check_servable(folder, Environment.read({}), AskedLimits(), needs_weights=False)
    monkeypatch.setattr(memory, "cuda_memory", list)
    monkeypatch.setattr(memory, "total_host_memory", lambda: 2**30)
    monkeypatch.setattr(memory, "has_cuda_devices", lambda: True)
    check(folder)
    monkeypatch.setattr(memory, "has_cuda_devices", lambda: False)
    with pytest.raises(OutOfMemory, match=r"this machine has 1\.0 GiB: "):
        check(folder)


@pytest.mark.parametrize("dtype", ["float32", None])
def test_weights_of_32_bits_may_be_served_in_16(
    dtype: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": dtype}))
    monkeypatch.setattr(memory, "cuda_memory", lambda: [80 * 2**30])
    for size, fits in ((150, True), (170, False)):
        index = {"metadata": {"total_size": size * 2**30}, "weight_map": {}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        if fits:
            check(folder)
        else:
            with pytest.raises(OutOfMemory, match=r"take 85\.0 GiB"):
                check(folder)


def test_weights_in_one_file_are_judged_before_it_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = json.loads((folder / "config.json").read_text())
    large = {**config, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
    (folder / "config.json").write_text(json.dumps({**large, "num_attention_heads": 64, "head_dim": 128}))
    monkeypatch.setattr(memory, "cuda_memory", lambda: [80 * 2**30])
    with pytest.raises(OutOfMemory, match=r"take 12\d\.\d GiB, and all 1 CUDA devices"):
        check(folder)


@pytest.mark.parametrize("size", ["0", "-5", '"16 GB"', "true", "[]", str(2**70)])
def test_where_an_index_tells_no_size_its_files_do(llama_folder: Path, tmp_path: Path, size: str) -> None:
    copy, index = tmp_path / "copy", "model.safetensors.index.json"
    shutil.copytree(llama_folder, copy)
    expected = (copy / "model.safetensors").stat().st_size
    (copy / "model.safetensors").rename(copy / "part.safetensors")
    shutil.copy(copy / "part.safetensors", copy / "other.safetensors")
    for metadata in (f'{{"total_size": {size}}}', "7"):
        (copy / index).write_text(f'{{"metadata": {metadata}, "weight_map": {{"a": "part.safetensors"}}}}')
        assert stored_bytes(copy) == expected
    # As while they are not there yet.
    (copy / "part.safetensors").unlink()
    assert stored_bytes(copy) is None
    check(copy)


def test_without_an_index_the_file_that_is_read_counts_alone(llama_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(llama_folder, tmp_path / "copy"))
    for name in ("model.fp16", "adapter_model"):
        shutil.copy(copy / "model.safetensors", copy / f"{name}.safetensors")
    assert stored_bytes(copy) == stored_bytes(llama_folder)


def test_files_that_hold_the_weights_again_do_not_count(llama_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(llama_folder, tmp_path / "copy"))
    shutil.copy(copy / "model.safetensors", copy / "consolidated.safetensors")
    assert stored_bytes(copy) == stored_bytes(llama_folder)


def test_memory_of_weights_follows_how_they_are_quantised(tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 100, "rms_norm_eps": 1e-5, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ends, matrices = 2 * 100 * 128, 2 * (4 * 128 * 128 + 3 * 128 * 256)
    for asked, each in ((None, 2.0), ("fp8", 1.0), ("eetq", 1.0), ("triton_w4a16", 0.5 + 4 / 128)):
        model = read_model_config(tmp_path, quantize=asked)
        assert isinstance(model, ModelConfig)
        assert weight_bytes(model, 2) == ends * 2 + matrices * each


@pytest.mark.parametrize(
    ("stored", "asked", "expected"),
    [
        ({}, None, 1000),
        ({}, "fp8", 500),
        ({}, "bitsandbytes-nf4", 281),
        ({"quantization_config": {"quant_method": "fp8"}}, None, 1000),
    ],
)
def test_memory_of_a_class_of_transformers_follows_how_it_is_quantised(
    tmp_path: Path, stored: dict[str, object], asked: str | None, expected: int
) -> None:
    """About: codes of files are as large on the device."""
    config = {"architectures": ["ArceeForCausalLM"], "vocab_size": 100, "torch_dtype": "bfloat16", **stored}
    (tmp_path / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": 1000}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model = read_model_config(tmp_path, quantize=asked)
    assert isinstance(model, FallbackConfig)
    assert served_bytes(tmp_path, model, 2) == expected


MODELOPT_FP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"]}


@pytest.mark.parametrize(
    ("architecture", "keys", "asked", "each"),
    [
        ("MixtralForCausalLM", {}, None, 2.0),
        ("MixtralForCausalLM", {}, "fp8", 1.0),
        ("GraniteMoeForCausalLM", {}, "triton_w4a16", 0.5 + 4 / 128),
        ("GptOssForCausalLM", {"quantization_config": {"quant_method": "mxfp4"}}, None, 0.5 + 2 / 32),
        ("MixtralForCausalLM", {"quantization_config": MODELOPT_FP4}, None, 0.5 + 1 / 16),
    ],
)
def test_memory_of_experts_follows_how_they_are_quantised(
    tmp_path: Path, architecture: str, keys: dict[str, object], asked: str | None, each: float
) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 4, "head_dim": 32}
    config = {"architectures": [architecture], "vocab_size": 100, "tie_word_embeddings": False, **sizes, **keys}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = read_model_config(tmp_path, quantize=asked)
    assert isinstance(model, ModelConfig)
    others = 2 * 100 * 128 * 2 + 2 * 4 * 128 * 128 * (2 if keys else each)
    assert weight_bytes(model, 2) == others + 2 * 8 * 3 * 128 * 256 * each


def test_tensors_tell_which_matrices_are_quantised_where_names_do_not(tmp_path: Path) -> None:
    """Every gate_proj has `gate` in its name, and no rule says that v_proj has 16 bits."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "moe_intermediate_size": 256,
    }
    quantised = {"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": ["gate"]}
    config = {"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 100, **sizes, "quantization_config": quantised}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = read_model_config(tmp_path)
    assert isinstance(model, ModelConfig)
    ends, attention, experts = 2 * 100 * 128 * 2, 2 * 128 * 128, 2 * 8 * 128 * 256
    packed = 0.5 + 4 / 32
    assert weight_bytes(model, 2) == ends + 4 * attention * packed + experts * (2 * packed + 2)
    names = {"model.embed_tokens.weight"}
    for layer in range(2):
        names |= {f"model.layers.{layer}.self_attn.{each}_proj.qweight" for each in "qko"}
        names |= {f"model.layers.{layer}.self_attn.v_proj.weight"}
        names |= {f"model.layers.{layer}.mlp.experts.0.{each}_proj.qweight" for each in ("gate", "up", "down")}
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model-1.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").write_bytes(b"1")
    assert served_bytes(tmp_path, model, 2) == ends + attention * (3 * packed + 2) + experts * 3 * packed


@pytest.mark.parametrize(("hidden_size", "held"), [(4096, 1.0), (8192, 0.5)])
def test_ranks_share_the_rows_of_large_embeddings_alone(tmp_path: Path, hidden_size: int, held: float) -> None:
    sizes = {"hidden_size": hidden_size, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 32}
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 128_256, "rms_norm_eps": 1e-5, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = read_model_config(tmp_path)
    assert isinstance(model, ModelConfig)
    whole, embedding = weight_bytes(model, 2), 128_256 * hidden_size * 2
    assert bytes_of_rank(whole, model, 2, 2) == (whole - embedding) // 2 + embedding * held


def test_kernels_that_are_asked_for_and_switched_off_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="contradicts --disable-custom-kernels"):
        check_attention("triton", on_cuda=True, environment=Environment.read({"DISABLE_CUSTOM_KERNELS": "true"}))


def test_contexts_of_several_stretches_are_served(folder: Path) -> None:
    """As far as there are positions."""
    raw = json.loads((folder / "config.json").read_text())
    sizes = {"num_local_experts": 2, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1}
    chunked = {"architectures": ["Llama4ForCausalLM"], "intermediate_size_mlp": 8, "attention_chunk_size": 96, **sizes}
    (folder / "config.json").write_text(json.dumps({**raw, **chunked, "max_position_embeddings": 4096}))
    check(folder, AskedLimits(4095, 4096))
    with pytest.raises(ConfigurationError, match="for the 4096 positions of the model"):
        check(folder, AskedLimits(4095, 4097))


@pytest.mark.parametrize(
    "values",
    [
        {"architectures": ["DeepseekV32ForCausalLM"], "n_group": 1, "topk_group": 1, "qk_rope_head_dim": 4},
        {"architectures": ["Glm5NextForCausalLM"], "num_hidden_layers": 4, "index_kpool": 32},
    ],
    ids=["positions", "pools"],
)
def test_contexts_that_an_indexer_cuts_are_served(folder: Path, values: dict[str, object]) -> None:
    """As far as there are positions."""
    raw = json.loads((folder / "config.json").read_text())
    latent = {"kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 6, "v_head_dim": 8}
    sparse = {"index_topk": 96, **latent, **values}
    (folder / "config.json").write_text(json.dumps({**raw, **sparse, "max_position_embeddings": 4096}))
    check(folder, AskedLimits(4095, 4096))
    with pytest.raises(ConfigurationError, match="for the 4096 positions of the model"):
        check(folder, AskedLimits(4095, 4097))


@pytest.mark.parametrize("impl", ["auto", "native", "transformers"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["KimiK3ForCausalLM"]}, "^Kimi K3 .*attention over residuals"),
        ({"architectures": ["InternLMXComposerForCausalLM"]}, "^InternLM-XComposer .*learned queries"),
        ({"architectures": ["InklingForCausalLM"]}, "^Inkling .*convolutions of keys and values"),
        (
            {"architectures": ["Qwen4ExpForConditionalGeneration"], "text_config": {"model_type": "qwen4_exp_text"}},
            "^Qwen 4 Exp .*several residual streams",
        ),
    ],
)
def test_a_known_model_that_is_not_served_is_refused_with_what_is_missing(
    folder: Path, values: dict[str, object], message: str, impl: ModelImpl
) -> None:
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(UnsupportedModel, match=message):
        check_servable(folder, Environment.read({}), AskedLimits(), model_impl=impl)
