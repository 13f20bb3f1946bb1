use super::*;
use crate::routes::responses::tools::Tools;

/// Events as JSON, numbered as a stream would number them.
#[derive(Default)]
struct Heard(Vec<Value>);

impl Events for Heard {
    fn push(&mut self, kind: &'static str, event: &impl Serialize) {
        let mut event = serde_json::to_value(event).unwrap();
        event["type"] = kind.into();
        self.0.push(event);
    }
}

fn text(make: fn(String) -> Delta, pieces: &[&str]) -> Vec<Delta> {
    pieces.iter().map(|&piece| make(piece.to_owned())).collect()
}

fn call(index: usize, name: &str, fragments: &[&str]) -> Vec<Delta> {
    let start = Delta::ToolStart {
        index,
        id: format!("call_{index}"),
        name: name.to_owned(),
    };
    let fragments = fragments.iter().map(|&fragment| Delta::ToolArguments {
        index,
        fragment: fragment.to_owned(),
    });
    let deltas = [start].into_iter().chain(fragments);
    deltas.chain([Delta::ToolEnd { index }]).collect()
}

fn written(deltas: Vec<Delta>) -> (Output, Heard) {
    let tools = json!([
        {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "f"}]},
        {"type": "custom", "name": "patch"},
    ]);
    let tools = Tools::read(tools.as_array().cloned(), None).unwrap();
    let mut output = Output::new(tools.names, Some(Seal::new(b"key")), None);
    let mut heard = Heard::default();
    for delta in deltas {
        output.delta(delta, &mut heard);
    }
    output.end("incomplete", &mut heard);
    (output, heard)
}

/// Types without their first word, and the place.
fn outline(heard: &Heard) -> Vec<String> {
    let line = |event: &Value| {
        let kind = event["type"].as_str().unwrap().strip_prefix("response.");
        format!("{} {}", event["output_index"], kind.unwrap())
    };
    heard.0.iter().map(line).collect()
}

#[test]
fn every_item_has_its_events_in_order() {
    let mut deltas = text(Delta::Reasoning, &["h", "m"]);
    deltas.extend(text(Delta::Content, &["a", "", "b"]));
    deltas.extend(call(0, "ns__f", &["{\"x\":", "1}"]));
    deltas.extend(call(1, "patch", &["{\"input\": \"a\\nb\"}"]));
    let (output, heard) = written(deltas);
    assert_eq!(
        outline(&heard),
        [
            "0 output_item.added",
            "0 content_part.added",
            "0 reasoning_text.delta",
            "0 reasoning_text.delta",
            "0 reasoning_text.done",
            "0 content_part.done",
            "0 output_item.done",
            "1 output_item.added",
            "1 content_part.added",
            "1 output_text.delta",
            "1 output_text.delta",
            "1 output_text.done",
            "1 content_part.done",
            "1 output_item.done",
            "2 output_item.added",
            "2 function_call_arguments.delta",
            "2 function_call_arguments.delta",
            "2 function_call_arguments.done",
            "2 output_item.done",
            "3 output_item.added",
            "3 custom_tool_call_input.delta",
            "3 custom_tool_call_input.done",
            "3 output_item.done",
        ]
    );
    let [reasoning, message, function, custom] = output.items() else {
        panic!("{:?}", output.items());
    };
    assert_eq!(reasoning["content"][0]["text"], "hm");
    let sealed = reasoning["encrypted_content"].as_str().unwrap();
    assert_eq!(Seal::new(b"key").open(sealed).as_deref(), Some("hm"));
    assert_eq!(message["content"][0]["text"], "ab");
    assert_eq!(message["role"], "assistant");
    assert_eq!(
        [
            &function["namespace"],
            &function["name"],
            &function["arguments"],
            &function["call_id"]
        ],
        ["ns", "f", "{\"x\":1}", "call_0"]
    );
    assert_eq!([&custom["name"], &custom["input"]], ["patch", "a\nb"]);
}

#[test]
fn ids_and_texts_of_events_are_those_of_the_items() {
    let mut deltas = text(Delta::Content, &["a", "b"]);
    deltas.extend(call(0, "g", &["{}"]));
    let (output, heard) = written(deltas);
    for event in &heard.0 {
        let item = &output.items()[event["output_index"].as_u64().unwrap() as usize];
        let id = event.get("item_id").unwrap_or(&event["item"]["id"]);
        assert_eq!(id, &item["id"]);
        if event["type"] == "response.output_item.done" {
            assert_eq!(&event["item"], item);
        }
    }
    let done = heard
        .0
        .iter()
        .find(|event| event["type"] == "response.output_text.done");
    assert_eq!(done.unwrap()["text"], "ab");
}

#[test]
fn what_was_cut_is_incomplete() {
    let mut deltas = call(0, "g", &["{\"x\": "]);
    deltas.pop();
    let (output, _) = written(deltas);
    assert_eq!(output.items()[0]["status"], "incomplete");
    assert_eq!(output.items()[0]["arguments"], "{\"x\": ");
}
