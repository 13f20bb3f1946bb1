//! Data URLs: `data:<type>;base64,<data>` (RFC 2397), in which clients send pictures.

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

/// Returns the bytes of a data URL; `None` where `url` is none. The type is not looked at: the bytes say what they are.
///
/// # Errors
/// Where its form or its base64 is wrong, or it holds more than `max_bytes`, which is found before anything is decoded.
pub fn data_url(url: &str, max_bytes: usize) -> Result<Option<Bytes>, DataUrlError> {
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
    decode_base64(data.trim(), max_bytes).map(Some)
}

/// The same for base64 alone.
pub(crate) fn decode_base64(data: &str, max_bytes: usize) -> Result<Bytes, DataUrlError> {
    let len = data.trim_end_matches('=').len() / 4 * 3;
    if len > max_bytes {
        let max = max_bytes;
        return Err(DataUrlError::Bytes { len, max });
    }
    let decoded = BASE64.decode(data).map_err(|_| DataUrlError::Base64)?;
    Ok(decoded.into())
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
        ] {
            assert_eq!(data_url(url, 100).unwrap().unwrap(), "hello", "{url}");
        }
        assert_eq!(data_url("https://example.org/a.png", 100), Ok(None));
        assert_eq!(data_url("", 100), Ok(None));
        for (url, error) in [
            ("data:image/png;base64", DataUrlError::Form),
            ("data:image/png,abc", DataUrlError::Form),
            ("data:image/png;base64,a*b", DataUrlError::Base64),
            (
                "data:image/png;base64,aGVsbG8gaGVsbG8=",
                DataUrlError::Bytes { len: 9, max: 8 },
            ),
        ] {
            assert_eq!(data_url(url, 8), Err(error), "{url}");
        }
    }
}
