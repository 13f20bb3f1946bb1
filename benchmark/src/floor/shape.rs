//! The sizes of a decoder, from `config.json`.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{BenchmarkError, Result};

/// The sizes of a decoder that decide its floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    layers: f64,
    hidden: f64,
    heads: f64,
    kv_heads: f64,
    head_dim: f64,
    intermediate: f64,
    vocab: f64,
    experts: f64,
    experts_per_token: f64,
    bytes_per_weight: f64,
}

#[derive(Deserialize)]
struct Config {
    num_hidden_layers: u32,
    hidden_size: u32,
    num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    intermediate_size: u32,
    vocab_size: u32,
    #[serde(alias = "num_experts")]
    num_local_experts: Option<u32>,
    num_experts_per_tok: Option<u32>,
    #[serde(alias = "dtype")]
    torch_dtype: Option<String>,
    quantization_config: Option<Value>,
}

impl Shape {
    /// `path`: `config.json` or its folder.
    pub fn read(path: &Path) -> Result<Self> {
        let file = if path.is_dir() {
            path.join("config.json")
        } else {
            path.to_owned()
        };
        let text = std::fs::read_to_string(&file)
            .map_err(|error| BenchmarkError::file(&file, format!("{error} (--model-config)")))?;
        Self::parse(&text).map_err(|message| BenchmarkError::file(&file, message))
    }

    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let config: Config = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if config.quantization_config.is_some() {
            return Err("the floor of quantized weights is not known".to_owned());
        }
        if config.num_attention_heads == 0 {
            return Err("`num_attention_heads` is 0".to_owned());
        }
        let heads = config.num_attention_heads;
        let bytes_per_weight = match config.torch_dtype.as_deref() {
            Some("float32") => 4.0,
            _ => 2.0,
        };
        Ok(Self {
            layers: config.num_hidden_layers.into(),
            hidden: config.hidden_size.into(),
            heads: heads.into(),
            kv_heads: config.num_key_value_heads.unwrap_or(heads).into(),
            head_dim: config.head_dim.unwrap_or(config.hidden_size / heads).into(),
            intermediate: config.intermediate_size.into(),
            vocab: config.vocab_size.into(),
            experts: config.num_local_experts.unwrap_or(1).max(1).into(),
            experts_per_token: config.num_experts_per_tok.unwrap_or(1).max(1).into(),
            bytes_per_weight,
        })
    }

    pub fn attention_weights(&self) -> f64 {
        let width = self.heads * self.head_dim;
        let kv_width = self.kv_heads * self.head_dim;
        self.layers * 2.0 * self.hidden * (width + kv_width)
    }

    pub fn expert_weights(&self) -> f64 {
        self.layers * 3.0 * self.hidden * self.intermediate
    }

    pub fn gate_weights(&self) -> f64 {
        if self.experts > 1.0 {
            self.layers * self.hidden * self.experts
        } else {
            0.0
        }
    }

    pub fn head_weights(&self) -> f64 {
        self.vocab * self.hidden
    }

    /// Weights that one token is multiplied with, without the language model head.
    pub fn active_weights(&self) -> f64 {
        self.attention_weights()
            + self.expert_weights() * self.experts_per_token
            + self.gate_weights()
    }

    /// Bytes read in a step of `tokens` tokens. With a uniform choice of experts some may have no token.
    pub fn weight_bytes(&self, tokens: f64) -> f64 {
        let missed = 1.0 - self.experts_per_token / self.experts;
        let experts = if self.experts > 1.0 {
            self.experts * (1.0 - missed.powf(tokens))
        } else {
            1.0
        };
        let weights = self.attention_weights()
            + self.expert_weights() * experts
            + self.gate_weights()
            + self.head_weights();
        self.bytes_per_weight * weights
    }

    pub fn kv_bytes_per_token(&self) -> f64 {
        2.0 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_weight
    }

    /// Operations of causal attention of `tokens` new tokens of a prompt, over all layers.
    pub fn prompt_attention(&self, tokens: f64) -> f64 {
        4.0 * self.layers * self.heads * self.head_dim * tokens * tokens / 2.0
    }
}
