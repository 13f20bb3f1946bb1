//! The formats that are known without a model's help.

mod elements;
mod headers;
mod literals;
mod make;
mod objects;
mod reasoning;

use std::collections::HashSet;
use std::sync::LazyLock;

use crate::format::{Format, Layout, Reasoning};
use crate::response_template;
use make::format;
use reasoning::REASONING;

/// The order matters where two formats can read the same call: the first one is taken.
static FORMATS: LazyLock<Vec<Format>> = LazyLock::new(|| {
    let mut formats = objects::formats();
    formats.extend(headers::formats());
    formats.extend(elements::formats());
    formats.extend(literals::formats());
    formats
});

/// The kinds of reasoning that can be combined with any format.
pub(crate) fn reasonings() -> impl Iterator<Item = Reasoning> {
    let named = REASONING.iter().map(|(_, reasoning)| reasoning.clone());
    named.chain(FORMATS.iter().filter_map(|format| format.reasoning.clone()))
}

impl Format {
    /// The format with this name or alias.
    pub fn named(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.goes_by(name))
    }

    /// Whether this is its name or an alias.
    pub fn goes_by(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// Every format that is known without a model's help, in the order in which they are tried.
    pub fn all() -> &'static [Self] {
        &FORMATS
    }

    /// The same format for a vocabulary with these tokens: the markers of Hy 4 end with a suffix of the checkpoint.
    pub fn for_vocabulary(&self, tokens: &HashSet<String>) -> Self {
        let suffix = |token: &String| {
            let suffix = token.strip_prefix("<tool_calls")?.strip_suffix('>')?;
            suffix.starts_with(':').then(|| suffix.to_owned())
        };
        match tokens.iter().find_map(suffix) {
            Some(suffix) if self.name == elements::HUNYUAN => elements::hunyuan(&suffix),
            _ => self.clone(),
        }
    }

    /// The same calls with the reasoning of this name. `openai` is a format of its own and has no other reasoning.
    pub fn with_reasoning(&self, name: &str) -> Option<Self> {
        let other = REASONING.iter().find(|(names, _)| names.contains(&name));
        if let Some((_, reasoning)) = other {
            return Some(self.clone().thinks(reasoning.clone()));
        }
        let format = Self::named(name)?;
        Some(Self {
            reasoning: Some(format.reasoning.clone()?),
            envelope: format.envelope.or(self.envelope),
            ..self.clone()
        })
    }

    /// The same for a model that does not reason. `openai` stays as it is.
    pub fn without_reasoning(&self) -> Self {
        Self {
            reasoning: None,
            ..self.clone()
        }
    }

    /// Whether the reasoning of some model goes by this name: that of [`with_reasoning`](Self::with_reasoning), or of a
    /// format with a reasoning of its own.
    pub fn knows_reasoning(name: &str) -> bool {
        let anyones = REASONING.iter().any(|(names, _)| names.contains(&name));
        anyones || Self::named(name).is_some() || name == response_template::NAME
    }

    /// Content without calls, for models that only reason.
    pub fn plain() -> Self {
        format("none", &[], Layout::Plain)
    }
}
