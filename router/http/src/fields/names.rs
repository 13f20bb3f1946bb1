//! Names of one field: clients made for one API send what another calls it, some of them beside its own name.

use serde::de::{DeserializeSeed, Error};
use serde_json::Value;

use super::known::{Known, Name};
use crate::extract::{Whole, wrong_field};

/// What an object has given by one of several names.
#[derive(Debug, Default)]
pub struct Given {
    /// Of each field, the name that came first.
    seen: Vec<(&'static Known, Name, Value)>,
    /// The last of them is to be read.
    unread: bool,
}

/// A value that the object reads.
#[derive(Debug)]
pub struct Next {
    name: &'static str,
    value: Value,
}

impl Given {
    /// The name by which the object reads the value; None where nothing is asked for, or another name of the field has
    /// said the same.
    ///
    /// # Errors
    /// When another name of the field has said something else, or the same name has been there.
    pub fn take<E: Error>(
        &mut self,
        field: &'static Known,
        name: Name,
        value: Value,
    ) -> Result<Option<&'static str>, E> {
        let is_empty = value.as_array().is_some_and(Vec::is_empty);
        if value.is_null() || (is_empty && field.takes.takes(&value)) {
            return Ok(None);
        }
        let Some((_, before, said)) = self.seen.iter().find(|seen| seen.0.is(field)) else {
            self.seen.push((field, name, value));
            self.unread = true;
            return Ok(Some(name.read));
        };
        if before.sent == name.sent {
            return Err(E::duplicate_field(name.sent));
        }
        if is_same(said, &value) {
            return Ok(None);
        }
        let problem = format_args!(
            "it is another name of `{}`, and their values differ: send one of them",
            before.sent
        );
        Err(E::custom(wrong_field(name.sent, problem)))
    }

    /// The value of the name that was taken last, once.
    pub fn unread(&mut self) -> Option<Next> {
        let unread = std::mem::take(&mut self.unread);
        let (_, name, value) = self.seen.last().filter(|_| unread)?;
        Some(Next {
            name: name.sent,
            value: value.clone(),
        })
    }
}

impl Next {
    /// # Errors
    /// Of the reader, with the name that was sent.
    pub fn read<'de, S: DeserializeSeed<'de>, E: Error>(self, seed: S) -> Result<S::Value, E> {
        let mut track = serde_path_to_error::Track::new();
        let reader = serde_path_to_error::Deserializer::new(Whole(self.value), &mut track);
        seed.deserialize(reader).map_err(|error| {
            let below = track.path().to_string();
            let below = if below == "." { "" } else { &below };
            E::custom(wrong_field(format_args!("{}{below}", self.name), error))
        })
    }
}

/// Whether two values mean the same: 3 and 3.0, a text and a list of it alone.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || one.as_f64() == other.as_f64()
        }
        (Value::String(_), Value::Array(list)) => list.len() == 1 && list[0] == *one,
        (Value::Array(list), Value::String(_)) => list.len() == 1 && list[0] == *other,
        _ => one == other,
    }
}
