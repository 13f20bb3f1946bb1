//! Format of the served model: what is known of how it writes calls and reasoning.

mod detection;

use std::sync::Arc;

use text_generation_formats::{Format, SpecialTokens};

/// How calls are read where the model's own way is not known: JSON with a name and its parameters, as TGI's prompt asks
/// for.
const FALLBACK: &str = "llama3_json";
/// How reasoning is told apart for clients that ask for it where nothing is known of the model.
pub(crate) const USUAL_REASONING: &str = "think";

/// Value of `--tool-call-parser` and of `--reasoning-parser`. `T` is what a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParserChoice<T> {
    /// What the files of the model show.
    Auto,
    /// The model is taken to have none.
    None,
    Named(T),
}

impl<T> ParserChoice<T> {
    /// Reads a value. `named` knows the names.
    fn read(text: &str, named: impl FnOnce(&str) -> Result<T, String>) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            name => named(name).map(Self::Named),
        }
    }
}

impl ParserChoice<&'static Format> {
    /// Reads a value of `--tool-call-parser`.
    ///
    /// # Errors
    /// A name of no format.
    pub fn of_calls(text: &str) -> Result<Self, String> {
        Self::read(text, |name| {
            Format::named(name).ok_or_else(|| {
                let known: Vec<&str> = Format::all().iter().map(Format::name).collect();
                let known = known.join("`, `");
                format!("is no known format: use auto, none or one of `{known}`")
            })
        })
    }
}

impl ParserChoice<String> {
    /// Reads a value of `--reasoning-parser`. Whether it suits the model shows when its files are there.
    ///
    /// # Errors
    /// A name of no reasoning.
    pub fn of_reasoning(text: &str) -> Result<Self, String> {
        Self::read(text, |name| match Format::knows_reasoning(name) {
            true => Ok(name.to_owned()),
            false => {
                Err("is no known format: use auto, none, or a name such as deepseek_r1".to_owned())
            }
        })
    }
}

/// How the model writes calls and reasoning, and what its template writes of tools.
#[derive(Debug, Clone)]
pub struct ModelFormat {
    /// The model's own; without calls where that is not known.
    pub(crate) own: Arc<Format>,
    /// The same without reasoning that the model is not known to have, which a format has that was named.
    pub(crate) known: Arc<Format>,
    /// For tools where the model's own way is not known.
    pub(crate) fallback: Arc<Format>,
    /// How reasoning is told apart, by name; then it comes apart where a request does not say.
    pub(crate) reasoning: Option<String>,
    /// Tokens that may stand only where a grammar names them.
    pub(crate) special_tokens: Arc<SpecialTokens>,
    /// Whether the template writes the tools of a request into the prompt.
    pub(crate) tells_tools: bool,
    /// Whether it writes earlier calls and their results.
    pub(crate) tells_calls: bool,
}

impl ModelFormat {
    /// The same for a model whose tokens have ids below `vocab_size`: a grammar can name no others.
    pub fn within(mut self, vocab_size: u32) -> Self {
        Arc::make_mut(&mut self.special_tokens).retain(|_, id| *id < vocab_size);
        self
    }

    /// The parser of calls that is used; none where TGI's way is.
    pub fn tool_call_parser(&self) -> Option<&str> {
        self.own.has_calls().then(|| self.own.name())
    }

    /// How reasoning is told apart; none where nothing is known of it.
    pub fn reasoning_parser(&self) -> Option<&str> {
        self.reasoning.as_deref()
    }

    /// Whether the model's own way is used for calls: its template tells it of tools, and its calls can be read.
    pub(crate) fn knows_tools(&self) -> bool {
        self.tells_tools && self.own.has_calls()
    }
}
