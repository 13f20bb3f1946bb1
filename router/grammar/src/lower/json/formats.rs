//! Formats of strings: which the engine knows, which it knows too loosely, and which nobody enforces here.

/// Known to the engine as they are.
const KNOWN: [&str; 6] = ["duration", "hostname", "ipv4", "ipv6", "uri", "uuid"];

/// Of JSON Schema, but without a pattern. Names that are not of JSON Schema are notes to readers.
const UNKNOWN: [&str; 9] = [
    "idn-email",
    "idn-hostname",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "uri-reference",
    "uri-template",
];

/// The 29th of February only in leap years.
const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
);

/// Leap seconds only at the end of a day in UTC.
const TIME: &str = concat!(
    r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?",
    r"(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    r"|23:59:60(?:\.[0-9]+)?(?:[zZ]|[+-]00:00))",
);

/// RFC 5321 without quoted names and addresses in brackets; at most 64 characters before the `@`.
const EMAIL: [&str; 2] = [
    concat!(
        r"^[a-zA-Z0-9!#$%&'*+\-/=?\^_`{|}~]+(?:\.[a-zA-Z0-9!#$%&'*+\-/=?\^_`{|}~]+)*",
        r"@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?){0,2}$",
    ),
    "^[^@]{1,64}@",
];

/// What becomes of a format.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Format {
    Known,
    /// It is enforced by these patterns together.
    Patterns(Vec<String>),
    Unknown,
    /// A note to readers.
    Note,
}

pub(super) fn format(name: &str) -> Format {
    match name {
        "date" => Format::Patterns(vec![format!("^{DATE}$")]),
        "time" => Format::Patterns(vec![format!("^{TIME}$")]),
        "date-time" => Format::Patterns(vec![format!("^{DATE}[tT]{TIME}$")]),
        "email" => Format::Patterns(EMAIL.map(str::to_owned).to_vec()),
        known if KNOWN.contains(&known) => Format::Known,
        unknown if UNKNOWN.contains(&unknown) => Format::Unknown,
        _ => Format::Note,
    }
}
