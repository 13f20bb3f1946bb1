//! Bounds and steps of numbers that the engine can enforce. It reads all of them as doubles.

use serde_json::{Number, Value};

/// It keeps bounds of integers in 64 bits, and takes the largest of them for an integer that may be larger.
const INT64: f64 = i64::MAX as f64;
/// Where an interval has one end, it looks for the other among the numbers of as many digits.
const DIGITS_18: f64 = 1e18;

/// From here on a double stands for several whole numbers. One that was read as a double may have been any of them, as
/// 18446744073709551617 is read as 2^64.
const WHOLE: f64 = (1_u64 << 53) as f64;

/// Whether it has digits for the bound that a keyword sets, and those of the schema.
pub(super) fn bounds(keyword: &str, bound: &Number, integer: bool) -> bool {
    let Some(double) = bound.as_f64() else {
        return false;
    };
    let digits = match keyword {
        "minimum" | "exclusiveMinimum" => -INT64 < double && double < DIGITS_18,
        _ => -DIGITS_18 < double && (integer || double < INT64),
    };
    // It finds the next whole number with doubles.
    if keyword.starts_with("exclusive") && double.abs() >= WHOLE {
        return false;
    }
    // The largest of all stays as it is.
    let exact = |integer| is_double(integer) || integer == i64::MAX;
    digits && bound.as_i64().is_none_or(exact)
}

/// The largest `multipleOf`, in units of its last digit: the engine has a state for each remainder.
const MOST_STEPS: f64 = 1e4;
/// The most remainders where several of one schema meet, as in `allOf`: 100,000 take a second to compile.
const MOST_TOGETHER: f64 = 1e5;

/// The values of `multipleOf` in one schema.
#[derive(Debug)]
pub(super) struct Steps {
    /// Their least common multiple, in units of the last digit of the finest.
    multiple: f64,
    /// Of those units in 1.
    scale: f64,
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            multiple: 1.0,
            scale: 1.0,
        }
    }
}

impl Steps {
    /// Whether the engine can follow this one beside those that it follows already.
    pub(super) fn takes(&mut self, step: &Number) -> bool {
        let Some(mut units) = step.as_f64().map(f64::abs) else {
            return false;
        };
        let mut scale = 1.0_f64;
        // As the engine does it.
        while units.fract() != 0.0 {
            units *= 10.0;
            scale *= 10.0;
        }
        if units == 0.0 || units > MOST_STEPS {
            // The compiler refuses a 0.
            return units == 0.0;
        }
        let finest = scale.max(self.scale);
        let (mine, theirs) = (units * finest / scale, self.multiple * finest / self.scale);
        let multiple = mine / common_divisor(mine, theirs) * theirs;
        let takes = multiple <= MOST_TOGETHER;
        if takes {
            (self.multiple, self.scale) = (multiple, finest);
        }
        takes
    }
}

/// Of two whole numbers above 0.
fn common_divisor(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        a
    } else {
        common_divisor(b, a % b)
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
    match number.as_i64() {
        Some(integer) => is_double(integer) && integer > i64::MIN,
        None => number.as_f64().is_some_and(|double| double.abs() < WHOLE),
    }
}

/// Whether a double holds this whole number. The engine has whole numbers of 64 bits, but reads them through doubles.
fn is_double(integer: i64) -> bool {
    integer as f64 as i128 == i128::from(integer)
}
