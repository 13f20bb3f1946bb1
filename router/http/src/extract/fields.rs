//! Readers of single fields of a body, for serde's `deserialize_with`.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

/// A `T` that is read from a JSON object only: what is derived for a struct takes an array too, field by field.
pub(super) struct FromObject<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for FromObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = FromObject<T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(FromObject)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// For `deserialize_with` of a field that is a struct.
pub fn object<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    FromObject::deserialize(deserializer).map(|object| object.0)
}

/// For `deserialize_with` of a field that is a struct or null; needs `default` beside it.
pub fn nullable_object<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let object: Option<FromObject<T>> = Option::deserialize(deserializer)?;
    Ok(object.map(|object| object.0))
}

/// For `deserialize_with` of a field that may be missing, but not null; needs `default` beside it.
pub fn not_null<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// For `deserialize_with` of a limit of tokens; needs `default` beside it. One beyond 32 bits is the largest of them: it is
/// too large for every model, and the error says so as of any other that is.
pub fn token_limit<'de, D>(deserializer: D) -> Result<Option<u32>, D::Error>
where
    D: Deserializer<'de>,
{
    struct TokenLimit(u32);
    struct Whole;

    impl Visitor<'_> for Whole {
        type Value = TokenLimit;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("u32")
        }

        fn visit_u64<E: Error>(self, given: u64) -> Result<TokenLimit, E> {
            Ok(TokenLimit(u32::try_from(given).unwrap_or(u32::MAX)))
        }
    }

    impl<'de> Deserialize<'de> for TokenLimit {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_u64(Whole)
        }
    }

    let given: Option<TokenLimit> = Option::deserialize(deserializer)?;
    Ok(given.map(|TokenLimit(given)| given))
}
