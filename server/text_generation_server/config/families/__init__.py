"""Model families: one file for each, from `config.json` to a `DecoderSpec` and the names of its tensors."""

from .baichuan import BAICHUAN
from .exaone import EXAONE3, EXAONE4
from .family import Family
from .granite import GRANITE, MINICPM
from .hunyuan import HUNYUAN
from .internlm import INTERNLM, INTERNLM2, INTERNLM3
from .llama import LLAMA
from .mistral import MINISTRAL, MISTRAL
from .olmo import OLMO2, OLMO3
from .phi3 import PHI3
from .qwen2 import QWEN2, QWEN3
from .seed_oss import SEED_OSS
from .smollm3 import SMOLLM3

FAMILIES: dict[str, Family] = {
    "BaiChuanForCausalLM": BAICHUAN,
    "BaichuanForCausalLM": BAICHUAN,
    "Exaone4ForCausalLM": EXAONE4,
    "ExaoneForCausalLM": EXAONE3,
    "GraniteForCausalLM": GRANITE,
    "HunYuanDenseV1ForCausalLM": HUNYUAN,
    "InternLM2ForCausalLM": INTERNLM2,
    "InternLM3ForCausalLM": INTERNLM3,
    "InternLMForCausalLM": INTERNLM,
    "LLaMAForCausalLM": LLAMA,
    "LlamaForCausalLM": LLAMA,
    "MiniCPMForCausalLM": MINICPM,
    "MinistralForCausalLM": MINISTRAL,
    "MistralForCausalLM": MISTRAL,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO3,
    "Phi3ForCausalLM": PHI3,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "SeedOssForCausalLM": SEED_OSS,
    "SmolLM3ForCausalLM": SMOLLM3,
    "YiForCausalLM": LLAMA,
}
"""By the model class that `architectures` names."""

__all__ = ["FAMILIES", "Family"]
