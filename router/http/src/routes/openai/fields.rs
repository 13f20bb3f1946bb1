//! Types of single fields that both endpoints read.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use utoipa::ToSchema;

/// What a stream sends beside the choices.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Send a last chunk without choices that holds the usage.
    #[schema(nullable = true, example = true)]
    pub include_usage: Option<bool>,
}

/// One stop string or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

impl Stop {
    /// All of them.
    pub fn into_list(self) -> Vec<String> {
        match self {
            Self::One(stop) => vec![stop],
            Self::Many(list) => list,
        }
    }
}

/// A seed; OpenAI's are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a whole number from -9223372036854775808 to 18446744073709551615"
)]
pub enum Seed {
    Unsigned(u64),
    Signed(i64),
}

impl Seed {
    /// The seed that the shards get.
    pub fn bits(self) -> u64 {
        match self {
            Self::Unsigned(seed) => seed,
            Self::Signed(seed) => seed.cast_unsigned(),
        }
    }
}

/// A field that would change the answer and is not supported. Null, `false`, `none`, `auto` and nothing at all in it
/// ask for nothing; everything else is refused while the body is read, with the path of the field.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unsupported;

impl<'de> Deserialize<'de> for Unsupported {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Nothing;
        fn only_if<E: Error>(nothing: bool) -> Result<Unsupported, E> {
            if nothing {
                Ok(Unsupported)
            } else {
                Err(E::custom("this server does not support it: remove it"))
            }
        }
        impl<'de> Visitor<'de> for Nothing {
            type Value = Unsupported;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("nothing: this server does not support it: remove it")
            }

            fn visit_unit<E: Error>(self) -> Result<Unsupported, E> {
                Ok(Unsupported)
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Unsupported, E> {
                only_if(!value)
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<Unsupported, E> {
                only_if(false)
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<Unsupported, E> {
                only_if(false)
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<Unsupported, E> {
                only_if(false)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Unsupported, E> {
                only_if(matches!(text, "" | "none" | "auto"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Unsupported, A::Error> {
                only_if(items.next_element::<IgnoredAny>()?.is_none())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Unsupported, A::Error> {
                only_if(entries.next_key::<IgnoredAny>()?.is_none())
            }
        }
        deserializer.deserialize_any(Nothing)
    }
}

/// A number that would change the answer and is not supported. Null and `N` ask for nothing; everything else is refused
/// while the body is read, with the path of the field.
#[derive(Debug, Clone, Copy, Default)]
pub struct Only<const N: i64>;

impl<'de, const N: i64> Deserialize<'de> for Only<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<f64>::deserialize(deserializer)? {
            Some(given) if given != N as f64 => Err(D::Error::custom(format_args!(
                "this server supports no value but {N}: remove it"
            ))),
            _ => Ok(Self),
        }
    }
}
