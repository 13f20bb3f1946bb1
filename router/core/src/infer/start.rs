//! How a request gets in: permits, validation, and whether the server could ever run it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::{GenerateStream, Infer};
use crate::assemble::TextAssembler;
use crate::error::{InferError, ValidationError};
use crate::metrics::Meter;
use crate::stream::Held;
use crate::types::{GenerateRequest, RequestInstants};

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
            _permit: permit.map_err(|_| InferError::Overloaded)?,
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
        let mut valid = self.0.validator.validate(request).await?;
        // The input was validated against a limit of 32 bits.
        let input_length = u32::try_from(valid.input_ids.len()).unwrap_or(u32::MAX);
        let max_new_tokens = valid.stopping.max_new_tokens;
        self.check_fits(input_length, max_new_tokens)?;
        let queued = Instant::now();
        // The batcher has no use for them.
        let stop = std::mem::take(&mut valid.stop_sequences);
        let (dialect, samples) = (valid.dialect, valid.chooser.do_sample);
        let seeds: Vec<u64> = (0..).take(held.len()).map(|n| valid.seed(n)).collect();
        let samples_wanted = u32::try_from(held.len()).unwrap_or(u32::MAX);
        let events = self.0.batcher.submit(valid, samples_wanted)?;
        meter.accepted(input_length, max_new_tokens);
        let tokenizer = self.0.validator.tokenizer();
        let stream = |(index, (seed, (held, events))): (u32, (u64, (Held, _)))| GenerateStream {
            index,
            input_length,
            assembler: TextAssembler::new(tokenizer.clone(), &stop, dialect),
            seed: samples.then_some(seed),
            instants: RequestInstants {
                received: held.received,
                queued,
                started: queued,
            },
            cached_tokens: 0,
            events,
            metrics: self.0.metrics.clone(),
            meter: meter.clone(),
            _held: held,
            pending: VecDeque::new(),
            generated_tokens: 0,
            last_step: None,
            ended: false,
        };
        let parts = seeds.into_iter().zip(held.into_iter().zip(events));
        Ok((0..).zip(parts).map(stream).collect())
    }

    /// More samples than permits could never start together.
    pub(super) fn check_samples(
        &self,
        field: &'static str,
        given: u32,
    ) -> Result<(), ValidationError> {
        let max = u32::try_from(self.0.max_concurrent_requests).unwrap_or(u32::MAX);
        if given == 0 || given > max {
            return Err(ValidationError::Samples { field, max, given });
        }
        Ok(())
    }

    /// A request that could never run would hold up the queue for ever.
    fn check_fits(&self, inputs: u32, new: u32) -> Result<(), ValidationError> {
        let limits = &self.0.limits;
        let max = limits.max_batch_prefill_tokens;
        if inputs > max && !limits.prefill_chunking {
            return Err(ValidationError::InputLength { max, given: inputs });
        }
        let max = limits.max_batch_total_tokens;
        // The last token takes no slot.
        if inputs.saturating_add(new).saturating_sub(1) > max {
            return Err(ValidationError::MaxTotalTokens { max, inputs, new });
        }
        Ok(())
    }
}
