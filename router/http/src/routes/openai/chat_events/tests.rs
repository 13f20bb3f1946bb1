//! The chunks of a chat, judged by a machine that knows their order as OpenAI's reference has it:
//!
//! ```text
//! role  ( reasoning | content | call ( arguments )* )*  finish_reason  usage  [DONE]
//! ```

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::conversation::{Answer, Call, Played, encoded};

/// What came last.
#[derive(Debug, PartialEq)]
enum State {
    Nothing,
    /// The role, and whether its content is null: then a call follows.
    Role(bool),
    /// Reasoning or content.
    Text,
    /// A call or a piece of its arguments.
    Call,
    Finish,
    Usage,
}

/// What the chunks say, if they come in the order of the API.
fn judge(chunks: &[Value]) -> Result<(Answer, String), String> {
    let (mut state, mut answer, mut finish) = (State::Nothing, Answer::default(), String::new());
    for chunk in chunks {
        let wrong = |state: &State| Err(format!("after {state:?}: {chunk}"));
        if ["id", "created", "model"]
            .iter()
            .any(|key| chunk[key] != chunks[0][key])
            || chunk["object"] != "chat.completion.chunk"
        {
            return wrong(&state);
        }
        let Some(choice) = chunk["choices"].get(0) else {
            if state != State::Finish || !chunk["usage"].is_object() {
                return wrong(&state);
            }
            state = State::Usage;
            continue;
        };
        let delta = choice["delta"].as_object().ok_or("no delta")?;
        let keys: Vec<&str> = delta.keys().map(String::as_str).collect();
        let text = |key: &str| delta[key].as_str().unwrap_or_default();
        if let State::Role(of_call) = state
            && of_call != (keys == ["tool_calls"])
        {
            return wrong(&state);
        }
        state = match (state, keys.as_slice()) {
            (State::Nothing, ["role", "content"]) if text("content").is_empty() => {
                State::Role(delta["content"].is_null())
            }
            (state @ (State::Nothing | State::Finish | State::Usage), _) => return wrong(&state),
            (_, []) => {
                finish = choice["finish_reason"]
                    .as_str()
                    .ok_or("no reason")?
                    .to_owned();
                State::Finish
            }
            (state, _) if !choice["finish_reason"].is_null() => return wrong(&state),
            (_, ["reasoning_content"]) => {
                answer.reasoning.push_str(text("reasoning_content"));
                State::Text
            }
            (_, ["content"]) => {
                answer.content.push_str(text("content"));
                State::Text
            }
            (state, ["tool_calls"]) => {
                let call = &delta["tool_calls"][0];
                let (id, function) = (call["id"].as_str(), &call["function"]);
                let arguments = function["arguments"].as_str().ok_or("no arguments")?;
                match (id, answer.calls.len()) {
                    (Some(id), next) if call["index"] == next && arguments.is_empty() => {
                        answer.calls.push(Call {
                            id: id.to_owned(),
                            name: function["name"].as_str().ok_or("no name")?.to_owned(),
                            arguments: String::new(),
                        });
                    }
                    (None, begun) if state == State::Call && call["index"] == json!(begun - 1) => {
                        answer.calls[begun - 1].arguments.push_str(arguments);
                    }
                    _ => return wrong(&state),
                }
                State::Call
            }
            (state, _) => return wrong(&state),
        };
    }
    match state {
        State::Usage => Ok((answer, finish)),
        state => Err(format!("ends after {state:?}")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn chunks_come_in_order_and_say_the_whole_answer(played in Played::any()) {
        let identity = Identity::new("chatcmpl", "m".to_owned());
        let encoder = ChatEvents::new(&identity, 1, RequestId::new("id".parse().unwrap()), None, true);
        let written = encoded(encoder, played.events());
        let chunks = written.strip_suffix("data: [DONE]\n\n").unwrap().split_terminator("\n\n");
        let chunks: Vec<Value> = chunks
            .map(|chunk| serde_json::from_str(chunk.strip_prefix("data: ").unwrap()).unwrap())
            .collect();
        let (deltas, end) = played.whole();
        let expected = (Answer::from_iter(deltas), answer::end_reason(end.reason).to_owned());
        prop_assert_eq!(judge(&chunks), Ok(expected));
    }
}
