//! What is known of how the model writes calls and reasoning.

use std::str::FromStr;
use std::sync::Arc;

use text_generation_formats::{Format, ParserOptions, SpecialTokens};

use super::Conversation;
use super::reads::Reads;

/// How calls are read where the model's own way is not known: JSON with a name and its parameters, as TGI's prompt asks
/// for.
pub(super) const FALLBACK: &str = "llama3_json";
/// How reasoning is told apart for clients that ask for it where nothing is known of the model.
pub(super) const USUAL_REASONING: &str = "think";

/// Value of `--tool-call-parser` and of `--reasoning-parser`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ParserChoice {
    /// What the files of the model show.
    #[default]
    Auto,
    /// The model is taken to have none.
    None,
    Named(String),
}

impl FromStr for ParserChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "auto" => Self::Auto,
            "none" => Self::None,
            name => Self::Named(name.to_owned()),
        })
    }
}

/// How the model writes calls and reasoning, and what its template writes of tools.
#[derive(Debug, Clone)]
pub struct ModelFormat {
    /// The model's own; without calls where that is not known.
    pub(super) own: Arc<Format>,
    /// For tools where the model's own way is not known.
    pub(super) fallback: Arc<Format>,
    /// How reasoning is told apart, by name; then it comes apart where a request does not say.
    pub(super) reasoning: Option<String>,
    /// Tokens that may stand only where a grammar names them.
    pub(super) special_tokens: Arc<SpecialTokens>,
    /// Whether the template writes the tools of a request into the prompt.
    pub(super) tells_tools: bool,
    /// Whether it writes earlier calls and their results.
    pub(super) tells_calls: bool,
}

impl ModelFormat {
    /// The parser of calls that is used; none where TGI's way is.
    pub fn tool_call_parser(&self) -> Option<&str> {
        self.own.has_calls().then(|| self.own.name())
    }

    /// How reasoning is told apart; none where nothing is known of it.
    pub fn reasoning_parser(&self) -> Option<&str> {
        self.reasoning.as_deref()
    }

    /// Whether the model's own way is used for calls: its template tells it of tools, and its calls can be read.
    pub(super) fn knows_tools(&self) -> bool {
        self.tells_tools && self.own.has_calls()
    }

    /// How the answers to a conversation are read; nothing where all of them is content.
    pub(super) fn reads(&self, conversation: &Conversation) -> Option<Reads> {
        let wished = conversation.separate_reasoning;
        let separate = wished.unwrap_or(self.reasoning.is_some());
        let wishes = &conversation.tools;
        let tools = if wishes.wanted() {
            wishes
                .tools
                .iter()
                .map(|offered| offered.tool.clone())
                .collect()
        } else {
            Arc::default()
        };
        let calls = wishes.wanted();
        let own = !calls || self.knows_tools();
        let known = if own { &self.own } else { &self.fallback };
        let format = match (separate, known.has_reasoning()) {
            (true, false) => Arc::new(known.with_reasoning(USUAL_REASONING)?),
            _ => known.clone(),
        };
        if !calls && !format.has_reasoning() {
            return None;
        }
        Some(Reads {
            keeps_special_tokens: own && format.keeps_special_tokens(),
            known: known.clone(),
            choice: wishes.choice.clone(),
            special_tokens: self.special_tokens.clone(),
            format,
            options: ParserOptions {
                tools,
                parallel: wishes.parallel,
                separate_reasoning: separate,
                ..ParserOptions::default()
            },
        })
    }
}
