//! Who may call, and for whom: API keys, the headers of a gateway, and the routes that ask for no key.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, Method};
use axum::middleware::Next;
use axum::response::Response;

use crate::api_keys::{ApiKey, ApiKeys};
use crate::error::ApiError;
use crate::headers;
use crate::tenant::{self, Caller, PrefixCaching};

/// What load balancers ask, beside `GET /`. They come without a key, and in before all others.
const PROBES: [&str; 4] = ["/health", "/live", "/ready", "/ping"];

const METRICS: &str = "/metrics";

/// Further routes without a key: pages that are the same in every server and that a browser opens without a header.
/// Whatever is neither here nor a probe asks for a key, paths without a route included.
const OPEN: [&str; 7] = [
    "/docs",
    "/docs/",
    "/docs/{*rest}",
    "/api-doc/openapi.json",
    "/ui",
    "/ui/",
    "/ui/{file}",
];

/// Routes that change the server.
const ADMIN: [&str; 4] = [
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/load_lora_adapter",
    "/unload_lora_adapter",
];

/// Who may call, whose requests they are, and who shares what is cached.
#[derive(Debug, Clone)]
pub struct Access {
    /// One of them is asked for on every route but the open ones.
    pub keys: ApiKeys,
    /// Asked for on routes that change the server, in the place of the others.
    pub admin: ApiKeys,
    pub prefix_caching: PrefixCaching,
    /// Whether `/metrics` asks for none either.
    pub open_metrics: bool,
    /// Names the tenant behind a gateway.
    pub tenant_header: Option<HeaderName>,
    /// Holds the priority of a request, in the place of what its body says.
    pub priority_header: Option<HeaderName>,
}

impl Access {
    /// Who has sent a request with these headers and this key.
    fn caller(&self, key: Option<&ApiKey>, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let mut caller = Caller::default();
        if let Some(key) = key {
            caller.tenant = key.tenant().clone();
            if self.prefix_caching == PrefixCaching::PerKey {
                caller.tenant = tenant::scoped(&caller.tenant, key.digest());
            }
        }
        if let Some((_, name)) = given(self.tenant_header.as_ref(), headers)? {
            caller.tenant = caller.tenant.behind(name);
        }
        if let Some((header, text)) = given(self.priority_header.as_ref(), headers)? {
            let priority = text.parse().map_err(|_| {
                ApiError::bad_request(format!(
                    "the header `{header}` must be a whole number of 32 bits"
                ))
            })?;
            caller.priority = Some(priority);
        }
        Ok(caller)
    }
}

/// The header that is looked for, if it is one and is there, with its value.
fn given<'a>(
    name: Option<&'a HeaderName>,
    headers: &'a HeaderMap,
) -> Result<Option<(&'a HeaderName, &'a str)>, ApiError> {
    let Some(name) = name else {
        return Ok(None);
    };
    let mut values = headers.get_all(name).iter();
    // Of two, the client may have sent one.
    let (value, only) = (values.next(), values.next().is_none());
    let Some(value) = value.filter(|value| !(only && value.is_empty())) else {
        return Ok(None);
    };
    let plain = headers::plain(value).filter(|_| only);
    let plain = plain.ok_or_else(|| {
        ApiError::bad_request(format!(
            "the header `{name}` must be there once, with at most {} letters, digits and `-_.:/+=@`",
            headers::MAX_PLAIN_BYTES
        ))
    })?;
    Ok(Some((name, plain)))
}

/// Refuses requests without a key, and handles the others for their tenant. What is open is decided by the route that was
/// matched, never by the path as sent: two readings of one path must not disagree about who may pass.
pub async fn require_api_key(
    State(access): State<Access>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map(MatchedPath::as_str);
    if is_open(request.method(), route) || (access.open_metrics && route == Some(METRICS)) {
        return Ok(next.run(request).await);
    }
    if !access.admin.is_empty() && route.is_some_and(|route| ADMIN.contains(&route)) {
        return match access.admin.given(request.headers()) {
            Some(_) => Ok(next.run(request).await),
            None => Err(ApiError::not_the_admin()),
        };
    }
    let key = access.keys.given(request.headers());
    if key.is_none() && !access.keys.is_empty() {
        return Err(ApiError::unauthorized());
    }
    let caller = access.caller(key, request.headers())?;
    Ok(tenant::scope(caller, next.run(request)).await)
}

fn is_open(method: &Method, route: Option<&str>) -> bool {
    route.is_some_and(|route| OPEN.contains(&route) || is_probe(method, route))
}

/// Whether a request asks how the server is, and nothing else.
pub fn is_probe(method: &Method, path: &str) -> bool {
    PROBES.contains(&path) || (path == "/" && method == Method::GET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_probes_and_the_pages_are_open() {
        assert!(is_open(&Method::GET, Some("/health")));
        assert!(is_open(&Method::GET, Some("/")));
        assert!(!is_open(&Method::POST, Some("/")));
        assert!(!is_open(&Method::GET, Some("/metrics")));
        assert!(!is_open(&Method::GET, None));
    }
}
