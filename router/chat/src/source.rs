//! Changes to the text of a template before it is compiled.

use std::ops::Range;

/// Rewrites what the engine lacks: lines end with a line feed alone, and `{% generation %}`, which marks what to train
/// on, becomes a block that does nothing.
pub(super) fn rewritten(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut text = String::with_capacity(source.len());
    let mut copied = 0;
    for tag in statements(&source) {
        let new = match source[tag.clone()].trim() {
            "generation" => " with ",
            "endgeneration" => " endwith ",
            _ => continue,
        };
        text.push_str(&source[copied..tag.start]);
        text.push_str(new);
        copied = tag.end;
    }
    text.push_str(&source[copied..]);
    text
}

/// The source with every `{% set name = value %}` preceded by a tag that reads the value.
///
/// The engine takes a variable that a tag sets for one that the tag does not read. Templates give defaults to what they
/// are given with `{% set name = name | default(..) %}`.
pub(super) fn with_reads(source: &str) -> String {
    let mut text = String::with_capacity(source.len() * 2);
    let mut copied = 0;
    for tag in statements(source) {
        let words = source[tag.clone()].trim();
        let value = words.strip_prefix("set ").and_then(|set| {
            let (target, value) = set.split_once('=')?;
            let names = |letter: char| letter.is_alphanumeric() || "_, ".contains(letter);
            target.chars().all(names).then_some(value)
        });
        if let Some(value) = value {
            // The delimiter with its sign stands before the tag.
            let before = source[..tag.start].rfind("{%").unwrap_or(tag.start);
            text.push_str(&source[copied..before]);
            text.push_str("{% if (");
            text.push_str(value);
            text.push_str(") %}{% endif %}");
            copied = before;
        }
    }
    text.push_str(&source[copied..]);
    text
}

/// What stands between `{%` and `%}`, without the signs that trim spaces, of every tag.
fn statements(source: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(open) = source[at..].find('{').map(|open| at + open) {
        let rest = &source[open..];
        at = open + 1;
        if rest.starts_with("{#") {
            at = rest.find("#}").map_or(source.len(), |end| open + end + 2);
        } else if rest.starts_with("{{") {
            at = closing(source, open + 2, "}}").unwrap_or(source.len());
        } else if rest.starts_with("{%") {
            let Some(end) = closing(source, open + 2, "%}") else {
                break;
            };
            let tag = &source[open + 2..end];
            let signs = ['-', '+'];
            let start = open + 2 + usize::from(tag.starts_with(signs));
            let stop = end - usize::from(tag.ends_with(signs));
            found.push(start..stop.max(start));
            at = end;
            if source[start..stop.max(start)].trim() == "raw" {
                at = source[end..]
                    .find("endraw")
                    .map_or(source.len(), |raw| end + raw);
            }
        }
    }
    found
}

/// Where a tag that begins before `start` ends: at the first `delimiter` outside of the tag's strings.
fn closing(source: &str, start: usize, delimiter: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (index, character) in source[start..].char_indices() {
        match quote {
            None if source[start + index..].starts_with(delimiter) => return Some(start + index),
            None if matches!(character, '"' | '\'') => quote = Some(character),
            Some(_) if escaped => escaped = false,
            Some(_) if character == '\\' => escaped = true,
            Some(open) if character == open => quote = None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_outside_of_comments_texts_and_strings() {
        let source =
            "{# {% a %} #}{%- b -%}{{ '{% c %}' }}{% raw %}{% d %}{% endraw %}{%+ e('%}') %}{f";
        let tags: Vec<_> = statements(source)
            .into_iter()
            .map(|tag| source[tag].trim())
            .collect();
        assert_eq!(tags, ["b", "raw", "e('%}')"]);
    }

    #[test]
    fn only_tags_that_mark_an_answer_are_replaced() {
        assert_eq!(
            rewritten("{%- generation -%}generation{% endgeneration %}\r\n{{ 'generation' }}"),
            "{%- with -%}generation{% endwith %}\n{{ 'generation' }}"
        );
    }
}
