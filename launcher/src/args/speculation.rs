//! `--speculative-config`, in the words of vLLM.

mod fields;

use std::str::FromStr;

use self::fields::{Fields, number, shown, text};

/// The most drafts of a request that a step checks.
pub const MOST_DRAFTS: u8 = 15;
/// Fields of vLLM's that are not taken, with what to do instead.
const LACKING: &[(&[&str], &str)] = &[
    (
        &[
            "num_speculative_tokens_per_batch_size",
            "disable_by_batch_size",
        ],
        "leave it out: each step is as wide as pays, by what steps cost",
    ),
    (
        &[
            "draft_tensor_parallel_size",
            "quantization",
            "max_model_len",
            "disable_padded_drafter_batch",
        ],
        "leave it out: a drafting model runs as the model does",
    ),
    (
        &[
            "rejection_sample_method",
            "draft_sample_method",
            "synthetic_acceptance_length",
            "synthetic_acceptance_rates",
        ],
        "leave it out: a draft counts only where it is the token that the request would have got",
    ),
    (
        &[
            "suffix_decoding_max_tree_depth",
            "suffix_decoding_max_cached_requests",
            "suffix_decoding_max_spec_factor",
            "suffix_decoding_min_token_prob",
        ],
        "leave it out: --answer-index-mib says how many earlier answers are kept",
    ),
];
const TAKEN: &str =
    "method, model, revision, num_speculative_tokens, prompt_lookup_min and prompt_lookup_max";

/// Where drafts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The text of each request.
    Ngram,
    /// That, and earlier answers.
    Suffix,
    /// Heads that were trained for the model.
    Eagle3,
    Medusa,
    /// Layers that a model brings itself, for multi-token prediction.
    Mtp,
    /// A whole model of the same vocabulary.
    DraftModel,
    /// Whatever `model` holds.
    Model,
}

impl Method {
    /// What a drafter of this method must be, as shards call it; None: nothing is said of one.
    pub fn of_drafter(self) -> Option<&'static str> {
        match self {
            Self::Ngram | Self::Suffix | Self::Model => None,
            Self::Eagle3 => Some("eagle3"),
            Self::Medusa => Some("medusa"),
            Self::Mtp => Some("mtp"),
            Self::DraftModel => Some("draft_model"),
        }
    }
}

/// What `--speculative-config` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeculativeConfig {
    pub method: Method,
    /// The drafter, a name on the hub or a folder; None with [`Method::Mtp`]: the served model.
    pub model: Option<String>,
    pub revision: Option<String>,
    pub drafts: Option<u8>,
    /// It has fields that change nothing.
    pub has_lookup: bool,
}

impl FromStr for SpeculativeConfig {
    type Err = String;

    /// Reads a JSON object; the error names the field and says what to do.
    fn from_str(json: &str) -> Result<Self, String> {
        let Fields(mut fields) = serde_json::from_str(json).map_err(|error| {
            if error.is_data() {
                return error.to_string();
            }
            format!(
                "it must be JSON such as {{\"method\": \"ngram\", \"num_speculative_tokens\": 3}}: {error}"
            )
        })?;
        fields.retain(|_, value| !value.is_null());
        let method = text(&mut fields, "method")?;
        let model = text(&mut fields, "model")?;
        let revision = text(&mut fields, "revision")?;
        let most = u64::from(MOST_DRAFTS);
        let drafts = number(&mut fields, "num_speculative_tokens", 1..=most)?;
        let longest = number(&mut fields, "prompt_lookup_max", 1..=u64::MAX)?;
        let shortest = number(&mut fields, "prompt_lookup_min", 1..=u64::MAX)?;
        if let Some(field) = fields.keys().next() {
            return Err(lacking(field));
        }
        if let (Some(shortest), Some(longest)) = (shortest, longest)
            && shortest > longest
        {
            return Err("`prompt_lookup_min` must be <= `prompt_lookup_max`".to_owned());
        }
        let config = Self {
            method: served(method.as_deref(), model.as_deref())?,
            model,
            revision,
            drafts: drafts.and_then(|number| u8::try_from(number).ok()),
            has_lookup: shortest.or(longest).is_some(),
        };
        config.check().map(|()| config)
    }
}

impl SpeculativeConfig {
    fn check(&self) -> Result<(), String> {
        match (self.method, &self.model, &self.revision) {
            (Method::Ngram | Method::Suffix, Some(_), _) => Err(
                "`model` has no meaning for the methods \"ngram\" and \"suffix\", which draft from texts: leave it out"
                    .to_owned(),
            ),
            (Method::Eagle3 | Method::Medusa | Method::DraftModel | Method::Model, None, _) => Err(
                "`model` is missing: name the folder of the drafter, or its name on the hub".to_owned(),
            ),
            (_, None, Some(_)) => Err("`revision` needs `model`".to_owned()),
            _ => Ok(()),
        }
    }
}

/// The method of this name; without one, that of the model if there is one.
fn served(method: Option<&str>, model: Option<&str>) -> Result<Method, String> {
    match (method, model) {
        (Some("ngram" | "[ngram]" | "ngram_gpu"), _) | (None, None | Some("ngram" | "[ngram]")) => {
            Ok(Method::Ngram)
        }
        (Some("suffix"), _) => Ok(Method::Suffix),
        // vLLM had a name for those of each family before.
        (Some(mtp), None) if mtp.ends_with("_mtp") => Ok(Method::Mtp),
        (Some("mtp"), _) => Ok(Method::Mtp),
        (Some("eagle3"), _) => Ok(Method::Eagle3),
        (Some("medusa"), _) => Ok(Method::Medusa),
        (Some("draft_model"), _) => Ok(Method::DraftModel),
        (None, Some(_)) => Ok(Method::Model),
        (Some(other), _) => Err(format!(
            "`method` must be \"ngram\", \"suffix\", \"eagle3\", \"medusa\", \"mtp\" or \"draft_model\". Given: {}; with \"ngram\" drafts need no model",
            shown(format!("{other:?}"))
        )),
    }
}

fn lacking(field: &str) -> String {
    let known = LACKING.iter().find(|(names, _)| names.contains(&field));
    match known {
        Some((_, remedy)) => format!("`{field}` is not supported: {remedy}"),
        None => format!("`{}` is no field of it: there are {TAKEN}", shown(field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<SpeculativeConfig, String> {
        json.parse()
    }

    #[test]
    fn fields_have_the_names_of_vllm() {
        let ngram =
            read(r#"{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}"#);
        let ngram = ngram.unwrap();
        assert_eq!((ngram.method, ngram.drafts), (Method::Ngram, Some(3)));
        assert!(ngram.has_lookup);
        let eagle = read(
            r#"{"method": "eagle3", "model": "org/head", "revision": "v1", "quantization": null}"#,
        );
        let eagle = eagle.unwrap();
        assert_eq!(eagle.method, Method::Eagle3);
        assert_eq!(
            (
                eagle.model.as_deref(),
                eagle.revision.as_deref(),
                eagle.drafts
            ),
            (Some("org/head"), Some("v1"), None)
        );
        assert_eq!(
            read(r#"{"method": "suffix"}"#).unwrap().method,
            Method::Suffix
        );
        assert_eq!(
            read(r#"{"model": "org/head"}"#).unwrap().method,
            Method::Model
        );
    }

    #[test]
    fn a_model_may_draft_for_itself() {
        for name in ["mtp", "deepseek_mtp"] {
            let config = read(&format!(r#"{{"method": "{name}"}}"#)).unwrap();
            assert_eq!((config.method, config.model), (Method::Mtp, None));
        }
        let another = read(r#"{"method": "mtp", "model": "org/head"}"#).unwrap();
        assert_eq!(another.method.of_drafter(), Some("mtp"));
        let smaller = read(r#"{"method": "draft_model", "model": "org/smaller"}"#).unwrap();
        assert_eq!(smaller.method.of_drafter(), Some("draft_model"));
    }

    #[test]
    fn what_is_not_served_is_refused_by_name_with_what_to_do() {
        for (json, expected) in [
            ("ngram", "it must be JSON such as"),
            ("[3]", "expected a JSON object"),
            (
                r#"{"method": "suffix", "model": null, "method": "ngram"}"#,
                "`method` is there twice: give it once",
            ),
            (
                r#"{"method": "eagle"}"#,
                r#"`method` must be "ngram", "suffix", "eagle3", "medusa", "mtp" or "draft_model". Given: "eagle""#,
            ),
            (r#"{"method": 3}"#, "`method` must be a text. Given: 3"),
            (r#"{"method": "eagle3"}"#, "`model` is missing"),
            (r#"{"method": "draft_model"}"#, "`model` is missing"),
            (
                r#"{"method": "ngram", "model": "a"}"#,
                "`model` has no meaning",
            ),
            (
                r#"{"method": "ngram", "revision": "a"}"#,
                "`revision` needs `model`",
            ),
            (
                r#"{"num_speculative_tokens": 16}"#,
                "`num_speculative_tokens` must be a whole number from 1 to 15. Given: 16",
            ),
            (r#"{"num_speculative_tokens": 2.5}"#, "Given: 2.5"),
            (
                r#"{"prompt_lookup_min": 0}"#,
                "`prompt_lookup_min` must be a whole number from 1 on",
            ),
            (
                r#"{"prompt_lookup_min": 3, "prompt_lookup_max": 2}"#,
                "must be <= `prompt_lookup_max`",
            ),
            (
                r#"{"draft_tensor_parallel_size": 1}"#,
                "`draft_tensor_parallel_size` is not supported: leave it out",
            ),
            (
                r#"{"speed": 9}"#,
                "`speed` is no field of it: there are method, model",
            ),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    #[test]
    fn messages_repeat_the_beginning_of_what_is_long() {
        let long = "x".repeat(100_000);
        for json in [
            long.clone(),
            format!(r#"{{"method": "{long}"}}"#),
            format!(r#"{{"model": ["{long}"]}}"#),
            format!(r#"{{"num_speculative_tokens": "{long}"}}"#),
            format!(r#"{{"{long}": 1}}"#),
            format!(r#"{{"{long}": 1, "{long}": 1}}"#),
        ] {
            let error = read(&json).unwrap_err();
            assert!(error.len() < 300, "{error}");
        }
    }
}
