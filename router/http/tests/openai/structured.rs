//! Answers that must have a form. The mock chooses among the tokens that the masks allow.

use super::*;

#[tokio::test]
async fn every_name_of_a_form_is_enforced() {
    let server = server().await;
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false});
    let named = json!({"name": "n", "schema": schema, "strict": true});
    for (keys, allowed) in [
        (
            json!({"response_format": {"type": "json_schema", "json_schema": named}}),
            "ok",
        ),
        (
            json!({"response_format": {"type": "json_schema", "value": {"schema": schema}}}),
            "ok",
        ),
        (
            json!({"response_format": {"type": "json", "value": schema}}),
            "ok",
        ),
        (json!({"guided_json": schema}), "ok"),
        (json!({"guided_json": schema.to_string()}), "ok"),
        (json!({"structured_outputs": {"json": schema}}), "ok"),
        // As llama.cpp and others have it.
        (
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            "ok",
        ),
        (
            json!({"response_format": {"type": "json_object", "json_schema": {"schema": schema}}}),
            "ok",
        ),
        (
            json!({"response_format": {"type": "json_schema", "schema": schema, "strict": true}}),
            "ok",
        ),
        // Two names of one form.
        (
            json!({"guided_json": schema, "structured_outputs": {"json": schema.to_string()},
                "response_format": {"type": "json_schema", "json_schema": named}}),
            "ok",
        ),
    ] {
        for (path, body) in [
            (
                "/v1/chat/completions",
                chat("Hi", json!({"max_tokens": 40})),
            ),
            ("/v1/completions", json!({"prompt": "Hi", "max_tokens": 40})),
        ] {
            let body = with(body, keys.clone());
            let text = said(&server.good(path, &body).await);
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|_| panic!("{keys}: {text}"));
            assert!(value[allowed].is_boolean(), "{text}");
        }
    }
    for (keys, expected) in [
        (
            json!({"response_format": {"type": "regex", "value": "x[0-9]"}}),
            &["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9"][..],
        ),
        (json!({"guided_regex": "yes|no"}), &["yes", "no"]),
        (
            json!({"guided_choice": ["red", "green"]}),
            &["red", "green"],
        ),
        (
            json!({"guided_grammar": "root ::= \"up\" | \"down\""}),
            &["up", "down"],
        ),
        (
            json!({"structured_outputs": {"grammar": "start: \"up\" | \"down\""}}),
            &["up", "down"],
        ),
        (json!({"structured_outputs": {"choice": ["red"]}}), &["red"]),
        (json!({"structured_outputs": {"regex": "z"}}), &["z"]),
        // As guidance sends it.
        (
            json!({"guided_grammar": "start: \"up\"", "structured_outputs": {"grammar": "start: \"up\""}}),
            &["up"],
        ),
    ] {
        let answer = ask_chat(&server, &chat("Hi", keys.clone())).await;
        let text = said(&answer);
        assert!(expected.contains(&text.as_str()), "{keys}: {text}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    server.idle().await;
}

/// The text of a chat's answer or of a completion's.
fn said(answer: &Value) -> String {
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"]
        .as_str()
        .or(choice["text"].as_str());
    text.expect("a text").to_owned()
}

#[tokio::test]
async fn a_call_that_is_demanded_is_made() {
    let server = server().await;
    let parameters = json!({"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": false});
    let tools = json!([
        {"type": "function", "function": {"name": "add", "parameters": parameters}},
        {"type": "function", "function": {"name": "now", "parameters": parameters}},
    ]);
    for (choice, names) in [
        (json!("required"), &["add", "now"][..]),
        (json!("now"), &["now"]),
        (
            json!({"type": "function", "function": {"name": "add"}}),
            &["add"],
        ),
    ] {
        let keys = json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 200});
        let answer = ask_chat(&server, &chat("Hi", keys)).await;
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        let name = call["name"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(names.contains(&name), "{answer}");
        let arguments: Value =
            serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("JSON");
        assert!([json!(1), json!(2)].contains(&arguments["x"]), "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[tokio::test]
async fn a_form_follows_the_reasoning() {
    let server = Server::with_template(
        PLAIN,
        saying("<think>hm</think>yes"),
        &["--reasoning-parser", "deepseek_r1"],
    )
    .await;
    let answer = ask_chat(
        &server,
        &chat("Hi", json!({"guided_choice": ["yes", "no"]})),
    )
    .await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("hm"), &json!("yes"))
    );
}

#[tokio::test]
async fn a_model_that_is_not_known_to_reason_does_not_get_around_a_form() {
    let server = Server::with_template(PLAIN, saying("<think>hm</think>yes"), &[]).await;
    let form = json!({"guided_choice": ["yes", "no"], "separate_reasoning": true});
    let answer = ask_chat(&server, &chat("Hi", form)).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], Value::Null);
    assert!(["yes", "no"].contains(&message["content"].as_str().expect("a text")));
}

#[tokio::test]
async fn what_is_not_enforced_is_named_or_refused() {
    let server = server().await;
    let schema = json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true});
    let body = |strict: bool| {
        let named = json!({"name": "n", "schema": schema, "strict": strict});
        chat(
            "Hi",
            json!({"response_format": {"type": "json_schema", "json_schema": named}, "max_tokens": 4}),
        )
    };
    let response = server.post_json("/v1/chat/completions", &body(false)).await;
    assert_eq!(response.status(), 200);
    assert!(header(&response, "x-grammar-not-enforced").contains("uniqueItems"));
    let (status, answer) = server.ask("/v1/chat/completions", &body(true)).await;
    assert_eq!(
        (status, &answer["error"]["param"]),
        (422, &json!("response_format")),
        "{answer}"
    );
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.contains("uniqueItems"), "{message}");
}

/// Flags of a model that reasons.
const REASONS: [&str; 2] = ["--reasoning-parser", "deepseek_r1"];

#[tokio::test]
async fn a_form_beside_tools_or_reasoning_is_as_strict_as_alone() {
    let server = Server::with_template(PLAIN, common::alphabet(), &REASONS).await;
    let schema = json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true});
    let function = |strict: bool| {
        let parameters = json!({"type": "object", "properties": {"list": schema}});
        let function = json!({"name": "f", "parameters": parameters, "strict": strict});
        json!([{"type": "function", "function": function}])
    };
    let form = |strict: bool| json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": strict}});
    for keys in [
        json!({"response_format": form(false)}),
        json!({"response_format": form(false), "tools": function(false)}),
        json!({"tool_choice": "required", "tools": function(false)}),
        // Nobody gets to the form.
        json!({"response_format": form(true), "tool_choice": "required", "tools": function(false)}),
    ] {
        let body = chat("Hi", with(keys, json!({"max_tokens": 4})));
        let response = server.post_json("/v1/chat/completions", &body).await;
        assert_eq!(response.status(), 200, "{body}");
        let named = header(&response, "x-grammar-not-enforced");
        assert!(named.contains("uniqueItems"), "{body}");
    }
    for (keys, param) in [
        (json!({"response_format": form(true)}), "response_format"),
        (
            json!({"response_format": form(true), "tools": function(false)}),
            "response_format",
        ),
        (json!({"tools": function(true)}), "tools"),
        (
            json!({"tools": function(true), "tool_choice": "required"}),
            "tools",
        ),
    ] {
        let body = chat("Hi", keys);
        let (status, answer) = server.ask("/v1/chat/completions", &body).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (422, &json!(param)),
            "{body} {answer}"
        );
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains("uniqueItems"), "{message}");
    }
}

#[tokio::test]
async fn every_form_stands_beside_tools_and_reasoning() {
    let model = saying("<think>hm</think>up");
    let server = Server::with_template(PLAIN, model, &REASONS).await;
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for form in [
        json!({"guided_grammar": "root ::= \"up\" | \"down\""}),
        json!({"guided_grammar": "start: \"up\" | \"down\""}),
        json!({"guided_choice": ["up", "upper"]}),
        json!({"guided_regex": "u[p-r]"}),
    ] {
        for keys in [json!({}), json!({"tools": tools})] {
            let answer = ask_chat(&server, &chat("Hi", with(form.clone(), keys))).await;
            let message = &answer["choices"][0]["message"];
            assert_eq!(
                (&message["reasoning_content"], &message["content"]),
                (&json!("hm"), &json!("up")),
                "{form}"
            );
        }
    }
}

#[tokio::test]
async fn forms_that_contradict_each_other_are_named() {
    let server = server().await;
    for (param, keys) in [
        (
            "guided_regex",
            json!({"guided_regex": "a", "response_format": {"type": "json_object"}}),
        ),
        (
            "structured_outputs.choice",
            json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}),
        ),
        (
            "structured_outputs",
            json!({"structured_outputs": {"json_schema": {"type": "integer"}}}),
        ),
        (
            "guided_json",
            json!({"guided_json": {"type": "integer"}, "response_format": {"type": "json_object", "schema": {"type": "string"}}}),
        ),
        (
            "response_format.schema",
            json!({"response_format": {"type": "json_object", "schema": 5}}),
        ),
        ("guided_choice", json!({"guided_choice": []})),
        (
            "response_format.type",
            json!({"response_format": {"type": "xml"}}),
        ),
        (
            "response_format.json_schema",
            json!({"response_format": {"type": "json_schema"}}),
        ),
        (
            "response_format.value",
            json!({"response_format": {"type": "regex"}}),
        ),
        (
            "response_format",
            json!({"response_format": {"type": "regex", "value": "("}}),
        ),
    ] {
        let (status, answer) = server.ask("/v1/chat/completions", &chat("Hi", keys)).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (422, &json!(param)),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn a_form_that_cannot_be_used_is_named_as_it_was_sent() {
    let server = server().await;
    for (param, keys) in [
        ("guided_regex", json!({"guided_regex": "("})),
        ("guided_json", json!({"guided_json": false})),
        ("guided_json", json!({"guided_json": {"type": "dict"}})),
        (
            "guided_grammar",
            json!({"guided_grammar": "start: nothing"}),
        ),
        (
            "structured_outputs.regex",
            json!({"structured_outputs": {"regex": "("}}),
        ),
    ] {
        for (path, body) in [
            ("/v1/chat/completions", chat("Hi", keys.clone())),
            ("/v1/completions", completion("Hi", keys)),
        ] {
            let (status, answer) = server.ask(path, &body).await;
            assert_eq!(
                (status, &answer["error"]["param"]),
                (422, &json!(param)),
                "{answer}"
            );
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            let expected = format!("Input validation error: `{param}` is not valid: ");
            assert!(message.starts_with(&expected), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_server_without_grammars_refuses_forms_alone() {
    let server =
        Server::with_template(PLAIN, common::alphabet(), &["--disable-grammar-support"]).await;
    let (status, answer) = server
        .ask(
            "/v1/chat/completions",
            &chat("Hi", json!({"guided_regex": "a"})),
        )
        .await;
    assert_eq!(
        (status, &answer["error_type"]),
        (422, &json!("validation")),
        "{answer}"
    );
    ask_chat(
        &server,
        &chat(
            "Hi",
            json!({"max_tokens": 1, "response_format": {"type": "text"}}),
        ),
    )
    .await;
}

#[tokio::test]
async fn the_models_defaults_hold_below_v1_alone() {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let record = seen.clone();
    let model = MockConfig {
        tokens: Arc::new(move |row| {
            if let Ok(mut seen) = record.lock() {
                seen.push(row.parameters.clone());
            }
            EOS
        }),
        ..MockConfig::default()
    };
    let config = json!({"temperature": 0.25, "top_k": 7, "top_p": 0.5});
    let server = Server::with_model_file(model, "generation_config.json", &config).await;
    ask_completion(&server, &completion("Hi", json!({"top_k": 3}))).await;
    server
        .ask(
            "/generate",
            &json!({"inputs": "Hi", "parameters": {"do_sample": true}}),
        )
        .await;
    let seen = seen.lock().expect("the list").clone();
    let (first, last) = (&seen[0], &seen[seen.len() - 1]);
    assert_eq!(
        (first.temperature, first.top_k, first.top_p),
        (0.25, 3, 0.5)
    );
    assert_eq!((last.temperature, last.top_k), (1.0, 0));
    let (_, info) = common::answer(server.get("/info").send().await.expect("an answer")).await;
    assert_eq!(info["sampling_defaults"]["top_k"], 7);
}

#[tokio::test]
async fn prompts_can_be_had_as_ids() {
    let server = server().await;
    let rendered = server
        .good("/v1/chat/completions/render", &chat("Hi", json!({})))
        .await;
    let expected: Vec<u32> = "<user>Hi<answer>"
        .bytes()
        .map(|byte| BYTES + u32::from(byte))
        .collect();
    assert_eq!(
        rendered,
        json!({"model": "test/model", "token_ids": expected})
    );
    let rendered = server
        .good(
            "/v1/completions/render",
            &completion(json!(["a", "b"]), json!({})),
        )
        .await;
    let ids = |text: u8| json!({"model": "test/model", "token_ids": [BYTES + u32::from(text)]});
    assert_eq!(rendered, json!([ids(b'a'), ids(b'b')]));
    server.idle().await;
}
