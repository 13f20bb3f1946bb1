//! A collector of traces in the process of a test or benchmark.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
pub use opentelemetry_proto::tonic::common::v1::any_value::Value;
pub use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
pub use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
pub use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Keeps what it gets. Clones share it; any thread may ask.
#[derive(Debug, Clone, Default)]
pub struct MockCollector(Arc<Mutex<Vec<ResourceSpans>>>);

impl MockCollector {
    /// A collector on a free port, served by the current tokio runtime, and its address for `--otlp-endpoint`.
    ///
    /// # Errors
    /// When there is no free port.
    pub async fn start() -> io::Result<(Self, String)> {
        let collector = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let serving = Server::builder()
            .add_service(TraceServiceServer::new(collector.clone()))
            .serve_with_incoming(TcpIncoming::from(listener));
        tokio::spawn(serving);
        Ok((collector, endpoint))
    }

    /// What came so far, as it was sent.
    pub fn resources(&self) -> Vec<ResourceSpans> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// All spans that came so far.
    pub fn spans(&self) -> Vec<Span> {
        let scopes = self
            .resources()
            .into_iter()
            .flat_map(|sent| sent.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }
}

#[tonic::async_trait]
impl TraceService for MockCollector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut got = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        got.extend(request.into_inner().resource_spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Attributes of a span or resource by name; those without a value are left out.
pub fn attributes(of: &[KeyValue]) -> HashMap<&str, Value> {
    let value = |pair: &KeyValue| pair.value.clone()?.value;
    of.iter()
        .filter_map(|pair| Some((pair.key.as_str(), value(pair)?)))
        .collect()
}

/// The value of an attribute that is text.
pub fn text(text: &str) -> Value {
    Value::StringValue(text.to_owned())
}
