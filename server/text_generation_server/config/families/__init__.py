"""Model families: one file for each, from `config.json` to a `DecoderSpec` and the names of its tensors."""

from .baichuan import BAICHUAN
from .bloom import BLOOM, MPT
from .cohere import COHERE, COHERE2
from .decilm import DECILM
from .deepseek import YOUTU
from .ernie import ERNIE
from .exaone import EXAONE3, EXAONE4
from .falcon import FALCON
from .falcon_h1 import FALCON_H1
from .family import Family
from .gemma import GEMMA, GEMMA2, GEMMA3
from .gemma3n import GEMMA3N
from .gemma4 import GEMMA4
from .glm import CHATGLM, GLM, GLM4
from .gpt2 import GPT2, STARCODER
from .gpt_neo import GPT_NEO
from .gpt_neox import CODEGEN, GPT_NEOX, GPTJ
from .granite import GRANITE, MINICPM
from .hunyuan import HUNYUAN
from .internlm import INTERNLM, INTERNLM2, INTERNLM3, XCOMPOSER2
from .lfm2 import LFM2
from .llama import IQUEST_CODER, LLAMA, TELECHAT3
from .llama4 import LLAMA4
from .mamba import FALCON_MAMBA, JAMBA, MAMBA
from .mamba2 import BAMBA, MAMBA2
from .media import (
    OTHER_PARTS,
    TEXT_PREFIXES,
    VISION_PARTS,
    WITH_MEDIA,
    class_of_part,
    text_part,
)
from .minicpm3 import MINICPM3
from .missing import MISSING, refuse_missing
from .mistral import MINISTRAL, MINISTRAL3, MISTRAL
from .mixtures import MIXTURES
from .nemotron import NEMOTRON
from .nemotron_h import NEMOTRON_H
from .olmo import OLMO2, OLMO3
from .olmo_hybrid import OLMO_HYBRID
from .opt import OPT
from .phi import PHI
from .phi3 import PHI3
from .qwen1 import QWEN1
from .qwen2 import MIMO, QWEN2, QWEN3
from .qwen3_next import QWEN3_5
from .recurrent_gemma import RECURRENT_GEMMA
from .seed_oss import SEED_OSS
from .smollm3 import SMOLLM3
from .solar import SOLAR
from .stablelm import STABLELM
from .starcoder2 import STARCODER2
from .xglm import XGLM
from .zamba2 import ZAMBA2

FAMILIES: dict[str, Family] = {
    **MIXTURES,
    "BaiChuanForCausalLM": BAICHUAN,
    "BaichuanForCausalLM": BAICHUAN,
    "BambaForCausalLM": BAMBA,
    "BloomForCausalLM": BLOOM,
    "ChatGLMForConditionalGeneration": CHATGLM,
    "ChatGLMModel": CHATGLM,
    "CodeGenForCausalLM": CODEGEN,
    "Cohere2ForCausalLM": COHERE2,
    "CohereForCausalLM": COHERE,
    "DeciLMForCausalLM": DECILM,
    "Ernie4_5ForCausalLM": ERNIE,
    "Exaone4ForCausalLM": EXAONE4,
    "ExaoneForCausalLM": EXAONE3,
    "FalconForCausalLM": FALCON,
    "FalconH1ForCausalLM": FALCON_H1,
    "FalconMambaForCausalLM": FALCON_MAMBA,
    "GPT2LMHeadModel": GPT2,
    "GPTBigCodeForCausalLM": STARCODER,
    "GPTJForCausalLM": GPTJ,
    "GPTNeoForCausalLM": GPT_NEO,
    "GPTNeoXForCausalLM": GPT_NEOX,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3nForCausalLM": GEMMA3N,
    "Gemma4ForCausalLM": GEMMA4,
    "GemmaForCausalLM": GEMMA,
    "Glm4ForCausalLM": GLM4,
    "GlmForCausalLM": GLM,
    "GraniteForCausalLM": GRANITE,
    "HunYuanDenseV1ForCausalLM": HUNYUAN,
    "IQuestCoderForCausalLM": IQUEST_CODER,
    "InternLM2ForCausalLM": INTERNLM2,
    "InternLM3ForCausalLM": INTERNLM3,
    "InternLMForCausalLM": INTERNLM,
    "InternLMXComposer2ForCausalLM": XCOMPOSER2,
    "JambaForCausalLM": JAMBA,
    "LLaMAForCausalLM": LLAMA,
    "Lfm2ForCausalLM": LFM2,
    "Llama4ForCausalLM": LLAMA4,
    "LlamaForCausalLM": LLAMA,
    "MPTForCausalLM": MPT,
    "Mamba2ForCausalLM": MAMBA2,
    "MambaForCausalLM": MAMBA,
    "MiMoForCausalLM": MIMO,
    "MiniCPM3ForCausalLM": MINICPM3,
    "MiniCPMForCausalLM": MINICPM,
    "Ministral3ForCausalLM": MINISTRAL3,
    "MinistralForCausalLM": MINISTRAL,
    "MistralForCausalLM": MISTRAL,
    "MptForCausalLM": MPT,
    "NemotronForCausalLM": NEMOTRON,
    "NemotronHForCausalLM": NEMOTRON_H,
    "OPTForCausalLM": OPT,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO3,
    "OlmoHybridForCausalLM": OLMO_HYBRID,
    "Phi3ForCausalLM": PHI3,
    "PhiForCausalLM": PHI,
    "QWenLMHeadModel": QWEN1,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3_5ForCausalLM": QWEN3_5,
    "RWForCausalLM": FALCON,
    "RecurrentGemmaForCausalLM": RECURRENT_GEMMA,
    "SeedOssForCausalLM": SEED_OSS,
    "SmolLM3ForCausalLM": SMOLLM3,
    "SolarForCausalLM": SOLAR,
    "StableLMEpochForCausalLM": STABLELM,
    "StableLmForCausalLM": STABLELM,
    "Starcoder2ForCausalLM": STARCODER2,
    "TeleChat3ForCausalLM": TELECHAT3,
    "XGLMForCausalLM": XGLM,
    "YiForCausalLM": LLAMA,
    "YoutuForCausalLM": YOUTU,
    "Zamba2ForCausalLM": ZAMBA2,
}
"""By the model class that `architectures` names."""

__all__ = [
    "FAMILIES",
    "MISSING",
    "OTHER_PARTS",
    "TEXT_PREFIXES",
    "VISION_PARTS",
    "WITH_MEDIA",
    "Family",
    "class_of_part",
    "refuse_missing",
    "text_part",
]
