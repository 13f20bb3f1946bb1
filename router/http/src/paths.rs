//! Paths that are nearly those of a route.
//!
//! They are not served: what stands between a client and this server may let one path through and not another, and must
//! not be deceived by a second way to write it. The answer says which path was meant.

use std::collections::BTreeSet;

/// The paths of all routes.
#[derive(Debug, Clone, Default)]
pub struct KnownPaths(BTreeSet<String>);

impl KnownPaths {
    /// `paths` as routes have them; parameters in braces stand for anything.
    pub fn new(paths: impl IntoIterator<Item = String>) -> Self {
        Self(paths.into_iter().collect())
    }

    /// The path of a route that `path` seems to mean.
    pub fn meant(&self, path: &str) -> Option<String> {
        let plain = plain(path);
        let prefix = |part: &&str| {
            ["v1", "api", "openai", "anthropic"]
                .iter()
                .any(|known| part.eq_ignore_ascii_case(known))
        };
        // `/v1/v1/models`, `/api/v1/models` and `/models` all mean `/v1/models`; `/v1/generate` means `/generate`.
        let rest: Vec<&str> = plain.split('/').skip(1).skip_while(prefix).collect();
        let rest = rest.join("/");
        let mut candidates = vec![plain];
        if !rest.is_empty() {
            candidates.extend([format!("/v1/{rest}"), format!("/{rest}")]);
        }
        let mut found = candidates
            .iter()
            .filter_map(|candidate| self.named(candidate));
        found.find(|found| found != path)
    }

    /// The path of the route that `path` names in any case of letters.
    fn named(&self, path: &str) -> Option<String> {
        let lower = path.to_ascii_lowercase();
        if self.0.contains(&lower) {
            return Some(lower);
        }
        self.0.iter().find_map(|known| {
            let (start, _) = known.split_once('{')?;
            let rest = path.get(start.len()..).filter(|rest| !rest.is_empty())?;
            lower.starts_with(start).then(|| format!("{start}{rest}"))
        })
    }
}

/// `path` without empty parts: `/v1/models` for `//v1//models/`.
pub fn plain(path: &str) -> String {
    let parts = path.split('/').filter(|part| !part.is_empty());
    let plain: String = parts.flat_map(|part| ["/", part]).collect();
    if plain.is_empty() {
        "/".to_owned()
    } else {
        plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant() {
        let paths = [
            "/",
            "/generate",
            "/health",
            "/v1/chat/completions",
            "/v1/models",
            "/v1/models/{model}",
            "/ui",
        ];
        let known = KnownPaths::new(paths.map(str::to_owned));
        for (given, meant) in [
            ("//v1/chat/completions", "/v1/chat/completions"),
            ("/v1//chat/completions/", "/v1/chat/completions"),
            ("/v1/v1/chat/completions", "/v1/chat/completions"),
            ("/chat/completions", "/v1/chat/completions"),
            ("/API/V1/Chat/Completions", "/v1/chat/completions"),
            ("/v1/generate", "/generate"),
            ("/v1/models/", "/v1/models"),
            ("/v1/v1/models/A/b", "/v1/models/A/b"),
            ("/Health", "/health"),
            ("//", "/"),
        ] {
            assert_eq!(known.meant(given).as_deref(), Some(meant), "{given}");
        }
        for nothing in ["/nope", "/v1", "/v1/nope", "/generate", "/v1/../generate"] {
            assert_eq!(known.meant(nothing), None, "{nothing}");
        }
    }
}
