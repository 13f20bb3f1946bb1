//! Fields of bodies that some API has, but not the one of the route: refused, where they ask for something. Names that no
//! API has are ignored.

mod known;
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

/// The entries of an object, given to the struct that reads `fields`.
struct Entries<T> {
    inner: T,
    fields: &'static [&'static str],
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Entries<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let fields = self.fields;
        self.inner.visit_map(Entries { inner: map, fields })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(items)
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Entries<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.inner.next_key::<String>()? {
            if self.fields.contains(&key.as_str()) {
                let key: StringDeserializer<A::Error> = key.into_deserializer();
                return seed.deserialize(key).map(Some);
            }
            match Known::find(&key) {
                None => drop(self.inner.next_value::<IgnoredAny>()?),
                Some(known) => self.inner.next_value_seed(Foreign {
                    known,
                    fields: self.fields,
                })?,
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(seed)
    }
}

/// A field that the object with `fields` does not read; it judges the value.
pub struct Foreign {
    known: &'static Known,
    fields: &'static [&'static str],
}

impl Foreign {
    /// What to send instead.
    fn instead(&self) -> Option<&'static str> {
        let read = |path: &&str| {
            let root = path.split('.').next().unwrap_or_default();
            root.starts_with('/') || self.fields.contains(&root)
        };
        self.known.instead.iter().copied().find(read)
    }
}

impl<'de> DeserializeSeed<'de> for Foreign {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let given = Value::deserialize(deserializer)?;
        let instead = self.instead();
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
        Err(match instead {
            Some(route) if route.starts_with('/') => {
                D::Error::custom(format_args!("it is not supported here, but on `{route}`"))
            }
            Some("parameters") => D::Error::custom("it belongs inside `parameters`"),
            Some(path) => D::Error::custom(format_args!(
                "it is not supported here: send `{path}` instead"
            )),
            None => D::Error::custom(takes),
        })
    }
}
