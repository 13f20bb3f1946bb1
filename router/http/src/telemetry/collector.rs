//! The collector: a connection to it, and batches of spans that are sent again where that may help (OTLP, "Failures" of
//! OTLP/gRPC).

use std::time::Duration;

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use text_generation_client::Encoded;
use tokio::time::{sleep, timeout};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::environment;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const SCOPE: &str = "text-generation-router";

/// How long after a failure a batch is sent again.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// Takes the spans of this server.
#[derive(Debug)]
pub(super) struct Collector {
    channel: Channel,
    headers: MetadataMap,
    /// For one batch.
    limit: Duration,
    server: Resource,
}

impl Collector {
    /// Does not wait for it. Needs a tokio runtime, which keeps the connection. `server`: whose spans they are.
    pub(super) fn at(endpoint: &Endpoint, server: Resource) -> Self {
        Self {
            channel: endpoint.connect_lazy(),
            headers: environment::headers(),
            limit: environment::timeout(),
            server,
        }
    }

    /// Returns when it has taken them, or does not.
    pub(super) async fn send(&self, spans: Vec<Span>) -> Result<(), Status> {
        let encoded = Bytes::from(self.request(spans).encode_to_vec());
        match timeout(self.limit, self.send_encoded(encoded)).await {
            Ok(sent) => sent,
            Err(_) => Err(Status::deadline_exceeded("it did not answer in time")),
        }
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope = InstrumentationScope {
            name: SCOPE.to_owned(),
            ..InstrumentationScope::default()
        };
        let of_scope = ScopeSpans {
            scope: Some(scope),
            spans,
            ..ScopeSpans::default()
        };
        let of_server = ResourceSpans {
            resource: Some(self.server.clone()),
            scope_spans: vec![of_scope],
            ..ResourceSpans::default()
        };
        ExportTraceServiceRequest {
            resource_spans: vec![of_server],
        }
    }

    async fn send_encoded(&self, encoded: Bytes) -> Result<(), Status> {
        for pause in PAUSES {
            match self.call(encoded.clone()).await {
                Err(status) if may_pass(&status) => sleep(pause).await,
                done => return done,
            }
        }
        self.call(encoded).await
    }

    async fn call(&self, encoded: Bytes) -> Result<(), Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        let ready = grpc.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut request = Request::new(encoded);
        *request.metadata_mut() = self.headers.clone();
        let path = PathAndQuery::from_static(EXPORT);
        let reply = Encoded::<ExportTraceServiceResponse>::default();
        grpc.unary(request, path, reply).await.map(drop)
    }
}

/// Whether the same batch may be taken later.
fn may_pass(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    )
}
