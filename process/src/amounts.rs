//! Amounts as people write them: `32k` tokens, `1GiB` of memory.

/// Suffixes of numbers of tokens, as vLLM has them. Those of powers of 1,000 take decimals.
const TOKEN_SUFFIXES: [(&str, u64); 9] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("k", 1_000),
    ("m", 1_000_000),
    ("g", 1_000_000_000),
];
/// Suffixes of amounts of memory, in MiB.
const MEMORY_SUFFIXES: [(&str, u32); 2] = [("MiB", 1), ("GiB", 1 << 10)];

/// Reads a number of tokens of at least `least`: `32768`, `32k` or `25.6k` in thousands, `32K` or `32Ki` in units of 1,024.
///
/// The reader's error is what is wrong with any other text. The name of the flag is for the caller to say.
pub fn tokens(least: u32) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = number_of_tokens(text.trim()).ok_or(
            "not a number of tokens; give one such as 32768, 32k (32,000) or 32K (32,768)",
        )?;
        match u32::try_from(number) {
            Ok(tokens) if tokens >= least => Ok(tokens),
            Ok(_) => Err(format!("must be at least {least}")),
            Err(_) => Err(format!("must be at most {}", u32::MAX)),
        }
    }
}

fn number_of_tokens(text: &str) -> Option<u64> {
    let with_suffix = TOKEN_SUFFIXES
        .into_iter()
        .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, factor)));
    let Some((number, factor)) = with_suffix else {
        return digits(text)?.parse().ok();
    };
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let (whole, places) = (digits(whole)?, digits(decimals)?.len());
    if number.contains('.') && factor % 1_000 != 0 {
        return None;
    }
    let unit = 10_u64.checked_pow(u32::try_from(places).ok()?)?;
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let part = decimals.parse::<u64>().ok()?.checked_mul(factor)? / unit;
    whole.checked_add(part)
}

/// The text, where it consists of digits.
fn digits(text: &str) -> Option<&str> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(text)
}

/// Reads an amount of memory in MiB: `64`, `64MiB`, `1GiB`.
///
/// # Errors
/// What is wrong with any other text. The name of the flag is for the caller to say.
pub fn mebibytes(text: &str) -> Result<u32, String> {
    let text = text.trim();
    let (number, factor) = MEMORY_SUFFIXES
        .into_iter()
        .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, factor)))
        .unwrap_or((text, 1));
    digits(number.trim_end())
        .and_then(|number| number.parse::<u32>().ok()?.checked_mul(factor))
        .ok_or_else(|| "must be a whole number of MiB, such as 64, 64MiB or 1GiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_counted_as_vllm_counts_them() {
        for (text, number) in [
            ("32768", 32_768),
            ("1k", 1_000),
            ("1K", 1_024),
            ("1Ki", 1_024),
            ("25.6k", 25_600),
            ("2m", 2_000_000),
            ("1.5m", 1_500_000),
            ("2Mi", 2 << 20),
        ] {
            assert_eq!(tokens(1)(text), Ok(number), "{text}");
        }
        for text in [
            "", "k", "1.5K", "1.k", ".5k", "1kk", "1 k", "-1", "1e3", "32KB", "auto",
        ] {
            let error = tokens(1)(text).unwrap_err();
            assert!(
                error.starts_with("not a number of tokens"),
                "{text}: {error}"
            );
        }
        assert_eq!(tokens(2)("1"), Err("must be at least 2".to_owned()));
        assert_eq!(
            tokens(1)("5g"),
            Err("must be at most 4294967295".to_owned())
        );
    }

    #[test]
    fn memory_is_in_mebibytes() {
        for (text, number) in [("0", 0), ("64", 64), ("64MiB", 64), ("2 GiB", 2_048)] {
            assert_eq!(mebibytes(text), Ok(number), "{text}");
        }
        for text in ["", "100KiB", "1.5GiB", "64MB", "-1", "GiB", "9999999GiB"] {
            assert!(mebibytes(text).is_err(), "{text}");
        }
    }
}
