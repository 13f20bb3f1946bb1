//! Requests that do not fit into the context of the model, in the words by which the clients of each API know them.
//!
//! Agents shorten their conversation and try again when they find these words; of other errors they tell their user.

use text_generation_core::error::{Overflow, PromptTokens};

/// What `code` of OpenAI's API says of them.
pub const CONTEXT_LENGTH_EXCEEDED: &str = "context_length_exceeded";

/// How far a request is too long, and what the API calls its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    overflow: Overflow,
    prompt: &'static str,
    /// The prompt has tools in it, too.
    tools: bool,
    limit: &'static str,
}

impl Context {
    /// With the names of `core`.
    pub fn new(overflow: Overflow) -> Self {
        Self {
            overflow,
            prompt: "inputs",
            tools: false,
            limit: "max_new_tokens",
        }
    }

    /// With those that `name` gives its parts.
    pub fn rename(&mut self, name: impl Fn(&'static str) -> &'static str) {
        self.prompt = name(self.prompt);
        self.limit = name(self.limit);
    }

    /// Of a prompt with `tools`, which may be the larger part of it.
    pub fn with_tools(&mut self) {
        self.tools = true;
    }

    /// For clients of OpenAI's API.
    pub fn openai(&self) -> String {
        let Self {
            overflow, limit, ..
        } = self;
        let prompt = match self.tools {
            true => format!("`{}` and `tools`", self.prompt),
            false => format!("`{}`", self.prompt),
        };
        let (inputs, least) = match overflow.inputs {
            PromptTokens::Exactly(inputs) => (inputs, ""),
            PromptTokens::AtLeast(inputs) => (inputs, "at least "),
            PromptTokens::Cut => (0, ""),
        };
        let context = format!(
            "This model's maximum context length is {} tokens",
            overflow.context
        );
        let Some(new) = overflow.new else {
            return format!(
                "{context}, of which at most {} may be the prompt. However, your {prompt} resulted in {least}{inputs} \
                 tokens. Please reduce the length of {prompt}.",
                overflow.most_input
            );
        };
        // A larger limit than 32 bits hold is read as the largest that they do.
        let most = if new == u32::MAX { "at least " } else { "" };
        if overflow.inputs == PromptTokens::Cut {
            return format!(
                "{context}. However, you requested {most}{new} as `{limit}`, which leaves no room for {prompt}. Please \
                 reduce `{limit}`."
            );
        }
        let of_all = if least.is_empty() { most } else { least };
        format!(
            "{context}. However, you requested {of_all}{} tokens ({least}{inputs} in {prompt}, {most}{new} as `{limit}`). \
             Please reduce the length of {prompt}, or `{limit}`.",
            inputs.saturating_add(new as usize)
        )
    }

    /// For clients of Anthropic's API.
    pub fn anthropic(&self) -> String {
        let Overflow {
            context,
            most_input,
            inputs,
            new,
        } = self.overflow;
        let (inputs, note) = match inputs {
            PromptTokens::Exactly(inputs) => (inputs, ""),
            // Clients look for the two numbers and what is between them.
            PromptTokens::AtLeast(inputs) => (inputs, " (it has at least so many)"),
            PromptTokens::Cut => (0, ""),
        };
        match new {
            Some(new) if inputs <= most_input as usize => format!(
                "input length and `max_tokens` exceed context limit: {inputs} + {new} > {context}, decrease input length \
                 or `max_tokens` and try again"
            ),
            _ => format!("prompt is too long: {inputs} tokens > {most_input} maximum{note}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(inputs: PromptTokens, new: Option<u32>) -> Context {
        let mut context = Context::new(Overflow {
            context: 100,
            most_input: 90,
            inputs,
            new,
        });
        context.rename(|name| if name == "inputs" { "messages" } else { name });
        context
    }

    #[test]
    fn the_numbers_are_those_of_the_request() {
        use PromptTokens::{AtLeast, Cut, Exactly};
        let asked = context(Exactly(60), Some(50));
        assert_eq!(
            asked.openai(),
            "This model's maximum context length is 100 tokens. However, you requested 110 tokens (60 in `messages`, 50 \
             as `max_new_tokens`). Please reduce the length of `messages`, or `max_new_tokens`."
        );
        assert!(asked.anthropic().contains(": 60 + 50 > 100,"));
        let long = context(Exactly(95), None);
        assert_eq!(
            long.openai(),
            "This model's maximum context length is 100 tokens, of which at most 90 may be the prompt. However, your \
             `messages` resulted in 95 tokens. Please reduce the length of `messages`."
        );
        for new in [None, Some(5)] {
            assert_eq!(
                context(Exactly(95), new).anthropic(),
                "prompt is too long: 95 tokens > 90 maximum"
            );
        }
        let untokenised = context(AtLeast(95), None);
        assert!(
            untokenised
                .openai()
                .contains("your `messages` resulted in at least 95 tokens.")
        );
        assert_eq!(
            untokenised.anthropic(),
            "prompt is too long: 95 tokens > 90 maximum (it has at least so many)"
        );
        assert_eq!(
            context(Cut, Some(100)).openai(),
            "This model's maximum context length is 100 tokens. However, you requested 100 as `max_new_tokens`, which \
             leaves no room for `messages`. Please reduce `max_new_tokens`."
        );
        // What was asked for has no room in 32 bits.
        let endless = context(Exactly(5), Some(u32::MAX)).openai();
        assert!(
            endless.contains("at least 4294967300 tokens (5 in `messages`, at least 4294967295 as"),
            "{endless}"
        );
    }
}
