//! Templates of families that are published without one write what the code of these models writes.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;

use std::fs;

use common::{input, user};
use serde_json::{Value, json};
use tempfile::TempDir;
use text_generation_chat::{ChatInput, ChatTemplate, ChatTemplateError};

fn folder(files: &[(&str, Value)]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for (name, content) in files {
        fs::write(folder.path().join(name), content.to_string()).expect("a file");
    }
    folder
}

fn loaded(config: Value, generation: Value) -> Option<ChatTemplate> {
    let folder = folder(&[
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", json!({"eos_token": "</s>"})),
    ]);
    ChatTemplate::load(folder.path(), None).expect("good files")
}

/// Two rounds, of which the second waits for its answer.
fn rounds() -> Value {
    json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ])
}

fn with_system() -> Value {
    json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
}

/// What the template makes of both, and the family that it names.
fn prompts(config: Value, generation: Value) -> (&'static str, String, String) {
    let template = loaded(config, generation).expect("a template");
    let render = |messages| template.render(&input(messages)).expect("a prompt");
    let family = template.builtin().expect("a family");
    (family, render(rounds()), render(with_system()))
}

#[test]
fn qwen_1_writes_chatml() {
    let config = json!({"architectures": ["QWenLMHeadModel"]});
    assert_eq!(
        prompts(config, json!({"chat_format": "chatml"})),
        (
            "Qwen 1",
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
             <|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
                .to_owned(),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
                .to_owned(),
        )
    );
}

/// Images have the numbers that they have in the conversation.
#[test]
fn qwen_vl_numbers_images() {
    let config = json!({"architectures": ["QWenLMHeadModel"], "visual": {"image_size": 448}});
    let template = loaded(config, json!({"chat_format": "chatml"})).expect("a template");
    assert_eq!(template.builtin(), Some("Qwen-VL"));
    let image = json!({"type": "image"});
    let text = |text: &str| json!({"type": "text", "text": text});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [image, text("What?"), image]},
        {"role": "assistant", "content": "A fox."},
        {"role": "user", "content": [text("And "), image]},
        {"role": "assistant", "content": "A dog."},
        {"role": "user", "content": "Sure?"},
    ]);
    let input = ChatInput {
        images: true,
        ..input(messages)
    };
    assert_eq!(
        template.render(&input).expect("a prompt"),
        "<|im_start|>system\nBe brief.<|im_end|>\n\
         <|im_start|>user\nPicture 1:<img></img>\nWhat?Picture 2:<img></img>\n<|im_end|>\n\
         <|im_start|>assistant\nA fox.<|im_end|>\n\
         <|im_start|>user\nAnd Picture 3:<img></img>\n<|im_end|>\n\
         <|im_start|>assistant\nA dog.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn xcomposer_2_has_images_among_texts() {
    let config = json!({"architectures": ["InternLMXComposer2ForCausalLM"]});
    let template = loaded(config, json!({})).expect("a template");
    assert_eq!(template.builtin(), Some("InternLM-XComposer 2"));
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]},
    ]);
    let input = ChatInput {
        images: true,
        ..input(messages)
    };
    assert_eq!(
        template.render(&input).expect("a prompt"),
        "<s>[UNUSED_TOKEN_146]system\nBe brief.[UNUSED_TOKEN_145]\n\
         [UNUSED_TOKEN_146]user\n<unk>What?[UNUSED_TOKEN_145]\n[UNUSED_TOKEN_146]assistant\n"
    );
}

#[test]
fn baichuan_writes_its_reserved_tokens() {
    let ids = json!({"user_token_id": 195, "assistant_token_id": 196});
    let config = |vocab_size: u32| json!({"architectures": ["BaichuanForCausalLM"], "vocab_size": vocab_size});
    assert_eq!(
        prompts(config(64_000), ids.clone()),
        (
            "Baichuan 1",
            "<reserved_102>Hi<reserved_103>Hello!</s><reserved_102>Bye<reserved_103>".to_owned(),
            "Be brief.<reserved_102>Hi<reserved_103>".to_owned(),
        )
    );
    assert_eq!(
        prompts(config(125_696), ids),
        (
            "Baichuan 2",
            "<reserved_106>Hi<reserved_107>Hello!<reserved_106>Bye<reserved_107>".to_owned(),
            "Be brief.<reserved_106>Hi<reserved_107>".to_owned(),
        )
    );
}

#[test]
fn internlm_1_names_both_sides() {
    let config = json!({"architectures": ["InternLMForCausalLM"]});
    assert_eq!(
        prompts(config, json!({})),
        (
            "InternLM 1",
            "<s><|User|>:Hi\n<|Bot|>:Hello!<eoa>\n<|User|>:Bye\n<|Bot|>:".to_owned(),
            "<s><|System|>:Be brief.\n<|User|>:Hi\n<|Bot|>:".to_owned(),
        )
    );
}

#[test]
fn chatglm_2_counts_rounds() {
    let config = json!({
        "architectures": ["ChatGLMModel"],
        "padded_vocab_size": 65_024,
        "_name_or_path": "THUDM/chatglm2-6b",
    });
    assert_eq!(
        prompts(config, json!({})),
        (
            "ChatGLM 2",
            "[gMASK]sop[Round 1]\n\n问：Hi\n\n答：Hello!\n\n[Round 2]\n\n问：Bye\n\n答："
                .to_owned(),
            "[gMASK]sopBe brief.\n\n[Round 1]\n\n问：Hi\n\n答：".to_owned(),
        )
    );
}

#[test]
fn chatglm_3_and_glm_4_have_a_token_for_each_role() {
    let chatglm = json!({
        "architectures": ["ChatGLMForConditionalGeneration"],
        "padded_vocab_size": 65_024,
        "_name_or_path": "THUDM/chatglm3-6b",
    });
    assert_eq!(
        prompts(chatglm, json!({})),
        (
            "ChatGLM 3",
            "[gMASK]sop<|user|>\n Hi<|assistant|>\n Hello!<|user|>\n Bye<|assistant|>".to_owned(),
            "[gMASK]sop<|system|>\n Be brief.<|user|>\n Hi<|assistant|>".to_owned(),
        )
    );
    let glm = json!({"architectures": ["ChatGLMModel"], "padded_vocab_size": 151_552});
    assert_eq!(
        prompts(glm, json!({})),
        (
            "GLM-4 9B",
            "[gMASK]<sop><|user|>\nHi<|assistant|>\nHello!<|user|>\nBye<|assistant|>".to_owned(),
            "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi<|assistant|>".to_owned(),
        )
    );
}

#[test]
fn a_copy_of_chatglm_3_is_known_by_its_tokens_and_one_of_nothing_by_none() {
    let config = json!({"architectures": ["ChatGLMModel"], "padded_vocab_size": 65_024});
    let tokens = json!({"added_tokens_decoder": {"64795": {"content": "<|user|>"}}});
    let files = [
        ("config.json", config.clone()),
        ("tokenizer_config.json", tokens),
    ];
    let template = ChatTemplate::load(folder(&files).path(), None).expect("good files");
    assert_eq!(template.expect("a template").builtin(), Some("ChatGLM 3"));
    assert!(loaded(config, json!({})).is_none());
}

#[test]
fn models_that_do_not_chat_and_those_of_other_families_have_none() {
    for (architecture, generation) in [
        ("QWenLMHeadModel", json!({"chat_format": "raw"})),
        ("QWenLMHeadModel", json!({})),
        ("BaichuanForCausalLM", json!({})),
        ("LlamaForCausalLM", json!({"chat_format": "chatml"})),
    ] {
        let config = json!({"architectures": [architecture], "vocab_size": 64_000});
        assert!(loaded(config, generation).is_none(), "{architecture}");
    }
}

#[test]
fn a_template_of_the_model_counts_first() {
    let folder = folder(&[
        (
            "config.json",
            json!({"architectures": ["InternLMForCausalLM"]}),
        ),
        ("tokenizer_config.json", json!({"chat_template": "own"})),
    ]);
    let template = ChatTemplate::load(folder.path(), None).expect("good files");
    let template = template.expect("a template");
    assert_eq!(template.render(&user("Hi")), Ok("own".to_owned()));
    assert_eq!(template.builtin(), None);
}

#[test]
fn roles_that_these_models_do_not_know_are_refused() {
    let messages = json!([{"role": "user", "content": "Hi"}, {"role": "critic", "content": "No."}]);
    for (architecture, key) in [
        ("InternLMForCausalLM", "vocab_size"),
        ("ChatGLMModel", "padded_vocab_size"),
    ] {
        let config = json!({"architectures": [architecture], key: 151_552});
        let template = loaded(config, json!({})).expect("a template");
        let refused = template.render(&input(messages.clone()));
        let says =
            matches!(&refused, Err(ChatTemplateError::Raised(says)) if says.contains("roles"));
        assert!(says, "{refused:?}");
    }
}
