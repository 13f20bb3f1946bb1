//! Fields of other APIs, and places of one form that differ: what asks for nothing, and what the refusal says.

use serde_json::{Value, json};

use crate::probe::Probe;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

#[tokio::test]
async fn what_asks_for_nothing_is_taken() {
    let probe = Probe::start().await;
    for (route, keys) in [
        (
            MESSAGES,
            json!({"n": 1, "best_of": 1, "do_sample": true, "tool_choice": null}),
        ),
        (
            MESSAGES,
            json!({"response_format": {"type": "text"}, "logprobs": false, "top_logprobs": 0}),
        ),
        (
            MESSAGES,
            json!({"parallel_tool_calls": true, "functions": [], "guided_json": {}}),
        ),
        (
            RESPONSES,
            json!({"n": 1.0, "length_penalty": 1, "modalities": ["text"], "suffix": ""}),
        ),
        (
            RESPONSES,
            json!({"top_logprobs": 0, "truncation": "disabled", "guided_json": null}),
        ),
        (
            RESPONSES,
            json!({"function_call": "auto", "thinking_token_budget": -1, "echo": false}),
        ),
        (
            RESPONSES,
            json!({"include": ["web_search_call.action.sources"], "text": {"verbosity": "low"}}),
        ),
        (
            CHAT,
            json!({"text": {}, "truncation": "disabled", "response_format": {"type": "text"}}),
        ),
        (
            CHAT,
            json!({"verbosity": "medium", "include": [], "max_tokens": null, "max_new_tokens": 5}),
        ),
        (
            CHAT,
            json!({"min_new_tokens": 0, "top_n_tokens": 0, "stop_sequences": [], "nobodys": 5}),
        ),
        (
            "/generate",
            json!({"n": 1, "tool_choice": {"type": "none"}, "tools": [], "stream": true}),
        ),
        ("/", json!({"model": "other", "seed": null, "n": 1})),
    ] {
        let (status, answer, _) = probe.send(route, keys.clone()).await;
        assert_eq!(status, 200, "{route} {keys}: {answer}");
    }
}

#[tokio::test]
async fn a_refusal_says_what_to_send_instead() {
    let probe = Probe::start().await;
    let schema = json!({"type": "integer"});
    let format = |schema: Value| json!({"type": "json_schema", "schema": schema});
    for (route, keys, named) in [
        (
            MESSAGES,
            json!({"guided_json": schema}),
            "output_config.format",
        ),
        (
            MESSAGES,
            json!({"reasoning_effort": "none"}),
            "output_config.effort",
        ),
        (
            MESSAGES,
            json!({"parallel_tool_calls": false}),
            "tool_choice.disable_parallel_tool_use",
        ),
        (MESSAGES, json!({"logprobs": true}), CHAT),
        (
            MESSAGES,
            json!({"tools": [{"name": "f", "parameters": schema}]}),
            "`input_schema`",
        ),
        (
            MESSAGES,
            json!({"output_format": format(schema.clone()), "output_config": {"format": format(json!(true))}}),
            "`output_format` and `output_config.format`",
        ),
        (
            RESPONSES,
            json!({"structured_outputs": {"regex": "a"}}),
            CHAT,
        ),
        (RESPONSES, json!({"do_sample": false}), "temperature"),
        (
            RESPONSES,
            json!({"truncation": "auto"}),
            "truncate_prompt_tokens",
        ),
        (RESPONSES, json!({"include": ["bogus"]}), "bogus"),
        (
            CHAT,
            json!({"verbosity": "low"}),
            "say in the prompt how long",
        ),
        (
            RESPONSES,
            json!({"text": {"verbosity": "bogus"}}),
            "text.verbosity",
        ),
        (
            RESPONSES,
            json!({"text": {"format": {"type": "text", "schema": schema}}}),
            "text.format.schema",
        ),
        (
            CHAT,
            json!({"response_format": {"type": "text", "schema": schema}}),
            "response_format.schema",
        ),
        (
            CHAT,
            json!({"response_format": {"type": "json_schema", "schema": schema, "json_schema": {"schema": schema}}}),
            "`json_schema` and `schema`",
        ),
        (
            "/generate",
            json!({"response_format": {"type": "json_object"}}),
            "grammar",
        ),
        ("/", json!({"max_tokens": 5}), "parameters.max_new_tokens"),
        ("/", json!({"do_sample": true}), "inside `parameters`"),
        ("/", json!({"prediction": "abc"}), "inside `parameters`"),
    ] {
        let (status, answer, _) = probe.send(route, keys.clone()).await;
        let expected = if [RESPONSES, MESSAGES].contains(&route) {
            400
        } else {
            422
        };
        assert_eq!(status, expected, "{route} {keys}: {answer}");
        assert!(
            answer.to_string().contains(named),
            "{route} {keys}: {answer}"
        );
    }
}

#[tokio::test]
async fn two_places_of_one_form_may_say_the_same() {
    let probe = Probe::start().await;
    let form = json!({"type": "json_schema", "schema": {"type": "integer"}});
    let keys = json!({"output_format": form, "output_config": {"format": form}});
    let (status, answer, _) = probe.send(MESSAGES, keys).await;
    assert_eq!(status, 200, "{answer}");
}
