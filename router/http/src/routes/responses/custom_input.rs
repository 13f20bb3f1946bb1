//! The text of a custom tool's input, out of the JSON object that models write it in, as it comes.

/// Reads `{"input": "..."}`: the first value that is a string, with its escapes resolved.
#[derive(Debug, Default)]
pub struct CustomInput {
    place: Place,
    /// An escape that has not ended, from the backslash on.
    escape: String,
    /// The first half of a character that JSON escapes in two.
    high: Option<u16>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    /// Before the key.
    #[default]
    Start,
    Key,
    /// Between the key and its value.
    Colon,
    Value,
    Ended,
}

impl CustomInput {
    /// Takes the next piece of the object and returns what it adds to the text.
    pub fn push(&mut self, piece: &str) -> String {
        let mut text = String::new();
        for character in piece.chars() {
            self.read(character, &mut text);
        }
        text
    }

    fn read(&mut self, character: char, text: &mut String) {
        let in_string = matches!(self.place, Place::Key | Place::Value);
        if in_string && (!self.escape.is_empty() || character == '\\') {
            self.escape.push(character);
            if let Some(resolved) = self.resolved() {
                self.escape.clear();
                if self.place == Place::Value {
                    text.extend(resolved);
                }
            }
            return;
        }
        match (self.place, character) {
            (Place::Start, '"') => self.place = Place::Key,
            (Place::Key, '"') => self.place = Place::Colon,
            (Place::Colon, '"') => self.place = Place::Value,
            // The value was no string: look on.
            (Place::Colon, ',') => self.place = Place::Start,
            (Place::Value, '"') => self.place = Place::Ended,
            (Place::Value, _) => text.push(character),
            _ => {}
        }
    }

    /// What the escape stands for, once it has ended. The first half of a pair stands for nothing by itself, and half a
    /// pair for U+FFFD.
    fn resolved(&mut self) -> Option<Option<char>> {
        let code = self.escape.get(1..)?;
        let plain = match code.chars().next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' if code.len() < 5 => return None,
            'u' => return Some(self.unit(u16::from_str_radix(&code[1..], 16).unwrap_or(0xfffd))),
            other => other,
        };
        Some(Some(plain))
    }

    fn unit(&mut self, unit: u16) -> Option<char> {
        let first = self.high.take();
        if (0xd800..0xdc00).contains(&unit) {
            self.high = Some(unit);
            return None;
        }
        let units = first.into_iter().chain([unit]);
        char::decode_utf16(units).last()?.ok().or(Some('\u{fffd}'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_does_not_depend_on_how_the_object_is_cut() {
        let text = "*** \"Begin\"\n\t\\ 你 \u{1f600}/";
        let escaped = r#"{"input": "*** \"Begin\"\n\t\\ \u4f60 \ud83d\ude00\/"}"#;
        let plain = serde_json::json!({ "input": text }).to_string();
        for object in [
            escaped,
            &plain,
            &format!(r#"{{"n": 1, "input": {}"#, &plain[9..]),
        ] {
            let characters: Vec<char> = object.chars().collect();
            for size in 1..=characters.len() {
                let mut input = CustomInput::default();
                let pieces = characters.chunks(size);
                let read: String = pieces
                    .map(|piece| input.push(&piece.iter().collect::<String>()))
                    .collect();
                assert_eq!(read, text, "{object} by {size}");
            }
        }
    }

    #[test]
    fn what_was_cut_is_given_as_far_as_it_goes() {
        assert_eq!(CustomInput::default().push(r#"{"input": "ab\"#), "ab");
        assert_eq!(CustomInput::default().push(r#"{"inp"#), "");
    }
}
