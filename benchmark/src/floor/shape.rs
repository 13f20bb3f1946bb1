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
    mixture: Option<Mixture>,
    bytes_per_weight: f64,
}

/// The layers whose feed-forward network is a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Mixture {
    layers: f64,
    experts: f64,
    per_token: f64,
    /// Intermediate size of one expert.
    intermediate: f64,
    /// Intermediate size of the shared experts; 0 without.
    shared: f64,
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
    #[serde(flatten)]
    mixture: MixtureConfig,
    /// Latent attention, whose weights and cache have other shapes.
    kv_lora_rank: Option<u32>,
    #[serde(alias = "dtype")]
    torch_dtype: Option<String>,
    quantization_config: Option<Value>,
}

/// How the families name what `Mixture` has.
#[derive(Deserialize)]
struct MixtureConfig {
    #[serde(alias = "num_experts", alias = "n_routed_experts")]
    num_local_experts: Option<u32>,
    num_experts_per_tok: Option<u32>,
    moe_intermediate_size: Option<u32>,
    shared_expert_intermediate_size: Option<u32>,
    #[serde(alias = "num_shared_experts")]
    n_shared_experts: Option<u32>,
    first_k_dense_replace: Option<u32>,
    #[serde(default)]
    mlp_only_layers: Vec<u32>,
    decoder_sparse_step: Option<u32>,
}

impl MixtureConfig {
    /// `None` for a model without experts.
    fn mixture(&self, layers: u32, intermediate: u32) -> Option<Mixture> {
        let experts = self.num_local_experts.filter(|experts| *experts > 1)?;
        let intermediate = self.moe_intermediate_size.unwrap_or(intermediate);
        let shared = self
            .shared_expert_intermediate_size
            .unwrap_or(self.n_shared_experts.unwrap_or(0) * intermediate);
        let step = self.decoder_sparse_step.unwrap_or(1).max(1);
        let has_experts = |layer: &u32| {
            *layer >= self.first_k_dense_replace.unwrap_or(0)
                && (layer + 1).is_multiple_of(step)
                && !self.mlp_only_layers.contains(layer)
        };
        Some(Mixture {
            layers: (0..layers).filter(has_experts).count() as f64,
            experts: experts.into(),
            per_token: self.num_experts_per_tok.unwrap_or(1).max(1).into(),
            intermediate: intermediate.into(),
            shared: shared.into(),
        })
    }
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
        if config.kv_lora_rank.is_some() {
            return Err("the floor of latent attention (`kv_lora_rank`) is not known".to_owned());
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
            mixture: config
                .mixture
                .mixture(config.num_hidden_layers, config.intermediate_size),
            bytes_per_weight,
        })
    }

    pub fn attention_weights(&self) -> f64 {
        let width = self.heads * self.head_dim;
        let kv_width = self.kv_heads * self.head_dim;
        self.layers * 2.0 * self.hidden * (width + kv_width)
    }

    /// Weights of feed-forward networks in a step that reads `read` experts of each mixture.
    fn feed_forward_weights(&self, read: impl Fn(Mixture) -> f64) -> f64 {
        let (mixtures, in_mixtures) = self.mixture.map_or((0.0, 0.0), |mixture| {
            let widths = mixture.intermediate * read(mixture) + mixture.shared;
            let weights = self.hidden * (3.0 * widths + mixture.experts);
            (mixture.layers, mixture.layers * weights)
        });
        (self.layers - mixtures) * 3.0 * self.hidden * self.intermediate + in_mixtures
    }

    pub fn head_weights(&self) -> f64 {
        self.vocab * self.hidden
    }

    /// Weights that one token is multiplied with, without the language model head.
    pub fn active_weights(&self) -> f64 {
        self.attention_weights() + self.feed_forward_weights(|mixture| mixture.per_token)
    }

    /// Bytes read in a step of `tokens` tokens. With a router that spreads tokens evenly some experts may have no token.
    pub fn weight_bytes(&self, tokens: f64) -> f64 {
        let with_tokens = |mixture: Mixture| {
            let missed = 1.0 - mixture.per_token / mixture.experts;
            mixture.experts * (1.0 - missed.powf(tokens))
        };
        let weights =
            self.attention_weights() + self.feed_forward_weights(with_tokens) + self.head_weights();
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
