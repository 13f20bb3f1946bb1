//! The errors that HTTP itself finds, before or beside a generation.

use axum::http::StatusCode;

use super::ApiError;

impl ApiError {
    /// The body is not JSON.
    pub fn malformed_json(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed_json", error)
    }

    /// The body is JSON of the wrong shape.
    pub fn invalid_body(error: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "validation", error)
    }

    /// The body has a content type or an encoding that is not understood.
    pub fn unsupported_media_type(error: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            error,
        )
    }

    /// The body is larger than `limit` bytes.
    pub fn payload_too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "payload_too_large",
            format!("the request body is larger than {limit} bytes (`--payload-limit`)"),
        )
    }

    /// The client did not send its body in time.
    pub fn request_timeout(seconds: u64) -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "request_timeout",
            format!("the request body did not arrive within {seconds} s (`--client-timeout`)"),
        )
    }

    /// Other requests hold what memory there is for requests.
    pub fn out_of_memory() -> Self {
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "overloaded",
            "Model is overloaded: other requests hold the memory that there is for requests",
        )
    }

    /// The head breaks a rule of HTTP.
    pub fn bad_request(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", error)
    }

    /// No or a wrong API key.
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "missing or wrong API key: send the header `Authorization: Bearer <key>` or `x-api-key: <key>`",
        )
    }

    /// No or a wrong admin key.
    pub fn not_the_admin() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "this needs the key of `--admin-api-key` (or ADMIN_API_KEY): send the header `Authorization: Bearer <key>` or `x-api-key: <key>`",
        )
    }

    /// Nothing may be loaded or unloaded.
    pub fn adapters_fixed() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            "this server loads no adapters while it runs: start it with `--allow-adapter-loading`, or name them with `--lora-adapters`",
        )
    }

    /// No adapter has this name, or there is none where it should be. vLLM's words.
    pub fn no_adapter(name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("The lora adapter '{name}' cannot be found."),
        )
    }

    /// `suffix` of a completion.
    pub fn suffix_not_supported() -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "suffix not supported",
            "`suffix` is not supported: write what the model needs for it into `prompt`",
        )
    }

    /// `/vertex` without a request; the type is that of TGI.
    pub fn no_instances() -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Input validation error",
            "Input validation error: `instances` must not be empty",
        )
    }

    /// More prompts than one completion may have.
    pub fn too_many_prompts(max: u32) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "batch size exceeded",
            format!(
                "Number of prompts exceeds the maximum allowed batch size of {max} (`--max-client-batch-size`)"
            ),
        )
    }

    /// Another model than the one that is served, or one of `adapters`.
    pub fn unknown_model(served: &str, adapters: &str) -> Self {
        let beside = match adapters {
            "" => String::new(),
            names => format!(" and its adapters {names}"),
        };
        let message = format!("no such model: this server serves `{served}`{beside}");
        let mut error = Self::new(StatusCode::NOT_FOUND, "not_found", message);
        error.code = Some("model_not_found");
        error
    }

    /// No route has this path; `meant` is that of a route that has nearly the same.
    pub fn not_found(path: &str, meant: Option<&str>) -> Self {
        let hint = match meant {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "`/docs` lists the routes".to_owned(),
        };
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("no such path: {path}; {hint}"),
        )
    }

    /// The path exists, with other methods.
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            format!("{method} is not allowed for {path}"),
        )
    }

    /// The readiness probe fails.
    pub fn unhealthy(reason: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "healthcheck", reason)
    }

    /// Every connection that there may be is at work.
    pub fn too_many_connections() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_connections",
            "too many connections: see `--max-connections`",
        )
    }

    /// A bug of ours. Details are in the log, not in the answer.
    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "internal error; the log of the router has the details",
        )
    }
}
