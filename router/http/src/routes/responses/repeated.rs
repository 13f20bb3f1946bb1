//! What a response repeats of its request.

use serde_json::{Map, Value, json};

use super::body::ResponsesBody;
use super::format::TextFormat;
use crate::generation_config::SamplingDefaults;

impl ResponsesBody {
    /// What the response repeats, in OpenAI's order; how tokens are chosen as it is used.
    pub(super) fn repeated(&self, defaults: &SamplingDefaults, stored: bool) -> Map<String, Value> {
        let text = self.text.as_ref();
        let format = text.and_then(|text| text.format.as_ref());
        let format = format.map_or_else(|| json!({"type": "text"}), TextFormat::repeated);
        let verbosity = text.and_then(|text| text.verbosity.as_deref());
        let reasoning = self.reasoning.as_ref();
        let repeated = json!({
            "background": false,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": null,
            "metadata": self.metadata.clone().unwrap_or_default(),
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": null,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {
                "effort": reasoning.and_then(|reasoning| reasoning.effort.as_deref()),
                "summary": reasoning.and_then(|reasoning| reasoning.summary.as_deref()),
            },
            "safety_identifier": self.safety_identifier,
            "service_tier": "default",
            "store": stored,
            "temperature": used(self.temperature, defaults.temperature),
            "text": {"format": format, "verbosity": verbosity.unwrap_or("medium")},
            "tool_choice": self.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "tools": self.tools.clone().unwrap_or_default(),
            "top_logprobs": 0,
            "top_p": used(self.top_p, defaults.top_p),
            "truncation": "disabled",
            "user": self.user,
        });
        match repeated {
            Value::Object(repeated) => repeated,
            _ => Map::new(),
        }
    }
}

/// What a field of the request, or else the model's default, stands for, with the digits of the text that it was read
/// from.
fn used(given: Option<f32>, default: Option<f32>) -> Value {
    let value = given.or(default).unwrap_or(1.0);
    serde_json::from_str(&value.to_string()).unwrap_or_else(|_| value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_says_how_tokens_were_chosen() {
        let said = |body: Value, defaults: SamplingDefaults| {
            let body: ResponsesBody = serde_json::from_value(body).unwrap();
            let repeated = body.repeated(&defaults, false);
            format!("{} {}", repeated["temperature"], repeated["top_p"])
        };
        let none = SamplingDefaults::default();
        let given = json!({"temperature": 0.7, "top_p": 0.95});
        assert_eq!(said(given, none), "0.7 0.95");
        assert_eq!(said(json!({"temperature": 2}), none), "2 1");
        let model = SamplingDefaults {
            temperature: Some(0.6),
            top_p: Some(0.8),
            ..none
        };
        assert_eq!(said(json!({"top_p": 0.9}), model), "0.6 0.9");
    }
}
