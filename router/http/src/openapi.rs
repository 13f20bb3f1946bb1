//! The OpenAPI document, as far as it is not said at the routes themselves.

use std::collections::BTreeMap;

use serde::Serialize;
use text_generation_core::error::{InferError, Overload, ValidationError};
use utoipa::openapi::response::Response;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, Modify, OpenApi, PartialSchema, ToSchema};

use crate::error::{Api, ApiError, ErrorResponse, OpenAiErrorResponse};
use crate::headers::X_API_KEY;

/// The groups of routes, by whose API they are.
pub mod tags {
    pub const OPENAI: &str = "OpenAI";
    pub const ANTHROPIC: &str = "Anthropic";
    pub const TGI: &str = "TGI";
    pub const OPERATION: &str = "Operation";
}

/// Title, licence and security; the routes add themselves.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "text-generation",
        description = "Inference server for large language models, with the REST APIs of OpenAI, Anthropic and Hugging Face TGI",
        license(name = "Apache 2.0", url = "https://www.apache.org/licenses/LICENSE-2.0"),
    ),
    // Shown in this order.
    tags(
        (name = tags::OPENAI, description = "Chats, completions and responses"),
        (name = tags::ANTHROPIC, description = "Messages"),
        (name = tags::TGI, description = "Generation and tokens, as Hugging Face TGI has them"),
        (name = tags::OPERATION, description = "What is served, and how the server is"),
    ),
    components(schemas(ErrorResponse, OpenAiErrorResponse)),
    modifiers(&KeySchemes),
)]
pub struct Document;

/// The two headers that a key may come in.
struct KeySchemes;

impl Modify for KeySchemes {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let header = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new(X_API_KEY.as_str())));
        components.add_security_scheme("bearer", bearer);
        components.add_security_scheme("api_key", header);
    }
}

/// Refusal of a route that asks for a key and reads nothing.
#[derive(Debug)]
pub struct KeyErrors;

/// Refusals of a route that reads a body, beside those of [`KeyErrors`].
#[derive(Debug)]
pub struct BodyErrors;

/// Failures of a route that generates, beside those of [`BodyErrors`].
#[derive(Debug)]
pub struct GenerateErrors;

/// The same below `/v1`, in the shape of OpenAI.
#[derive(Debug)]
pub struct OpenAiErrors;

/// The same below `/v1/responses`.
#[derive(Debug)]
pub struct ResponsesErrors;

/// Answers by their status.
pub type Responses = BTreeMap<String, RefOr<Response>>;

impl IntoResponses for KeyErrors {
    fn responses() -> Responses {
        describe(&[key_error()], |error| error.body.clone())
    }
}

impl IntoResponses for BodyErrors {
    fn responses() -> Responses {
        let errors: Vec<_> = body_errors().into_iter().chain([key_error()]).collect();
        describe(&errors, |error| error.body.clone())
    }
}

impl IntoResponses for GenerateErrors {
    fn responses() -> Responses {
        describe(&all_errors(), |error| error.body.clone())
    }
}

impl IntoResponses for OpenAiErrors {
    fn responses() -> Responses {
        describe(&errors_of(Api::OpenAi), ApiError::openai)
    }
}

impl IntoResponses for ResponsesErrors {
    fn responses() -> Responses {
        describe(&errors_of(Api::Responses), ApiError::openai)
    }
}

/// An error as an example of its status, with what it means.
pub type Example = (ApiError, &'static str);

fn key_error() -> Example {
    (ApiError::unauthorized(), "No API key, or a wrong one")
}

fn body_errors() -> [Example; 5] {
    let wrong = InferError::Validation(ValidationError::Temperature);
    [
        (
            ApiError::malformed_json(
                "malformed JSON: EOF while parsing an object at line 1 column 1",
            ),
            "The body is not JSON",
        ),
        (
            ApiError::request_timeout(60),
            "The body did not arrive within `--client-timeout`",
        ),
        (
            ApiError::payload_too_large(2_000_000),
            "The body is larger than `--payload-limit`",
        ),
        (
            ApiError::unsupported_media_type(
                "the request body must be JSON: send the header `Content-Type: application/json`",
            ),
            "The body is not called JSON, or is compressed",
        ),
        (
            wrong.into(),
            "A value breaks a rule; the message names the field",
        ),
    ]
}

/// How a route that generates can fail.
fn all_errors() -> Vec<Example> {
    let failures = [
        (
            InferError::Generation("Server error: out of memory".to_owned()),
            "The shards failed",
        ),
        (
            InferError::Overloaded(Overload::Requests { max: 128 }),
            "All of `--max-concurrent-requests` are running, or a limit of the key is reached, or the request waited longer than `--max-queue-time`; the message names the limit, and `Retry-After` says when to come back",
        ),
        (
            InferError::IncompleteGeneration,
            "The generation ended without its last token",
        ),
        (
            InferError::ShuttingDown,
            "The server is stopping; `Retry-After` says when to come back",
        ),
    ];
    let failures = failures.map(|(error, meaning)| (ApiError::from(error), meaning));
    failures
        .into_iter()
        .chain(body_errors())
        .chain([key_error()])
        .collect()
}

/// The same with the statuses of `api`.
pub fn errors_of(api: Api) -> Vec<Example> {
    let errors = all_errors().into_iter().map(|(error, meaning)| {
        let status = api.status(&error);
        (ApiError { status, ..error }, meaning)
    });
    errors.collect()
}

/// One answer for each status, with the body that `shape` gives the error.
pub fn describe<B: Serialize + ToSchema + PartialSchema>(
    errors: &[Example],
    shape: impl Fn(&ApiError) -> B,
) -> Responses {
    let answer = |(error, meaning): &Example| {
        let content = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name(B::name())))
            .example(serde_json::to_value(shape(error)).ok())
            .build();
        let response = ResponseBuilder::new()
            .description(*meaning)
            .content("application/json", content)
            .build();
        (error.status.as_u16().to_string(), response.into())
    };
    errors.iter().map(answer).collect()
}
