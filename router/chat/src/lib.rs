//! Conversations to prompts, with the chat template of the model.
//!
//! Semantics are those of `apply_chat_template` in transformers, whose Jinja environment is the de facto definition of
//! a chat template. A template is code that came with the weights, and runs on what clients send: each rendering has
//! [`Limits`], and a failure is a [`ChatTemplateError`] of that request.

mod arguments;
mod bounded;
mod builtin;
mod checks;
mod compiled;
mod engine;
mod error;
mod escaped;
mod files;
mod json;
mod limits;
mod messages;
mod python;
mod source;
mod surrogates;
mod syntax;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use minijinja::Environment;
use serde_json::{Map, Value};

pub use self::arguments::arguments_object;
use self::compiled::Compiled;
pub use self::error::ChatTemplateError;
pub use self::limits::{Limit, Limits};
pub use self::surrogates::mend_surrogates;

/// Name of the template of a model that has several, where nothing asks for another.
const DEFAULT: &str = "default";
/// Name of the template for conversations with tools.
const TOOL_USE: &str = "tool_use";

/// Marks a text of a client, so that no special token is found in it; see [`ChatTemplate::render_escaped`].
pub type Escape<'a> = dyn Fn(&str) -> Cow<'_, str> + 'a;

/// A conversation as the request has it.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// Objects with `role` and whatever else the client sent: `content` as text or as parts, `name`, `tool_calls`,
    /// `tool_call_id`, `reasoning_content`. Every field reaches the template; fields that are null, but `content`, are
    /// as good as absent.
    pub messages: Vec<Value>,
    /// Tools as the client sent them; None, unlike an empty list, says that the request has none.
    pub tools: Option<Vec<Value>>,
    /// Whether the prompt ends with the header of an answer.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends inside the last message, for the model to go on. Excludes `add_generation_prompt`.
    pub continue_final_message: bool,
    /// Variables that the template reads beside those above, such as `documents`; others are refused by name.
    pub chat_template_kwargs: Map<String, Value>,
    /// What a template gets of system messages that it may not know.
    pub system_messages: SystemMessages,
    /// Contents may have parts of the type `image`, of which the template makes the model's marker.
    pub images: bool,
}

/// What becomes of several system messages, and of those of the role `developer`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SystemMessages {
    /// The template reads them as they are.
    #[default]
    AsGiven,
    /// The leading ones are one message. Others stay in their places; where the template refuses that, they are part of
    /// the user's messages beside them. `developer` is `system` to a template that does not name it.
    Adapted,
}

/// The chat templates of a model, compiled, and its special tokens. Clones share them.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    loaded: Arc<Loaded>,
    limits: Limits,
}

#[derive(Debug)]
struct Loaded {
    environment: Environment<'static>,
    /// A template that cannot be compiled is an error of the requests that need it.
    templates: BTreeMap<String, Result<Compiled, ChatTemplateError>>,
    special_tokens: Map<String, Value>,
    /// The family whose template it is, where the model has none.
    builtin: Option<&'static str>,
}

impl ChatTemplate {
    /// Reads the chat template of the model in `folder`. Where it has none, there is one for some families that are
    /// published so, else None.
    ///
    /// The first of these that has a template counts: the file `tokenizer_config_path`, `chat_template.jinja` (with
    /// `additional_chat_templates/`), `chat_template.json`, `tokenizer_config.json`. Special tokens are those of
    /// `tokenizer_config_path` where it names them, else those of the folder.
    ///
    /// # Errors
    /// A file that cannot be read, or a default template that cannot be compiled. Plain prompts can be served all the
    /// same: keep the error and answer chats with it.
    pub fn load(
        folder: &Path,
        tokenizer_config_path: Option<&Path>,
    ) -> Result<Option<Self>, ChatTemplateError> {
        let files = files::read(Some(folder), tokenizer_config_path)?;
        if !files.templates.is_empty() {
            return Self::of(files);
        }
        let Some(builtin) = builtin::of_folder(folder)? else {
            return Ok(None);
        };
        let templates = [(DEFAULT.to_owned(), builtin.source.to_owned())].into();
        let limits = Limits::default();
        Self::build(
            templates,
            files.special_tokens,
            limits,
            Some(builtin.family),
        )
        .map(Some)
    }

    /// The family whose template this is, where the model has none of its own.
    pub fn builtin(&self) -> Option<&'static str> {
        self.loaded.builtin
    }

    /// The same of a file for `tokenizer_config_path` alone, to know whether it can be used before its model is there.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_config(tokenizer_config_path: &Path) -> Result<Option<Self>, ChatTemplateError> {
        Self::of(files::read(None, Some(tokenizer_config_path))?)
    }

    fn of(files: files::Files) -> Result<Option<Self>, ChatTemplateError> {
        if files.templates.is_empty() {
            return Ok(None);
        }
        Self::new(files.templates, files.special_tokens, Limits::default()).map(Some)
    }

    /// Compiles templates by name; `special_tokens` are variables of all of them.
    ///
    /// # Errors
    /// A default template that cannot be compiled.
    pub fn new(
        templates: BTreeMap<String, String>,
        special_tokens: Map<String, Value>,
        limits: Limits,
    ) -> Result<Self, ChatTemplateError> {
        Self::build(templates, special_tokens, limits, None)
    }

    fn build(
        templates: BTreeMap<String, String>,
        special_tokens: Map<String, Value>,
        limits: Limits,
        builtin: Option<&'static str>,
    ) -> Result<Self, ChatTemplateError> {
        let environment = engine::environment(&limits);
        let templates: BTreeMap<_, _> = templates
            .into_iter()
            .map(|(name, source)| {
                let compiled =
                    Compiled::new(&environment, &name, &source, &special_tokens, &limits);
                (name, compiled)
            })
            .collect();
        if let Some(Err(error)) = templates.get(DEFAULT) {
            return Err(error.clone());
        }
        Ok(Self {
            loaded: Arc::new(Loaded {
                environment,
                templates,
                special_tokens,
                builtin,
            }),
            limits,
        })
    }

    /// The same for conversations of a few words, which are there to see what the template makes of them: with less time,
    /// and shorter prompts.
    pub fn for_probes(&self) -> Self {
        Self {
            loaded: self.loaded.clone(),
            limits: self.limits.of_probes(),
        }
    }

    /// The most that one rendering may use.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The prompt for a conversation. Takes milliseconds of processor time, for a bad template up to the limits: call
    /// it from a thread that may block.
    ///
    /// # Errors
    /// A field of `input` that cannot be used, the template's own refusal, its failure, or a limit.
    pub fn render(&self, input: &ChatInput) -> Result<String, ChatTemplateError> {
        self.rendered(input, None)
    }

    /// Like [`render`](Self::render), with every text of the client as `escape` gives it back: what messages, tools and
    /// variables say, and what their entries are called. Roles stay as they are.
    ///
    /// # Errors
    /// Also a role that the template does not name, other than the usual five: templates make special tokens of roles.
    pub fn render_escaped(
        &self,
        input: &ChatInput,
        escape: &Escape<'_>,
    ) -> Result<String, ChatTemplateError> {
        self.rendered(input, Some(escape))
    }

    /// Whether the template for conversations, with or without `tools`, reads the variable `name`.
    pub fn reads(&self, name: &str, tools: bool) -> bool {
        let chosen = self.loaded.choose(tools);
        chosen.is_ok_and(|template| template.reads(name))
    }

    /// Whether the template for conversations, with or without `tools`, reads thoughts as parts of a content.
    pub fn reads_thinking_parts(&self, tools: bool) -> bool {
        let chosen = self.loaded.choose(tools);
        chosen.is_ok_and(Compiled::reads_thinking_parts)
    }

    /// The source of the template for conversations with tools.
    pub fn source(&self) -> &str {
        self.loaded.choose(true).map_or("", Compiled::source)
    }

    fn rendered(
        &self,
        input: &ChatInput,
        escape: Option<&Escape<'_>>,
    ) -> Result<String, ChatTemplateError> {
        let Loaded {
            environment,
            special_tokens,
            ..
        } = &*self.loaded;
        self.loaded.choose(input.tools.is_some())?.render(
            environment,
            special_tokens,
            input,
            escape,
            &self.limits,
        )
    }
}

impl Loaded {
    /// The template for a conversation with or without tools.
    fn choose(&self, tools: bool) -> Result<&Compiled, ChatTemplateError> {
        let named = |name| self.templates.get(name);
        let chosen = tools.then(|| named(TOOL_USE)).flatten();
        match chosen.or_else(|| named(DEFAULT)) {
            Some(Ok(template)) => Ok(template),
            Some(Err(error)) => Err(error.clone()),
            None => Err(ChatTemplateError::Missing),
        }
    }
}
