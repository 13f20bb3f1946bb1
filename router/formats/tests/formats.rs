//! Calls as each family of models writes them. The texts follow the models' chat templates and vLLM's parsers.

mod common;
#[path = "common/transcripts.rs"]
mod transcripts;

use common::{Answer, format, options, parse, tools};
use serde_json::json;
use transcripts::{TWO, weather};

/// Content, reasoning, and the calls of an answer in this format.
fn answer(name: &str, text: &str) -> Answer {
    parse(format(name), "", text, &options(&tools()))
}

#[test]
fn two_calls_are_read_in_every_format() {
    for (name, text) in TWO {
        let answer = answer(name, text);
        assert_eq!(answer.content, "", "{name}");
        assert_eq!(
            answer.called(),
            [("get_weather", weather()), ("ping", json!({}))],
            "{name}"
        );
        assert!(answer.calls.iter().all(|call| call.ended), "{name}");
    }
}
