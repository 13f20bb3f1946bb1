//! The OpenAPI document: what is not said at the routes themselves.

use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

/// The one tag of the document.
pub const TAG: &str = "Text Generation Inference";

/// Title, licence and security; the routes add themselves.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Text Generation Inference",
        description = "Text generation server with the REST API of Hugging Face TGI",
        license(name = "Apache 2.0", url = "https://www.apache.org/licenses/LICENSE-2.0"),
    ),
    tags((name = "Text Generation Inference", description = "Text generation and the state of the server")),
    modifiers(&ApiKeyScheme),
)]
pub struct Document;

struct ApiKeyScheme;

impl Modify for ApiKeyScheme {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        document
            .components
            .get_or_insert_default()
            .add_security_scheme(
                "api_key",
                SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)),
            );
    }
}
