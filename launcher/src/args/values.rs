//! The values that flags take, where they are no numbers, texts or paths.

use std::fmt;

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Dtype {
    Float32,
    Float16,
    Bfloat16,
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
