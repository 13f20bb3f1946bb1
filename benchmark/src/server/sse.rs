//! Incremental parser of server-sent events (WHATWG HTML, section 9.2), as far as text generation servers use them.

/// Cuts a byte stream into the `data` of events. Other fields and comments are skipped.
#[derive(Debug, Default)]
pub struct SseParser {
    /// A line whose end has not come yet.
    line: Vec<u8>,
    /// The `data` of the event whose end has not come yet.
    data: Vec<u8>,
}

impl SseParser {
    /// Takes the next bytes of the stream and calls `on_event` with the data of every event they complete.
    /// Stops at the first error of `on_event`.
    pub fn push<E>(
        &mut self,
        mut bytes: &[u8],
        mut on_event: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.line.is_empty() {
                self.take_line(line, &mut on_event)?;
            } else {
                let mut whole = std::mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.take_line(&whole, &mut on_event)?;
                whole.clear();
                self.line = whole;
            }
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn take_line<E>(
        &mut self,
        line: &[u8],
        on_event: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            if self.data.is_empty() {
                return Ok(());
            }
            let result = on_event(&self.data);
            self.data.clear();
            return result;
        }
        if let Some(value) = line.strip_prefix(b"data:") {
            if !self.data.is_empty() {
                self.data.push(b'\n');
            }
            self.data
                .extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[&str]) -> Vec<String> {
        let mut parser = SseParser::default();
        let mut events = Vec::new();
        for chunk in chunks {
            parser
                .push::<()>(chunk.as_bytes(), |data| {
                    events.push(String::from_utf8_lossy(data).into_owned());
                    Ok(())
                })
                .unwrap();
        }
        events
    }

    #[test]
    fn events_are_found_wherever_the_stream_is_cut() {
        let stream =
            ":\n\ndata: {\"a\":1}\n\ndata:b\r\n\r\nevent: x\ndata: c\ndata: d\n\nid: 3\n\n";
        let whole = events(&[stream]);
        assert_eq!(whole, ["{\"a\":1}", "b", "c\nd"]);
        for cut in 0..=stream.len() {
            assert_eq!(
                events(&[&stream[..cut], &stream[cut..]]),
                whole,
                "cut at {cut}"
            );
        }
        let bytes: Vec<String> = stream.chars().map(String::from).collect();
        let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
        assert_eq!(events(&bytes), whole);
    }

    #[test]
    fn an_event_without_its_blank_line_is_not_complete() {
        assert!(events(&["data: a\n"]).is_empty());
    }

    #[test]
    fn an_error_ends_the_parsing() {
        let mut seen = 0;
        let result = SseParser::default().push(b"data: a\n\ndata: b\n\n", |_| {
            seen += 1;
            Err("broken")
        });
        assert_eq!((result, seen), (Err("broken"), 1));
    }
}
