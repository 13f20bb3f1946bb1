//! The contract's service over a mock `State`.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use text_generation_proto::v1;
use text_generation_proto::v1::put_media_request::Source;
use text_generation_proto::v1::text_generation_service_server::TextGenerationService;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};

use crate::config::{MockConfig, MockLoad};
use crate::faults::{Faults, StepFault};
use crate::lock::lock;
use crate::state::State;
use crate::step::MockStep;

/// How long a step waits for its masks.
const MASKS: Duration = Duration::from_secs(10);

/// Which plan runs next.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turn {
    /// Counts the times that everything was cleared.
    epoch: u64,
    next: u64,
    /// A plan failed: those that follow are refused.
    refused: bool,
}

/// The group of a rank, which a fatal error of one ends.
pub(crate) trait Crash: fmt::Debug + Send + Sync {
    /// The start `number` ends, and whoever starts shards starts the next one, if the configuration says so.
    fn crash(self: Arc<Self>, number: usize);
}

/// One rank.
#[derive(Debug, Clone)]
pub(crate) struct Rank {
    pub rank: usize,
    pub urls: Vec<String>,
    pub config: Arc<MockConfig>,
    pub state: Arc<Mutex<State>>,
    pub turn: Arc<watch::Sender<Turn>>,
    /// Masks came, or everything was cleared.
    pub masks: Arc<Notify>,
    pub faults: Arc<Faults>,
    pub group: Weak<dyn Crash>,
    /// Which start of the group this is, from 0.
    pub life: usize,
}

impl Rank {
    async fn step(&self, plan: v1::StepPlan) -> Result<Response<v1::StepReply>, Status> {
        if !self.state().warmed {
            return Err(not_ready("call Warmup before any other call"));
        }
        let number = plan.number;
        let mut turns = self.turn.subscribe();
        let epoch = turns.borrow_and_update().epoch;
        let due = |turn: &Turn| turn.refused || turn.epoch != epoch || turn.next >= number;
        let turn = *turns.wait_for(due).await.map_err(|_| refused())?;
        if turn.refused || turn.epoch != epoch || turn.next != number {
            return Err(refused());
        }
        let computed = self.compute(plan, epoch).await;
        self.turn.send_modify(|turn| {
            if turn.epoch == epoch {
                turn.next = number + 1;
                turn.refused = computed.is_err();
            }
        });
        let reply = computed?;
        if !self.config.reply_time.is_zero() {
            tokio::time::sleep(self.config.reply_time).await;
        }
        Ok(Response::new(reply))
    }

    async fn compute(&self, plan: v1::StepPlan, epoch: u64) -> Result<v1::StepReply, Status> {
        let gate = lock(&self.faults.gate).clone();
        if let Some(gate) = gate {
            match gate.acquire().await {
                Ok(permit) => permit.forget(),
                Err(_) => return Err(Status::aborted("the gate was closed")),
            }
        }
        self.state().begins(Instant::now());
        let duration = (self.config.step_time)(&MockStep::of(&plan));
        if !duration.is_zero() {
            tokio::time::sleep(duration).await;
        }
        let fault = self.faults.next_step();
        match fault {
            Some(StepFault::Error(message)) => return Err(Status::internal(message)),
            Some(StepFault::Hang) => std::future::pending().await,
            _ => {}
        }
        let mut mask_wait = Duration::ZERO;
        if !plan.constrained.is_empty() {
            mask_wait = self.config.mask_wait;
            let masks = tokio::time::timeout(MASKS, self.masks_of(plan.number, epoch));
            let late = |_| Status::deadline_exceeded("the masks of a step did not come");
            masks.await.map_err(late)??;
        }
        if self.turn.borrow().epoch != epoch {
            return Err(refused());
        }
        let mut reply = self.state().execute(&self.config, self.rank, plan);
        if self.state().fatal {
            self.crash();
            return std::future::pending().await;
        }
        self.state().ends(Instant::now());
        match fault {
            Some(StepFault::LostRow) => lose_first_row(&mut reply),
            Some(StepFault::WrongToken) => {
                if let Some(id) = reply.ids.first_mut() {
                    *id = (*id + 1) % self.config.vocab_size;
                }
            }
            _ => {}
        }
        if self.rank == 0 {
            let loads = self.config.expert_loads.iter().cloned();
            reply.expert_loads = loads.map(|pairs| v1::ExpertLoad { pairs }).collect();
        }
        reply.timings = Some(v1::Timings {
            forward_ns: duration.as_nanos() as u64,
            idle_ns: self.config.idle_time.as_nanos() as u64,
            kernel_compilations: self.config.kernel_compilations,
            mask_wait_ns: mask_wait.as_nanos() as u64,
            ..v1::Timings::default()
        });
        Ok(reply)
    }

    /// Waits until the masks of a step are there.
    async fn masks_of(&self, number: u64, epoch: u64) -> Result<(), Status> {
        loop {
            let changed = self.masks.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.turn.borrow().epoch != epoch {
                return Err(refused());
            }
            if self.state().masks.have(number).map_err(Status::internal)? {
                return Ok(());
            }
            changed.await;
        }
    }

    /// The whole group ends.
    fn crash(&self) {
        if let Some(group) = self.group.upgrade() {
            group.crash(self.life);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Takes a row out of the reply, with all its tokens.
fn lose_first_row(reply: &mut v1::StepReply) {
    if reply.rows.is_empty() {
        return;
    }
    reply.rows.remove(0);
    let count = reply.counts.first().copied().unwrap_or(1) as usize;
    for of_rows in [&mut reply.counts, &mut reply.drafts, &mut reply.right] {
        of_rows.drain(..1.min(of_rows.len()));
    }
    reply.ids.drain(..count);
    reply.logprobs.drain(..count.min(reply.logprobs.len()));
    reply.top_tokens.retain(|top| top.index as usize >= count);
    for top in &mut reply.top_tokens {
        top.index -= count as u32;
    }
}

fn not_ready(message: &str) -> Status {
    let mut status = Status::failed_precondition(message);
    let reason = MetadataValue::from_static("not_ready");
    status.metadata_mut().insert("error-reason", reason);
    status
}

/// A refusal of the files of an adapter.
fn unreadable(reason: &'static str, message: String) -> Status {
    let code = match reason {
        "adapter_not_found" => Code::NotFound,
        "adapter_changed" => Code::FailedPrecondition,
        _ => Code::InvalidArgument,
    };
    let mut status = Status::new(code, message);
    let reason = MetadataValue::from_static(reason);
    status.metadata_mut().insert("error-reason", reason);
    status
}

fn refused() -> Status {
    Status::failed_precondition("a plan before this one failed or was cleared")
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
            kv_cache_dtype: "float32".to_owned(),
            recurrent: self.config.recurrent,
            media: self.config.media,
            widths: self.config.widths.clone(),
            max_window_tokens: 512,
            drafter: match self.config.widths.as_slice() {
                [] => String::new(),
                _ => "ngram".to_owned(),
            },
            classes: self.config.classes,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            group: if self.config.named {
                format!("start {}", self.life)
            } else {
                String::new()
            },
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
        {
            let mut state = self.state();
            state.warmups.push(request);
            if std::mem::replace(&mut state.warmed, true) && !config.named {
                return Err(not_ready("Warmup was called before"));
            }
        }
        Ok(Response::new(v1::WarmupResponse {
            max_batch_total_tokens: request
                .max_batch_total_tokens
                .unwrap_or(config.max_batch_total_tokens),
            max_input_tokens: request.max_input_tokens.unwrap_or(config.max_input_tokens),
            max_total_tokens: request.max_total_tokens.unwrap_or(config.max_total_tokens),
            max_batch_size: request.max_batch_size,
            cost: Some(config.cost.clone()),
            graph_tokens: config.graph_tokens.clone(),
            max_masks: config.max_masks,
            overlapped_halves: config.overlapped_halves,
            media_cost: config.media_cost.clone(),
        }))
    }

    async fn prefill(
        &self,
        request: Request<v1::StepPlan>,
    ) -> Result<Response<v1::StepReply>, Status> {
        self.step(request.into_inner()).await
    }

    async fn decode(
        &self,
        request: Request<v1::StepPlan>,
    ) -> Result<Response<v1::StepReply>, Status> {
        self.step(request.into_inner()).await
    }

    async fn constrain(
        &self,
        request: Request<v1::StepMasks>,
    ) -> Result<Response<v1::StepMasksResponse>, Status> {
        let masks = request.into_inner();
        if let Some(message) = lock(&self.faults.failing_masks).pop() {
            self.state().masks.refuse(masks.number, message.clone());
            self.masks.notify_waiters();
            return Err(Status::new(Code::Internal, message));
        }
        let max_masks = self.config.max_masks;
        let mut state = self.state();
        let wrong = state.masks.receive(masks, max_masks);
        state.violations.extend(wrong);
        drop(state);
        self.masks.notify_waiters();
        Ok(Response::new(v1::StepMasksResponse {}))
    }

    async fn filter_batch(
        &self,
        request: Request<v1::FilterBatchRequest>,
    ) -> Result<Response<v1::FilterBatchResponse>, Status> {
        let request_ids = self.state().filter(&request.into_inner().request_ids);
        Ok(Response::new(v1::FilterBatchResponse { request_ids }))
    }

    async fn put_media(
        &self,
        request: Request<v1::PutMediaRequest>,
    ) -> Result<Response<v1::PutMediaResponse>, Status> {
        let mut request = request.into_inner();
        if let Some(Source::File(name)) = &request.source {
            let socket = self.urls.get(self.rank).map_or("", String::as_str);
            let folder = Path::new(socket.trim_start_matches("unix://")).parent();
            let file = folder.map(|folder| folder.join(name)).unwrap_or_default();
            request.source = Some(Source::Pixels(std::fs::read(file)?));
        }
        let put = self.state().media.put(&request);
        put.map_err(Status::invalid_argument)?;
        Ok(Response::new(v1::PutMediaResponse {}))
    }

    async fn load_adapter(
        &self,
        request: Request<v1::LoadAdapterRequest>,
    ) -> Result<Response<v1::LoadAdapterResponse>, Status> {
        let request = request.into_inner();
        self.state().adapters.loads.push(request.clone());
        let mut reads = self.faults.loads.subscribe();
        // The sender lives as long as this.
        let _ = reads.wait_for(|reads| *reads).await;
        let load = MockLoad {
            life: self.life,
            rank: self.rank,
            request,
        };
        let refused = |(reason, message)| unreadable(reason, message);
        let read = (self.config.adapters)(&load).map_err(refused)?;
        let asked = load.request.generation;
        if asked != 0 && asked != read.generation {
            let message = format!("the files of {} have changed", load.request.source);
            return Err(unreadable("adapter_changed", message));
        }
        self.state().adapters.load(&read);
        Ok(Response::new(read))
    }

    async fn unload_adapter(
        &self,
        request: Request<v1::UnloadAdapterRequest>,
    ) -> Result<Response<v1::UnloadAdapterResponse>, Status> {
        let generation = request.into_inner().generation;
        self.state().adapters.unload(generation);
        Ok(Response::new(v1::UnloadAdapterResponse {}))
    }

    async fn clear_cache(
        &self,
        request: Request<v1::ClearCacheRequest>,
    ) -> Result<Response<v1::ClearCacheResponse>, Status> {
        let request_id = request.into_inner().request_id;
        if self.faults.clear_fails() {
            return Err(Status::internal("the requests cannot be dropped"));
        }
        self.state().clear(request_id);
        if request_id.is_none() {
            self.turn.send_modify(|turn| {
                *turn = Turn {
                    epoch: turn.epoch + 1,
                    ..Turn::default()
                }
            });
            self.masks.notify_waiters();
        }
        Ok(Response::new(v1::ClearCacheResponse {}))
    }

    async fn abandon(
        &self,
        _: Request<v1::AbandonRequest>,
    ) -> Result<Response<v1::AbandonResponse>, Status> {
        let rank = self.clone();
        // The answer goes out first, as far as anybody can tell.
        tokio::spawn(async move { rank.crash() });
        Ok(Response::new(v1::AbandonResponse {}))
    }

    async fn tokens(
        &self,
        _: Request<v1::TokensRequest>,
    ) -> Result<Response<v1::TokensResponse>, Status> {
        Err(Status::unimplemented("a mock shard has no tokenizer"))
    }
}
