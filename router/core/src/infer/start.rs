//! How a request gets in: permits, validation, and whether the server could ever run it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::{GenerateStream, Infer};
use crate::assemble::TextAssembler;
use crate::error::{InferError, ValidationError};
use crate::metrics::Meter;
use crate::policy::Candidate;
use crate::queue::candidate;
use crate::stream::Held;
use crate::types::{GenerateRequest, RequestInstants};
use crate::validation::ValidRequest;

impl Infer {
    /// A permit and a place among those that shutdown waits for.
    pub(super) fn enter(&self) -> Result<Held, InferError> {
        // The token comes first: a drain that has not seen it lets nobody in any more.
        let drain = self.0.drain.token();
        if self.0.drain.is_closed() {
            return Err(InferError::ShuttingDown);
        }
        let permit = self.0.permits.clone().try_acquire_owned();
        Ok(Held {
            permit: Some(permit.map_err(|_| InferError::Overloaded)?),
            cut: Box::pin(self.0.cut.clone().cancelled_owned()),
            _drain: drain,
            received: Instant::now(),
        })
    }

    /// All permits of a group, or none.
    pub(super) fn enter_all(&self, samples: u32) -> Result<Vec<Held>, InferError> {
        (0..samples).map(|_| self.enter()).collect()
    }

    /// Validates a request and queues one generation for each of `held`.
    pub(super) async fn start(
        &self,
        request: GenerateRequest,
        held: Vec<Held>,
        meter: &Arc<Meter>,
    ) -> Result<Vec<GenerateStream>, InferError> {
        let as_many_as_fit = request.parameters.max_new_tokens.is_none();
        let mut valid = self.0.validator.validate(request).await?;
        if as_many_as_fit && held.len() > 1 {
            self.share_pool(&mut valid, held.len());
        }
        let candidate = candidate(&valid, held.len());
        self.check_fits(candidate)?;
        let queued = Instant::now();
        // The batcher has no use for them.
        let stop = std::mem::take(&mut valid.stop_sequences);
        let (dialect, samples) = (valid.dialect, valid.chooser.do_sample);
        let seeds: Vec<u64> = (0..).take(held.len()).map(|n| valid.seed(n)).collect();
        let events = self.0.batcher.submit(valid, candidate.samples)?;
        meter.accepted(candidate.input_length, candidate.max_new_tokens);
        let tokenizer = self.0.validator.tokenizer();
        let assembler = TextAssembler::new(tokenizer.clone(), &stop, dialect);
        let stream = |(index, (seed, (held, events))): (u32, (u64, (Held, _)))| GenerateStream {
            index,
            input_length: candidate.input_length,
            assembler: assembler.clone(),
            seed: samples.then_some(seed),
            instants: RequestInstants {
                received: held.received,
                queued,
                started: queued,
            },
            events,
            metrics: self.0.metrics.clone(),
            meter: meter.clone(),
            held,
            pending: VecDeque::new(),
            generated_tokens: 0,
            last_step: None,
            ended: false,
        };
        let parts = seeds.into_iter().zip(held.into_iter().zip(events));
        Ok((0..).zip(parts).map(stream).collect())
    }

    /// Where the client leaves the length open, a group gets what the pool has, and a request alone all that is left
    /// of the total.
    fn share_pool(&self, valid: &mut ValidRequest, samples: usize) {
        let candidate = candidate(valid, samples);
        let pool = self.0.limits.max_batch_total_tokens;
        let for_answers = pool.saturating_sub(candidate.input_length);
        // The last token of an answer takes no slot.
        let each = (for_answers / candidate.samples.max(1)).saturating_add(1);
        let stopping = &mut valid.stopping;
        if each >= stopping.min_new_tokens {
            stopping.max_new_tokens = stopping.max_new_tokens.min(each);
        }
    }

    /// More samples than rows or permits could never start together.
    pub(super) fn check_samples(
        &self,
        field: &'static str,
        given: u32,
    ) -> Result<(), ValidationError> {
        let permits = u32::try_from(self.0.max_concurrent_requests).unwrap_or(u32::MAX);
        let max = self.0.limits.max_batch_size.min(permits);
        if given == 0 || given > max {
            return Err(ValidationError::Samples { field, max, given });
        }
        Ok(())
    }

    /// A request that could never run would hold up the queue for ever.
    fn check_fits(&self, candidate: Candidate) -> Result<(), ValidationError> {
        let limits = &self.0.limits;
        let Candidate {
            input_length: inputs,
            max_new_tokens: new,
            samples,
        } = candidate;
        if candidate.fits_alone(limits) {
            return Ok(());
        }
        let max = limits.max_batch_prefill_tokens;
        if inputs > max {
            return Err(ValidationError::InputLength { max, given: inputs });
        }
        let max = limits.max_batch_total_tokens;
        if samples == 1 {
            return Err(ValidationError::MaxTotalTokens { max, inputs, new });
        }
        Err(ValidationError::GroupTokens {
            samples,
            inputs,
            new,
            max,
        })
    }
}
