//! Checks of the bytes of a JSON text before it is read.

/// What a JSON text is made of.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct JsonShape {
    /// Opening brackets, commas and colons outside of strings.
    pub marks: usize,
    /// Most lists and objects inside each other.
    pub depth: usize,
}

/// Counts over the whole text: the library skips what nobody asks for without a limit on its depth.
pub fn json_shape(json: &[u8]) -> JsonShape {
    let (mut shape, mut depth, mut quoted) = (JsonShape::default(), 0_usize, false);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted => _ = bytes.next(),
            b'[' | b'{' if !quoted => {
                shape.marks += 1;
                depth += 1;
                shape.depth = shape.depth.max(depth);
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            b',' | b':' if !quoted => shape.marks += 1,
            _ => {}
        }
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_no_structure() {
        for (body, marks, depth) in [
            (r#"{"a": "x [{,: \" [", "b": [1, {}]}"#, 7, 3),
            (r#"{"a": "\\", "b": "\\\"" }"#, 4, 1),
            (r#"["unterminated \"#, 1, 1),
            ("]]][[]]", 2, 2),
        ] {
            assert_eq!(
                json_shape(body.as_bytes()),
                JsonShape { marks, depth },
                "{body}"
            );
        }
    }
}
