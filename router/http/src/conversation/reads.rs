//! Reading of the answers to one request, and what holds them to what it asks for.

use std::sync::Arc;

use text_generation_formats::{
    ANSWER, Constraint, Format, FormatError, IdSource, OutputParser, ParserOptions, SpecialTokens,
    ToolChoice,
};
use text_generation_grammar::GrammarSource;

use super::Conversation;
use crate::error::ApiError;
use crate::model_format::{ModelFormat, USUAL_REASONING};

/// The format of one request's answers.
#[derive(Debug, Clone)]
pub(super) struct Reads {
    pub format: Arc<Format>,
    /// What the model is known to write: `format` without reasoning that the request alone has asked to look for.
    pub known: Arc<Format>,
    pub options: ParserOptions,
    pub choice: ToolChoice,
    /// Whether the format's special tokens are in the text that is read.
    pub keeps_special_tokens: bool,
    pub special_tokens: Arc<SpecialTokens>,
}

impl Reads {
    /// How the answers to a conversation are read; nothing where all of them is content. Takes its tools, which may be
    /// large.
    pub fn of(format: &ModelFormat, conversation: &mut Conversation) -> Option<Self> {
        let wished = conversation.separate_reasoning;
        let separate = wished.unwrap_or(format.reasoning.is_some());
        let wishes = &mut conversation.tools;
        let calls = wishes.wanted();
        let tools = std::mem::take(&mut wishes.tools);
        let own = !calls || format.knows_tools();
        let (named, known) = match own {
            true => (&format.own, &format.known),
            false => (&format.fallback, &format.fallback),
        };
        let read = match (separate, named.has_reasoning()) {
            (true, false) => Arc::new(named.with_reasoning(USUAL_REASONING)?),
            _ => named.clone(),
        };
        if !calls && !read.has_reasoning() {
            return None;
        }
        Some(Self {
            keeps_special_tokens: own && read.keeps_special_tokens(),
            known: known.clone(),
            choice: wishes.choice.clone(),
            special_tokens: format.special_tokens.clone(),
            format: read,
            options: ParserOptions {
                tools: match calls {
                    true => tools.into_iter().map(|offered| offered.tool).collect(),
                    false => Arc::default(),
                },
                parallel: wishes.parallel,
                separate_reasoning: separate,
                ..ParserOptions::default()
            },
        })
    }

    /// Whether the model may call tools.
    pub fn has_tools(&self) -> bool {
        !self.options.tools.is_empty()
    }

    /// For one answer to `prompt`, which may have begun the reasoning.
    pub fn parser(&self, prompt: &str) -> OutputParser {
        let options = ParserOptions {
            // Each answer has ids of its own.
            ids: IdSource::default(),
            ..self.options.clone()
        };
        self.format.parser(prompt, &options)
    }

    /// The grammar of an answer to `prompt` whose content has the form `content`: reasoning and calls stand beside it.
    /// Reasoning of a model that is not known to reason does not: the model could write anything in the place of the
    /// form. vLLM's router sets `separate_reasoning` in every chat.
    ///
    /// # Errors
    /// 422 when the format of the model cannot have this.
    pub fn grammar(
        &self,
        prompt: &str,
        content: Option<GrammarSource>,
    ) -> Result<Option<GrammarSource>, ApiError> {
        // Nothing can stand beside it.
        if !self.has_tools() && !self.known.has_reasoning() {
            return Ok(content);
        }
        // An answer that has to be a call has no other form.
        let content = content.filter(|_| !self.choice.demands_call());
        let constraint = Constraint {
            tools: &self.options.tools,
            choice: &self.choice,
            parallel: self.options.parallel,
            has_form: content.is_some(),
            prompt_tail: prompt,
            special_tokens: &self.special_tokens,
        };
        let grammar = self.known.grammar(&constraint);
        let grammar = grammar.map_err(|error| refused(&error))?;
        Ok(grammar.map(|lark| match content {
            None => GrammarSource::Tools(lark),
            Some(content) => GrammarSource::Around {
                lark,
                name: ANSWER,
                inner: Box::new(content),
            },
        }))
    }
}

fn refused(error: &FormatError) -> ApiError {
    ApiError::invalid_body(format!("Input validation error: {error}"))
}
