//! Content blocks of what a model writes: events of a stream, and the content of the finished message.
//!
//! One block is open at a time. The finished message is made of the very blocks that a stream would have sent.

use serde::Serialize;
use serde_json::{Value, json};
use text_generation_chat::arguments_object;
use text_generation_formats::Delta;

use crate::sse::Events;

/// Ids of calls begin so in this API. What follows is the id that the format of the model gives a call: templates are
/// told that alone when the call comes back, for some accept no other form.
pub const CALL_ID: &str = "toolu_";

/// The content of one message.
#[derive(Debug, Default)]
pub struct Blocks {
    finished: Vec<Value>,
    open: Option<Block>,
}

#[derive(Debug)]
enum Block {
    Text(String),
    Thinking(String),
    ToolUse {
        id: String,
        name: String,
        input: String,
    },
}

#[derive(Serialize)]
struct Start<'a> {
    r#type: &'static str,
    index: usize,
    content_block: &'a Value,
}

#[derive(Serialize)]
struct DeltaEvent<'a> {
    r#type: &'static str,
    index: usize,
    delta: BlockDelta<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum BlockDelta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

#[derive(Serialize)]
struct Stop {
    r#type: &'static str,
    index: usize,
}

impl Blocks {
    /// Takes what came next.
    pub fn delta(&mut self, delta: Delta, events: &mut impl Events) {
        match delta {
            Delta::Content(text) if text.is_empty() => {}
            Delta::Reasoning(text) if text.is_empty() => {}
            Delta::Content(text) => {
                if !matches!(self.open, Some(Block::Text(_))) {
                    self.begin(Block::Text(String::new()), events);
                }
                self.add(&text, events);
            }
            Delta::Reasoning(text) => {
                if !matches!(self.open, Some(Block::Thinking(_))) {
                    self.begin(Block::Thinking(String::new()), events);
                }
                self.add(&text, events);
            }
            Delta::ToolStart { id, name, .. } => {
                let (id, input) = (format!("{CALL_ID}{id}"), String::new());
                self.begin(Block::ToolUse { id, name, input }, events);
            }
            Delta::ToolArguments { fragment, .. } => self.add(&fragment, events),
            Delta::ToolEnd { .. } => self.end(events),
        }
    }

    /// Ends the block that is open.
    pub fn end(&mut self, events: &mut impl Events) {
        let Some(block) = self.open.take() else {
            return;
        };
        let index = self.finished.len();
        if let Block::Thinking(_) = block {
            let delta = BlockDelta::Signature {
                signature: SIGNATURE,
            };
            push_delta(index, delta, events);
        }
        let stop = Stop {
            r#type: "content_block_stop",
            index,
        };
        events.push("content_block_stop", &stop);
        self.finished.push(block.finished());
    }

    /// The blocks of the finished message.
    pub fn into_content(mut self) -> Vec<Value> {
        self.end(&mut ());
        self.finished
    }

    fn begin(&mut self, block: Block, events: &mut impl Events) {
        self.end(events);
        let start = Start {
            r#type: "content_block_start",
            index: self.finished.len(),
            content_block: &block.begun(),
        };
        events.push("content_block_start", &start);
        self.open = Some(block);
    }

    fn add(&mut self, text: &str, events: &mut impl Events) {
        let delta = match &mut self.open {
            Some(Block::Text(all)) => {
                all.push_str(text);
                BlockDelta::Text { text }
            }
            Some(Block::Thinking(all)) => {
                all.push_str(text);
                BlockDelta::Thinking { thinking: text }
            }
            Some(Block::ToolUse { input, .. }) => {
                input.push_str(text);
                BlockDelta::InputJson { partial_json: text }
            }
            None => return,
        };
        push_delta(self.finished.len(), delta, events);
    }
}

/// Clients send it back with the block. Nothing needs it here: the text itself comes back beside it.
const SIGNATURE: &str = "none";

fn push_delta(index: usize, delta: BlockDelta<'_>, events: &mut impl Events) {
    let event = DeltaEvent {
        r#type: "content_block_delta",
        index,
        delta,
    };
    events.push("content_block_delta", &event);
}

impl Block {
    /// As it is when nothing of it is there yet.
    fn begun(&self) -> Value {
        match self {
            Self::Text(_) => json!({"type": "text", "text": ""}),
            Self::Thinking(_) => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Self::ToolUse { id, name, .. } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": {}})
            }
        }
    }

    fn finished(self) -> Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Thinking(text) => {
                json!({"type": "thinking", "thinking": text, "signature": SIGNATURE})
            }
            Self::ToolUse { id, name, input } => {
                let input = arguments_object(&input.into());
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events as JSON.
    #[derive(Default)]
    struct Heard(Vec<Value>);

    impl Events for Heard {
        fn push(&mut self, kind: &'static str, event: &impl Serialize) {
            let event = serde_json::to_value(event).unwrap();
            assert_eq!(event["type"], kind);
            self.0.push(event);
        }
    }

    fn call(fragments: &[&str]) -> Vec<Delta> {
        let (index, id, name) = (0, "t1".to_owned(), "f".to_owned());
        let start = Delta::ToolStart { index, id, name };
        let fragments = fragments.iter().map(|&fragment| Delta::ToolArguments {
            index,
            fragment: fragment.to_owned(),
        });
        [start]
            .into_iter()
            .chain(fragments)
            .chain([Delta::ToolEnd { index }])
            .collect()
    }

    #[test]
    fn blocks_follow_each_other_and_the_message_holds_them() {
        let mut deltas = vec![
            Delta::Reasoning("hm".to_owned()),
            Delta::Content("a".to_owned()),
            Delta::Content("b".to_owned()),
        ];
        deltas.extend(call(&["{\"x\":", " 1}"]));
        let (mut blocks, mut heard) = (Blocks::default(), Heard::default());
        for delta in deltas {
            blocks.delta(delta, &mut heard);
        }
        let kinds: Vec<String> = heard
            .0
            .iter()
            .map(|event| {
                format!(
                    "{}{}",
                    event["index"],
                    event["delta"]["type"].as_str().unwrap_or("-")
                )
            })
            .collect();
        assert_eq!(
            kinds,
            [
                "0-",
                "0thinking_delta",
                "0signature_delta",
                "0-",
                "1-",
                "1text_delta",
                "1text_delta",
                "1-",
                "2-",
                "2input_json_delta",
                "2input_json_delta",
                "2-"
            ]
        );
        assert_eq!(
            Value::from(blocks.into_content()),
            json!([
                {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
                {"type": "text", "text": "ab"},
                {"type": "tool_use", "id": "toolu_t1", "name": "f", "input": {"x": 1}},
            ])
        );
    }

    #[test]
    fn input_that_was_cut_is_given_as_it_is() {
        for (fragments, input) in [
            (&["{\"x\": "][..], json!({"INVALID_JSON": "{\"x\": "})),
            (&[], json!({})),
        ] {
            let mut blocks = Blocks::default();
            for delta in call(fragments) {
                blocks.delta(delta, &mut ());
            }
            assert_eq!(blocks.into_content()[0]["input"], input);
        }
    }
}
