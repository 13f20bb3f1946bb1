//! Agreement of nodes: what all must have in common, lest they compute different things.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::args::Args;
use crate::error::LauncherError;
use crate::plan;

/// Flags and facts by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement(BTreeMap<String, String>);

impl Agreement {
    /// Of this node, with so many shards, on GPUs or not.
    pub fn of(args: &Args, shards: usize, on_gpus: bool) -> Self {
        let devices = if on_gpus { "GPUs" } else { "the CPU" };
        let own = [
            ("the version", env!("CARGO_PKG_VERSION").to_owned()),
            ("the kind of device", devices.to_owned()),
            ("--nnodes", args.nodes.nnodes.to_string()),
            ("--num-shard", shards.to_string()),
            (
                "--model-id",
                args.model.model_id.clone().unwrap_or_default(),
            ),
            (
                "--revision",
                args.model.revision.clone().unwrap_or_default(),
            ),
        ];
        let own = own
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        Self(own.chain(plan::model_settings(args)).collect())
    }

    /// The first thing in which another node differs, as a sentence for that node.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let names = self.0.keys().chain(other.0.keys());
        let shown = |value: Option<&String>| match value {
            Some(value) if !value.is_empty() => format!("`{value}`"),
            _ => "not given".to_owned(),
        };
        names
            .map(|name| (name, self.0.get(name), other.0.get(name)))
            .find(|(_, ours, theirs)| ours != theirs)
            .map(|(name, ours, theirs)| {
                let (ours, theirs) = (shown(ours), shown(theirs));
                format!("{name} is {theirs} there and {ours} on node 0; it must be the same on all nodes")
            })
    }
}

/// Names a model by what is in its folder: its configuration, and names and sizes of its weights. Waits for the disk.
pub fn fingerprint(folder: &Path) -> Result<String, LauncherError> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, error))? {
        let entry = entry.map_err(|error| unreadable(folder, error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") {
            // Of what links lead to.
            let path = entry.path();
            let metadata = fs::metadata(&path).map_err(|error| unreadable(&path, error))?;
            files.insert(name, metadata.len());
        }
    }
    let mut hash = Xxh3::new();
    hash.update(&fs::read(folder.join("config.json")).unwrap_or_default());
    for (name, size) in files {
        hash.update(format!("{name} {size}\n").as_bytes());
    }
    Ok(format!("{:016x}", hash.digest()))
}

fn unreadable(path: &Path, source: io::Error) -> LauncherError {
    let path = path.display().to_string();
    LauncherError::ModelFile { path, source }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn agreement(flags: &str) -> Agreement {
        let words = ["launcher", "--model-id", "m"]
            .into_iter()
            .chain(flags.split_whitespace());
        Agreement::of(&Args::try_parse_from(words).unwrap(), 2, false)
    }

    #[test]
    fn nodes_must_be_told_the_same_but_for_what_is_their_own() {
        let ours = agreement("--dtype float32");
        assert_eq!(
            ours.difference(&agreement(
                "--dtype float32 --port 7 --node-rank 1 --local-addr 10.0.0.2"
            )),
            None
        );
        for (flags, said) in [
            (
                "--dtype float16",
                "--dtype is `float16` there and `float32` on node 0",
            ),
            ("", "--dtype is not given there and `float32` on node 0"),
            (
                "--dtype float32 --revision r",
                "--revision is `r` there and not given on node 0",
            ),
            (
                "--dtype float32 --rope-factor 2",
                "ROPE_FACTOR is `2` there and not given on node 0",
            ),
            (
                "--dtype float32 --deterministic",
                "--deterministic is `true` there",
            ),
        ] {
            let difference = ours.difference(&agreement(flags)).unwrap_or_default();
            assert!(difference.contains(said), "{difference}");
        }
    }

    #[test]
    fn folders_with_other_weights_or_another_configuration_are_other_models() {
        let make = |config: &str, weights: &[u8]| {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("config.json"), config).unwrap();
            fs::write(folder.path().join("model.safetensors"), weights).unwrap();
            fingerprint(folder.path()).unwrap()
        };
        assert_eq!(make("{}", b"12"), make("{}", b"12"));
        assert_ne!(make("{}", b"12"), make("{ }", b"12"));
        assert_ne!(make("{}", b"12"), make("{}", b"123"));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("model.safetensors");
        std::os::unix::fs::symlink("/nonexistent", &link).unwrap();
        let error = fingerprint(folder.path()).unwrap_err().to_string();
        let expected = format!("cannot read {} of the model", link.display());
        assert!(error.starts_with(&expected), "{error}");
    }
}
