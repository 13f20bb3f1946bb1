//! A collector of traces in the process of a test or benchmark.

use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Keeps what it gets.
#[derive(Debug, Clone, Default)]
pub struct Collector(Arc<Mutex<Vec<ResourceSpans>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut got = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        got.extend(request.into_inner().resource_spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// A collector on a free port, and the flag that names it.
    ///
    /// # Errors
    /// When there is no port.
    pub async fn start() -> std::io::Result<(Self, String)> {
        let collector = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let flag = format!("--otlp-endpoint=http://{}", listener.local_addr()?);
        let serving = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(collector.clone()))
            .serve_with_incoming(TcpIncoming::from(listener));
        tokio::spawn(serving);
        Ok((collector, flag))
    }

    /// What it got since the last time, one for each export.
    pub fn take(&self) -> Vec<ResourceSpans> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The spans of these exports.
pub fn spans(exports: Vec<ResourceSpans>) -> impl Iterator<Item = Span> {
    let scopes = exports.into_iter().flat_map(|export| export.scope_spans);
    scopes.flat_map(|scope| scope.spans)
}
