//! Output items of what a model writes: events of a stream, and the `output` of the finished response.
//!
//! One item is open at a time. The finished response holds the very items that a stream would have sent, ids included.

use serde::Serialize;
use serde_json::{Value, json};
use text_generation_formats::Delta;
use uuid::Uuid;

use super::custom_input::CustomInput;
use super::tools::ToolNames;
use crate::item_memory::TenantItems;
use crate::seal::Seal;
use crate::sse::{EventBuffer, Events};

/// Writes events with their numbers.
#[derive(Debug)]
pub struct Numbered<'a> {
    /// Of the next event.
    pub sequence_number: &'a mut u64,
    pub out: &'a mut EventBuffer,
}

impl Events for Numbered<'_> {
    fn push(&mut self, kind: &'static str, event: &impl Serialize) {
        #[derive(Serialize)]
        struct Event<'a, T> {
            r#type: &'static str,
            sequence_number: u64,
            #[serde(flatten)]
            event: &'a T,
        }
        let sequence_number = *self.sequence_number;
        *self.sequence_number += 1;
        let event = Event {
            r#type: kind,
            sequence_number,
            event,
        };
        self.out.named(kind, &event);
    }
}

/// The output of one response.
#[derive(Debug)]
pub struct Output {
    names: ToolNames,
    /// Set when clients want reasoning that they can send back without reading it.
    seal: Option<Seal>,
    /// Where items are kept for the next turn, which may name them by their ids.
    remembered: Option<TenantItems>,
    finished: Vec<Value>,
    open: Option<Item>,
}

#[derive(Debug)]
struct Item {
    id: String,
    kind: Kind,
    /// What there is of it.
    text: String,
}

#[derive(Debug)]
enum Kind {
    Reasoning,
    Message,
    FunctionCall {
        call_id: String,
        namespace: Option<String>,
        name: String,
    },
    CustomCall {
        call_id: String,
        namespace: Option<String>,
        name: String,
        input: CustomInput,
    },
}

/// The names of the events of an item's text.
struct Names {
    delta: &'static str,
    done: &'static str,
    /// The key of the whole text.
    key: &'static str,
    /// Whether the item has parts, of which this is the first.
    has_parts: bool,
}

/// The place of an event, and what it says.
#[derive(Serialize)]
struct At<'a, T> {
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
    #[serde(flatten)]
    said: T,
}

#[derive(Serialize)]
struct Said<'a> {
    delta: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<[(); 0]>,
}

#[derive(Serialize)]
struct ItemEvent<'a> {
    output_index: usize,
    item: &'a Value,
}

impl Output {
    pub fn new(names: ToolNames, seal: Option<Seal>, remembered: Option<TenantItems>) -> Self {
        Self {
            names,
            seal,
            remembered,
            finished: Vec::new(),
            open: None,
        }
    }

    /// Takes what came next.
    pub fn delta(&mut self, delta: Delta, events: &mut impl Events) {
        match delta {
            Delta::Content(text) if text.is_empty() => {}
            Delta::Reasoning(text) if text.is_empty() => {}
            Delta::Content(text) => {
                if !self.is_open(|kind| matches!(kind, Kind::Message)) {
                    self.begin("msg", Kind::Message, events);
                }
                self.add(&text, events);
            }
            Delta::Reasoning(text) => {
                if !self.is_open(|kind| matches!(kind, Kind::Reasoning)) {
                    self.begin("rs", Kind::Reasoning, events);
                }
                self.add(&text, events);
            }
            Delta::ToolStart { id, name, .. } => self.begin_call(id, &name, events),
            Delta::ToolArguments { fragment, .. } => self.add(&fragment, events),
            Delta::ToolEnd { .. } => self.end("completed", events),
        }
    }

    /// Ends the item that is open, which is `completed` or `incomplete`.
    pub fn end(&mut self, status: &'static str, events: &mut impl Events) {
        let Some(item) = self.open.take() else {
            return;
        };
        let output_index = self.finished.len();
        let names = item.kind.names();
        let at = |said| At {
            item_id: &item.id,
            output_index,
            content_index: names.has_parts.then_some(0),
            said,
        };
        let mut done = serde_json::Map::new();
        done.insert(names.key.to_owned(), item.text.as_str().into());
        match &item.kind {
            Kind::Message => {
                done.insert("logprobs".to_owned(), json!([]));
            }
            Kind::FunctionCall { name, .. } => {
                done.insert("name".to_owned(), name.as_str().into());
            }
            Kind::Reasoning | Kind::CustomCall { .. } => {}
        }
        events.push(names.done, &at(done));
        if let Some(part) = item.part(&item.text) {
            let said = [("part".to_owned(), part)].into_iter().collect();
            events.push("response.content_part.done", &at(said));
        }
        let value = item.value(status, self.seal.as_ref());
        self.remember(&value);
        let event = ItemEvent {
            output_index,
            item: &value,
        };
        events.push("response.output_item.done", &event);
        self.finished.push(value);
    }

    fn remember(&self, item: &Value) {
        if let Some(remembered) = &self.remembered {
            remembered.keep(item);
        }
    }

    /// The items that have ended.
    pub fn items(&self) -> &[Value] {
        &self.finished
    }

    fn is_open(&self, kind: impl Fn(&Kind) -> bool) -> bool {
        self.open.as_ref().is_some_and(|item| kind(&item.kind))
    }

    fn begin_call(&mut self, call_id: String, name: &str, events: &mut impl Events) {
        let client = self.names.client(name);
        let (namespace, name) = (client.namespace, client.name);
        if client.custom {
            let input = CustomInput::default();
            let kind = Kind::CustomCall {
                call_id,
                namespace,
                name,
                input,
            };
            self.begin("ctc", kind, events);
        } else {
            let kind = Kind::FunctionCall {
                call_id,
                namespace,
                name,
            };
            self.begin("fc", kind, events);
        }
    }

    fn begin(&mut self, prefix: &str, kind: Kind, events: &mut impl Events) {
        self.end("completed", events);
        let item = Item {
            id: format!("{prefix}_{}", Uuid::new_v4().simple()),
            kind,
            text: String::new(),
        };
        let output_index = self.finished.len();
        let event = ItemEvent {
            output_index,
            item: &item.begun(),
        };
        events.push("response.output_item.added", &event);
        if let Some(part) = item.part("") {
            let at = At {
                item_id: &item.id,
                output_index,
                content_index: Some(0),
                said: json!({ "part": part }),
            };
            events.push("response.content_part.added", &at);
        }
        self.open = Some(item);
    }

    fn add(&mut self, text: &str, events: &mut impl Events) {
        let Some(item) = &mut self.open else {
            return;
        };
        let read;
        let delta = match &mut item.kind {
            Kind::CustomCall { input, .. } => {
                read = input.push(text);
                read.as_str()
            }
            _ => text,
        };
        if delta.is_empty() {
            return;
        }
        item.text.push_str(delta);
        let names = item.kind.names();
        let at = At {
            item_id: &item.id,
            output_index: self.finished.len(),
            content_index: names.has_parts.then_some(0),
            said: Said {
                delta,
                logprobs: matches!(item.kind, Kind::Message).then_some([]),
            },
        };
        events.push(names.delta, &at);
    }
}

/// A client that ends a stream, or loses it, has the ids of what it was told of.
impl Drop for Output {
    fn drop(&mut self) {
        if let Some(item) = self.open.take() {
            self.remember(&item.value("incomplete", None));
        }
    }
}

impl Kind {
    fn names(&self) -> Names {
        let (delta, done, key) = match self {
            Self::Reasoning => (
                "response.reasoning_text.delta",
                "response.reasoning_text.done",
                "text",
            ),
            Self::Message => (
                "response.output_text.delta",
                "response.output_text.done",
                "text",
            ),
            Self::FunctionCall { .. } => (
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "arguments",
            ),
            Self::CustomCall { .. } => (
                "response.custom_tool_call_input.delta",
                "response.custom_tool_call_input.done",
                "input",
            ),
        };
        Names {
            delta,
            done,
            key,
            has_parts: matches!(self, Self::Reasoning | Self::Message),
        }
    }
}

impl Item {
    /// Its part with this text, where it has parts.
    fn part(&self, text: &str) -> Option<Value> {
        match self.kind {
            Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": text})),
            Kind::Message => Some(
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
            ),
            Kind::FunctionCall { .. } | Kind::CustomCall { .. } => None,
        }
    }

    /// As it is when nothing of it is there yet.
    fn begun(&self) -> Value {
        let mut value = self.value("in_progress", None);
        if matches!(self.kind, Kind::Reasoning | Kind::Message) {
            value["content"] = json!([]);
        }
        value
    }

    fn value(&self, status: &'static str, seal: Option<&Seal>) -> Value {
        let (id, text) = (&self.id, &self.text);
        let mut value = match &self.kind {
            Kind::Reasoning => {
                let sealed = seal.map(|seal| seal.close(text));
                json!({
                    "id": id, "type": "reasoning", "status": status, "summary": [], "content": [self.part(text)],
                    "encrypted_content": sealed,
                })
            }
            Kind::Message => {
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": [self.part(text)]})
            }
            Kind::FunctionCall { call_id, name, .. } => {
                json!({"id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name, "arguments": text})
            }
            Kind::CustomCall { call_id, name, .. } => {
                json!({"id": id, "type": "custom_tool_call", "status": status, "call_id": call_id, "name": name, "input": text})
            }
        };
        if let Kind::FunctionCall { namespace, .. } | Kind::CustomCall { namespace, .. } =
            &self.kind
            && let Some(namespace) = namespace
        {
            value["namespace"] = namespace.as_str().into();
        }
        value
    }
}

#[cfg(test)]
mod tests;
