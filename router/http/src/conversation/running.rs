//! Generations of a conversation that run: as a stream of deltas, or gathered.

use std::future::ready;
use std::sync::Arc;

use axum::http::HeaderMap;
use futures::stream::{Stream, StreamExt};
use text_generation_core::error::InferError;
use text_generation_core::types::{GenerateAnswer, GeneratedText, StreamEvent, Token};
use text_generation_formats::Delta;
use tower_http::request_id::RequestId;

use super::answer::merge;
use super::reader::{EndReason, Reader};
use super::reading::Reading;
use crate::error::ApiError;
use crate::generations::{ChoiceEvent, Generations, Tally};
use crate::headers::{self, Sizes};
use crate::state::AppState;

/// What one token of one choice brought.
#[derive(Debug)]
pub struct ConversationEvent {
    pub choice: usize,
    /// Often one, none while the reader does not know yet what a text is.
    pub deltas: Vec<Delta>,
    /// For log-probabilities; its text is in the deltas.
    pub token: Token,
    pub top_tokens: Vec<Token>,
    /// With the last token of the choice.
    pub end: Option<End>,
}

/// The end of one choice.
#[derive(Debug, Clone)]
pub struct End {
    pub reason: EndReason,
    /// The stop string that ended it, with [`EndReason::StopSequence`].
    pub stop_sequence: Option<String>,
    /// Tokens of the choice.
    pub generated_tokens: u32,
    /// Those of them that brought reasoning.
    pub reasoning_tokens: u32,
    /// Tokens of the whole request, with the end of its last choice.
    pub request: Option<Sizes>,
}

impl End {
    fn new(reader: &Reader, generated: &GeneratedText, request: Option<Sizes>) -> Self {
        Self {
            reason: reader.reason(generated.finish_reason),
            stop_sequence: generated.stop_sequence.clone(),
            generated_tokens: generated.generated_tokens,
            reasoning_tokens: reader.reasoning_tokens(),
            request,
        }
    }
}

/// The generations of a conversation. Dropping it cancels them.
#[derive(Debug)]
pub struct RunningConversation {
    pub generations: Generations,
    pub reading: Reading,
}

impl Reading {
    /// For generations of this conversation that were started with others.
    pub fn of(self, generations: Generations) -> RunningConversation {
        RunningConversation {
            generations,
            reading: self,
        }
    }
}

/// One choice that has ended.
#[derive(Debug)]
pub struct FinishedChoice {
    /// What a stream would have sent, each text in one piece.
    pub deltas: Vec<Delta>,
    pub tokens: Vec<Token>,
    /// One list for each token, or empty.
    pub top_tokens: Vec<Vec<Token>>,
    /// Set where it is the text of a beam.
    pub beam_score: Option<f32>,
    pub end: End,
}

/// The choices of a conversation in their order, after the last has ended.
#[derive(Debug)]
pub struct Finished {
    pub choices: Vec<FinishedChoice>,
    /// Times, sizes and the like, for the answer.
    pub headers: HeaderMap,
    pub sizes: Sizes,
}

impl RunningConversation {
    /// How many choices there are.
    pub fn choices(&self) -> usize {
        self.generations.streams.len()
    }

    /// The tokens of the prompt.
    pub fn prompt_ids(&self) -> Arc<[u32]> {
        let first = self.generations.streams.first();
        first.map_or_else(Arc::default, |stream| stream.prompt_ids.clone())
    }

    /// Headers of a stream.
    pub fn headers(&self, state: &AppState) -> HeaderMap {
        let mut headers = self.generations.headers(state, self.reading.characters);
        headers::ignored_fields(&mut headers, &self.reading.ignored);
        headers
    }

    /// What all choices say, as it comes. `id` is for the log.
    pub fn events(
        self,
        id: RequestId,
    ) -> impl Stream<Item = Result<ConversationEvent, InferError>> + Send + Unpin + 'static {
        let mut tally = Tally::new(id, &self.generations);
        let choices = 0..self.generations.streams.len();
        let mut readers: Vec<Reader> = choices.map(|_| self.reading.reader()).collect();
        let mut read = move |event: ChoiceEvent| {
            let request = tally.end(event.0, &event.1);
            read(readers.get_mut(event.0)?, event, request)
        };
        let events = self.generations.merge();
        events.filter_map(move |event| ready(event.map(&mut read).transpose()))
    }

    /// Runs all choices to their end. The first failure ends all.
    ///
    /// # Errors
    /// What ends a generation.
    pub async fn gather(self, state: &AppState, id: &RequestId) -> Result<Finished, ApiError> {
        let finished = self.generations.gather().await?;
        finished.log(id);
        let mut headers = finished.headers(state, self.reading.characters);
        headers::ignored_fields(&mut headers, &self.reading.ignored);
        let sizes = finished.sizes();
        let choice = |answer| FinishedChoice::read(self.reading.reader(), answer, sizes);
        Ok(Finished {
            choices: finished.answers.into_iter().map(choice).collect(),
            headers,
            sizes,
        })
    }
}

/// What an event of a generation says; nothing for the tokens of a prompt.
fn read(
    reader: &mut Reader,
    (choice, event): ChoiceEvent,
    request: Option<Sizes>,
) -> Option<ConversationEvent> {
    let (mut token, top_tokens, generated) = match event {
        StreamEvent::Prefill(_) => return None,
        StreamEvent::Token { token, top_tokens } => (token, top_tokens, None),
        StreamEvent::End {
            token,
            top_tokens,
            generated,
            ..
        } => (token, top_tokens, Some(generated)),
    };
    let deltas = reader.read(&mut token, generated.is_some());
    Some(ConversationEvent {
        choice,
        deltas,
        token,
        top_tokens,
        end: generated.map(|generated| End::new(reader, &generated, request)),
    })
}

impl FinishedChoice {
    /// Reads the tokens of an answer as a stream does.
    fn read(mut reader: Reader, mut answer: GenerateAnswer, request: Sizes) -> Self {
        let mut deltas = Vec::new();
        let last = answer.tokens.len().saturating_sub(1);
        for (index, token) in answer.tokens.iter_mut().enumerate() {
            merge(&mut deltas, reader.read(token, index == last));
        }
        Self {
            deltas,
            end: End::new(&reader, &answer.generated, Some(request)),
            tokens: answer.tokens,
            top_tokens: answer.top_tokens,
            beam_score: answer.generated.beam_score,
        }
    }
}
