//! Types of flag values that are no numbers, texts or paths.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser};
use text_generation_process::amounts;

/// TGI's names, and those of vLLM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    #[default]
    Auto,
    #[value(alias = "float")]
    Float32,
    #[value(alias = "half")]
    Float16,
    Bfloat16,
}

/// Values of `--quantize` that work with some checkpoint, as the shards know them (`config/quantisation/online.py`).
const QUANTIZE: [&str; 30] = [
    "awq",
    "compressed-tensors",
    "gptq",
    "marlin",
    "fp8",
    "bitsandbytes",
    "bitsandbytes-nf4",
    "bitsandbytes-fp4",
    "w8a8",
    "eetq",
    "triton_w8a8",
    "ppl_w8a8",
    "ao-w8a8",
    "vllm-w8a8",
    "triton_w8a16",
    "triton_int8weight",
    "triton_w4a16",
    "triton_int4weight",
    "lmdeploy_w4a16",
    "ppl_w4a16",
    "ao-w8a16",
    "ao-w4a16-32",
    "ao-w4a16-64",
    "ao-w4a16-128",
    "ao-w4a16-256",
    "vllm-fp8w8a8",
    "vllm-fp8w8a8-b128",
    "deepgemm-fp8w8a8-b128",
    "triton-fp8w8a8-block128",
    // As good as none.
    "",
];
/// Those of other servers that the shards refuse, each with what to use instead.
const QUANTIZE_REFUSED: [&str; 4] = ["exl2", "ao-fp8w8a16", "ao-fp6w6a16", "flash_llm_w6a16"];

/// The names that `--quantize` takes. A test compares them with those of the shards.
pub fn quantize() -> PossibleValuesParser {
    let shown = QUANTIZE
        .into_iter()
        .map(|name| PossibleValue::new(name).hide(name.is_empty()));
    let hidden = QUANTIZE_REFUSED
        .into_iter()
        .map(|name| PossibleValue::new(name).hide(true));
    PossibleValuesParser::new(shown.chain(hidden))
}

/// Values of `--prefix-caching`; the router reads them. Other words for true and false are taken, and not listed.
pub fn prefix_caching() -> PossibleValuesParser {
    let shown = ["true", "false", "per-key"].map(PossibleValue::new);
    let hidden =
        ["1", "0", "yes", "no", "on", "off"].map(|word| PossibleValue::new(word).hide(true));
    PossibleValuesParser::new(shown.into_iter().chain(hidden))
}

/// A value of `--waiting-served-ratio`; the router reads it.
///
/// # Errors
/// What it must be.
pub fn waiting_served_ratio(text: &str) -> Result<String, String> {
    let number = text
        .parse()
        .is_ok_and(|ratio: f32| ratio.is_finite() && ratio >= 0.0);
    if number || text.eq_ignore_ascii_case("auto") {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("must be auto or a number >= 0".to_owned())
    }
}

/// TGI's names; LightLLM's modes and vLLM's names are other names of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KvCacheDtype {
    #[default]
    Auto,
    #[value(name = "fp8_e4m3fn", aliases = ["fp8", "fp8_e4m3", "triton_fp8kv"])]
    Fp8E4m3fn,
    #[value(name = "fp8_e5m2")]
    Fp8E5m2,
    #[value(name = "int8", aliases = ["triton_int8kv", "ppl_int8kv"])]
    Int8,
    #[value(name = "int4", aliases = ["ppl_int4kv"])]
    Int4,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DequantisedCopies {
    #[default]
    Auto,
    On,
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LoadFormat {
    Auto,
    Safetensors,
    Dummy,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ModelImpl {
    Auto,
    Native,
    Transformers,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RopeScaling {
    Linear,
    Dynamic,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Attention {
    Torch,
    Triton,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum UsageStats {
    On,
    Off,
    NoStack,
}

/// A limit in tokens, or what the model and the memory allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenLimit {
    Auto,
    Tokens(u32),
}

impl TokenLimit {
    /// The number of tokens, where one was given.
    pub fn tokens(limit: Option<Self>) -> Option<u32> {
        match limit? {
            Self::Auto => None,
            Self::Tokens(tokens) => Some(tokens),
        }
    }
}

impl FromStr for TokenLimit {
    type Err = String;

    /// `-1` is vLLM's other name of `auto`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" | "-1" => Ok(Self::Auto),
            _ => amounts::tokens(1)(text)
                .map(Self::Tokens)
                .map_err(|reason| format!("{reason}, or auto")),
        }
    }
}

/// Reads a share, `0.9` or `90%`.
pub fn fraction(text: &str) -> Result<f32, String> {
    let read = |number: &str| number.trim().parse::<f32>().ok();
    let share = match text.strip_suffix('%') {
        Some(percent) => read(percent).map(|percent| percent / 100.0),
        None => read(text),
    };
    share.ok_or_else(|| "not a share; give one such as 0.9 or 90%".to_owned())
}

/// A value that must not reach logs.
#[derive(Clone)]
pub struct Secret(pub String);

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
