//! Places of a body where the base64 of images may stand, in every API.

use std::ops::Range;

use memchr::{memchr, memchr2, memmem};

use crate::bounds::MAX_JSON_DEPTH;

/// Longest beginning of a data URL.
const LONGEST_HEAD: usize = 256;

/// What holds the base64 of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Nothing else.
    Alone,
    /// A data URL.
    Url,
    /// Markdown, with data URLs in it.
    Markdown,
}

/// Strings that may hold images, by their path; `#` is any place in a list.
const STRINGS: [(&str, Form); 12] = [
    ("inputs", Form::Markdown),
    ("instances.#.inputs", Form::Markdown),
    ("messages.#.content.#.image_url", Form::Url),
    ("messages.#.content.#.image_url.url", Form::Url),
    ("instances.#.messages.#.content.#.image_url", Form::Url),
    ("instances.#.messages.#.content.#.image_url.url", Form::Url),
    ("input.#.content.#.image_url", Form::Url),
    ("input.#.output.#.image_url", Form::Url),
    ("messages.#.content.#.source.data", Form::Alone),
    ("messages.#.content.#.source.url", Form::Url),
    ("messages.#.content.#.content.#.source.data", Form::Alone),
    ("messages.#.content.#.content.#.source.url", Form::Url),
];

/// A step of a path: a place in a list, or a key of an object.
#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Place,
    Key(&'a [u8]),
}

/// Where base64 may stand in `json`, in order. What is no JSON has fewer such places.
pub fn base64(json: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let strings = Strings {
        json,
        path: Vec::new(),
        at: 0,
    };
    strings.flat_map(|(string, form)| runs(json, string, form))
}

/// The strings of a body that may hold images.
struct Strings<'a> {
    json: &'a [u8],
    path: Vec<Step<'a>>,
    at: usize,
}

impl Iterator for Strings<'_> {
    type Item = (Range<usize>, Form);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let byte = *self.json.get(self.at)?;
            self.at += 1;
            match byte {
                // Such a body is refused.
                b'{' | b'[' if self.path.len() == MAX_JSON_DEPTH => return None,
                b'{' => self.path.push(Step::Key(b"")),
                b'[' => self.path.push(Step::Place),
                b'}' | b']' => _ = self.path.pop(),
                b'"' => {
                    let string = self.string()?;
                    if self.is_key() {
                        self.enter(string);
                    } else if let Some(form) = self.form() {
                        return Some((string, form));
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'a> Strings<'a> {
    /// To the end of the string that has just begun; behind it goes on what follows. `None` where it has no end.
    fn string(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        loop {
            let found = memchr2(b'"', b'\\', self.json.get(self.at..)?)?;
            self.at += found + 1;
            if self.json[self.at - 1] == b'"' {
                return Some(start..self.at - 1);
            }
            // What is escaped.
            self.at += 1;
        }
    }

    /// Whether a colon follows.
    fn is_key(&self) -> bool {
        let mut rest = self.json[self.at..].iter();
        rest.find(|byte| !byte.is_ascii_whitespace()) == Some(&b':')
    }

    fn enter(&mut self, key: Range<usize>) {
        if let Some(Step::Key(last)) = self.path.last_mut() {
            *last = &self.json[key];
        }
    }

    fn form(&self) -> Option<Form> {
        let here = |path: &str| {
            let mut steps = self.path.iter();
            let same = path.split('.').all(|name| match steps.next() {
                Some(Step::Place) => name == "#",
                Some(Step::Key(key)) => *key == name.as_bytes(),
                None => false,
            });
            same && steps.next().is_none()
        };
        let found = STRINGS.iter().find(|(path, _)| here(path));
        found.map(|(_, form)| *form)
    }
}

/// The base64 within a string.
fn runs(json: &[u8], string: Range<usize>, form: Form) -> Runs<'_> {
    Runs {
        json,
        rest: string,
        form,
    }
}

struct Runs<'a> {
    json: &'a [u8],
    rest: Range<usize>,
    form: Form,
}

impl Iterator for Runs<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        if self.form == Form::Markdown {
            return self.in_markdown();
        }
        let string = std::mem::take(&mut self.rest);
        match self.form {
            _ if string.is_empty() => None,
            Form::Alone => Some(string),
            _ => self.of_url(string),
        }
    }
}

impl Runs<'_> {
    fn of_url(&self, url: Range<usize>) -> Option<Range<usize>> {
        let text = &self.json[url.clone()];
        let head = &text[..text.len().min(LONGEST_HEAD)];
        let is_data = head.get(..5)?.eq_ignore_ascii_case(b"data:");
        let comma = memchr(b',', head).filter(|_| is_data)?;
        Some(url.start + comma + 1..url.end)
    }

    /// As [`of_inputs`](crate::image_files::of_inputs) finds them.
    fn in_markdown(&mut self) -> Option<Range<usize>> {
        const OPEN: &[u8] = b"![](";
        loop {
            let text = &self.json[self.rest.clone()];
            let url = memmem::find(text, OPEN)? + OPEN.len();
            let end = url + memchr(b')', &text[url..])?;
            let start = self.rest.start;
            self.rest.start += end + 1;
            if let Some(found) = self.of_url(start + url..start + end) {
                return Some(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(json: &str) -> Vec<&str> {
        base64(json.as_bytes()).map(|place| &json[place]).collect()
    }

    #[test]
    fn base64_is_found_where_images_stand() {
        for (json, expected) in [
            (
                r#"{"messages": [{"role": "user", "content": [{"image_url" : {"detail": "low", "url": "data:image\/png;base64,AA\/="}}]}]}"#,
                vec![r"AA\/="],
            ),
            (
                r#"{"messages":[{"content":"x"},{"content":[1,{"image_url":"DATA:;base64,AAAA"}]}]}"#,
                vec!["AAAA"],
            ),
            (
                r#"{"messages":[{"content":[{"source":{"type":"base64","data":"AAAA"}},{"content":[{"source":{"url":"data:,BBBB"}}]}]}]}"#,
                vec!["AAAA", "BBBB"],
            ),
            (
                r#"{"input":[{"content":[{"image_url":"data:,AAAA"}]},{"output":[{"image_url":"data:,BBBB"}]}]}"#,
                vec!["AAAA", "BBBB"],
            ),
            (
                r#"{"inputs":"a \"![](data:,AAAA) ![](x) ![](data:,BBBB)![](data:,CC"}"#,
                vec!["AAAA", "BBBB"],
            ),
            (
                r#"{"instances":[{"inputs":"![](data:,AAAA)"},{"messages":[{"content":[{"image_url":{"url":"data:,BBBB"}}]}]}]}"#,
                vec!["AAAA", "BBBB"],
            ),
        ] {
            assert_eq!(found(json), expected, "{json}");
        }
    }

    #[test]
    fn texts_and_what_is_no_json_have_none() {
        let deep = format!("{}\"inputs\"", "[".repeat(100_000));
        for json in [
            r#"{"messages":[{"content":[{"type":"text","text":"data:image/png;base64,AAAA"}]}]}"#,
            r#"{"messages":[{"content":"data:image/png;base64,AAAA"}]}"#,
            r#"{"messages":[{"content":[{"input":{"image_url":"data:,AAAA"}}]}]}"#,
            r#"{"messages.#.content":[{"image_url":"data:,AAAA"}]}"#,
            r#"{"inputs":["![](data:,AAAA)"],"x":{"inputs":"![](data:,AAAA)"}}"#,
            r#"{"input":[{"content":[{"image_url":"https://example.org/?a=data:,AAAA"}]}]}"#,
            r#"{"inputs":"![](data:,AAAA)"#,
            r#"{"inputs":"![](data:,AAAA)\"#,
            "]]}}\"",
            "",
            &deep,
        ] {
            assert_eq!(found(json), [""; 0], "{json:.80}");
        }
    }
}
