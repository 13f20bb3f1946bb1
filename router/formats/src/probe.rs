//! A conversation with one tool call, by which a chat template shows how calls are written.

use serde_json::{Map, Value, json};

/// The name of the tool that the probe calls.
pub(crate) const NAME: &str = "look_up_probe";
/// What the user says in the probe: what follows it in the rendered text is the call.
pub(crate) const QUESTION: &str = "ab12cd34ef question";

/// Messages and tools to render with a chat template, without a generation prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    pub messages: Vec<Value>,
    pub tools: Vec<Value>,
}

/// The arguments of the probe's call.
pub(crate) fn arguments() -> Map<String, Value> {
    let mut arguments = Map::new();
    arguments.insert("place".to_owned(), "Basel 4057".into());
    arguments.insert("days".to_owned(), 3.into());
    arguments
}

/// Conversations of which a template may refuse some: families want ids of calls in different forms, and some take
/// arguments as JSON text only.
pub fn probes() -> Vec<Probe> {
    let object = Value::Object(arguments());
    let text = Value::String(object.to_string());
    let ids = ["abcdefghi".to_owned(), format!("functions.{NAME}:0")];
    ids.iter()
        .flat_map(|id| [probe(id, &object), probe(id, &text)])
        .collect()
}

fn probe(id: &str, arguments: &Value) -> Probe {
    let call =
        json!({"id": id, "type": "function", "function": {"name": NAME, "arguments": arguments}});
    let parameters = json!({
        "type": "object",
        "properties": {
            "place": {"type": "string", "description": "A place."},
            "days": {"type": "integer", "description": "How many days."},
        },
        "required": ["place", "days"],
    });
    let function =
        json!({"name": NAME, "description": "Looks something up.", "parameters": parameters});
    Probe {
        messages: vec![
            json!({"role": "user", "content": QUESTION}),
            json!({"role": "assistant", "content": "", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": id, "name": NAME, "content": "sunny"}),
        ],
        tools: vec![json!({"type": "function", "function": function})],
    }
}
