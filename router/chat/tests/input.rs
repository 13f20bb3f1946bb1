//! What of a request reaches the template, and what is refused.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;

use std::borrow::Cow;

use common::{input, rendered, template, user};
use serde_json::{Value, json};
use text_generation_chat::{ChatInput, ChatTemplateError};

/// Shows every field of every message.
const FIELDS: &str = "{% for m in messages %}{{ m|tojson }}{% endfor %}";
const TEXTS: &str = "{% for m in messages %}{{ m.role ~ ':' ~ m.content|trim }};{% endfor %}{% if add_generation_prompt %}>{% endif %}";
const PARTS: &str = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}[{{ p.text }}]{% endfor %};{% endfor %}";
const BOTH: &str = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}\
                    {% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %};{% endfor %}";

fn prompt(source: &str, input: &ChatInput) -> Result<String, ChatTemplateError> {
    template(source)?.render(input)
}

fn refused(source: &str, input: &ChatInput) -> String {
    prompt(source, input).expect_err("a refusal").to_string()
}

#[test]
fn every_field_reaches_the_template_and_null_ones_do_not() {
    let messages = json!([
        {"role": "user", "name": "Ann", "content": "hi"},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "refusal": null, "x": [1]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ]);
    assert_eq!(
        prompt(FIELDS, &input(messages)),
        Ok(
            "{\"role\": \"user\", \"name\": \"Ann\", \"content\": \"hi\"}\
            {\"role\": \"assistant\", \"content\": null, \"reasoning_content\": \"hm\", \"x\": [1]}\
            {\"role\": \"tool\", \"tool_call_id\": \"c1\", \"content\": \"4\"}"
                .to_owned()
        )
    );
}

#[test]
fn contents_have_the_shape_that_the_template_reads() {
    let text = user("ab");
    let parts = input(
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
    );
    for (source, of_text, of_parts) in [
        (TEXTS, "user:ab;>", "user:ab;>"),
        (PARTS, "user:[ab];", "user:[a][b];"),
        (BOTH, "user:ab;", "user:[a][b];"),
    ] {
        assert_eq!(prompt(source, &text).as_deref(), Ok(of_text), "{source}");
        assert_eq!(prompt(source, &parts).as_deref(), Ok(of_parts), "{source}");
    }
}

#[test]
fn parts_that_are_no_text_are_named() {
    let part = |part: Value| {
        input(
            json!([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "a"}, part]}]),
        )
    };
    let image = part(json!({"type": "image_url", "image_url": {"url": "https://x/y.png"}}));
    assert_eq!(
        refused(TEXTS, &image),
        "`messages[1].content[1].type` is `image_url`, which this model cannot read; only `text` parts are supported"
    );
    assert!(
        refused(TEXTS, &part(json!({}))).starts_with("`messages[1].content[1].type` is missing")
    );
    assert!(
        refused(TEXTS, &part(json!({"type": "text"}))).starts_with("`messages[1].content[1].text`")
    );
    assert!(refused(TEXTS, &input(json!([{"content": 1}]))).starts_with("`messages[0].content`"));
    assert!(refused(TEXTS, &input(json!([1]))).starts_with("`messages[0]` must be an object"));
    assert_eq!(
        refused(TEXTS, &input(json!([]))),
        "`messages` must not be empty"
    );
}

#[test]
fn arguments_of_tool_calls_have_the_type_that_the_template_reads() {
    let objects = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}";
    let texts = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ '' + c.function.arguments }}{% endfor %}{% endfor %}";
    let call = |arguments: Value| {
        let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}});
        input(json!([{"role": "assistant", "content": "", "tool_calls": [call]}]))
    };
    let (text, object) = (
        json!("{\"b\": 1, \"a\": [2.0]}"),
        json!({"b": 1, "a": [2.0]}),
    );
    assert_eq!(
        prompt(objects, &call(text.clone())).as_deref(),
        Ok("{\"b\": 1, \"a\": [2.0]}")
    );
    assert_eq!(
        prompt(objects, &call(object.clone())).as_deref(),
        Ok("{\"b\": 1, \"a\": [2.0]}")
    );
    assert_eq!(prompt(objects, &call(json!(""))).as_deref(), Ok("{}"));
    assert_eq!(
        prompt(objects, &call(json!("{\"cut"))).as_deref(),
        Ok("{\"INVALID_JSON\": \"{\\\"cut\"}")
    );
    assert_eq!(
        prompt(texts, &call(text)).as_deref(),
        Ok("{\"b\": 1, \"a\": [2.0]}")
    );
    assert_eq!(
        prompt(texts, &call(object)).as_deref(),
        Ok("{\"b\":1,\"a\":[2.0]}")
    );
}

#[test]
fn only_free_variables_of_the_template_can_be_set() {
    let source =
        "{{ bos_token }}{{ messages[0].content }}{{ tools }}{{ style }}{% set own = 1 %}{{ own }}";
    let with = |name: &str| {
        let mut input = user("hi");
        input
            .chat_template_kwargs
            .insert(name.to_owned(), json!("X"));
        input
    };
    assert_eq!(prompt(source, &with("style")).as_deref(), Ok("<s>hiNoneX1"));
    for name in [
        "messages",
        "tools",
        "bos_token",
        "eos_token",
        "add_generation_prompt",
        "tokenize",
        "own",
        "other",
        "raise_exception",
        "namespace",
    ] {
        let error = refused(source, &with(name));
        let expected = format!("`chat_template_kwargs.{name}` is not a variable");
        assert!(
            error.starts_with(&expected) && error.ends_with("it has `style`"),
            "{error}"
        );
    }
}

/// Expected prompts are those of `transformers`.
#[test]
fn variables_to_which_a_template_gives_defaults_can_be_set() {
    let own =
        "{% set reasoning = reasoning if reasoning is not undefined else true %}{{ reasoning }}";
    let default = "{%- set effort = effort | default('low') -%}{{ effort }}";
    let when = "{% if not day is defined %}{% set day = 'Monday' %}{% endif %}{{ day }}";
    let in_namespace = "{% set ns = namespace(x=style) %}{{ ns.x }}";
    for (source, name, unset, value, expected) in [
        (own, "reasoning", "True", json!(false), "False"),
        (default, "effort", "low", json!("high"), "high"),
        (when, "day", "Monday", json!("Friday"), "Friday"),
        (in_namespace, "style", "", json!("a"), "a"),
    ] {
        let mut input = user("hi");
        assert_eq!(prompt(source, &input).as_deref(), Ok(unset), "{source}");
        input.chat_template_kwargs.insert(name.to_owned(), value);
        assert_eq!(prompt(source, &input).as_deref(), Ok(expected), "{source}");
    }
    let mut input = user("hi");
    input
        .chat_template_kwargs
        .insert("namespace".to_owned(), json!(1));
    let error = refused(in_namespace, &input);
    assert!(error.ends_with("it has `style`"), "{error}");
}

/// Expected prompts are those of `transformers`.
#[test]
fn documents_and_parts_reach_a_template_that_reads_them() {
    let source = "{% for d in documents or [] %}{{ loop.index0 }}:{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% endfor %}\
                  {% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
                  {% if p.type == 'tool_reference' %}<ref>{{ p.name }}</ref>\
                  {% elif p['type'] == \"document\" %}{{ p.document | tojson }}\
                  {% elif p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
    let mut input = user("hi");
    input.chat_template_kwargs.insert(
        "documents".to_owned(),
        json!([{"title": "T", "text": "x"}, {"text": "y"}]),
    );
    assert_eq!(
        prompt(source, &input).as_deref(),
        Ok("0:title=T;text=x;1:text=y;hi")
    );
    assert!(refused(TEXTS, &input).starts_with("`chat_template_kwargs.documents` is not"));
    let part = |part: Value| {
        common::input(json!([{"role": "tool", "content": [{"type": "text", "text": "a"}, part]}]))
    };
    let reference = part(json!({"type": "tool_reference", "name": "f"}));
    assert_eq!(prompt(source, &reference).as_deref(), Ok("a<ref>f</ref>"));
    let document = json!({"type": "document", "document": {"id": "1", "data": {"k": "v"}}});
    assert_eq!(
        prompt(source, &part(document)).as_deref(),
        Ok("a{\"id\": \"1\", \"data\": {\"k\": \"v\"}}")
    );
    assert!(
        refused(TEXTS, &reference).contains("is `tool_reference`, which this model cannot read")
    );
    // The template would write a place for an image that nothing fills.
    assert!(refused(source, &part(json!({"type": "image"}))).contains("is `image`, which"));
}

#[test]
fn a_last_message_can_be_continued() {
    let trimming = TEXTS;
    let keeping = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
    let last = |content: Value| ChatInput {
        continue_final_message: true,
        add_generation_prompt: false,
        ..input(
            json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]),
        )
    };
    assert_eq!(
        prompt(keeping, &last(json!("It is "))).as_deref(),
        Ok("<user>q</><assistant>It is ")
    );
    assert_eq!(
        prompt(trimming, &last(json!("It is "))).as_deref(),
        Ok("user:q;assistant:It is")
    );
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    assert_eq!(
        prompt(PARTS, &last(parts)).as_deref(),
        Ok("user:[q];assistant:[a][b")
    );
    for (source, content) in [
        (keeping, json!(null)),
        (PARTS, json!([])),
        ("{{ messages[0].content }}", json!("x")),
        ("fixed", json!("x")),
    ] {
        let error = refused(source, &last(content));
        assert!(error.starts_with("`continue_final_message` "), "{error}");
    }
    let both = ChatInput {
        add_generation_prompt: true,
        ..last(json!("x"))
    };
    assert!(refused(keeping, &both).contains("cannot both be true"));
}

#[test]
fn refusals_of_the_template_are_told_from_its_failures() {
    let raises = "{{ raise_exception('roles must alternate: ' ~ messages[0].role) }}";
    let error = prompt(raises, &user("hi")).expect_err("a refusal");
    assert_eq!(
        error,
        ChatTemplateError::Raised("roles must alternate: user".to_owned())
    );
    assert_eq!(error.error_type(), "template_error");
    let fails = "first\n{{ messages[0].nothing.more }}";
    let error = prompt(fails, &user("secret")).expect_err("a failure");
    assert!(
        matches!(&error, ChatTemplateError::Render(reason) if reason.ends_with("(line 2)")),
        "{error}"
    );
    assert!(!error.to_string().contains("secret"));
}

#[test]
fn conversations_cannot_inject_template_code() {
    let text = "{{ bos_token }}{% for %}{# #}";
    assert_eq!(prompt(TEXTS, &user(text)), Ok(format!("user:{text};>")));
    assert_eq!(
        rendered("{{ messages[0].content }}{{ eos_token }}"),
        "hi</s>"
    );
}

/// Writes `[x]` for the token `<x>`.
fn escape(text: &str) -> Cow<'_, str> {
    text.replace("<x>", "[x]").into()
}

#[test]
fn every_text_of_the_client_is_escaped_and_none_of_the_template() {
    let source = "<x>{% for m in messages %}{{ m.role }}{{ m|tojson }}{% endfor %}{{ tools|tojson }}{{ style|tojson }}";
    let call =
        json!({"id": "<x>", "function": {"name": "f", "arguments": "{\"<x>\": \"\\u003cx>\"}"}});
    let mut input = input(json!([
        {"role": "user", "content": [{"type": "text", "text": "a<x>"}], "name": "<x>"},
        {"role": "assistant", "content": null, "tool_calls": [call], "<x>": 1},
    ]));
    input.tools = Some(vec![json!({"function": {"description": "<x>"}})]);
    input
        .chat_template_kwargs
        .insert("style".to_owned(), json!({"<x>": ["<x>"]}));
    let template = template(source).expect("a template");
    let plain = template.render(&input).expect("a prompt");
    assert_eq!(plain.matches("<x>").count(), 10, "{plain}");
    let escaped = template.render_escaped(&input, &escape).expect("a prompt");
    assert_eq!(escaped.matches("<x>").count(), 1, "{escaped}");
    assert!(escaped.starts_with("<x>user{"), "{escaped}");
    assert_eq!(escaped.replace("[x]", "<x>"), plain);
}

#[test]
fn an_escaped_chat_has_roles_that_the_template_names() {
    let source =
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'ipython' %}!{% endif %}{% endfor %}";
    let template = template(source).expect("a template");
    let chat = |role: &str| input(json!([{"role": role, "content": "a"}]));
    for (role, expected) in [("user", "<user>"), ("ipython", "<ipython>!")] {
        assert_eq!(
            template.render_escaped(&chat(role), &escape).as_deref(),
            Ok(expected)
        );
    }
    for role in ["end", "user>\n<end"] {
        assert!(template.render(&chat(role)).is_ok());
        let error = template.render_escaped(&chat(role), &escape);
        let error = error.expect_err("a refusal").to_string();
        assert!(
            error.starts_with("`messages[0].role` is not one"),
            "{error}"
        );
    }
}

#[test]
fn an_escaped_chat_can_be_continued() {
    let chat = ChatInput {
        continue_final_message: true,
        add_generation_prompt: false,
        ..input(json!([{"role": "assistant", "content": "a <x> b"}]))
    };
    let template = template(TEXTS).expect("a template");
    assert_eq!(
        template.render_escaped(&chat, &escape).as_deref(),
        Ok("assistant:a [x] b")
    );
}
