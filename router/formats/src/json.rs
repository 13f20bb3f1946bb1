//! Reads JSON text as it comes, without building values.

/// Deeper nesting is not JSON for us, so that a text cannot make the stack grow without end.
const MAX_DEPTH: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Value,
    /// A value or the end of the array.
    FirstItem,
    /// A key or the end of the object.
    FirstKey,
    Key,
    Colon,
    /// A comma or the end of the container.
    Next,
    String {
        key: bool,
    },
    Escape {
        key: bool,
    },
    Hex {
        key: bool,
        left: u8,
    },
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    Done,
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

/// What became of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scan {
    /// All of it is the beginning of one value.
    More,
    /// The value ends before this byte.
    Done(usize),
    /// What precedes this byte is the beginning of a value; with it, it is not.
    Broken(usize),
}

/// The state of reading one JSON value, strictly as RFC 8259 has it.
#[derive(Debug, Clone)]
pub(crate) struct JsonScanner {
    /// For each open container whether it is an object.
    stack: Vec<bool>,
    expect: Expect,
}

impl JsonScanner {
    pub fn new() -> Self {
        Self {
            stack: Vec::new(),
            expect: Expect::Value,
        }
    }

    /// Reads on. A number at the top level is done when something else follows it.
    pub fn scan(&mut self, text: &str) -> Scan {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            if let Expect::String { .. } = self.expect {
                // The common case: characters of a string that mean nothing.
                at += bytes[at..]
                    .iter()
                    .take_while(|&&byte| byte >= 0x20 && byte != b'"' && byte != b'\\')
                    .count();
                if at == bytes.len() {
                    break;
                }
            }
            let used = self.byte(bytes[at]);
            match self.expect {
                Expect::Done => return Scan::Done(at + usize::from(used)),
                Expect::Broken => return Scan::Broken(at),
                _ => at += usize::from(used),
            }
        }
        Scan::More
    }

    /// Takes one byte; false if it ended a number and has to be looked at again.
    fn byte(&mut self, byte: u8) -> bool {
        let space = matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        self.expect = match self.expect {
            Expect::Value
            | Expect::FirstItem
            | Expect::FirstKey
            | Expect::Key
            | Expect::Colon
            | Expect::Next
                if space =>
            {
                return true;
            }
            Expect::FirstItem if byte == b']' => self.close(false),
            Expect::Value | Expect::FirstItem => self.value(byte),
            Expect::FirstKey if byte == b'}' => self.close(true),
            Expect::FirstKey | Expect::Key if byte == b'"' => Expect::String { key: true },
            Expect::Colon if byte == b':' => Expect::Value,
            Expect::Next => match (byte, self.stack.last()) {
                (b',', Some(true)) => Expect::Key,
                (b',', Some(false)) => Expect::Value,
                (b'}', _) => self.close(true),
                (b']', _) => self.close(false),
                _ => Expect::Broken,
            },
            Expect::String { key } => match byte {
                b'"' if key => Expect::Colon,
                b'"' => self.after_value(),
                b'\\' => Expect::Escape { key },
                0..0x20 => Expect::Broken,
                _ => Expect::String { key },
            },
            Expect::Escape { key } => match byte {
                b'u' => Expect::Hex { key, left: 4 },
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Expect::String { key },
                _ => Expect::Broken,
            },
            Expect::Hex { key, left } => match (byte.is_ascii_hexdigit(), left) {
                (false, _) => Expect::Broken,
                (true, 1) => Expect::String { key },
                (true, _) => Expect::Hex {
                    key,
                    left: left - 1,
                },
            },
            Expect::Word([first, rest @ ..]) if *first == byte => match rest {
                [] => self.after_value(),
                rest => Expect::Word(rest),
            },
            Expect::Number(number) => match number.next(byte) {
                Some(number) => Expect::Number(number),
                None if number.is_whole() => {
                    self.expect = self.after_value();
                    return false;
                }
                None => Expect::Broken,
            },
            _ => Expect::Broken,
        };
        true
    }

    fn value(&mut self, byte: u8) -> Expect {
        match byte {
            b'{' | b'[' if self.stack.len() == MAX_DEPTH => Expect::Broken,
            b'{' => {
                self.stack.push(true);
                Expect::FirstKey
            }
            b'[' => {
                self.stack.push(false);
                Expect::FirstItem
            }
            b'"' => Expect::String { key: false },
            b't' => Expect::Word(b"rue"),
            b'f' => Expect::Word(b"alse"),
            b'n' => Expect::Word(b"ull"),
            b'-' => Expect::Number(Number::Minus),
            b'0' => Expect::Number(Number::Zero),
            b'1'..=b'9' => Expect::Number(Number::Integer),
            _ => Expect::Broken,
        }
    }

    fn close(&mut self, object: bool) -> Expect {
        match self.stack.pop() {
            Some(open) if open == object => self.after_value(),
            _ => Expect::Broken,
        }
    }

    fn after_value(&self) -> Expect {
        if self.stack.is_empty() {
            Expect::Done
        } else {
            Expect::Next
        }
    }
}

impl Number {
    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus, b'1'..=b'9') | (Self::Integer, b'0'..=b'9') => Self::Integer,
            (Self::Zero | Self::Integer, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Integer | Self::Fraction, b'e' | b'E') => Self::E,
            (Self::E, b'+' | b'-') => Self::Sign,
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Self::Exponent,
            _ => return None,
        })
    }

    fn is_whole(self) -> bool {
        matches!(
            self,
            Self::Zero | Self::Integer | Self::Fraction | Self::Exponent
        )
    }
}

/// Whether the whole text is one JSON value.
pub(crate) fn is_value(text: &str) -> bool {
    let mut scanner = JsonScanner::new();
    // The space ends a number.
    match (scanner.scan(text), scanner.scan(" ")) {
        (Scan::Done(end), _) => text[end..].trim().is_empty(),
        (Scan::More, Scan::Done(_)) => true,
        _ => false,
    }
}

/// Appends `text` as the inside of a JSON string.
pub(crate) fn escape(text: &str, out: &mut String) {
    use std::fmt::Write;
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[plain..at]);
        plain = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x8 => out.push_str("\\b"),
            0xc => out.push_str("\\f"),
            _ => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{byte:04x}");
            }
        }
    }
    out.push_str(&text[plain..]);
}

/// Appends `text` as a JSON string.
pub(crate) fn quote(text: &str, out: &mut String) {
    out.push('"');
    escape(text, out);
    out.push('"');
}
