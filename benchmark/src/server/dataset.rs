//! Sessions from a JSONL file: one request a line.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::api::{Api, Prompt};
use super::workload::{Session, Turn};
use crate::error::{BenchmarkError, Result};

#[derive(Deserialize)]
struct Line {
    prompt: Option<Value>,
    messages: Option<Value>,
    #[serde(alias = "max_tokens", alias = "max_new_tokens")]
    output_length: u32,
}

/// Reads lines of `{"prompt": text or ids, "output_length": n}` or `{"messages": [...], "output_length": n}`.
pub fn read(path: &Path, api: Api) -> Result<Vec<Session>> {
    let text = std::fs::read_to_string(path).map_err(|error| BenchmarkError::file(path, error))?;
    let sessions = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| {
            parse(line, api).map_err(|message| {
                BenchmarkError::file(path, format!("line {}: {message}", index + 1))
            })
        })
        .collect::<Result<Vec<_>>>()?;
    if sessions.is_empty() {
        return Err(BenchmarkError::file(path, "the file has no request"));
    }
    Ok(sessions)
}

fn parse(line: &str, api: Api) -> std::result::Result<Session, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if line.output_length == 0 {
        return Err("`output_length` must be at least 1".to_owned());
    }
    let prompt = match (line.prompt, line.messages) {
        (Some(Value::String(text)), None) => Prompt::Text(text),
        (Some(Value::Array(ids)), None) if api.takes_ids() => Prompt::Ids(token_ids(&ids)?),
        (Some(Value::Array(_)), None) => {
            return Err("a `prompt` of token ids needs --api openai".to_owned());
        }
        (None, Some(messages @ Value::Array(_))) if api == Api::OpenaiChat => {
            Prompt::Messages(messages)
        }
        (None, Some(_)) => return Err("`messages` need --api openai-chat".to_owned()),
        _ => return Err("write `prompt` (a text or token ids) or `messages`".to_owned()),
    };
    Ok(Session {
        turns: vec![Turn {
            prompt,
            output_tokens: line.output_length,
            think: Duration::ZERO,
        }],
    })
}

fn token_ids(values: &[Value]) -> std::result::Result<Vec<u32>, String> {
    let ids = values
        .iter()
        .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
        .collect::<Option<Vec<_>>>();
    ids.filter(|ids| !ids.is_empty())
        .ok_or_else(|| "`prompt` must be a text or a list of token ids".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str, api: Api) -> String {
        parse(line, api).unwrap_err()
    }

    #[test]
    fn each_kind_of_prompt_is_read() {
        let prompt = |line, api| parse(line, api).unwrap().turns.remove(0).prompt;
        assert_eq!(
            prompt(r#"{"prompt": "a", "max_tokens": 3}"#, Api::Tgi),
            Prompt::Text("a".to_owned())
        );
        assert_eq!(
            prompt(r#"{"prompt": [1, 2], "output_length": 3}"#, Api::Openai),
            Prompt::Ids(vec![1, 2])
        );
        let chat = r#"{"messages": [{"role": "user", "content": "a"}], "output_length": 3}"#;
        assert!(matches!(prompt(chat, Api::OpenaiChat), Prompt::Messages(_)));
    }

    #[test]
    fn bad_lines_say_what_to_write() {
        assert!(error(r#"{"prompt": "a", "output_length": 0}"#, Api::Tgi).contains("at least 1"));
        assert!(error(r#"{"prompt": [1], "output_length": 1}"#, Api::Tgi).contains("--api openai"));
        assert!(error(r#"{"prompt": [], "output_length": 1}"#, Api::Openai).contains("token ids"));
        assert!(error(r#"{"prompt": "a"}"#, Api::Tgi).contains("output_length"));
        assert!(error(r#"{"output_length": 1}"#, Api::Tgi).contains("`prompt`"));
    }
}
