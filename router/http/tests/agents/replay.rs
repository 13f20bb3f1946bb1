//! Conversations of an agent, of up to 40 turns: each sends all that was said before and finds it in the cache.

use text_generation_mock_shard::Script;

use super::*;

/// Long enough for all turns.
const CONTEXT: u32 = 16_000;

/// How one API is asked, and what it answers.
struct Api {
    path: &'static str,
    /// The body of a turn with these messages, whatever else it says.
    body: fn(&[Value], usize) -> Value,
    /// What the client adds to the conversation: the answer as it came, and the result of its call.
    goes_back: fn(&Value, &str) -> Vec<Value>,
    /// Tokens of the prompt, those of them that were cached, and those of the answer.
    counts: fn(&Value) -> [u64; 3],
}

/// Turns of a model that thinks and reads one file after the other.
fn says(turn: usize) -> Vec<u32> {
    let text = format!(
        "<think>Next is {turn}.</think><tool_call>\n{{\"name\": \"read\", \"arguments\": {{\"n\": {turn}}}}}\n</tool_call>"
    );
    text.bytes()
        .map(|byte| common::BYTES + u32::from(byte))
        .collect()
}

async fn every_turn_finds_the_one_before(api: Api, turns: usize) {
    let script = Script::default();
    let model = MockConfig {
        tokens: script.tokens(common::EOS),
        max_input_tokens: CONTEXT - 1,
        max_total_tokens: CONTEXT,
        // Takes time by the context.
        check_slots: false,
        ..MockConfig::default()
    };
    let server = serving(HERMES, model, &[]).await;
    let mut messages = vec![json!({"role": "user", "content": "Read all files."})];
    let mut known = 0;
    for turn in 0..turns {
        script.answer(says(turn));
        let answer = server.good(api.path, &(api.body)(&messages, turn)).await;
        let [prompt, cached, generated] = (api.counts)(&answer);
        assert!(prompt > known, "turn {turn} repeats the one before");
        assert!(
            cached * 100 >= known * 99,
            "turn {turn}: {cached} tokens of {known} were found"
        );
        known = prompt + generated;
        let result = format!("Line {turn} of the file, which has more.");
        messages.extend((api.goes_back)(&answer, &result));
    }
    server.idle().await;
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
}

#[tokio::test]
async fn forty_turns_of_messages_whose_billing_header_changes() {
    let api = Api {
        path: "/v1/messages",
        body: |messages, turn| {
            let billing =
                format!("x-anthropic-billing-header: cc_version=2.1.{turn}; cch={turn:05x};");
            json!({
                "max_tokens": 64_000,
                "system": [{"type": "text", "text": billing}, {"type": "text", "text": "You are an agent."}],
                "messages": messages,
                "tools": [{"name": "read", "input_schema": schema()}],
            })
        },
        goes_back: |answer, result| {
            let content = answer["content"].as_array().expect("blocks");
            let call = content.iter().find(|block| block["type"] == "tool_use");
            let id = &call.expect("a call")["id"];
            vec![
                json!({"role": "assistant", "content": content}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": result}]}),
            ]
        },
        counts: |answer| {
            let usage = &answer["usage"];
            let cached = number(&usage["cache_read_input_tokens"]);
            let computed = number(&usage["input_tokens"]);
            [computed + cached, cached, number(&usage["output_tokens"])]
        },
    };
    every_turn_finds_the_one_before(api, 40).await;
}

#[tokio::test]
async fn forty_turns_of_chat_completions() {
    let api = Api {
        path: "/v1/chat/completions",
        body: |messages, _| {
            let function = json!({"name": "read", "parameters": schema()});
            json!({"messages": messages, "tools": [{"type": "function", "function": function}]})
        },
        goes_back: |answer, result| {
            let message = &answer["choices"][0]["message"];
            let id = &message["tool_calls"][0]["id"];
            vec![
                message.clone(),
                json!({"role": "tool", "tool_call_id": id, "content": result}),
            ]
        },
        counts: |answer| {
            let usage = &answer["usage"];
            [
                number(&usage["prompt_tokens"]),
                number(&usage["prompt_tokens_details"]["cached_tokens"]),
                number(&usage["completion_tokens"]),
            ]
        },
    };
    every_turn_finds_the_one_before(api, 40).await;
}

#[tokio::test]
async fn turns_of_responses() {
    let api = Api {
        path: "/v1/responses",
        body: |messages, _| {
            let tool = json!({"type": "function", "name": "read", "parameters": schema()});
            json!({"input": messages, "tools": [tool]})
        },
        goes_back: |answer, result| {
            let mut items = answer["output"].as_array().expect("items").clone();
            let id = &items.last().expect("a call")["call_id"];
            items.push(json!({"type": "function_call_output", "call_id": id, "output": result}));
            items
        },
        counts: |answer| {
            let usage = &answer["usage"];
            [
                number(&usage["input_tokens"]),
                number(&usage["input_tokens_details"]["cached_tokens"]),
                number(&usage["output_tokens"]),
            ]
        },
    };
    every_turn_finds_the_one_before(api, 8).await;
}
