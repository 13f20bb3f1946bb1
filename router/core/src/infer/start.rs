//! Admission of a request: permits, validation, and whether the server could ever run it.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::future::try_join_all;
use tokio::time::Instant;

use super::{GenerateStream, Group, Infer};
use crate::assemble::TextAssembler;
use crate::batcher::Submitted;
use crate::error::{InferError, Overload, ValidationError};
use crate::hints::Follower;
use crate::metrics::Meter;
use crate::permit::{Permit, PermitHalf};
use crate::stream::StreamGuard;
use crate::tenant::Tenant;
use crate::types::observer::Outcome;
use crate::types::{RequestInstants, SpecialTokens};
use crate::validation::ValidRequest;

/// What a generation holds: the first for its stream, the second for the batcher.
pub(super) type Entered = (StreamGuard, PermitHalf);

/// A group that can be queued.
struct Ready {
    valid: ValidRequest,
    input_length: u32,
    samples: u32,
    /// Of [`Group::generations`].
    generations: u32,
}

impl Infer {
    /// A permit for each of so many generations, or none, and a place among those that shutdown waits for.
    pub(super) fn enter(
        &self,
        tenant: &Tenant,
        generations: u32,
    ) -> Result<Vec<Entered>, InferError> {
        // The token comes first: a drain that has not seen it lets nobody in any more.
        let drain = self.0.drain.token();
        if self.0.drain.is_closed() {
            return Err(InferError::ShuttingDown);
        }
        let mut of_tenant = tenant.enter(generations)?;
        let permits = self.0.permits.clone();
        let max = self.0.max_concurrent_requests;
        let mut permits = permits
            .try_acquire_many_owned(generations)
            .map_err(|_| InferError::Overloaded(Overload::Requests { max }))?;
        let received = Instant::now();
        let permits = (0..generations).filter_map(|_| {
            Some(Permit {
                _server: permits.split(1)?,
                _tenant: of_tenant.as_mut().and_then(|places| places.split(1)),
            })
        });
        Ok(permits
            .map(|permit| {
                let (permit, of_generation) = PermitHalf::pair(permit);
                let guard = StreamGuard {
                    _permit: permit,
                    cut: Box::pin(self.0.cut.clone().cancelled_owned()),
                    _drain: drain.clone(),
                    received,
                };
                (guard, of_generation)
            })
            .collect())
    }

    /// Validates groups and queues its generations with `entered`, which has one for each. Nothing is queued
    /// before all are valid, so a group that is refused leaves none of its siblings running.
    pub(super) async fn start(
        &self,
        groups: Vec<Group>,
        entered: Vec<Entered>,
        meter: &Arc<Meter>,
    ) -> Result<Vec<Vec<GenerateStream>>, InferError> {
        let tenant = tenant(&groups);
        let ready = groups.into_iter().map(|group| self.prepare(group));
        let ready = try_join_all(ready).await?;
        let prompts = ready.iter().map(|group| group.input_length);
        let prompts = prompts.fold(0, u32::saturating_add);
        tenant.take_prompt_tokens(prompts, Instant::now())?;
        let mut entered = entered.into_iter();
        ready
            .into_iter()
            .map(|group| {
                let generations = group.generations as usize;
                self.submit(group, entered.by_ref().take(generations).collect(), meter)
            })
            .collect()
    }

    async fn prepare(&self, group: Group) -> Result<Ready, InferError> {
        let generations = group.generations();
        let Group { request, samples } = group;
        let valid = self.0.validator.validate(request).await?;
        // The input was validated against a limit of 32 bits.
        let input_length = u32::try_from(valid.input_ids.len()).unwrap_or(u32::MAX);
        self.check_fits(input_length, valid.stopping.max_new_tokens)?;
        if let Some(beams) = &valid.beams {
            self.check_beams(beams, &valid.stopping)?;
        }
        Ok(Ready {
            valid,
            input_length,
            samples,
            generations,
        })
    }

    fn submit(
        &self,
        group: Ready,
        entered: Vec<Entered>,
        meter: &Arc<Meter>,
    ) -> Result<Vec<GenerateStream>, InferError> {
        let Ready {
            mut valid,
            input_length,
            samples: count,
            ..
        } = group;
        let max_new_tokens = valid.stopping.max_new_tokens;
        let (tenant, adapter) = (valid.tenant.clone(), valid.adapter.clone());
        let queued = Instant::now();
        // The batcher has no use for them.
        let stop = std::mem::take(&mut valid.stop_sequences);
        let observed = std::mem::take(&mut valid.observed);
        let samples = valid.chooser.do_sample;
        let assembler = self.assembler(&stop, &valid);
        let follower = valid.prediction.clone().map(Follower::new);
        let prompt_ids = valid.input_ids.clone();
        let healing = valid.healing.as_ref();
        let healed: Arc<str> = healing.map_or_else(|| "".into(), |healing| healing.text().clone());
        let grammar = valid.grammar.as_ref().map(|valid| &valid.grammar);
        let not_enforced: Arc<[String]> = grammar
            .map_or(&[][..], |grammar| grammar.not_enforced())
            .into();
        let (mut guards, permits): (Vec<StreamGuard>, Vec<PermitHalf>) =
            entered.into_iter().unzip();
        let of_beams = guards.split_off(guards.len().min(count as usize));
        let seeds: Vec<u64> = (0..).take(guards.len()).map(|n| valid.seed(n)).collect();
        let submitted = match valid.beams {
            None => {
                let permits = permits.into_iter().map(Some).collect();
                self.0.batcher.submit(valid, permits)?
            }
            Some(beams) => {
                let stops = (!stop.is_empty()).then(|| assembler.clone());
                let search = self.search(valid, beams, stops, (of_beams, permits));
                search.start(guards.len())
            }
        };
        meter.accepted(input_length, max_new_tokens);
        let stream = |(index, (seed, (guard, sample))): (u32, (u64, (StreamGuard, Submitted)))| {
            GenerateStream {
                index,
                input_length,
                prompt_ids: prompt_ids.clone(),
                healed: healed.clone(),
                not_enforced: not_enforced.clone(),
                cached_tokens: 0,
                assembler: assembler.clone(),
                seed: samples.then_some(seed),
                beam_score: None,
                instants: RequestInstants {
                    received: guard.received,
                    queued,
                    started: queued,
                },
                events: sample.events,
                stopped: sample.stopped,
                metrics: self.0.metrics.clone(),
                meter: meter.clone(),
                guard,
                pending: VecDeque::new(),
                generated_tokens: 0,
                class_logits: Box::default(),
                max_new_tokens,
                first_step: None,
                last_step: None,
                ended: false,
                outcome: Outcome::Dropped,
                tenant: tenant.clone(),
                adapter: adapter.clone(),
                observed: observed.clone(),
                follower: follower.clone(),
            }
        };
        let parts = seeds.into_iter().zip(guards.into_iter().zip(submitted));
        Ok((0..).zip(parts).map(stream).collect())
    }

    fn assembler(&self, stop: &[String], valid: &ValidRequest) -> TextAssembler {
        let tokenizer = self.0.validator.tokenizer().clone();
        let text = &valid.text;
        let mut assembler =
            TextAssembler::new(tokenizer, stop, valid.dialect).after(valid.chooser.min_new_tokens);
        if let Some(healing) = &valid.healing {
            assembler = assembler.skipping(healing.text());
        }
        if text.includes_stop != valid.dialect.includes_stop() {
            assembler = assembler.including_stop(stop, text.includes_stop);
        }
        if !text.includes_stop {
            assembler = assembler.without_ends(self.ends(&valid.stopping.stop_token_ids));
        }
        match text.special_tokens {
            SpecialTokens::Hidden => assembler,
            SpecialTokens::Shown => assembler.showing_special_tokens(),
            SpecialTokens::Parsed => assembler.keeping_special_tokens(self.0.eos_token_ids.clone()),
        }
    }

    /// All tokens that end a generation which these end too.
    fn ends(&self, stop_token_ids: &[u32]) -> Arc<[u32]> {
        if stop_token_ids.is_empty() {
            return self.0.eos_token_ids.clone();
        }
        let eos = self.0.eos_token_ids.iter();
        eos.chain(stop_token_ids).copied().collect()
    }

    /// More samples, or beams, than permits could never start.
    pub(super) fn check_samples(&self, group: &Group) -> Result<(), ValidationError> {
        let parameters = &group.request.parameters;
        let (field, given) = match (parameters.beam_width, parameters.best_of) {
            (None, None) => ("n", group.samples),
            (Some(width), _) => {
                self.0.validator.beam_width(width)?;
                ("beam_width", width)
            }
            (None, Some(best_of)) => {
                self.0.validator.best_of(best_of)?;
                ("best_of", group.samples)
            }
        };
        let (max, flag) = self.most_generations(&group.request.parameters.tenant);
        if given == 0 || given > max {
            return Err(ValidationError::Samples {
                field,
                max,
                flag,
                given,
            });
        }
        Ok(())
    }

    /// Every generation of a request needs a permit before the first may start.
    pub(super) fn check_generations(
        &self,
        tenant: &Tenant,
        given: u32,
    ) -> Result<(), ValidationError> {
        let (max, flag) = self.most_generations(tenant);
        if given > max {
            return Err(ValidationError::Generations { max, flag, given });
        }
        Ok(())
    }

    /// How many generations a tenant may have at once, and the limit that says so.
    fn most_generations(&self, tenant: &Tenant) -> (u32, &'static str) {
        let max = self.0.max_concurrent_requests;
        match tenant.max_concurrent_requests() {
            Some(own) if own < max => (own, "max_concurrent_requests"),
            _ => (max, "--max-concurrent-requests"),
        }
    }

    /// A request that could never run would hold up the queue for ever.
    fn check_fits(&self, inputs: u32, new: u32) -> Result<(), ValidationError> {
        let limits = &self.0.limits;
        let max = limits.max_batch_prefill_tokens;
        if inputs > max && !limits.prefill_chunking {
            return Err(ValidationError::InputLength {
                max,
                given: inputs,
                total: self.0.validator.limits().max_total_tokens,
            });
        }
        let max = limits.max_batch_total_tokens;
        if inputs.saturating_add(new) > max {
            return Err(ValidationError::MaxTotalTokens {
                max,
                inputs,
                new,
                asked: true,
            });
        }
        Ok(())
    }
}

/// Whose request it is: all of its groups have the same tenant.
pub(super) fn tenant(groups: &[Group]) -> Tenant {
    let first = groups.first();
    first.map_or_else(Tenant::default, |group| {
        group.request.parameters.tenant.clone()
    })
}
