//! Bodies of `/tokenize` and `/detokenize`: those of TGI, and those of vLLM, which are told apart by their keys.

use serde::{Deserialize, Serialize};
use text_generation_core::types::SimpleToken;
use utoipa::ToSchema;

/// vLLM's body of `/tokenize` with a text.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"prompt": "Once upon a time", "add_special_tokens": false}))]
pub struct PromptTokensBody {
    pub prompt: String,
    #[serde(flatten)]
    pub options: TokenOptions,
}

/// What vLLM's bodies of `/tokenize` say beside the text or the chat.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TokenOptions {
    /// With the special tokens that a generation would add: the default for a text, but not for a chat, whose template
    /// writes them.
    #[schema(nullable = true)]
    pub add_special_tokens: Option<bool>,
    /// Also how the vocabulary writes each token.
    #[schema(nullable = true)]
    pub return_token_strs: Option<bool>,
}

/// Answer of `/tokenize`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TokenizeAnswer {
    /// To a body of TGI.
    Tokens(Vec<SimpleToken>),
    /// To one of vLLM.
    Counted(CountedTokens),
}

/// vLLM's answer of `/tokenize`.
#[derive(Debug, Serialize, ToSchema)]
pub struct CountedTokens {
    #[schema(example = 2)]
    pub count: usize,
    /// Most tokens of prompt and answer together.
    #[schema(example = 8192)]
    pub max_model_len: u32,
    #[schema(example = json!([9906, 1917]))]
    pub tokens: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = json!(["Hello", "Ġworld"]))]
    pub token_strs: Option<Vec<String>>,
}

/// Body of `/detokenize`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum DetokenizeBody {
    Ids(IdsBody),
    Tokens(TokensBody),
}

/// TGI's body of `/detokenize`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"ids": [9906, 1917]}))]
pub struct IdsBody {
    pub ids: Vec<u32>,
    /// Leave special tokens, such as the end-of-sequence token, out of the text.
    #[serde(default)]
    pub skip_special_tokens: bool,
}

/// vLLM's body of `/detokenize`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"tokens": [9906, 1917]}))]
pub struct TokensBody {
    pub tokens: Vec<u32>,
}

/// Answer of `/detokenize`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum DetokenizeAnswer {
    /// To a body of TGI.
    Text(DetokenizedText),
    /// To one of vLLM.
    Prompt(DetokenizedPrompt),
}

/// TGI's answer of `/detokenize`.
#[derive(Debug, Serialize, ToSchema)]
pub struct DetokenizedText {
    #[schema(example = "Hello world")]
    pub text: String,
}

/// vLLM's answer of `/detokenize`.
#[derive(Debug, Serialize, ToSchema)]
pub struct DetokenizedPrompt {
    #[schema(example = "Hello world")]
    pub prompt: String,
}

/// Answer of `/tokenizer_info`: what the model's `tokenizer_config.json` says.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenizerInfo {
    #[schema(example = "PreTrainedTokenizerFast")]
    pub tokenizer_class: String,
    #[schema(nullable = true, example = "<|end_of_text|>")]
    pub eos_token: Option<String>,
    /// That of the model; missing where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
}
