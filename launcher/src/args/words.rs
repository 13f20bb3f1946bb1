//! Translation of the command line before it is parsed: flags of other servers become ours.

use std::ffi::OsString;

use super::others::{Answer, answer};
use super::spelling::Spelling;

/// The command line in our words.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Words {
    pub words: Vec<OsString>,
    pub spelling: Spelling,
    /// Flags of others that change nothing, each with the reason.
    pub notes: Vec<String>,
    /// Flags of others that we lack, each with what to do instead. Where there are some, nothing can be started.
    pub refused: Vec<String>,
}

/// Reads the words of the command line, of which the first is the name of the program.
pub fn in_our_words(given: impl IntoIterator<Item = OsString>) -> Words {
    let mut said = Words::default();
    let mut rest = given.into_iter().peekable();
    while let Some(word) = rest.next() {
        match word.to_str() {
            // What follows is no flag, whatever it looks like.
            Some("--") => {
                said.words.push(word);
                said.words.extend(rest);
                break;
            }
            Some(text) if text.starts_with('-') && !said.words.is_empty() => {
                let (name, value) = text
                    .split_once('=')
                    .or_else(|| with_number(text))
                    .map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
                let next = rest.next_if(|next| {
                    value.is_none() && is_switch(&dashed(name)) && truth(next.to_str()).is_some()
                });
                let next = next.and_then(|next| next.into_string().ok());
                let value = match answer(&dashed(name)) {
                    Some(Answer::List(_)) => {
                        let follows = |next: &OsString| {
                            next.to_str().is_some_and(|next| !next.starts_with('-'))
                        };
                        let more = std::iter::from_fn(|| rest.next_if(follows));
                        let more = more.filter_map(|word| word.into_string().ok());
                        let all: Vec<String> = value.into_iter().chain(more).collect();
                        Some(all.join(","))
                    }
                    _ => value.or(next),
                };
                said.flag(name, value);
            }
            _ => said.words.push(word),
        }
    }
    said
}

impl Words {
    /// Reads a flag as it was typed, with the value that belongs to it for certain.
    fn flag(&mut self, typed: &str, value: Option<String>) {
        let name = dashed(typed);
        let whole = |name: &str| {
            value
                .as_ref()
                .map_or(name.to_owned(), |value| format!("{name}={value}"))
        };
        let (answer, is_opposite) = match opposite(&name) {
            Some(answer) => (Some(answer), true),
            None => (answer(&name), false),
        };
        let given = value.as_deref().map(|value| truth(Some(value)));
        let wanted = !is_opposite && given.flatten().unwrap_or(true);
        match answer {
            Some(answer) if stands_alone(answer) && given.is_some_and(|truth| truth.is_none()) => {
                let refusal = format!("{}: it takes no value but true or false", whole(typed));
                self.refused.push(refusal);
            }
            Some(Answer::List(ours)) if value.as_deref().is_some_and(has_json) => {
                let remedy = format!("write name=folder, not JSON; {ours} says the same");
                self.refused.push(format!("{typed}: {remedy}"));
            }
            Some(Answer::Alias(ours) | Answer::List(ours)) => {
                self.spelling.add(ours, typed);
                self.words.push(whole(ours).into());
            }
            Some(Answer::Switch { on, off }) => {
                for word in if wanted { on } else { off } {
                    self.spelling.add(word, typed);
                    self.words.push(word.into());
                }
            }
            Some(Answer::Needless(reason)) if wanted => {
                self.notes.push(format!("{typed} has no effect: {reason}"));
            }
            Some(Answer::Needless(reason)) => {
                let refusal = format!("{}: leave it out; {reason}", whole(typed));
                self.refused.push(refusal);
            }
            Some(Answer::Instead(remedy)) => self.refused.push(format!("{typed}: {remedy}")),
            None => self.words.push(whole(&name).into()),
        }
    }
}

/// The short name of another server's flag and the number that stands behind it, as in `-tp2`.
fn with_number(word: &str) -> Option<(&str, &str)> {
    let start = word.find(|character: char| character.is_ascii_digit())?;
    let (name, number) = word.split_at(start);
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let is_known = !name.starts_with("--") && answer(name).is_some();
    (is_number && is_known).then_some((name, number))
}

/// A flag's name as ours are written: other servers take `_` for `-`.
fn dashed(name: &str) -> String {
    if name.starts_with("--") {
        name.replace('_', "-")
    } else {
        name.to_owned()
    }
}

/// What becomes of the switch whose opposite, which begins with `--no-`, this is.
fn opposite(name: &str) -> Option<Answer> {
    let positive = name
        .strip_prefix("--no-")
        .filter(|_| answer(name).is_none());
    let found = answer(&format!("--{}", positive?));
    found.filter(|answer| stands_alone(*answer))
}

/// Whether the flag, of another server, stands without a value.
fn is_switch(name: &str) -> bool {
    opposite(name).is_some() || answer(name).is_some_and(stands_alone)
}

fn stands_alone(answer: Answer) -> bool {
    matches!(answer, Answer::Switch { .. } | Answer::Needless(_))
}

/// Whether one of the values, with commas between them, is an object.
fn has_json(values: &str) -> bool {
    values.split(',').any(|value| value.starts_with('{'))
}

fn truth(word: Option<&str>) -> Option<bool> {
    match word?.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(line: &str) -> Words {
        in_our_words(line.split(' ').map(OsString::from))
    }

    fn words(line: &str) -> String {
        let said = ours(line);
        assert_eq!(said.refused, [""; 0], "{line}");
        let words = said.words.iter().map(|word| word.to_str().unwrap());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn flags_of_others_become_ours() {
        for (theirs, expected) in [
            (
                "l --model a/b -tp 2 --host ::",
                "l --model-id a/b --num-shard 2 --hostname ::",
            ),
            ("l --tensor-parallel-size=2", "l --num-shard=2"),
            ("l -tp2 -p8000", "l --num-shard=2 -p8000"),
            (
                "l --max_model_len 9 -tp=2 -q fp8",
                "l --max-total-tokens 9 --num-shard=2 --quantize fp8",
            ),
            ("l --enable-prefix-caching", "l --prefix-caching=true"),
            (
                "l --no-enable-prefix-caching --port 1",
                "l --prefix-caching=false --port 1",
            ),
            (
                "l --enable-chunked-prefill False -p 1",
                "l --prefill-chunking=false -p 1",
            ),
            (
                "l --enable-chunked-prefill=true",
                "l --prefill-chunking=true",
            ),
            (
                "l --disable-radix-cache --enforce-eager",
                "l --prefix-caching=false --cuda-graphs=0",
            ),
            (
                "l --enable-lora --lora-modules a=/x b=org/b --port 1",
                "l --lora-adapters=a=/x,b=org/b --port 1",
            ),
            ("l --lora-paths=a=/x b=/y", "l --lora-adapters=a=/x,b=/y"),
            ("l --no-enforce-eager --no-enable-log-requests", "l"),
            ("l --enable-auto-tool-choice", "l"),
            ("l serve a/b --port 8000", "l serve a/b --port 8000"),
            (
                "l --model-id a=b --api_key=x_y",
                "l --model-id a=b --api-key=x_y",
            ),
            ("l -- --tp", "l -- --tp"),
            ("l --no-such-flag", "l --no-such-flag"),
        ] {
            assert_eq!(words(theirs), expected);
        }
    }

    #[test]
    fn adapters_as_json_are_refused_with_the_form_to_write() {
        let said = ours("l --lora-modules {\"name\":\"a\",\"path\":\"/x\"}");
        assert!(said.refused[0].starts_with("--lora-modules: write name=folder"));
    }

    #[test]
    fn what_changes_nothing_is_noted_and_what_is_lacking_refused() {
        let said = ours("l --enable-auto-tool-choice");
        assert!(said.notes[0].starts_with("--enable-auto-tool-choice has no effect: "));
        let said = ours(
            "l --swap_space 4 --seed=0 -pp2 --no-enable-auto-tool-choice --enforce-eager=maybe",
        );
        let names: Vec<&str> = said
            .refused
            .iter()
            .map(|text| text.split(": ").next().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "--swap_space",
                "--seed",
                "-pp",
                "--no-enable-auto-tool-choice",
                "--enforce-eager=maybe",
            ]
        );
    }
}
