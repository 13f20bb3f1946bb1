//! What the engine can do with numbers. It reads all of them as doubles.

use serde_json::{Number, Value};

/// It keeps bounds of integers in 64 bits, and takes the largest of them for an integer that may be larger.
const INT64: f64 = i64::MAX as f64;
/// Where an interval has one end, it looks for the other among the numbers of as many digits.
const DIGITS_18: f64 = 1e18;

/// Whether it has digits for the bound that a keyword sets.
pub(super) fn bounds(keyword: &str, bound: f64, integer: bool) -> bool {
    match keyword {
        "minimum" | "exclusiveMinimum" => -INT64 < bound && bound < DIGITS_18,
        _ => -DIGITS_18 < bound && (integer || bound < INT64),
    }
}

/// Whether it writes the numbers in a value as they are: those that no double holds become others.
pub(super) fn writes(value: &Value) -> bool {
    match value {
        Value::Number(number) => writes_number(number),
        Value::Array(list) => list.iter().all(writes),
        Value::Object(map) => map.values().all(writes),
        _ => true,
    }
}

fn writes_number(number: &Number) -> bool {
    let Some(double) = number.as_f64() else {
        return false;
    };
    let exact = number
        .as_i128()
        .is_none_or(|integer| double as i128 == integer);
    exact && -INT64 < double
}
