//! Detection of how the model writes calls and reasoning, once, before the server answers.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use text_generation_chat::ChatInput;
use text_generation_formats::{Evidence, Format, SpecialTokens, probes};

use super::{FALLBACK, ModelFormat, ParserChoice, USUAL_REASONING};
use crate::renderer::ChatRenderer;

/// What shows that a template has written a tool of the probes, and a call of theirs.
const TOOL: &str = "look_up_probe";
const ARGUMENT: &str = "Basel 4057";

impl ModelFormat {
    /// Follows the flags `--tool-call-parser` and `--reasoning-parser`. Where they leave it open, the files of the model
    /// in `folder` say it, or what its template makes of a conversation with calls.
    ///
    /// # Errors
    /// A reasoning that is not that of this model.
    pub async fn find(
        calls: &ParserChoice<&'static Format>,
        reasoning: &ParserChoice<String>,
        folder: &Path,
        chats: &ChatRenderer,
    ) -> Result<Self, String> {
        let special_tokens: SpecialTokens = chats.special_tokens();
        let evidence = evidence(folder, chats, &special_tokens).await;
        let tells_calls = evidence.rendered.iter().any(|text| text.contains(ARGUMENT));
        let tells_tools = prompt_with_tools(chats).await.contains(TOOL);
        let tokens = evidence.tokens.clone();
        let detect = move || Format::detect(&evidence);
        let found = tokio::task::spawn_blocking(detect).await;
        let found = found.map_err(|error| error.to_string())?;
        let detected = found.map_or_else(Format::plain, |found| found.format);
        let thinks = detected.has_reasoning();
        let own = own_calls(calls, detected).for_vocabulary(&tokens);
        let (own, name) = own_reasoning(reasoning, own, thinks)?;
        let fallback = Format::named(FALLBACK)
            .cloned()
            .unwrap_or_else(Format::plain);
        let thinking = name
            .as_deref()
            .and_then(|name| fallback.with_reasoning(name));
        let fallback = thinking.unwrap_or(fallback);
        let own = Arc::new(own);
        let known = match name {
            Some(_) => own.clone(),
            None => Arc::new(own.without_reasoning()),
        };
        Ok(Self {
            own,
            known,
            fallback: Arc::new(fallback),
            reasoning: name,
            special_tokens: Arc::new(special_tokens),
            // Who names a format knows that the model is told of tools in some way.
            tells_tools: tells_tools || matches!(calls, ParserChoice::Named(_)),
            tells_calls,
        })
    }
}

/// The format whose calls are read.
fn own_calls(choice: &ParserChoice<&'static Format>, detected: Format) -> Format {
    match choice {
        ParserChoice::Auto => detected,
        ParserChoice::None => {
            let plain = Format::plain();
            let thinking = match detected.has_reasoning() {
                true => plain.with_reasoning(USUAL_REASONING),
                false => None,
            };
            thinking.unwrap_or(plain)
        }
        ParserChoice::Named(format) => Format::clone(format),
    }
}

/// The format with the reasoning that was named, and what that is called. `thinks` says whether the model showed any.
fn own_reasoning(
    choice: &ParserChoice<String>,
    own: Format,
    thinks: bool,
) -> Result<(Format, Option<String>), String> {
    match choice {
        ParserChoice::None => Ok((own, None)),
        ParserChoice::Auto => {
            let name = if own.has_calls() {
                own.name()
            } else {
                USUAL_REASONING
            };
            let name = (thinks && own.has_reasoning()).then(|| name.to_owned());
            Ok((own, name))
        }
        // It has no other reasoning than its own.
        ParserChoice::Named(name) if name == own.name() && own.has_reasoning() => {
            Ok((own, Some(name.clone())))
        }
        ParserChoice::Named(name) => match own.with_reasoning(name) {
            Some(format) => Ok((format, Some(name.clone()))),
            None if own.goes_by(name) && own.has_reasoning() => Ok((own, Some(name.clone()))),
            None => Err(format!(
                "`--reasoning-parser {name}` does not fit this model, which writes nothing in that format: use auto, none, \
                 or a name such as deepseek_r1"
            )),
        },
    }
}

/// What can be known of a model.
async fn evidence(folder: &Path, chats: &ChatRenderer, special_tokens: &SpecialTokens) -> Evidence {
    let mut rendered = Vec::new();
    for probe in probes() {
        let input = ChatInput {
            messages: probe.messages,
            tools: Some(probe.tools),
            ..ChatInput::default()
        };
        // A template may refuse a conversation.
        rendered.extend(chats.probe(input).await.ok());
    }
    let prompt = ChatInput {
        messages: vec![json!({"role": "user", "content": "Hi"})],
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    Evidence {
        response_template: response_template(folder),
        rendered: rendered
            .iter()
            .map(|text| chats.readable(text).into_owned())
            .collect(),
        generation_prompt: chats.probe(prompt).await.unwrap_or_default(),
        tokens: special_tokens.keys().cloned().collect(),
        template: chats.source().to_owned(),
    }
}

/// The key that newer models have in their `tokenizer_config.json`.
fn response_template(folder: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(folder.join("tokenizer_config.json")).ok()?;
    let mut config: Value = serde_json::from_str(&text).ok()?;
    config.get_mut("response_template").map(Value::take)
}

/// A prompt in which a template that knows tools has written one.
async fn prompt_with_tools(chats: &ChatRenderer) -> String {
    let Some(probe) = probes().into_iter().next() else {
        return String::new();
    };
    let input = ChatInput {
        messages: vec![json!({"role": "user", "content": "Hi"})],
        tools: Some(probe.tools),
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    let prompt = chats.probe(input).await.unwrap_or_default();
    chats.readable(&prompt).into_owned()
}
