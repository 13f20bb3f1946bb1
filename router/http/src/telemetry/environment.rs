//! What the specification of OpenTelemetry lets the environment say of exports.

use std::env;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};

/// What the variable `name` says, where it says anything that can be read.
pub(super) fn parsed<T: FromStr>(name: &str) -> Option<T> {
    env::var(name).ok()?.trim().parse().ok()
}

/// A variable in milliseconds.
pub(super) fn millis(name: &str) -> Option<Duration> {
    parsed(name).map(Duration::from_millis)
}

/// `OTEL_EXPORTER_OTLP_TRACES_TIMEOUT` or `OTEL_EXPORTER_OTLP_TIMEOUT`, or 10 s: how long the export of a batch may take.
pub(super) fn timeout() -> Duration {
    millis("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
        .or_else(|| millis("OTEL_EXPORTER_OTLP_TIMEOUT"))
        .unwrap_or(Duration::from_secs(10))
}

/// `OTEL_EXPORTER_OTLP_TRACES_HEADERS` or `OTEL_EXPORTER_OTLP_HEADERS`, such as a key for the collector.
pub(super) fn headers() -> MetadataMap {
    let given = env::var("OTEL_EXPORTER_OTLP_TRACES_HEADERS")
        .or_else(|_| env::var("OTEL_EXPORTER_OTLP_HEADERS"))
        .unwrap_or_default();
    let mut headers = MetadataMap::new();
    for (key, value) in given.split(',').filter_map(header) {
        headers.insert(key, value);
    }
    headers
}

/// `key=value`; the value may have characters by their codes, as in addresses.
fn header(pair: &str) -> Option<(MetadataKey<Ascii>, MetadataValue<Ascii>)> {
    let (key, value) = pair.split_once('=')?;
    let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
    Some((key.trim().to_lowercase().parse().ok()?, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_decoded_and_what_is_none_is_left_out() {
        let read = |pair| header(pair).map(|(key, value)| (key.to_string(), value));
        let value = MetadataValue::from_static("a key=b");
        assert_eq!(
            read(" API-Key = a%20key=b "),
            Some(("api-key".to_owned(), value))
        );
        assert_eq!(read("no value"), None);
        assert_eq!(read("no name\n=x"), None);
    }
}
