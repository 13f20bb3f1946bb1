//! Chat templates of models that are published without one: their own code writes the prompts. Each template here writes
//! the same text.

use std::path::Path;

use serde_json::{Map, Value};

use super::ChatTemplateError;
use super::files::json;

/// `$begin`, then messages of the roles user and assistant, and one of the system before them, each between two marks.
macro_rules! by_marks {
    ($begin:literal, $user:literal, $user_end:literal, $bot:literal, $bot_end:literal, $system:literal, $system_end:literal) => {
        concat!(
            $begin,
            "{% for message in messages %}\
             {% if message['role'] == 'user' %}",
            $user,
            "{{ message['content'] }}",
            $user_end,
            "{% elif message['role'] == 'assistant' %}",
            $bot,
            "{{ message['content'] }}",
            $bot_end,
            "{% elif message['role'] == 'system' and loop.first %}",
            $system,
            "{{ message['content'] }}",
            $system_end,
            "{% else %}{{ raise_exception('messages are of the roles user and assistant, and a first one may be of the role \
             system') }}{% endif %}\
             {% endfor %}\
             {% if add_generation_prompt %}",
            $bot,
            "{% endif %}"
        )
    };
}

/// Messages with a token for each role, and `$between` between it and the content.
macro_rules! by_roles {
    ($between:literal) => {
        concat!(
            "{% for message in messages %}\
             {% if message['role'] in ['system', 'user', 'assistant', 'observation'] %}<|{{ message['role'] }}|>\
             {% elif message['role'] == 'tool' %}<|observation|>\
             {% else %}{{ raise_exception('messages are of the roles system, user, assistant and tool') }}{% endif %}\
             {{ '",
            $between,
            "' + message['content'] }}\
             {% endfor %}\
             {% if add_generation_prompt %}<|assistant|>{% endif %}"
        )
    };
}

/// A template that the server has for a family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Builtin {
    /// For people.
    pub family: &'static str,
    pub(super) source: &'static str,
}

/// Qwen 1: ChatML, which begins with a system message.
const QWEN: Builtin = Builtin {
    family: "Qwen 1",
    source: "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}\
        {% for message in messages %}\
        <|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n\
        {% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
};

/// Qwen-VL: the same with images where they are among texts, with their numbers in the conversation.
const QWEN_VL: Builtin = Builtin {
    family: "Qwen-VL",
    source: "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}\
        {% set pictures = namespace(count=0) %}\
        {% for message in messages %}\
        <|im_start|>{{ message['role'] }}\n\
        {% if message['content'] is string %}{{ message['content'] }}{% else %}\
        {% for part in message['content'] %}\
        {% if part['type'] == 'image' %}\
        {% set pictures.count = pictures.count + 1 %}Picture {{ pictures.count }}:<img></img>\n\
        {% else %}{{ part['text'] }}{% endif %}\
        {% endfor %}{% endif %}<|im_end|>\n\
        {% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
};

/// InternLM-XComposer 2: tokens of InternLM 2 under the names of its tokenizer, with images where they are among texts.
const XCOMPOSER2: Builtin = Builtin {
    family: "InternLM-XComposer 2",
    source: "<s>{% for message in messages %}\
        [UNUSED_TOKEN_146]{{ message['role'] }}\n\
        {% if message['content'] is string %}{{ message['content'] }}{% else %}\
        {% for part in message['content'] %}\
        {% if part['type'] == 'image' %}<unk>{% else %}{{ part['text'] }}{% endif %}\
        {% endfor %}{% endif %}[UNUSED_TOKEN_145]\n\
        {% endfor %}\
        {% if add_generation_prompt %}[UNUSED_TOKEN_146]assistant\n{% endif %}",
};

/// Baichuan 1: marks of both roles, and the end of a text behind each answer.
const BAICHUAN: Builtin = Builtin {
    family: "Baichuan 1",
    source: by_marks!("", "<reserved_102>", "", "<reserved_103>", "</s>", "", ""),
};

/// Baichuan 2: other marks, and nothing behind an answer.
const BAICHUAN2: Builtin = Builtin {
    family: "Baichuan 2",
    source: by_marks!("", "<reserved_106>", "", "<reserved_107>", "", "", ""),
};

/// InternLM 1, as its files of version 1.1 have it.
const INTERNLM: Builtin = Builtin {
    family: "InternLM 1",
    source: by_marks!(
        "<s>",
        "<|User|>:",
        "\n",
        "<|Bot|>:",
        "<eoa>\n",
        "<|System|>:",
        "\n"
    ),
};

/// ChatGLM 2: numbered rounds of a question and an answer.
const CHATGLM2: Builtin = Builtin {
    family: "ChatGLM 2",
    source: by_marks!(
        "[gMASK]sop{% set rounds = namespace(count=0) %}",
        "{% set rounds.count = rounds.count + 1 %}[Round {{ rounds.count }}]\n\n问：",
        "\n\n",
        "答：",
        "\n\n",
        "",
        "\n\n"
    ),
};

/// ChatGLM 3: a token for each role. Its sentencepiece begins a content with a space.
const CHATGLM3: Builtin = Builtin {
    family: "ChatGLM 3",
    source: concat!("[gMASK]sop", by_roles!("\\n ")),
};

/// GLM-4 9B: the same, with a tokenizer that has no such space.
const GLM4: Builtin = Builtin {
    family: "GLM-4 9B",
    source: concat!("[gMASK]<sop>", by_roles!("\\n")),
};

/// Tokens of the embedding of Baichuan 2, and of ChatGLM 2 and 3.
const BAICHUAN2_VOCABULARY: u64 = 125_696;
const CHATGLM_VOCABULARY: u64 = 65_024;

/// The template for the model in `folder`, where its configuration says that it is one of these, and that it chats.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn of_folder(folder: &Path) -> Result<Option<Builtin>, ChatTemplateError> {
    let read = |name: &str| json(&folder.join(name)).map(Option::unwrap_or_default);
    let config = read("config.json")?;
    let architecture = config
        .get("architectures")
        .and_then(|names| names.get(0)?.as_str());
    Ok(match architecture {
        // Models that only complete texts have the same class: what generates says which this one is.
        Some("QWenLMHeadModel") => {
            let generation = read("generation_config.json")?;
            let chats = generation
                .get("chat_format")
                .is_some_and(|form| form == "chatml");
            let sees = config.contains_key("visual");
            chats.then_some(if sees { QWEN_VL } else { QWEN })
        }
        Some("BaichuanForCausalLM" | "BaiChuanForCausalLM") => {
            let chats = read("generation_config.json")?.contains_key("user_token_id");
            let is_second = number(&config, "vocab_size") == Some(BAICHUAN2_VOCABULARY);
            chats.then_some(if is_second { BAICHUAN2 } else { BAICHUAN })
        }
        Some("InternLMForCausalLM") => Some(INTERNLM),
        Some("InternLMXComposer2ForCausalLM") => Some(XCOMPOSER2),
        Some("ChatGLMModel" | "ChatGLMForConditionalGeneration") => {
            glm(&config, &read("tokenizer_config.json")?)
        }
        _ => None,
    })
}

/// ChatGLM 2 and 3 differ in their name alone, or in the tokens that their tokenizer lists.
fn glm(config: &Map<String, Value>, tokenizer: &Map<String, Value>) -> Option<Builtin> {
    if number(config, "padded_vocab_size") != Some(CHATGLM_VOCABULARY) {
        return config.contains_key("padded_vocab_size").then_some(GLM4);
    }
    let name = config.get("_name_or_path").and_then(Value::as_str);
    let name = name.unwrap_or_default().to_lowercase();
    let added = tokenizer.get("added_tokens_decoder");
    let has_roles = added
        .and_then(Value::as_object)
        .is_some_and(|added| added.values().any(|token| token["content"] == "<|user|>"));
    if name.contains("chatglm2") {
        Some(CHATGLM2)
    } else if name.contains("chatglm3") || has_roles {
        Some(CHATGLM3)
    } else {
        None
    }
}

fn number(config: &Map<String, Value>, key: &str) -> Option<u64> {
    config.get(key).and_then(Value::as_u64)
}
