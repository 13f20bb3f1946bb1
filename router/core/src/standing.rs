//! Where a request stands after the shards were lost: whether it may be the reason.

use crate::PLANS_IN_FLIGHT;

/// What is held against a request. It is forgotten when the request has got as many tokens as were on their way when
/// the shards were lost, for then it is past the place where it was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    #[default]
    Clear,
    /// It was computed when the shards were lost, as were others, and had so many tokens.
    Witness { generated: u32 },
    /// The same, and it is tried before anything else is computed of it.
    Suspect { generated: u32 },
}

impl Standing {
    /// As it is for a request that has `generated` tokens now.
    pub(crate) fn now(self, generated: u32) -> Self {
        let passed = |then: u32| generated >= then.saturating_add(PLANS_IN_FLIGHT as u32);
        match self {
            Self::Witness { generated } | Self::Suspect { generated } if passed(generated) => {
                Self::Clear
            }
            standing => standing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_got_on_is_clear_again() {
        let (suspect, witness) = (
            Standing::Suspect { generated: 4 },
            Standing::Witness { generated: 4 },
        );
        assert_eq!(suspect.now(5), suspect);
        assert_eq!(suspect.now(6), Standing::Clear);
        assert_eq!(witness.now(6), Standing::Clear);
    }
}
