//! The file of `--api-key-file`: a key a line, or the name of an owner with its keys and limits.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use text_generation_core::tenant::Grant;

use super::{Owned, digest_of_key};

const MAX_NAME_BYTES: usize = 64;
const MAX_WEIGHT: u32 = 1000;
const WORDS: &str = "`key=`, `weight=`, `max_concurrent_requests=`, `tokens_per_minute=` and `adapters=` may follow the name";

/// All keys of a file in their order.
///
/// # Errors
/// When it cannot be read, holds no key, or a line is wrong; a message never shows what is in it.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Owned>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the keys in {shown} (`--api-key-file`)"))?;
    let mut seen = Seen::default();
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let of_line = parse(line).and_then(|of_line| seen.check(number, of_line));
        let of_line = of_line.map_err(|reason| {
            anyhow::anyhow!("{shown} line {number} (`--api-key-file`): {reason}")
        })?;
        keys.extend(of_line);
    }
    // A server whose keys were lost must not come up open.
    anyhow::ensure!(!keys.is_empty(), "{shown} holds no key (`--api-key-file`)");
    Ok(keys)
}

/// What the lines before have said.
#[derive(Default)]
struct Seen {
    names: HashMap<String, usize>,
    /// The line of each key, and whether it names an owner.
    keys: HashMap<[u8; 32], (usize, bool)>,
}

impl Seen {
    /// Passes the keys of line `number` on, unless they contradict what was said before. A key may be there twice where
    /// nobody is named.
    fn check(&mut self, number: usize, keys: Vec<Owned>) -> Result<Vec<Owned>, String> {
        let name = keys.first().and_then(|(_, name, _)| name.clone());
        let named = name.is_some();
        if let Some(before) = name.and_then(|name| self.names.insert(name, number)) {
            return Err(format!(
                "line {before} has the same name; one line names an owner with all of its keys, `key=` for each"
            ));
        }
        for (digest, ..) in &keys {
            match self.keys.insert(*digest, (number, named)) {
                Some((before, of_owner)) if named || of_owner => {
                    return Err(format!("line {before} has the same key"));
                }
                _ => {}
            }
        }
        Ok(keys)
    }
}

/// The keys of one line. A line is a key by itself, as it has always been, unless `=` is in a word after its first.
fn parse(line: &str) -> Result<Vec<Owned>, String> {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or_default();
    if !words.clone().any(|word| word.contains('=')) {
        return Ok(vec![(digest_of_key(line)?, None, Grant::default())]);
    }
    check_name(name)?;
    let mut owner = Owner::default();
    for (number, word) in (2..).zip(words) {
        let (field, value) = word
            .split_once('=')
            .ok_or_else(|| format!("word {number} has no `=`; {WORDS}"))?;
        owner
            .take(field, value)
            .map_err(|reason| format!("word {number}: {reason}"))?;
    }
    if owner.keys.is_empty() {
        return Err("`key=` is missing".to_owned());
    }
    let grant = Grant {
        weight: owner.weight.unwrap_or(1),
        max_concurrent_requests: owner.max_concurrent_requests,
        tokens_per_minute: owner.tokens_per_minute,
        adapters: owner.adapters,
    };
    let keys = owner.keys.into_iter();
    Ok(keys
        .map(|key| (key, Some(name.to_owned()), grant.clone()))
        .collect())
}

fn check_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.len() <= MAX_NAME_BYTES && name.bytes().all(plain) {
        return Ok(());
    }
    Err(format!(
        "the name before `key=` must have at most {MAX_NAME_BYTES} letters, digits, `-`, `_` and `.`"
    ))
}

/// What a line says of the owner that it names.
#[derive(Default)]
struct Owner {
    keys: Vec<[u8; 32]>,
    weight: Option<u32>,
    max_concurrent_requests: Option<u32>,
    tokens_per_minute: Option<u32>,
    adapters: Option<Arc<[String]>>,
}

impl Owner {
    fn take(&mut self, field: &str, value: &str) -> Result<(), String> {
        let (place, name, max) = match field {
            "key" => {
                self.keys.push(digest_of_key(value)?);
                return Ok(());
            }
            "adapters" => {
                let names = value.split(',').filter(|name| !name.is_empty());
                let names = names.map(str::to_owned).collect();
                return match self.adapters.replace(names) {
                    Some(_) => Err("`adapters` is there twice".to_owned()),
                    None => Ok(()),
                };
            }
            "weight" => (&mut self.weight, "weight", MAX_WEIGHT),
            "max_concurrent_requests" => (
                &mut self.max_concurrent_requests,
                "max_concurrent_requests",
                u32::MAX,
            ),
            "tokens_per_minute" => (&mut self.tokens_per_minute, "tokens_per_minute", u32::MAX),
            // It may be a part of a key.
            _ => return Err(format!("unknown; {WORDS}")),
        };
        let number = value
            .parse()
            .ok()
            .filter(|number| (1..=max).contains(number));
        let number =
            number.ok_or_else(|| format!("`{name}` must be a whole number from 1 to {max}"))?;
        if place.replace(number).is_some() {
            return Err(format!("`{name}` is there twice"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_keys::ApiKeys;

    fn parse_file(text: &str) -> Result<Vec<Owned>, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        read(file.path()).map_err(|error| format!("{error:#}"))
    }

    fn named(key: &str, name: &str, grant: Grant) -> Owned {
        let digest = digest_of_key(key).expect("a good key");
        (digest, Some(name.to_owned()), grant)
    }

    #[test]
    fn a_line_may_be_a_key_as_ever() {
        let keys = parse_file("# team a\nfirst\n\n  second  \r\nthird=\nwith space\nfirst\n");
        let alone = |key| (digest_of_key(key).expect("good"), None, Grant::default());
        let expected = ["first", "second", "third=", "with space", "first"].map(alone);
        assert_eq!(keys, Ok(expected.to_vec()));
    }

    #[test]
    fn a_line_may_name_an_owner_with_keys_and_limits() {
        let keys = parse_file(
            "acme key=sk-a=b weight=3 max_concurrent_requests=16 tokens_per_minute=100000 adapters=a,org/b\n\
             beta.dev\tkey=old  key=new\n",
        );
        let acme = Grant {
            weight: 3,
            max_concurrent_requests: Some(16),
            tokens_per_minute: Some(100_000),
            adapters: Some(["a".to_owned(), "org/b".to_owned()].into()),
        };
        let beta = Grant::default();
        let expected = vec![
            named("sk-a=b", "acme", acme),
            named("old", "beta.dev", beta.clone()),
            named("new", "beta.dev", beta),
        ];
        assert_eq!(keys, Ok(expected));
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "beta key=old key=new").expect("written");
        let keys = ApiKeys::from_file(file.path()).expect("two keys");
        let owners: Vec<_> = keys.0.iter().map(|key| key.tenant().clone()).collect();
        assert_eq!(owners[0], owners[1]);
    }

    #[test]
    fn a_wrong_line_is_named_by_its_number_and_never_shown() {
        let secret = "hunter2";
        for (line, reason) in [
            (format!("acme key={secret} wieght=2"), "word 3: unknown"),
            (format!("acme {secret} key={secret}"), "word 2 has no `=`"),
            (format!("acme weight=2 {secret}=1"), "word 3: unknown"),
            ("acme weight=2".to_owned(), "`key=` is missing"),
            (
                "acme key=".to_owned(),
                "word 2: an API key must not be empty",
            ),
            (format!("{secret}! key=k"), "the name before"),
            (format!("{secret}= key=k"), "the name before"),
            (format!("{} key=k", "a".repeat(65)), "at most 64"),
            (format!("acme key={secret} weight=0"), "from 1 to 1000"),
            (format!("acme key={secret} weight=1001"), "from 1 to 1000"),
            (format!("acme key={secret} weight=1.5"), "a whole number"),
            (
                format!("acme key={secret} max_concurrent_requests=0"),
                "`max_concurrent_requests` must be",
            ),
            (
                format!("acme key={secret} tokens_per_minute=-1"),
                "`tokens_per_minute` must be",
            ),
            (
                format!("acme key={secret} weight=1 weight=2"),
                "`weight` is there twice",
            ),
            (
                format!("acme key={secret} adapters=a adapters=b"),
                "`adapters` is there twice",
            ),
            ("first key=other".to_owned(), "line 1 has the same name"),
            ("other key=1".to_owned(), "line 1 has the same key"),
            ("other key=2 key=2".to_owned(), "line 3 has the same key"),
            (
                "plain".to_owned() + "\n" + "other key=plain",
                "line 3 has the same key",
            ),
            ("a\tb\u{7}".to_owned(), "an API key must not be empty"),
        ] {
            let message = parse_file(&format!("first key=1\n\n{line}\n")).expect_err(&line);
            let number = 3 + line.matches('\n').count();
            assert!(
                message.contains(&format!("line {number} (`--api-key-file`)")),
                "{message}"
            );
            assert!(message.contains(reason), "{message}");
            assert!(!message.contains(secret), "{message}");
        }
    }

    #[test]
    fn a_file_without_keys_is_refused() {
        let message = parse_file("# nobody\n").expect_err("no keys");
        assert!(message.contains("holds no key"), "{message}");
        assert!(read(Path::new("/nonexistent/keys")).is_err());
    }
}
