//! Fields of bodies that some API has, but not the one of the route: read where they are other names of a field that the
//! route has, and else refused, where they ask for something. Names that no API has are ignored.

mod known;
mod names;
mod table;
mod takes;

use std::fmt;

use serde::de::value::StringDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::Value;

use self::known::Known;
use self::names::Given;
use self::takes::Takes;
pub use self::takes::Unsupported;

/// A `T` whose object has no field that only other APIs know.
#[derive(Debug)]
pub struct Own<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Own<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(OwnFields(deserializer)).map(Self)
    }
}

/// Reads a struct that serde derived with `remote = "Self"` as [`Own`] does, wherever it is read.
macro_rules! own_fields {
    ($name:ident) => {
        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D>(deserializer: D) -> Result<Self, D::Error>
            where
                D: ::serde::Deserializer<'de>,
            {
                // What serde derived is a function of the type, which comes before that of the trait.
                $name::deserialize($crate::fields::OwnFields(deserializer))
            }
        }
    };
}
pub(crate) use own_fields;

/// A deserializer of a struct; it looks at the fields that the struct does not read.
pub struct OwnFields<D>(pub D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for OwnFields<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let inner = Entries {
            inner: visitor,
            fields,
        };
        self.0.deserialize_struct(name, fields, inner)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The visitor of the struct that reads `fields`.
struct Entries<V> {
    inner: V,
    fields: &'static [&'static str],
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Entries<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Read {
            inner: map,
            fields: self.fields,
            given: Given::default(),
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(items)
    }
}

/// The entries of an object that the struct gets.
struct Read<A> {
    inner: A,
    fields: &'static [&'static str],
    given: Given,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Read<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let fields = self.fields;
        while let Some(key) = self.inner.next_key::<String>()? {
            let known = table::find(&key);
            let name = known.and_then(|known| Some((known, known.name_of(&key, fields)?)));
            let read = if let Some((known, name)) = name {
                let value = self.inner.next_value()?;
                self.given.take(known, name, value)?.map(str::to_owned)
            } else if fields.contains(&key.as_str()) {
                Some(key)
            } else {
                match known {
                    None => drop(self.inner.next_value::<IgnoredAny>()?),
                    Some(known) => self.inner.next_value_seed(Foreign {
                        key: &key,
                        known,
                        fields,
                    })?,
                }
                None
            };
            if let Some(key) = read {
                let key: StringDeserializer<A::Error> = key.into_deserializer();
                return seed.deserialize(key).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        match self.given.unread() {
            Some(next) => next.read(seed),
            None => self.inner.next_value_seed(seed),
        }
    }
}

/// A field that the object with `fields` does not read; it judges the value.
struct Foreign<'a> {
    key: &'a str,
    known: &'static Known,
    fields: &'static [&'static str],
}

impl<'de> DeserializeSeed<'de> for Foreign<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let given = Value::deserialize(deserializer)?;
        let instead = self.known.instead(self.fields);
        // A default at the wrong place is another one than where the field belongs.
        let misplaced = instead.is_some_and(|path| path.starts_with("parameters"));
        let takes = if misplaced {
            Takes::Null
        } else {
            self.known.takes
        };
        if takes.takes(&given) {
            return Ok(());
        }
        Err(match (instead, &self.known.elsewhere) {
            (Some("parameters"), _) => D::Error::custom("it belongs inside `parameters`"),
            (Some(path), _) => D::Error::custom(format_args!(
                "it is not supported here: send `{path}` instead"
            )),
            (None, Some(elsewhere)) => D::Error::custom(elsewhere.of(self.key)),
            (None, None) => D::Error::custom(format_args!("{takes}{}", self.known.advice)),
        })
    }
}
