//! Prompts that end inside the last message.

use serde_json::Value;

use crate::ChatTemplateError;

const FIELD: &str = "continue_final_message";
/// Follows the text to continue. Its last character tells templates that trim texts from those that do not.
const MARK: &str = "<|the answer goes on here|> ";

/// The text at whose end the prompt ends.
#[derive(Debug)]
pub(crate) struct Tail {
    text: String,
}

/// Appends the mark to the last text of the last message.
pub(crate) fn mark(messages: &mut [Value]) -> Result<Tail, ChatTemplateError> {
    let content = messages.last_mut().and_then(|last| last.get_mut("content"));
    let text = match content {
        Some(content @ Value::String(_)) => Some(content),
        Some(Value::Array(parts)) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
        _ => None,
    };
    match text {
        Some(Value::String(text)) => {
            let tail = Tail { text: text.clone() };
            text.push_str(MARK);
            Ok(tail)
        }
        _ => Err(ChatTemplateError::input(
            FIELD,
            "needs a last message whose `content` has a text",
        )),
    }
}

impl Tail {
    /// The prompt up to the mark.
    pub(crate) fn cut(&self, mut prompt: String) -> Result<String, ChatTemplateError> {
        let mark = MARK.trim_end();
        match prompt.rfind(mark) {
            Some(at) if prompt.contains(self.text.trim()) => {
                let kept = prompt[at..].starts_with(MARK);
                prompt.truncate(at);
                if !kept {
                    prompt.truncate(prompt.trim_end().len());
                }
                Ok(prompt)
            }
            _ => Err(ChatTemplateError::input(
                FIELD,
                "is not possible: the chat template of this model does not write the last message as it is",
            )),
        }
    }
}
