//! What a classifier's `config.json` says of its classes: their names, and what becomes of their logits.

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The classes of a model that scores them in place of generating text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Classifier {
    /// Their names (`id2label`), in their order.
    #[schema(example = json!(["negative", "positive"]))]
    pub labels: Vec<String>,
    /// What `probs` of `/v1/classify` are.
    pub activation: Activation,
}

/// What becomes of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// Probabilities of classes of which one is right.
    Softmax,
    /// A probability for each class.
    Sigmoid,
    /// Nothing: they are values.
    None,
}

impl Activation {
    /// Of the `problem_type` of Transformers.
    fn new(problem_type: Option<&str>, classes: usize) -> Self {
        match problem_type {
            Some("regression") => Self::None,
            Some("multi_label_classification") => Self::Sigmoid,
            // The softmax of one class would be 1 whatever it is.
            _ if classes == 1 => Self::Sigmoid,
            _ => Self::Softmax,
        }
    }

    /// What it makes of the logits of one prompt.
    pub fn apply(self, logits: &[f32]) -> Vec<f64> {
        let logits = logits.iter().map(|&logit| f64::from(logit));
        match self {
            Self::None => logits.collect(),
            Self::Sigmoid => logits.map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
            Self::Softmax => {
                let largest = logits.clone().fold(f64::NEG_INFINITY, f64::max);
                let powers: Vec<f64> = logits.map(|logit| (logit - largest).exp()).collect();
                let sum: f64 = powers.iter().sum();
                powers.into_iter().map(|power| power / sum).collect()
            }
        }
    }
}

impl Classifier {
    /// Reads the configuration of the model in `folder`, which scores so many classes. A file that cannot be read, or a
    /// class without a name, leaves the names that Transformers gives.
    pub fn load(folder: &Path, classes: usize) -> Self {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let config = serde_json::from_str::<Map<String, Value>>(&text).unwrap_or_default();
        let named = |class: usize| config.get("id2label")?.get(class.to_string())?.as_str();
        let label = |class| named(class).map_or_else(|| format!("LABEL_{class}"), str::to_owned);
        Self {
            labels: (0..classes).map(label).collect(),
            activation: Activation::new(
                config.get("problem_type").and_then(Value::as_str),
                classes,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_follow_the_problem() {
        for (problem, classes, expected) in [
            (None, 2, Activation::Softmax),
            (None, 1, Activation::Sigmoid),
            (Some("single_label_classification"), 3, Activation::Softmax),
            (Some("multi_label_classification"), 3, Activation::Sigmoid),
            (Some("regression"), 1, Activation::None),
        ] {
            assert_eq!(Activation::new(problem, classes), expected, "{problem:?}");
        }
    }

    #[test]
    fn large_logits_have_probabilities() {
        assert_eq!(Activation::Softmax.apply(&[3e38, 0.0]), [1.0, 0.0]);
        assert_eq!(
            Activation::Sigmoid.apply(&[-3e38, 0.0, 3e38]),
            [0.0, 0.5, 1.0]
        );
        assert_eq!(Activation::None.apply(&[-2.5]), [-2.5]);
    }
}
