//! The generations of one request: several prompts, several choices of each.

mod finished;
mod tally;

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::HeaderMap;
use futures::future::{Either, try_join_all};
use futures::stream::{Stream, StreamExt, select_all};
use text_generation_core::error::InferError;
use text_generation_core::infer::{GenerateStream, Group};
use text_generation_core::types::{
    Dialect, GenerateAnswer, GenerateParameters, GenerateRequest, GivenImage, Inputs, StreamEvent,
};
use tower_http::request_id::RequestId;

pub use self::finished::Finished;
pub use self::tally::Tally;
use crate::error::ApiError;
use crate::headers::{self, Sizes};
use crate::state::AppState;
use crate::tenant;
use crate::timings::request_id;

/// What an event says, and the number of the choice it belongs to.
pub type ChoiceEvent = (usize, StreamEvent);

/// What the fields of `core` are called in the API that was called.
pub type Names = [(&'static str, &'static str)];

/// Prompts that are ready to be computed, and what the API calls the fields of `core`.
#[derive(Debug)]
pub struct GenerationPlan {
    pub groups: Vec<Group>,
    pub names: Cow<'static, Names>,
}

impl GenerationPlan {
    /// `samples` generations of each prompt.
    pub fn new(
        prompts: Vec<Inputs>,
        parameters: &GenerateParameters,
        add_special_tokens: bool,
        samples: u32,
        names: impl Into<Cow<'static, Names>>,
    ) -> Self {
        let mut parameters = parameters.clone();
        tenant::current().sign(&mut parameters);
        let group = |inputs| Group {
            request: GenerateRequest {
                inputs,
                parameters: parameters.clone(),
                add_special_tokens,
                dialect: Dialect::OpenAi,
                images: Vec::new(),
            },
            samples,
        };
        Self {
            groups: prompts.into_iter().map(group).collect(),
            names: names.into(),
        }
    }

    /// With images in the prompts, in the order in which each names them.
    pub fn with_images(mut self, images: Vec<GivenImage>) -> Self {
        for group in &mut self.groups {
            group.request.images.clone_from(&images);
        }
        self
    }

    /// Runs all of them to their end where nothing but their prompts counts. `characters` are those of the prompts.
    ///
    /// # Errors
    /// What refuses one of them, or ends it.
    pub async fn prompts(
        self,
        state: &AppState,
        id: &RequestId,
        characters: usize,
    ) -> Result<(Vec<GenerateAnswer>, Sizes, HeaderMap), ApiError> {
        let mut finished = self.start(state).await?.gather().await?;
        finished.log(id);
        finished.drop_generated();
        let headers = finished.headers(state, characters);
        let sizes = finished.sizes();
        Ok((finished.answers, sizes, headers))
    }

    /// Starts all of them, or none.
    ///
    /// # Errors
    /// Whatever refuses one of them; messages name fields as the client does.
    pub async fn start(self, state: &AppState) -> Result<Generations, ApiError> {
        let started = state.infer.generate_groups(self.groups).await;
        let groups = started.map_err(|error| renamed(error, &self.names))?;
        Ok(Generations::new(groups))
    }
}

/// Running generations in the order of the choices: by prompt, then by sample.
#[derive(Debug)]
pub struct Generations {
    pub streams: Vec<GenerateStream>,
    pub samples: usize,
    pub prompt_tokens: u32,
    /// Parts of the grammar that the texts need not follow.
    pub not_enforced: Arc<[String]>,
}

impl Generations {
    /// The streams of each prompt.
    pub fn new(groups: Vec<Vec<GenerateStream>>) -> Self {
        let lengths = groups.iter().filter_map(|group| group.first());
        Self {
            prompt_tokens: lengths.map(|stream| stream.input_length).sum(),
            samples: groups.first().map_or(0, Vec::len),
            not_enforced: groups
                .iter()
                .flatten()
                .next()
                .map_or_else(Arc::default, |stream| stream.not_enforced.clone()),
            streams: groups.into_iter().flatten().collect(),
        }
    }

    /// Headers of a stream of events.
    pub fn headers(&self, state: &AppState, characters: usize) -> HeaderMap {
        let mut headers = headers::streaming(&state.answers.compute_type, characters);
        headers::not_enforced(&mut headers, &self.not_enforced);
        headers
    }

    /// All events as they come.
    pub fn merge(
        self,
    ) -> impl Stream<Item = Result<ChoiceEvent, InferError>> + Send + Unpin + 'static {
        let numbered = |(index, stream): (usize, GenerateStream)| {
            stream.map(move |event| event.map(|event| (index, event)))
        };
        let mut streams: Vec<_> = self.streams.into_iter().enumerate().map(numbered).collect();
        match streams.len() {
            // The usual case needs nothing in between.
            1 => Either::Left(streams.remove(0)),
            _ => Either::Right(select_all(streams)),
        }
    }

    /// Runs all to their end. The first failure ends all.
    pub async fn gather(self) -> Result<Finished, ApiError> {
        let answers = self.streams.into_iter().map(GenerateStream::gather);
        Ok(Finished {
            answers: try_join_all(answers).await?,
            samples: self.samples,
            prompt_tokens: self.prompt_tokens,
            not_enforced: self.not_enforced,
        })
    }
}

/// The error that ends the stream of the request `id`, logged and with its id.
pub fn failure_in_stream(error: &InferError, id: &RequestId) -> ApiError {
    let mut error = ApiError::from(error.clone());
    let id = request_id(id);
    error.log_in_stream(id);
    error.body.request_id = Some(id.to_owned());
    error
}

/// `names` where the form of an answer comes from `field`.
pub fn with_form_of(names: Cow<'static, Names>, field: &'static str) -> Cow<'static, Names> {
    with_name(&names, "grammar", field)
}

/// `names` where `core`'s field `ours` is called `theirs`.
pub fn with_name(names: &Names, ours: &str, theirs: &'static str) -> Cow<'static, Names> {
    let named = |&(field, name)| (field, if field == ours { theirs } else { name });
    names.iter().map(named).collect()
}

/// The error with the client's names in its message.
pub fn renamed(error: impl Into<ApiError>, names: &Names) -> ApiError {
    let mut error = error.into();
    let named = |field: &'static str| {
        let pair = names.iter().find(|pair| pair.0 == field);
        pair.map_or(field, |pair| pair.1)
    };
    error.param = error.param.map(named);
    if let Some(context) = &mut error.context {
        context.rename(named);
    }
    for &(ours, theirs) in names {
        error.body.error = error
            .body
            .error
            .replace(&format!("`{ours}`"), &format!("`{theirs}`"));
    }
    error
}
