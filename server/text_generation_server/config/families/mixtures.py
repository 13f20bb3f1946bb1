"""Model families with mixtures of experts."""

from .afmoe import AFMOE
from .bailing import BAILING, BAILING2, SARVAM
from .dbrx import DBRX
from .deepseek import DEEPSEEK, DEEPSEEK_V2, DEEPSEEK_V3, MISTRAL4, SARVAM_MLA
from .deepseek_sparse import DEEPSEEK_V32, GLM5
from .deepseek_v4 import DEEPSEEK_V4
from .ernie import ERNIE_MOE
from .exaone import EXAONE_MOE
from .family import Family
from .glm_moe import GLM4_MOE, GLM4_MOE_LITE, SOLAR_OPEN
from .glm_next import GLM_NEXT
from .gpt_oss import GPT_OSS
from .granite_hybrid import GRANITE_HYBRID
from .granite_moe import GRANITE_MOE
from .hunyuan_moe import HUNYUAN_MOE, HY3
from .kimi_linear import KIMI_LINEAR
from .laguna import LAGUNA
from .lfm2 import LFM2_MOE
from .ling3 import BAILING_HYBRID, LING3
from .ling25 import LING25
from .longcat import LONGCAT_FLASH
from .mimo_v2 import MIMO_V2
from .minimax01 import MINIMAX_01
from .minimax_m3 import MINIMAX_M3
from .mixtral import MINIMAX_M2, MIXTRAL
from .phi_moe import PHI_MOE
from .qwen3_next import QWEN3_5_MOE, QWEN3_NEXT
from .qwen_moe import QWEN2_MOE, QWEN3_MOE
from .step import STEP

MIXTURES: dict[str, Family] = {
    "AfmoeForCausalLM": AFMOE,
    "BailingHybridForCausalLM": BAILING_HYBRID,
    "BailingMoeForCausalLM": BAILING,
    "BailingMoeV2ForCausalLM": BAILING2,
    "BailingMoeV2_5ForCausalLM": LING25,
    "BailingMoeV3ForCausalLM": LING3,
    "DbrxForCausalLM": DBRX,
    "DeepseekForCausalLM": DEEPSEEK,
    "DeepseekV2ForCausalLM": DEEPSEEK_V2,
    "DeepseekV32ForCausalLM": DEEPSEEK_V32,
    "DeepseekV3ForCausalLM": DEEPSEEK_V3,
    "DeepseekV4ForCausalLM": DEEPSEEK_V4,
    "Ernie4_5_MoeForCausalLM": ERNIE_MOE,
    "ExaoneMoEForCausalLM": EXAONE_MOE,
    "ExaoneMoeForCausalLM": EXAONE_MOE,
    "Glm4MoeForCausalLM": GLM4_MOE,
    "Glm4MoeLiteForCausalLM": GLM4_MOE_LITE,
    "Glm5NextForCausalLM": GLM_NEXT,
    "GlmMoeDsaForCausalLM": GLM5,
    "GptOssForCausalLM": GPT_OSS,
    "GraniteMoeForCausalLM": GRANITE_MOE,
    "GraniteMoeHybridForCausalLM": GRANITE_HYBRID,
    "HYV3ForCausalLM": HY3,
    "HunYuanMoEV1ForCausalLM": HUNYUAN_MOE,
    "KimiLinearForCausalLM": KIMI_LINEAR,
    "LagunaForCausalLM": LAGUNA,
    "Lfm2MoeForCausalLM": LFM2_MOE,
    "LongcatFlashForCausalLM": LONGCAT_FLASH,
    "MiMoV2FlashForCausalLM": MIMO_V2,
    "MiMoV2ForCausalLM": MIMO_V2,
    "MiniMaxForCausalLM": MINIMAX_01,
    "MiniMaxM1ForCausalLM": MINIMAX_01,
    "MiniMaxM2ForCausalLM": MINIMAX_M2,
    "MiniMaxM3SparseForCausalLM": MINIMAX_M3,
    "MiniMaxM3VLForCausalLM": MINIMAX_M3,
    "MiniMaxText01ForCausalLM": MINIMAX_01,
    "Mistral4ForCausalLM": MISTRAL4,
    "MistralLarge3ForCausalLM": MISTRAL4,
    "MixtralForCausalLM": MIXTRAL,
    "PhiMoEForCausalLM": PHI_MOE,
    "PhimoeForCausalLM": PHI_MOE,
    "Qwen2MoeForCausalLM": QWEN2_MOE,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "Qwen3NextForCausalLM": QWEN3_NEXT,
    "Qwen3_5MoeForCausalLM": QWEN3_5_MOE,
    "SarvamMLAForCausalLM": SARVAM_MLA,
    "SarvamMoEForCausalLM": SARVAM,
    "SolarOpenForCausalLM": SOLAR_OPEN,
    "Step3p5ForCausalLM": STEP,
}
"""By the model class that `architectures` names."""
