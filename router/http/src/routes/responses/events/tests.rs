//! The events of a response, judged by a machine that knows their order as OpenAI's reference has it:
//!
//! ```text
//! created  in_progress  item*  ( completed | incomplete )
//! item: output_item.added  ( content_part.added  delta*  done  content_part.done | delta*  done )  output_item.done
//! ```

use std::collections::HashSet;

use proptest::prelude::*;
use serde_json::Map;

use super::super::tools::ToolNames;
use super::*;
use crate::conversation::{EndReason, Played, encoded};

/// What came last.
#[derive(Debug)]
enum State {
    Nothing,
    Created,
    /// `in_progress`, or the end of an item.
    Between,
    /// The beginning of an item that has parts.
    Added(Value),
    /// Deltas of the item's text, so far this one.
    Text(Value, String),
    /// The whole text; the item has a part that ends next.
    TextDone(Value, String),
    /// All but the end of the item.
    Filled(Value, String),
    Ended(Value),
}

/// The names of the text of an item: its events, its key in them, and whether it is a part.
fn names(item: &Value) -> (&'static str, &'static str, bool) {
    match item["type"].as_str() {
        Some("reasoning") => ("response.reasoning_text", "text", true),
        Some("message") => ("response.output_text", "text", true),
        Some("function_call") => ("response.function_call_arguments", "arguments", false),
        _ => ("no such item", "", false),
    }
}

/// The text of a finished item.
fn text(item: &Value) -> &Value {
    match names(item) {
        (_, key, true) => &item["content"][0][key],
        (_, key, false) => &item[key],
    }
}

/// The final response, if its events come in the order of the API.
fn judge(events: &[Value]) -> Result<Value, String> {
    let (mut state, mut items) = (State::Nothing, Vec::new());
    for (number, event) in events.iter().enumerate() {
        let kind = event["type"].as_str().unwrap_or_default();
        let in_place = |item: &Value, part: bool| {
            event["output_index"] == items.len()
                && event["item_id"] == item["id"]
                && event["content_index"] == if part { json!(0) } else { json!(null) }
        };
        if event["sequence_number"] != number {
            return Err(format!("event {number} has another number: {event}"));
        }
        state = match (state, kind) {
            (State::Nothing, "response.created") => State::Created,
            (State::Created, "response.in_progress") => State::Between,
            (State::Between, "response.output_item.added")
                if event["output_index"] == items.len() =>
            {
                let item = event["item"].clone();
                match names(&item) {
                    (_, _, true) => State::Added(item),
                    (_, _, false) => State::Text(item, String::new()),
                }
            }
            (State::Added(item), "response.content_part.added") if in_place(&item, true) => {
                State::Text(item, String::new())
            }
            (State::Text(item, mut joined), kind) if in_place(&item, names(&item).2) => {
                let (name, key, part) = names(&item);
                match kind.strip_prefix(name) {
                    Some(".delta") => {
                        joined.push_str(event["delta"].as_str().ok_or("no text")?);
                        State::Text(item, joined)
                    }
                    Some(".done") if event[key] == joined && part => State::TextDone(item, joined),
                    Some(".done") if event[key] == joined => State::Filled(item, joined),
                    _ => return Err(format!("within the text of {item}: {event}")),
                }
            }
            (State::TextDone(item, joined), "response.content_part.done")
                if in_place(&item, true) && event["part"]["text"] == joined =>
            {
                State::Filled(item, joined)
            }
            (State::Filled(begun, joined), "response.output_item.done")
                if event["output_index"] == items.len()
                    && ["id", "type", "call_id", "name"]
                        .iter()
                        .all(|key| event["item"][key] == begun[key])
                    && *text(&event["item"]) == joined =>
            {
                items.push(event["item"].clone());
                State::Between
            }
            (State::Between, "response.completed" | "response.incomplete")
                if kind.ends_with(event["response"]["status"].as_str().unwrap_or("-")) =>
            {
                State::Ended(event["response"].clone())
            }
            (state, _) => return Err(format!("after {state:?}: {event}")),
        };
    }
    match state {
        State::Ended(response) if response["output"] == Value::from(items) => Ok(response),
        state => Err(format!("ends after {state:?}")),
    }
}

/// Without ids, which are random.
fn plain(items: &[Value]) -> Vec<Value> {
    let mut items = items.to_vec();
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        item.remove("id");
    }
    items
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn events_come_in_order_and_say_the_whole_response(played in Played::any()) {
        let head = ResponseHead::new("m".to_owned(), Map::new());
        let id = RequestId::new("id".parse().unwrap());
        let encoder = ResponseEvents::new(head, Output::new(ToolNames::default(), None, None), id);
        let written = encoded(encoder, played.events());
        let events: Vec<Value> = written
            .split_terminator("\n\n")
            .map(|event| serde_json::from_str(event.split_once("data: ").unwrap().1).unwrap())
            .collect();
        let response = judge(&events).map_err(TestCaseError::fail)?;
        let streamed = response["output"].as_array().unwrap();
        let ids: HashSet<_> = streamed.iter().map(|item| item["id"].to_string()).collect();
        prop_assert_eq!(ids.len(), streamed.len());
        prop_assert_eq!(&response["id"], &events[0]["response"]["id"]);
        let (deltas, end) = played.whole();
        let mut whole = Output::new(ToolNames::default(), None, None);
        for delta in deltas {
            whole.delta(delta, &mut ());
        }
        let cut = end.reason == EndReason::Length;
        whole.end(if cut { "incomplete" } else { "completed" }, &mut ());
        prop_assert_eq!(plain(streamed), plain(whole.items()));
        prop_assert_eq!(response["status"] == "incomplete", cut);
    }
}
