//! Whole numbers that are written with a fraction of zero, such as `3.0`: a field of integers takes them.

use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// What every value of it is read with, at any depth. Values whose type is not known beforehand keep their fraction, so
/// that a schema or a text of the client's stays as it is.
pub struct Whole<T>(pub T);

/// For `deserialize_with` inside of an untagged enum, whose values serde reads from a copy.
pub fn whole<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(Whole(deserializer))
}

/// Methods of integers. A copy that serde made would refuse a fraction before the visitor sees it, if it was asked for an
/// integer.
macro_rules! integers {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.deserialize_any(Integer(visitor))
        })*
    };
}

macro_rules! others {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method(Whole(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Whole<D> {
    type Error = D::Error;

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }
    others! {
        deserialize_i128 deserialize_u128 deserialize_any deserialize_bool deserialize_f32 deserialize_f64
        deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf deserialize_option
        deserialize_unit deserialize_seq deserialize_map deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, Whole(visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, Whole(visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(length, Whole(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0
            .deserialize_tuple_struct(name, length, Whole(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, Whole(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, Whole(visitor))
    }
}

/// The visitor of an integer. What is no number is refused as by any visitor that does not know it.
struct Integer<V>(V);

/// Values that a visitor hands on as they are.
macro_rules! seen {
    ($($method:ident: $kind:ty),* $(,)?) => {
        $(fn $method<E: Error>(self, given: $kind) -> Result<V::Value, E> {
            self.0.$method(given)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Integer<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_f64<E: Error>(self, given: f64) -> Result<V::Value, E> {
        const BEYOND_I64: f64 = 9_223_372_036_854_775_808.0;
        const BEYOND_U64: f64 = 2.0 * BEYOND_I64;
        match given {
            _ if given.fract() != 0.0 => self.0.visit_f64(given),
            // Exact: these are whole and inside of the range.
            _ if (0.0..BEYOND_U64).contains(&given) => self.0.visit_u64(given as u64),
            _ if (-BEYOND_I64..0.0).contains(&given) => self.0.visit_i64(given as i64),
            _ => self.0.visit_f64(given),
        }
    }

    seen! { visit_i64: i64, visit_u64: u64 }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Whole<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.expecting(f)
    }

    seen! {
        visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128, visit_f64: f64,
        visit_char: char, visit_str: &str, visit_borrowed_str: &'de str, visit_string: String, visit_bytes: &[u8],
        visit_borrowed_bytes: &'de [u8], visit_byte_buf: Vec<u8>,
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, some: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Whole(some))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Whole(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Whole(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Whole(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Whole(variant))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Whole<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Whole(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Whole<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Whole(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Whole<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Whole(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Whole<A> {
    type Error = A::Error;
    type Variant = Whole<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(seed)?;
        Ok((value, Whole(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Whole<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Whole(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(length, Whole(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, Whole(visitor))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::de::DeserializeOwned;
    use serde_json::Value;

    use super::*;

    fn read<T: DeserializeOwned>(json: &str) -> Result<T, String> {
        let mut reader = serde_json::Deserializer::from_str(json);
        T::deserialize(Whole(&mut reader)).map_err(|error| error.to_string())
    }

    #[test]
    fn integers_may_have_a_fraction_of_zero() {
        assert_eq!(read("3.0"), Ok(3_u32));
        assert_eq!(read("-2.0"), Ok(-2_i32));
        assert_eq!(read("-0.0"), Ok(0_usize));
        assert_eq!(read("1e3"), Ok(1000_u64));
        assert_eq!(read("[1.0, 2]"), Ok(vec![1_u32, 2]));
        assert_eq!(
            read("{\"a\": 4.0}"),
            Ok(BTreeMap::from([("a".to_owned(), Some(4_u8))]))
        );
        for wrong in ["3.5", "1e300", "-1.0", "300.0", "\"3.0\""] {
            assert!(read::<u8>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_integer_stays() {
        assert_eq!(read("3.0"), Ok(3.0_f32));
        let value: Value = read("{\"const\": [1.0, 2]}").unwrap();
        assert_eq!(value.to_string(), "{\"const\":[1.0,2]}");
        assert!(read::<String>("3.0").is_err());
    }
}
