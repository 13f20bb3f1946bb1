"""Model families: one file for each, from `config.json` to a `DecoderSpec` and the names of its tensors."""

from .baichuan import BAICHUAN
from .dbrx import DBRX
from .exaone import EXAONE3, EXAONE4
from .family import Family
from .glm_moe import GLM4_MOE
from .gpt_oss import GPT_OSS
from .granite import GRANITE, MINICPM
from .granite_moe import GRANITE_MOE
from .hunyuan import HUNYUAN
from .hunyuan_moe import HUNYUAN_MOE
from .internlm import INTERNLM, INTERNLM2, INTERNLM3
from .llama import LLAMA
from .mistral import MINISTRAL, MISTRAL
from .mixtral import MINIMAX_M2, MIXTRAL
from .olmo import OLMO2, OLMO3
from .phi3 import PHI3
from .phi_moe import PHI_MOE
from .qwen2 import QWEN2, QWEN3
from .qwen_moe import QWEN2_MOE, QWEN3_MOE
from .seed_oss import SEED_OSS
from .smollm3 import SMOLLM3

FAMILIES: dict[str, Family] = {
    "BaiChuanForCausalLM": BAICHUAN,
    "BaichuanForCausalLM": BAICHUAN,
    "DbrxForCausalLM": DBRX,
    "Exaone4ForCausalLM": EXAONE4,
    "ExaoneForCausalLM": EXAONE3,
    "Glm4MoeForCausalLM": GLM4_MOE,
    "GptOssForCausalLM": GPT_OSS,
    "GraniteForCausalLM": GRANITE,
    "GraniteMoeForCausalLM": GRANITE_MOE,
    "HunYuanDenseV1ForCausalLM": HUNYUAN,
    "HunYuanMoEV1ForCausalLM": HUNYUAN_MOE,
    "InternLM2ForCausalLM": INTERNLM2,
    "InternLM3ForCausalLM": INTERNLM3,
    "InternLMForCausalLM": INTERNLM,
    "LLaMAForCausalLM": LLAMA,
    "LlamaForCausalLM": LLAMA,
    "MiniCPMForCausalLM": MINICPM,
    "MiniMaxM2ForCausalLM": MINIMAX_M2,
    "MinistralForCausalLM": MINISTRAL,
    "MistralForCausalLM": MISTRAL,
    "MixtralForCausalLM": MIXTRAL,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO3,
    "Phi3ForCausalLM": PHI3,
    "PhiMoEForCausalLM": PHI_MOE,
    "PhimoeForCausalLM": PHI_MOE,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen2MoeForCausalLM": QWEN2_MOE,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "SeedOssForCausalLM": SEED_OSS,
    "SmolLM3ForCausalLM": SMOLLM3,
    "YiForCausalLM": LLAMA,
}
"""By the model class that `architectures` names."""

__all__ = ["FAMILIES", "Family"]
