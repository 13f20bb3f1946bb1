//! One shard: a channel over its Unix socket, or over TCP to another node, and a deadline for every call.

use std::error::Error;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use text_generation_proto::v1;
use text_generation_proto::v1::text_generation_service_client::TextGenerationServiceClient;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::cluster::ClusterTls;
use crate::encoded::{Encoded, StepMethod};
use crate::error::ClientError;

/// Replies may hold log-probabilities of long prompts; tonic's own limit is 4 MiB.
const MAX_MESSAGE_BYTES: usize = i32::MAX as usize;

/// How long each kind of call may take before the shard counts as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Info, Health, ServiceDiscovery, Constrain, PutMedia, UnloadAdapter, FilterBatch, ClearCache.
    pub control: Duration,
    /// Prefill and Decode, where the plan has no limit of its own.
    pub step: Duration,
    /// Warmup, which may capture graphs.
    pub warmup: Duration,
    /// LoadAdapter, which reads files.
    pub load: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            control: Duration::from_secs(10),
            step: Duration::from_secs(300),
            warmup: Duration::from_secs(1800),
            load: Duration::from_secs(600),
        }
    }
}

/// Client of one shard. Cheap to clone; calls may run at the same time.
#[derive(Debug, Clone)]
pub(crate) struct Shard {
    rank: usize,
    stub: TextGenerationServiceClient<Channel>,
    channel: Channel,
    deadlines: Deadlines,
    /// Of its Unix socket.
    folder: Option<PathBuf>,
}

impl Shard {
    /// Connects to `url`, for example `unix:///run/x/shard-0`, or `https://10.0.0.3:29502` with certificates.
    pub(crate) async fn connect(
        rank: usize,
        url: &str,
        deadlines: Deadlines,
        tls: Option<&ClusterTls>,
    ) -> Result<Self, ClientError> {
        let refused = |error: tonic::transport::Error| {
            let reason = with_causes(&error);
            ClientError::Connection(format!("shard {rank} at {url}: {reason}"))
        };
        let mut endpoint = Endpoint::from_shared(url.to_owned()).map_err(refused)?;
        if let Some(tls) = tls.filter(|_| url.starts_with("https:")) {
            endpoint = endpoint.tls_config(tls.config()).map_err(refused)?;
        }
        let channel = endpoint
            .connect_timeout(deadlines.control)
            .connect()
            .await
            .map_err(refused)?;
        let socket = url.strip_prefix("unix://").map(Path::new);
        let folder = socket.and_then(Path::parent).map(Path::to_owned);
        Ok(Self {
            folder,
            ..Self::over(rank, channel, deadlines)
        })
    }

    /// Calls go through `channel`.
    pub(crate) fn over(rank: usize, channel: Channel, deadlines: Deadlines) -> Self {
        let stub = TextGenerationServiceClient::new(channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Self {
            rank,
            stub,
            channel,
            deadlines,
            folder: None,
        }
    }

    /// The folder of its socket, where it has one of this host.
    pub(crate) fn folder(&self) -> Option<&PathBuf> {
        self.folder.as_ref()
    }

    async fn within<T>(
        &self,
        call: &'static str,
        deadline: Duration,
        reply: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout(deadline, reply).await {
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(status)) => Err(ClientError::from_status(self.rank, &status)),
            Err(_) => Err(ClientError::Deadline {
                shard: self.rank,
                call,
                seconds: deadline.as_secs(),
            }),
        }
    }

    pub(crate) async fn service_discovery(&self) -> Result<Vec<String>, ClientError> {
        let mut stub = self.stub.clone();
        let call = stub.service_discovery(v1::ServiceDiscoveryRequest {});
        let reply = self
            .within("ServiceDiscovery", self.deadlines.control, call)
            .await?;
        Ok(reply.urls)
    }

    pub(crate) async fn info(&self) -> Result<v1::InfoResponse, ClientError> {
        self.info_within(self.deadlines.control).await
    }

    pub(crate) async fn info_within(
        &self,
        deadline: Duration,
    ) -> Result<v1::InfoResponse, ClientError> {
        let mut stub = self.stub.clone();
        self.within("Info", deadline, stub.info(v1::InfoRequest {}))
            .await
    }

    pub(crate) async fn abandon_within(
        &self,
        deadline: Duration,
        reason: String,
    ) -> Result<(), ClientError> {
        let mut stub = self.stub.clone();
        let call = stub.abandon(v1::AbandonRequest { reason });
        self.within("Abandon", deadline, call).await.map(drop)
    }

    pub(crate) async fn health(&self) -> Result<(), ClientError> {
        let mut stub = self.stub.clone();
        self.within(
            "Health",
            self.deadlines.control,
            stub.health(v1::HealthRequest {}),
        )
        .await?;
        Ok(())
    }

    pub(crate) async fn warmup(
        &self,
        request: v1::WarmupRequest,
    ) -> Result<v1::WarmupResponse, ClientError> {
        let mut stub = self.stub.clone();
        self.within("Warmup", self.deadlines.warmup, stub.warmup(request))
            .await
    }

    /// Sends a plan, or its masks, encoded once for all ranks. With `limited` the caller knows how long it may take, and
    /// when it begins.
    pub(crate) async fn step<R: Message + Default + 'static>(
        &self,
        method: StepMethod,
        encoded: Bytes,
        limited: bool,
    ) -> Result<R, ClientError> {
        let mut grpc = Grpc::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let call = async {
            grpc.ready().await.map_err(|error| {
                Status::unavailable(format!("the connection is not usable: {error}"))
            })?;
            grpc.unary(Request::new(encoded), method.path(), Encoded::new())
                .await
        };
        let deadline = match method {
            StepMethod::Prefill | StepMethod::Decode if limited => Duration::MAX,
            StepMethod::Prefill | StepMethod::Decode => self.deadlines.step,
            StepMethod::Constrain => self.deadlines.control,
        };
        self.within(method.name(), deadline, call).await
    }

    pub(crate) async fn filter_batch(
        &self,
        request: v1::FilterBatchRequest,
    ) -> Result<v1::FilterBatchResponse, ClientError> {
        let mut stub = self.stub.clone();
        self.within(
            "FilterBatch",
            self.deadlines.control,
            stub.filter_batch(request),
        )
        .await
    }

    pub(crate) async fn put_media(&self, request: v1::PutMediaRequest) -> Result<(), ClientError> {
        let mut stub = self.stub.clone();
        let call = stub.put_media(request);
        self.within("PutMedia", self.deadlines.control, call)
            .await
            .map(drop)
    }

    pub(crate) async fn load_adapter(
        &self,
        request: v1::LoadAdapterRequest,
    ) -> Result<v1::LoadAdapterResponse, ClientError> {
        let mut stub = self.stub.clone();
        let call = stub.load_adapter(request);
        self.within("LoadAdapter", self.deadlines.load, call).await
    }

    pub(crate) async fn unload_adapter(&self, generation: u64) -> Result<(), ClientError> {
        let mut stub = self.stub.clone();
        let call = stub.unload_adapter(v1::UnloadAdapterRequest { generation });
        self.within("UnloadAdapter", self.deadlines.control, call)
            .await
            .map(drop)
    }

    pub(crate) async fn clear_cache(
        &self,
        request: v1::ClearCacheRequest,
    ) -> Result<(), ClientError> {
        let mut stub = self.stub.clone();
        self.within(
            "ClearCache",
            self.deadlines.control,
            stub.clear_cache(request),
        )
        .await?;
        Ok(())
    }
}

/// An error of the connection says in its sources what happened.
fn with_causes(error: &dyn Error) -> String {
    let mut words = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(inner) = cause {
        words.push(inner.to_string());
        cause = inner.source();
    }
    words.dedup();
    words.join(": ")
}
