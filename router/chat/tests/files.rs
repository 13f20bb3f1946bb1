//! Which file of a model's folder counts.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;

use std::fs;
use std::path::Path;

use common::user;
use serde_json::{Value, json};
use tempfile::TempDir;
use text_generation_chat::{ChatInput, ChatTemplate, ChatTemplateError};

fn folder(files: &[(&str, Value)]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for (name, content) in files {
        let text = content
            .as_str()
            .map_or_else(|| content.to_string(), str::to_owned);
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    folder
}

fn prompt(folder: &TempDir, given: Option<&Path>, input: &ChatInput) -> String {
    ChatTemplate::load(folder.path(), given)
        .expect("good files")
        .expect("a template")
        .render(input)
        .expect("a prompt")
}

#[test]
fn each_source_counts_where_the_ones_before_it_are_absent() {
    let config = ("tokenizer_config.json", json!({"chat_template": "config"}));
    let legacy = ("chat_template.json", json!({"chat_template": "legacy"}));
    let jinja = ("chat_template.jinja", json!("jinja"));
    let given = folder(&[("t.json", json!({"chat_template": "given"}))]);
    let given = given.path().join("t.json");
    let all = [config.clone(), legacy.clone(), jinja];
    assert_eq!(prompt(&folder(&all), Some(&given), &user("")), "given");
    assert_eq!(prompt(&folder(&all), None, &user("")), "jinja");
    assert_eq!(
        prompt(&folder(&[config.clone(), legacy]), None, &user("")),
        "legacy"
    );
    assert_eq!(prompt(&folder(&[config]), None, &user("")), "config");
}

#[test]
fn a_given_file_without_a_template_changes_only_the_tokens() {
    let given = folder(&[("t.json", json!({"bos_token": "<new>"}))]);
    let model = folder(&[
        (
            "tokenizer_config.json",
            json!({"bos_token": "<old>", "eos_token": "</s>"}),
        ),
        (
            "chat_template.jinja",
            json!("{{ bos_token }}{{ eos_token }}"),
        ),
    ]);
    let path = given.path().join("t.json");
    assert_eq!(prompt(&model, Some(&path), &user("")), "<new></s>");
}

#[test]
fn special_tokens_are_found_in_every_layout() {
    let model = folder(&[
        (
            "tokenizer_config.json",
            json!({
                "chat_template": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ image_token }}",
                "bos_token": {"content": "<b>", "lstrip": false},
                "eos_token": "<e>",
                "pad_token": null,
                "add_bos_token": true,
                "extra_special_tokens": {"image_token": "<i>"},
            }),
        ),
        (
            "special_tokens_map.json",
            json!({"eos_token": "<old>", "unk_token": {"content": "<u>"}}),
        ),
    ]);
    assert_eq!(prompt(&model, None, &user("")), "<b>|<e>||<u>|<i>");
}

#[test]
fn a_model_may_have_a_template_for_tools() {
    let list = json!([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]);
    let in_config = folder(&[("tokenizer_config.json", json!({"chat_template": list}))]);
    let in_files = folder(&[
        ("chat_template.jinja", json!("plain")),
        ("additional_chat_templates/tool_use.jinja", json!("tools")),
    ]);
    for model in [in_config, in_files] {
        let with_tools = ChatInput {
            tools: Some(vec![]),
            ..user("")
        };
        assert_eq!(prompt(&model, None, &user("")), "plain");
        assert_eq!(prompt(&model, None, &with_tools), "tools");
    }
}

#[test]
fn without_a_template_there_is_none() {
    let bare = folder(&[("tokenizer_config.json", json!({"chat_template": null}))]);
    assert!(
        ChatTemplate::load(bare.path(), None)
            .expect("no error")
            .is_none()
    );
    let unnamed = json!([{"name": "rag", "template": "x"}]);
    let other = folder(&[("chat_template.json", json!({"chat_template": unnamed}))]);
    let loaded = ChatTemplate::load(other.path(), None)
        .expect("no error")
        .expect("templates");
    assert_eq!(loaded.render(&user("")), Err(ChatTemplateError::Missing));
}

#[test]
fn files_that_cannot_be_used_are_named_without_their_folder() {
    let broken = [
        (
            "tokenizer_config.json",
            json!("{"),
            "tokenizer_config.json: is not a JSON object",
        ),
        (
            "chat_template.json",
            json!("[]"),
            "chat_template.json: is not a JSON object",
        ),
        (
            "chat_template.jinja",
            json!("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
            "chat_template.jinja: is only a pointer of Git LFS",
        ),
        (
            "chat_template.json",
            json!({"chat_template": 1}),
            "chat_template.json: `chat_template` must be",
        ),
        (
            "chat_template.json",
            json!({"chat_template": [1]}),
            "chat_template.json: `chat_template` must list",
        ),
        (
            "chat_template.jinja",
            json!("{% if %}"),
            "the chat template `default` of this model cannot be compiled",
        ),
    ];
    for (name, content, expected) in broken {
        let model = folder(&[(name, content)]);
        let error = ChatTemplate::load(model.path(), None)
            .expect_err("a broken file")
            .to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(
            !error.contains(&model.path().display().to_string()),
            "{error}"
        );
    }
    let missing = ChatTemplate::load(folder(&[]).path(), Some(Path::new("/no/t.json")));
    let error = missing.expect_err("a missing file").to_string();
    assert_eq!(error, "t.json: does not exist");
}
