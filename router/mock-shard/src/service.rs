//! The contract's service over a mock `State`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use text_generation_proto::v1;
use text_generation_proto::v1::text_generation_service_server::TextGenerationService;
use tokio::sync::Semaphore;
use tonic::{Code, Request, Response, Status};

use crate::config::MockConfig;
use crate::state::{State, Step};

/// What a test can change while the mock runs; shared by the ranks.
#[derive(Debug)]
pub(crate) struct Faults {
    /// Every step takes one permit and forgets it; `None` lets steps run freely.
    pub gate: Mutex<Option<Arc<Semaphore>>>,
    /// The next steps fail with this message.
    pub failing_steps: Mutex<Vec<String>>,
    pub healthy: Mutex<bool>,
}

/// One rank.
#[derive(Debug, Clone)]
pub(crate) struct Rank {
    pub rank: usize,
    pub urls: Vec<String>,
    pub config: Arc<MockConfig>,
    pub state: Arc<Mutex<State>>,
    pub faults: Arc<Faults>,
}

/// A poisoned lock means that a test has already failed elsewhere; the data is still good to read.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rank {
    async fn enter_step(&self, duration: std::time::Duration) -> Result<(), Status> {
        let gate = lock(&self.faults.gate).clone();
        if let Some(gate) = gate {
            match gate.acquire().await {
                Ok(permit) => permit.forget(),
                Err(_) => return Err(Status::aborted("the gate was closed")),
            }
        }
        if !duration.is_zero() {
            tokio::time::sleep(duration).await;
        }
        match lock(&self.faults.failing_steps).pop() {
            Some(message) => Err(Status::new(Code::Internal, message)),
            None => Ok(()),
        }
    }

    fn timings(&self) -> v1::Timings {
        v1::Timings {
            idle_ns: self.config.idle_time.as_nanos() as u64,
            kernel_compilations: self.config.kernel_compilations,
            ..v1::Timings::default()
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn invalid(message: String) -> Status {
    Status::new(Code::InvalidArgument, message)
}

#[tonic::async_trait]
impl TextGenerationService for Rank {
    async fn info(
        &self,
        _: Request<v1::InfoRequest>,
    ) -> Result<Response<v1::InfoResponse>, Status> {
        Ok(Response::new(v1::InfoResponse {
            dtype: "float32".to_owned(),
            device_type: "cpu".to_owned(),
            world_size: self.config.world_size as u32,
            vocab_size: self.config.vocab_size,
            max_position_embeddings: self.config.max_total_tokens,
            eos_token_ids: self.config.eos_token_ids.clone(),
            attention_impl: "mock".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }

    async fn service_discovery(
        &self,
        _: Request<v1::ServiceDiscoveryRequest>,
    ) -> Result<Response<v1::ServiceDiscoveryResponse>, Status> {
        Ok(Response::new(v1::ServiceDiscoveryResponse {
            urls: self.urls.clone(),
        }))
    }

    async fn health(
        &self,
        _: Request<v1::HealthRequest>,
    ) -> Result<Response<v1::HealthResponse>, Status> {
        if *lock(&self.faults.healthy) {
            Ok(Response::new(v1::HealthResponse {}))
        } else {
            Err(Status::internal("the engine makes no progress"))
        }
    }

    async fn warmup(
        &self,
        request: Request<v1::WarmupRequest>,
    ) -> Result<Response<v1::WarmupResponse>, Status> {
        let request = request.into_inner();
        let config = &self.config;
        Ok(Response::new(v1::WarmupResponse {
            max_batch_total_tokens: request
                .max_batch_total_tokens
                .unwrap_or(config.max_batch_total_tokens),
            max_input_tokens: request.max_input_tokens.unwrap_or(config.max_input_tokens),
            max_total_tokens: request.max_total_tokens.unwrap_or(config.max_total_tokens),
            max_batch_size: request.max_batch_size,
        }))
    }

    async fn prefill(
        &self,
        request: Request<v1::PrefillRequest>,
    ) -> Result<Response<v1::PrefillResponse>, Status> {
        self.enter_step(self.config.prefill_time).await?;
        let batch = request.into_inner().batch.unwrap_or_default();
        let Step {
            generations,
            batch,
            failures,
        } = self.state().prefill(&self.config, self.rank, batch);
        Ok(Response::new(v1::PrefillResponse {
            generations,
            batch,
            failures,
            timings: Some(self.timings()),
        }))
    }

    async fn decode(
        &self,
        request: Request<v1::DecodeRequest>,
    ) -> Result<Response<v1::DecodeResponse>, Status> {
        self.enter_step(self.config.decode_time).await?;
        let step = self
            .state()
            .decode(&self.config, self.rank, request.into_inner());
        let Step {
            generations,
            batch,
            failures,
        } = step.map_err(invalid)?;
        Ok(Response::new(v1::DecodeResponse {
            generations,
            batch,
            failures,
            timings: Some(self.timings()),
        }))
    }

    async fn filter_batch(
        &self,
        request: Request<v1::FilterBatchRequest>,
    ) -> Result<Response<v1::FilterBatchResponse>, Status> {
        let request = request.into_inner();
        let batch = self.state().filter(request.batch_id, &request.request_ids);
        Ok(Response::new(v1::FilterBatchResponse {
            batch: batch.map_err(invalid)?,
        }))
    }

    async fn clear_cache(
        &self,
        request: Request<v1::ClearCacheRequest>,
    ) -> Result<Response<v1::ClearCacheResponse>, Status> {
        self.state().clear(request.into_inner().id);
        Ok(Response::new(v1::ClearCacheResponse {}))
    }

    async fn tokens(
        &self,
        _: Request<v1::TokensRequest>,
    ) -> Result<Response<v1::TokensResponse>, Status> {
        Err(Status::unimplemented("a mock shard has no tokenizer"))
    }
}
