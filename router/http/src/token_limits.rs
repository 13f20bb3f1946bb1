//! Rules on how the token limits of a server fit together: checked before a model is loaded, and once more when warm-up
//! has filled in those that were left open.

/// Token limits, as far as they are known. Each is the flag of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenLimits {
    /// Most tokens of a prompt.
    pub max_input_tokens: Option<u32>,
    /// Most tokens of a request, prompt and answer together.
    pub max_total_tokens: Option<u32>,
    /// Most prompt tokens of one step.
    pub max_batch_prefill_tokens: Option<u32>,
    /// Slots of the KV pool: most tokens of all running requests together.
    pub max_batch_total_tokens: Option<u32>,
    /// Whether a prompt may be computed in several steps.
    pub prefill_chunking: bool,
}

/// Two limits that cannot both hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{lower}` must be {relation} `{upper}`. Given: {low} and {high}")]
pub struct Conflict {
    lower: &'static str,
    relation: &'static str,
    upper: &'static str,
    low: u32,
    high: u32,
}

impl TokenLimits {
    /// A prompt fits in a request and, where it is computed in one piece, in a step; both fit in the pool.
    ///
    /// # Errors
    /// The first two flags in conflict.
    pub fn check(&self) -> Result<(), Conflict> {
        let input = ("--max-input-tokens", self.max_input_tokens);
        let total = ("--max-total-tokens", self.max_total_tokens);
        let prefill = ("--max-batch-prefill-tokens", self.max_batch_prefill_tokens);
        let piece = (prefill.0, prefill.1.filter(|_| !self.prefill_chunking));
        let pool = ("--max-batch-total-tokens", self.max_batch_total_tokens);
        for (lower, relation, upper) in [
            (input, "<", total),
            (input, "<=", piece),
            (prefill, "<=", pool),
            (total, "<=", pool),
        ] {
            let (Some(low), Some(high)) = (lower.1, upper.1) else {
                continue;
            };
            if low > high || (relation == "<" && low == high) {
                return Err(Conflict {
                    lower: lower.0,
                    relation,
                    upper: upper.0,
                    low,
                    high,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: TokenLimits = TokenLimits {
        max_input_tokens: None,
        max_total_tokens: None,
        max_batch_prefill_tokens: None,
        max_batch_total_tokens: None,
        prefill_chunking: true,
    };

    fn verdict(limits: TokenLimits) -> String {
        limits
            .check()
            .map_or_else(|conflict| conflict.to_string(), |()| "fits".to_owned())
    }

    #[test]
    fn conflicting_limits_name_both_flags() {
        let (eight, nine) = (Some(8), Some(9));
        let input = TokenLimits {
            max_input_tokens: eight,
            ..OPEN
        };
        let total = TokenLimits {
            max_total_tokens: eight,
            ..input
        };
        let expected = "`--max-input-tokens` must be < `--max-total-tokens`. Given: 8 and 8";
        assert_eq!(verdict(total), expected);
        let prefill = TokenLimits {
            max_batch_prefill_tokens: Some(7),
            ..input
        };
        assert_eq!(verdict(prefill), "fits", "the prompt is cut in chunks");
        let prefill = TokenLimits {
            prefill_chunking: false,
            ..prefill
        };
        let expected =
            "`--max-input-tokens` must be <= `--max-batch-prefill-tokens`. Given: 8 and 7";
        assert_eq!(verdict(prefill), expected);
        let pool = TokenLimits {
            max_batch_total_tokens: eight,
            ..OPEN
        };
        let prefill = TokenLimits {
            max_batch_prefill_tokens: nine,
            ..pool
        };
        let expected =
            "`--max-batch-prefill-tokens` must be <= `--max-batch-total-tokens`. Given: 9 and 8";
        assert_eq!(verdict(prefill), expected);
        let total = TokenLimits {
            max_total_tokens: nine,
            ..pool
        };
        let expected = "`--max-total-tokens` must be <= `--max-batch-total-tokens`. Given: 9 and 8";
        assert_eq!(verdict(total), expected);
    }

    #[test]
    fn limits_that_are_open_conflict_with_none() {
        assert_eq!(verdict(OPEN), "fits");
        let equal = TokenLimits {
            max_input_tokens: Some(8),
            max_total_tokens: Some(9),
            max_batch_prefill_tokens: Some(9),
            max_batch_total_tokens: Some(9),
            prefill_chunking: false,
        };
        assert_eq!(verdict(equal), "fits");
    }
}
