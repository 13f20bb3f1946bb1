//! The defaults that a model's authors recommend: `generation_config.json`.

use std::path::Path;
use std::str::FromStr;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Whether these defaults are used: `--generation-config`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GenerationConfig {
    /// The model's, for what requests below `/v1` leave open.
    #[default]
    Auto,
    /// None: the API's own defaults.
    None,
}

impl FromStr for GenerationConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            // What vLLM calls its own defaults.
            "none" | "vllm" => Ok(Self::None),
            _ => Err("must be `auto` or `none`".to_owned()),
        }
    }
}

/// What a request below `/v1` gets where it leaves a field open; an unset one is the API's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub struct SamplingDefaults {
    #[schema(nullable = true, example = 0.6)]
    pub temperature: Option<f32>,
    #[schema(nullable = true, example = 0.95)]
    pub top_p: Option<f32>,
    #[schema(nullable = true, example = 20)]
    pub top_k: Option<i32>,
    #[schema(nullable = true)]
    pub min_p: Option<f32>,
    #[schema(nullable = true)]
    pub repetition_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// Reads the file of the model in `folder`. One that is not there says nothing; one that cannot be read is a line in
    /// the log, because the model can be served without it.
    pub fn load(folder: &Path) -> Self {
        let path = folder.join("generation_config.json");
        let Ok(text) = std::fs::read_to_string(&path) else {
            return Self::default();
        };
        match serde_json::from_str::<Map<String, Value>>(&text) {
            Ok(config) => Self::new(&config),
            Err(error) => {
                tracing::warn!("{} is not used: {error}", path.display());
                Self::default()
            }
        }
    }

    /// A value out of its range is as good as absent.
    fn new(config: &Map<String, Value>) -> Self {
        let number = |key: &str, valid: fn(f64) -> bool| {
            let value = config.get(key).and_then(Value::as_f64);
            let value = value.filter(|&value| valid(value));
            value.map(|value| value as f32)
        };
        let fraction = |value: f64| (0.0..=1.0).contains(&value);
        let top_k = config.get("top_k").and_then(Value::as_i64);
        Self {
            temperature: number("temperature", |value| value >= 0.0),
            top_p: number("top_p", fraction),
            top_k: top_k
                .and_then(|k| i32::try_from(k).ok())
                .filter(|&k| k >= -1),
            min_p: number("min_p", fraction),
            repetition_penalty: number("repetition_penalty", |value| {
                (1e-30..=1e30).contains(&value)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_out_of_range_are_left_out() {
        let config = json!({"temperature": 0.6, "top_p": 1.5, "top_k": 20, "repetition_penalty": "x", "do_sample": false});
        let defaults = SamplingDefaults::new(config.as_object().expect("an object"));
        let expected = SamplingDefaults {
            temperature: Some(0.6),
            top_k: Some(20),
            ..SamplingDefaults::default()
        };
        assert_eq!(defaults, expected);
    }

    #[test]
    fn a_model_without_the_file_has_no_defaults() {
        let loaded = SamplingDefaults::load(Path::new("/nonexistent"));
        assert_eq!(loaded, SamplingDefaults::default());
    }
}
