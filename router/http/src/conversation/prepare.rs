//! Preparation of a conversation's generations: the prompt, the grammar, and who reads what comes.

use text_generation_chat::ChatInput;
use text_generation_core::types::GivenImage;
use text_generation_grammar::GrammarSource;

use super::images;
use super::reading::Reading;
use super::reads::Reads;
use super::{Conversation, RunningConversation, history, thoughts};
use crate::error::ApiError;
use crate::generations::{GenerationPlan, renamed, with_form_of};
use crate::memory::MemoryShare;
use crate::state::AppState;

/// A conversation that is ready to be generated. Those who start several together take it apart.
#[derive(Debug)]
pub struct Prepared {
    pub plan: GenerationPlan,
    pub reading: Reading,
    /// Whether the prompt tells of tools.
    tools: bool,
}

impl Conversation {
    /// Renders the prompt, and finds the grammar that the format of the model demands.
    ///
    /// # Errors
    /// 422 that names the field that is wrong; 429 when too many chats wait for their prompt.
    pub async fn prepare(self, state: &AppState) -> Result<Prepared, ApiError> {
        let names = self.names.clone();
        let prepared = self.prepare_named(state).await;
        prepared.map_err(|error| renamed(error, &names))
    }

    async fn prepare_named(mut self, state: &AppState) -> Result<Prepared, ApiError> {
        let images = self.take_images(state)?;
        let ignored = self.tell_template(state)?;
        self.tools
            .check_parameters(self.parameters.grammar.is_some())?;
        let tools = self.tools.wanted();
        let reads = Reads::of(&state.format, &mut self);
        let prompt = render(self.input, state).await?;
        let readable = state.chats.readable(&prompt).into_owned();
        let mut parameters = self.parameters;
        let mut names = self.names;
        if let Some(reads) = &reads {
            parameters.keep_special_tokens = reads.keeps_special_tokens;
            parameters.grammar = reads.grammar(&readable, parameters.grammar.take())?;
            if let Some(GrammarSource::Tools(_)) = parameters.grammar {
                names = with_form_of(names, "tools");
            }
        }
        let reading = Reading {
            characters: readable.chars().count(),
            ignored,
            reads,
            prompt: readable,
        };
        // The template has written the special tokens.
        let plan = GenerationPlan::new(vec![prompt.into()], &parameters, false, self.n, names);
        let plan = plan.with_images(images);
        Ok(Prepared {
            plan,
            reading,
            tools,
        })
    }

    /// The prompt alone, as [`Conversation::prepare`] would make it, with one token for each of its images.
    ///
    /// # Errors
    /// The same.
    pub async fn render(mut self, state: &AppState) -> Result<(String, Vec<GivenImage>), ApiError> {
        let images = self.take_images(state)?;
        self.tell_template(state)?;
        let prompt = render(self.input, state).await;
        let prompt = prompt.map_err(|error| renamed(error, &self.names))?;
        Ok((prompt, images))
    }

    /// Takes the files of images out of the messages, where the model sees. Where it does not, the template refuses them.
    fn take_images(&mut self, state: &AppState) -> Result<Vec<GivenImage>, ApiError> {
        let Some(vision) = state.infer.vision() else {
            return Ok(Vec::new());
        };
        self.input.images = true;
        let parts = state.chats.image_parts();
        images::take(&mut self.input.messages, vision, parts)
    }

    /// Gives the template what it can write, and writes the rest for it. Returns the fields that come to nothing.
    fn tell_template(&mut self, state: &AppState) -> Result<Vec<&'static str>, ApiError> {
        self.tell_tools(state);
        let tools = self.input.tools.is_some();
        let messages = &mut self.input.messages;
        if !state.chats.reads_thinking_parts(tools) {
            thoughts::take_out(messages);
        }
        thoughts::name(messages);
        let variables = &mut self.input.chat_template_kwargs;
        let reasoning = std::mem::take(&mut self.reasoning);
        reasoning.tell(variables, |name| state.chats.reads(name, tools))
    }

    /// Gives the template the tools and calls that it can write, and writes others as texts.
    fn tell_tools(&mut self, state: &AppState) {
        let messages = &mut self.input.messages;
        if !state.format.tells_calls {
            *messages = history::tell_calls(std::mem::take(messages));
        }
        if !self.tools.wanted() {
            return;
        }
        if state.format.knows_tools() {
            let tools = self.tools.tools.iter_mut();
            let tools = tools.map(|offered| std::mem::take(&mut offered.json));
            self.input.tools = Some(tools.collect());
        } else {
            history::tell_tools(messages, &self.tools);
        }
    }
}

/// The prompt of a conversation whose images were taken.
async fn render(input: ChatInput, state: &AppState) -> Result<String, ApiError> {
    let prompt = state.chats.render(input).await?;
    Ok(match state.infer.vision() {
        Some(vision) => images::placed(prompt, vision, state.chats.image_parts()),
        None => prompt,
    })
}

impl Prepared {
    /// The body is gone: it has become a prompt, and files that count for themselves.
    pub fn forget_body(&self, share: &MemoryShare) {
        share.forget_values();
    }

    /// Queues the generations: all of them, or none.
    ///
    /// # Errors
    /// What refuses one of them.
    pub async fn start(self, state: &AppState) -> Result<RunningConversation, ApiError> {
        let started = self.plan.start(state).await;
        let generations = started.map_err(|mut error| {
            if let Some(context) = error.context.as_mut().filter(|_| self.tools) {
                context.with_tools();
            }
            error
        })?;
        Ok(self.reading.of(generations))
    }
}
