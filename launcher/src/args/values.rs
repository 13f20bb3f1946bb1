//! The values that flags take, where they are no numbers, texts or paths.

use std::fmt;

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Dtype {
    Float32,
    Float16,
    Bfloat16,
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
