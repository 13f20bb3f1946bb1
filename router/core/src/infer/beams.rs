//! Beam searches: whether the server can run one, and its parts.

use std::sync::Arc;

use super::Infer;
use crate::assemble::TextAssembler;
use crate::beams::{self, BeamSearch, Held};
use crate::error::ValidationError;
use crate::types::{Beams, StoppingCriteria};
use crate::validation::ValidRequest;

/// As many of the most likely tokens as a shard returns.
const MOST_ALTERNATIVES: u32 = 20;

impl Infer {
    /// Whether the server can search with so many beams.
    pub(super) fn check_beams(
        &self,
        beams: &Beams,
        stopping: &StoppingCriteria,
    ) -> Result<(), ValidationError> {
        if !self.0.limits.prefix_caching {
            return Err(ValidationError::BeamsUncached);
        }
        let ends = self.eos(stopping).len() + stopping.stop_token_ids.len();
        let given = beams.width;
        if beams::wanted(given, ends) > MOST_ALTERNATIVES {
            let most = MOST_ALTERNATIVES.saturating_sub(beams::wanted(0, ends));
            return Err(ValidationError::BeamEnds {
                max: most,
                ends,
                given,
            });
        }
        Ok(())
    }

    /// End-of-sequence tokens that end a text.
    fn eos(&self, stopping: &StoppingCriteria) -> Arc<[u32]> {
        match stopping.ignore_eos_token {
            true => Arc::default(),
            false => self.0.eos_token_ids.clone(),
        }
    }

    /// A search for the texts of a request, which is told of stop strings by `stops` and holds what is held for it.
    pub(super) fn search(
        &self,
        request: ValidRequest,
        beams: Beams,
        stops: Option<TextAssembler>,
        held: Held,
    ) -> BeamSearch {
        let eos = self.eos(&request.stopping);
        BeamSearch::new(self.0.batcher.clone(), request, beams, eos, stops, held)
    }
}
