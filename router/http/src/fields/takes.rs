//! Which values of a field ask for nothing.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::Value;

/// Values of a field that change nothing where the field is not read. Null is one of each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Takes {
    Anything,
    Null,
    /// `false` and all that is empty.
    Nothing,
    True,
    Number(f64),
    /// All that is empty, and each of these texts; in a list, or as the `type` of an object too.
    Text(&'static [&'static str]),
}

impl Takes {
    pub fn takes(self, given: &Value) -> bool {
        given.is_null()
            || match self {
                Self::Anything => true,
                Self::Null => false,
                Self::Nothing => is_nothing(given),
                Self::True => given == true,
                Self::Number(number) => given.as_f64() == Some(number),
                Self::Text(texts) => is_nothing(given) || is_one_of(texts, given),
            }
    }
}

fn is_nothing(given: &Value) -> bool {
    match given {
        Value::Null => true,
        Value::Bool(given) => !given,
        Value::Number(_) => false,
        Value::String(given) => given.is_empty(),
        Value::Array(given) => given.is_empty(),
        Value::Object(given) => given.is_empty(),
    }
}

fn is_one_of(texts: &[&str], given: &Value) -> bool {
    let one = |given: &Value| given.as_str().is_some_and(|given| texts.contains(&given));
    match given {
        Value::Array(list) => list.iter().all(one),
        Value::Object(object) => object.len() == 1 && object.get("type").is_some_and(one),
        given => one(given),
    }
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "no value but {number} is supported here: remove it"),
            Self::Text([text, ..]) => {
                write!(f, "no value but `{text}` is supported here: remove it")
            }
            Self::True => f.write_str("no value but `true` is supported here: remove it"),
            _ => f.write_str("it is not supported here: remove it"),
        }
    }
}

/// A field that would change the answer and is not supported. Null, `false` and nothing at all in it ask for nothing;
/// everything else is refused while the body is read, with the path of the field.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unsupported;

impl<'de> Deserialize<'de> for Unsupported {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if Takes::Nothing.takes(&Value::deserialize(deserializer)?) {
            Ok(Self)
        } else {
            Err(D::Error::custom(Takes::Nothing))
        }
    }
}
