//! Repair of lone halves of surrogate pairs in a JSON text.

/// Bytes of an escape such as `\ud83d`.
const ESCAPE: usize = 6;

/// Puts the replacement character in the place of each half of a surrogate pair that stands alone: clients that cut texts
/// at a number of UTF-16 units send them, in escapes, and no text of ours can hold them.
pub fn mend_surrogates(json: &mut [u8]) {
    let mut at = 0;
    while let Some(found) = json[at..].iter().position(|&byte| byte == b'\\') {
        at += found;
        match code_unit(&json[at..]) {
            // The backslash and what it stands before.
            None => at = json.len().min(at + 2),
            Some(0xD800..=0xDBFF)
                if matches!(code_unit(&json[at + ESCAPE..]), Some(0xDC00..=0xDFFF)) =>
            {
                at += 2 * ESCAPE;
            }
            Some(unit) => {
                if matches!(unit, 0xD800..=0xDFFF) {
                    json[at..at + ESCAPE].copy_from_slice(br"\ufffd");
                }
                at += ESCAPE;
            }
        }
    }
}

/// The number in an escape of four hexadecimal digits at the start of `json`.
fn code_unit(json: &[u8]) -> Option<u16> {
    let digits = json.get(..ESCAPE)?.strip_prefix(br"\u")?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_pairs_are_replaced_and_nothing_else() {
        for (given, mended) in [
            (r#""\ud83d""#, r#""\ufffd""#),
            (r#""a\uDE00b""#, r#""a\ufffdb""#),
            (r#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\ude00\ud83d""#, r#""\ufffd\ufffd""#),
            (r#""\ud83d\n""#, r#""\ufffd\n""#),
            // A backslash and five letters, then an escape.
            (r#""\\ud83d\\\ud83d""#, r#""\\ud83d\\\ufffd""#),
            (r#""\ud83""#, r#""\ud83""#),
            (r#""\u00e9 \ud8+1 \"#, r#""\u00e9 \ud8+1 \"#),
        ] {
            let mut json = given.as_bytes().to_vec();
            mend_surrogates(&mut json);
            assert_eq!(String::from_utf8_lossy(&json), mended);
        }
    }
}
