//! The events of a message, judged by a machine that knows their order as Anthropic's reference has it:
//!
//! ```text
//! message_start  ( content_block_start  content_block_delta*  content_block_stop )*  message_delta  message_stop
//! ```

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::conversation::{Played, encoded};

/// What came last.
#[derive(Debug)]
enum State {
    Nothing,
    /// `message_start`, or the end of a block.
    Between,
    /// The beginning of this block, and deltas that filled it; the input of a tool as text.
    Block(Value, String),
    /// Why the message ended.
    Delta(Value),
    Ended(Value),
}

/// The content and the end of a message, if its events come in the order of the API.
fn judge(events: &[Value]) -> Result<(Vec<Value>, Value), String> {
    let (mut state, mut blocks) = (State::Nothing, Vec::new());
    for event in events {
        let kind = event["type"].as_str().unwrap_or_default();
        let here = event["index"] == blocks.len();
        state = match (state, kind) {
            (State::Nothing, "message_start")
                if event["message"]["content"] == json!([])
                    && event["message"]["role"] == "assistant" =>
            {
                State::Between
            }
            (State::Between, "content_block_start") if here => {
                State::Block(event["content_block"].clone(), String::new())
            }
            (State::Block(mut block, mut input), "content_block_delta") if here => {
                let delta = &event["delta"];
                let kinds = [&block["type"], &delta["type"]].map(|kind| kind.as_str());
                let key = match kinds.map(Option::unwrap_or_default) {
                    ["text", "text_delta"] => "text",
                    // Nothing may follow the signature.
                    ["thinking", "thinking_delta"] if block["signature"] == "" => "thinking",
                    ["thinking", "signature_delta"] if block["signature"] == "" => "signature",
                    ["tool_use", "input_json_delta"] => "partial_json",
                    _ => return Err(format!("within {block}: {event}")),
                };
                let text = delta[key].as_str().ok_or("no text")?;
                if key == "partial_json" {
                    input.push_str(text);
                } else {
                    let before = block[key].as_str().ok_or("no text to add to")?;
                    block[key] = format!("{before}{text}").into();
                }
                State::Block(block, input)
            }
            (State::Block(mut block, input), "content_block_stop") if here => {
                if block["type"] == "thinking" && block["signature"] == "" {
                    return Err(format!("without a signature: {block}"));
                }
                if block["type"] == "tool_use" && !input.trim().is_empty() {
                    let read = serde_json::from_str(&input);
                    block["input"] = read.unwrap_or_else(|_| json!({"INVALID_JSON": input}));
                }
                blocks.push(block);
                State::Between
            }
            (State::Between, "message_delta") if event["usage"].is_object() => {
                State::Delta(event["delta"].clone())
            }
            (State::Delta(end), "message_stop") => State::Ended(end),
            (state, _) => return Err(format!("after {state:?}: {event}")),
        };
    }
    match state {
        State::Ended(end) => Ok((blocks, end)),
        state => Err(format!("ends after {state:?}")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn events_come_in_order_and_say_the_whole_message(played in Played::any()) {
        let head = || MessageHead::new("m".to_owned(), 7);
        let encoder = MessageEvents::new(head(), RequestId::new("id".parse().unwrap()));
        let written = encoded(encoder, played.events());
        let events = written.split_terminator("\n\n").map(|event| {
            let (name, data) = event.split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
            data
        });
        let events: Vec<Value> = events.collect();
        let (content, stopped) = judge(&events).map_err(TestCaseError::fail)?;
        let (deltas, end) = played.whole();
        let mut blocks = Blocks::default();
        for delta in deltas {
            blocks.delta(delta, &mut ());
        }
        let whole = head().ended(&end, blocks);
        prop_assert_eq!(Value::from(content), whole["content"].clone());
        prop_assert_eq!(&stopped["stop_reason"], &whole["stop_reason"]);
        prop_assert_eq!(&stopped["stop_sequence"], &whole["stop_sequence"]);
        let calls = |kind: &Value| kind == "tool_use";
        prop_assert!(!calls(&stopped["stop_reason"]) || whole["content"].as_array().unwrap().iter().any(|block| calls(&block["type"])));
    }
}
