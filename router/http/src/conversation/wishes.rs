//! Reasoning effort, as clients ask for it, for templates that can do something about it.
//!
//! Many clients always say it, whatever model they talk to. What the template has no word for is left out, and the answer
//! says so in a header.

use serde_json::{Map, Value};

use crate::error::{ApiError, refused};

/// The efforts of all APIs. Which of them a model knows is between it and its template.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// The variable by which templates read the effort.
const EFFORT: &str = "reasoning_effort";
/// Those by which they read whether the model shall reason at all.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];
/// Variables about reasoning that clients set themselves, and their fields.
const VARIABLES: [(&str, &str); 6] = [
    ("enable_thinking", "chat_template_kwargs.enable_thinking"),
    ("thinking", "chat_template_kwargs.thinking"),
    (EFFORT, "chat_template_kwargs.reasoning_effort"),
    ("thinking_budget", "chat_template_kwargs.thinking_budget"),
    (
        "preserve_thinking",
        "chat_template_kwargs.preserve_thinking",
    ),
    ("clear_thinking", "chat_template_kwargs.clear_thinking"),
];

/// What the fields of a request say of reasoning.
#[derive(Debug, Default)]
pub struct ReasoningWishes(Vec<Wish>);

#[derive(Debug)]
struct Wish {
    /// As the client calls it.
    field: &'static str,
    says: Says,
}

#[derive(Debug)]
enum Says {
    Effort(&'static str),
    Reasons(bool),
}

impl ReasoningWishes {
    /// How much the model shall reason, as `field` says.
    ///
    /// # Errors
    /// 422 for a word that no API knows.
    pub fn effort(&mut self, field: &'static str, effort: Option<&str>) -> Result<(), ApiError> {
        let Some(effort) = effort else {
            return Ok(());
        };
        let known = EFFORTS.iter().find(|&&known| known == effort);
        let known = known.ok_or_else(|| none_of(field, &EFFORTS, effort))?;
        self.0.push(Wish {
            field,
            says: Says::Effort(known),
        });
        Ok(())
    }

    /// Whether the model shall reason, as the type in `field` says.
    ///
    /// # Errors
    /// 422 for a type that no API knows.
    pub fn thinking(&mut self, field: &'static str, kind: &str) -> Result<(), ApiError> {
        match kind {
            "enabled" | "adaptive" => self.reasons(field, true),
            "disabled" => self.reasons(field, false),
            _ => {
                let known = ["enabled", "adaptive", "disabled"];
                return Err(none_of(&format!("{field}.type"), &known, kind));
            }
        }
        Ok(())
    }

    /// Whether the model shall reason, as `field` says.
    pub fn reasons(&mut self, field: &'static str, reasons: bool) {
        self.0.push(Wish {
            field,
            says: Says::Reasons(reasons),
        });
    }

    /// Sets the variables of a template that `reads` some. What a client has set itself stays, if the template reads it.
    /// Returns the fields that come to nothing.
    ///
    /// # Errors
    /// 422 for a switch that is neither on nor off.
    pub(super) fn tell(
        self,
        variables: &mut Map<String, Value>,
        reads: impl Fn(&str) -> bool,
    ) -> Result<Vec<&'static str>, ApiError> {
        let mut ignored = Vec::new();
        for (name, field) in VARIABLES {
            let Some(value) = variables.get(name) else {
                continue;
            };
            if name == "enable_thinking" && !value.is_boolean() && !value.is_null() {
                return Err(refused(format_args!("`{field}` must be true or false")));
            }
            if value.is_null() || !reads(name) {
                ignored.extend((!value.is_null()).then_some(field));
                variables.shift_remove(name);
            }
        }
        for wish in self.0 {
            let mut set = |name: &str, value: Value| {
                let read = reads(name);
                if read {
                    variables.entry(name).or_insert(value);
                }
                read
            };
            let mut switch = |on: bool| SWITCHES.map(|name| set(name, on.into())).contains(&true);
            let obeyed = match wish.says {
                Says::Reasons(reasons) => switch(reasons),
                // Who wants no effort wants no reasoning.
                Says::Effort("none") => switch(false) | set(EFFORT, "none".into()),
                Says::Effort(effort) => set(EFFORT, effort.into()),
            };
            ignored.extend((!obeyed).then_some(wish.field));
        }
        Ok(ignored)
    }
}

fn none_of(field: &str, known: &[&str], given: &str) -> ApiError {
    refused(format_args!(
        "`{field}` must be one of `{}`. Given: `{given}`",
        known.join("`, `")
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What the variables become, and what is ignored.
    fn told(
        wishes: ReasoningWishes,
        variables: Value,
        reads: &[&str],
    ) -> (Value, Vec<&'static str>) {
        let mut variables = variables.as_object().cloned().unwrap();
        let reads = |name: &str| reads.contains(&name);
        let ignored = wishes.tell(&mut variables, reads).unwrap();
        (variables.into(), ignored)
    }

    fn effort(effort: &str) -> ReasoningWishes {
        let mut wishes = ReasoningWishes::default();
        wishes.effort("effort", Some(effort)).unwrap();
        wishes
    }

    #[test]
    fn a_template_is_told_what_it_reads_and_nothing_else() {
        let both = &["reasoning_effort", "enable_thinking"][..];
        for (word, reads, variables, ignored) in [
            ("low", &[][..], json!({}), &["effort"][..]),
            ("low", &["enable_thinking"], json!({}), &["effort"]),
            ("low", both, json!({"reasoning_effort": "low"}), &[]),
            ("none", &[], json!({}), &["effort"]),
            (
                "none",
                &["enable_thinking"],
                json!({"enable_thinking": false}),
                &[],
            ),
            (
                "none",
                both,
                json!({"enable_thinking": false, "reasoning_effort": "none"}),
                &[],
            ),
        ] {
            let expected = (variables, ignored.to_vec());
            assert_eq!(
                told(effort(word), json!({}), reads),
                expected,
                "{word} {reads:?}"
            );
        }
        let mut thinking = ReasoningWishes::default();
        thinking.thinking("thinking", "adaptive").unwrap();
        let expected = (json!({"thinking": true}), vec![]);
        assert_eq!(told(thinking, json!({}), &["thinking"]), expected);
    }

    #[test]
    fn what_clients_set_themselves_stays_where_it_is_read() {
        let given = json!({"enable_thinking": true, "other": 1});
        let expected = (given.clone(), vec![]);
        assert_eq!(
            told(effort("none"), given.clone(), &["enable_thinking"]),
            expected
        );
        let ignored = vec!["chat_template_kwargs.enable_thinking"];
        let nothing = ReasoningWishes::default();
        assert_eq!(told(nothing, given, &[]), (json!({"other": 1}), ignored));
        let nothing = ReasoningWishes::default();
        let unset = json!({"enable_thinking": null});
        assert_eq!(
            told(nothing, unset, &["enable_thinking"]),
            (json!({}), vec![])
        );
    }

    #[test]
    fn words_that_no_api_knows_are_refused() {
        let mut wishes = ReasoningWishes::default();
        let error = wishes.effort("reasoning.effort", Some("huge")).unwrap_err();
        assert!(
            error
                .body
                .error
                .contains("`reasoning.effort` must be one of `none`, ")
        );
        let error = wishes.thinking("thinking", "maybe").unwrap_err();
        assert!(
            error
                .body
                .error
                .contains("`thinking.type` must be one of `enabled`, ")
        );
        let mut variables = json!({"enable_thinking": "no"})
            .as_object()
            .cloned()
            .unwrap();
        assert!(wishes.tell(&mut variables, |_| true).is_err());
    }
}
