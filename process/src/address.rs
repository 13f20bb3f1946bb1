//! Addresses to listen on, as people write them.

use std::net::{IpAddr, Ipv4Addr};

/// An IP address, with or without the brackets that IPv6 has in URLs, or `localhost`, which is 127.0.0.1.
///
/// # Errors
/// What is wrong with any other text. The name of the flag is for the caller to say.
pub fn ip_address(text: &str) -> Result<IpAddr, String> {
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    without_brackets(text).parse().map_err(|_| {
        "not an IP address; give one of this machine, such as 127.0.0.1 or ::1, 0.0.0.0 or :: for all of them, or \
         localhost"
            .to_owned()
    })
}

/// An IPv6 address without the brackets of URLs; any other text as it is.
pub fn without_brackets(text: &str) -> &str {
    text.strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .filter(|inner| inner.contains(':'))
        .unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, address) in [
            ("0.0.0.0", "0.0.0.0"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("[::]", "::"),
            ("localhost", "127.0.0.1"),
            ("LocalHost", "127.0.0.1"),
        ] {
            assert_eq!(ip_address(text), Ok(address.parse().unwrap()), "{text}");
        }
        for text in [
            "",
            "[127.0.0.1]",
            "[::1",
            "host",
            "127.0.0.1:80",
            "http://::1",
        ] {
            assert!(ip_address(text).is_err(), "{text}");
        }
    }
}
