//! One prompt and several texts that may follow it, as the model reads each of them.

use super::Infer;
use crate::error::{InferError, ValidationError};
use crate::types::Inputs;

/// A prompt with each of several choices behind it, as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continued {
    /// One list for each choice.
    pub ids: Vec<Vec<u32>>,
    /// Tokens that all lists, and the prompt alone, begin with; at least one. What is behind them writes the rest of the
    /// prompt, if any, and the choice, so that the probabilities of it can be compared among choices.
    pub shared: usize,
}

impl Infer {
    /// `prompt` with each of `choices` behind it: texts, or lists of ids, as the prompt is. A text is encoded as a whole,
    /// because its tokens need not end where the prompt does.
    ///
    /// # Errors
    /// `Validation` when a text cannot be encoded or is too long, an id is unknown, a choice adds nothing, or nothing is
    /// shared.
    pub async fn continued(
        &self,
        prompt: &Inputs,
        choices: Vec<Inputs>,
        add_special_tokens: bool,
    ) -> Result<Continued, InferError> {
        let validator = &self.0.validator;
        let encode = |inputs| validator.encode_prompt(inputs, add_special_tokens);
        let alone = encode(prompt.clone()).await?;
        validator.check_length(alone.len())?;
        // One after the other: each holds its text, and only the ids stay.
        let mut ids = Vec::with_capacity(choices.len());
        let most = validator.longest_prompt();
        for (index, choice) in choices.into_iter().enumerate() {
            if let Inputs::Ids(own) = &choice {
                validator.check_ids("choices", own)?;
            }
            let whole = encode(behind(prompt, choice)).await?;
            let tokens = whole.len();
            if tokens > most {
                return Err(ValidationError::LongChoice {
                    index,
                    tokens,
                    most,
                }
                .into());
            }
            ids.push(whole);
        }
        let same = |ids: &Vec<u32>| alone.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let shared = ids.iter().map(same).min().unwrap_or(alone.len());
        if let Some(index) = ids
            .iter()
            .position(|ids| *ids == alone || ids.len() <= shared)
        {
            return Err(ValidationError::EmptyChoice { index }.into());
        }
        if shared == 0 {
            return Err(ValidationError::NothingPredicts.into());
        }
        Ok(Continued { ids, shared })
    }
}

/// The one behind the other. A front end gives both as texts, or both as ids.
fn behind(prompt: &Inputs, choice: Inputs) -> Inputs {
    match (prompt, choice) {
        (Inputs::Text(prompt), Inputs::Text(choice)) => Inputs::Text(format!("{prompt}{choice}")),
        (Inputs::Ids(prompt), Inputs::Ids(choice)) => {
            Inputs::Ids(prompt.iter().copied().chain(choice).collect())
        }
        (_, choice) => choice,
    }
}
