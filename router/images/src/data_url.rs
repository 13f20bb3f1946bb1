//! Data URLs: `data:<type>;base64,<data>` (RFC 2397), in which clients send pictures.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;

use crate::error::DataUrlError;

/// Takes data with padding and without it, as the decoders of other servers do.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Returns the base64 of a data URL; `None` where `url` is none. The type is not looked at: the bytes say what they are.
///
/// # Errors
/// Where its form is wrong.
pub fn data_url(url: &str) -> Result<Option<&str>, DataUrlError> {
    let is_data = url
        .get(..5)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    if !is_data {
        return Ok(None);
    }
    let (head, data) = url[5..].split_once(',').ok_or(DataUrlError::Form)?;
    let is_base64 = head
        .rsplit_once(';')
        .is_some_and(|(_, encoding)| encoding.trim().eq_ignore_ascii_case("base64"));
    if !is_base64 {
        return Err(DataUrlError::Form);
    }
    Ok(Some(data.trim()))
}

/// Returns the bytes that base64 stands for. Programs that write it in lines, as mail has it, put white space into it.
///
/// # Errors
/// Where it is none, or holds more than `max_bytes`, which is found before anything is decoded.
pub fn decode_base64(data: &str, max_bytes: usize) -> Result<Bytes, DataUrlError> {
    let data = match data.contains(is_space) {
        true => Cow::Owned(data.replace(is_space, "")),
        false => Cow::Borrowed(data),
    };
    check_length(data.trim_end_matches('=').len(), max_bytes)?;
    let decoded = BASE64.decode(&*data).map_err(|_| DataUrlError::Base64)?;
    Ok(decoded.into())
}

fn is_space(character: char) -> bool {
    character.is_ascii_whitespace()
}

/// Whether so many characters of base64, those at its end that only fill it aside, hold no more than `max_bytes`.
///
/// # Errors
/// Where they hold more.
pub fn check_length(characters: usize, max_bytes: usize) -> Result<(), DataUrlError> {
    let (len, max) = (characters / 4 * 3, max_bytes);
    match len > max {
        true => Err(DataUrlError::Bytes { len, max }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_urls_are_read_as_clients_write_them() {
        for url in [
            "data:image/png;base64,aGVsbG8=",
            "data:image/png;base64,aGVsbG8",
            "DATA:;BASE64,aGVsbG8=",
            "data:image/svg+xml;charset=utf-8;base64, aGVsbG8=\n",
            "data:image/png;base64,aGVs\r\nbG8=\n",
        ] {
            let base64 = data_url(url).unwrap().unwrap();
            assert_eq!(decode_base64(base64, 100).unwrap(), "hello", "{url}");
        }
        assert_eq!(data_url("https://example.org/a.png"), Ok(None));
        assert_eq!(data_url(""), Ok(None));
        for (url, error) in [
            ("data:image/png;base64", DataUrlError::Form),
            ("data:image/png,abc", DataUrlError::Form),
            ("data:image/png;base64,a*b", DataUrlError::Base64),
            (
                "data:image/png;base64,aGVsbG8gaGVsbG8=",
                DataUrlError::Bytes { len: 9, max: 8 },
            ),
        ] {
            let read = data_url(url).and_then(|base64| decode_base64(base64.unwrap(), 8));
            assert_eq!(read, Err(error), "{url}");
        }
    }
}
