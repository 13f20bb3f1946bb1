//! The folder of adapters that requests may name without anybody having loaded them (`--lora-dir`).

use std::path::{Path, PathBuf};

/// What an adapter's folder holds.
const CONFIG: &str = "adapter_config.json";

/// A folder with adapters, without links in its path.
#[derive(Debug, Clone)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// # Errors
    /// When there is no such folder.
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let path = path.canonicalize()?;
        match path.is_dir() {
            true => Ok(Self(path)),
            false => Err(std::io::ErrorKind::NotADirectory.into()),
        }
    }

    /// The folder of the adapter `name`: one component below this one, or two, as hub ids have.
    pub(super) fn find(&self, name: &str) -> Option<PathBuf> {
        let parts: Vec<&str> = name.split('/').collect();
        let plain = |part: &&str| {
            !part.is_empty() && !part.starts_with('.') && !part.contains(['\\', '\0'])
        };
        if parts.len() > 2 || !parts.iter().all(plain) {
            return None;
        }
        let found = self.within(&self.0.join(name))?;
        found.join(CONFIG).is_file().then_some(found)
    }

    /// Where `path` leads once all links are followed, if that is below this folder.
    pub(super) fn within(&self, path: &Path) -> Option<PathBuf> {
        let path = self.0.join(path).canonicalize().ok()?;
        (path.starts_with(&self.0) && path != self.0).then_some(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn adapter(at: &Path) {
        fs::create_dir_all(at).unwrap();
        fs::write(at.join(CONFIG), "{}").unwrap();
    }

    #[test]
    fn names_lead_nowhere_but_to_adapters_below_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("in"), root.path().join("out"));
        for at in [
            "in/one",
            "in/org/two",
            "in/a/b/c",
            "out/secret",
            "in/.hidden",
        ] {
            adapter(&root.path().join(at));
        }
        fs::create_dir_all(inside.join("empty")).unwrap();
        symlink(&outside, inside.join("linked")).unwrap();
        symlink(inside.join("one"), inside.join("alias")).unwrap();
        let folder = Folder::open(&inside).unwrap();
        let found = |name: &str| folder.find(name).is_some();
        assert!(["one", "org/two", "alias"].into_iter().all(found));
        let absolute = outside.join("secret").display().to_string();
        for name in [
            "",
            "none",
            "empty",
            "org",
            "a/b/c",
            "../out/secret",
            "..",
            ".",
            "one/",
            "/one",
            "linked/secret",
            ".hidden",
            "one/../one",
            &absolute,
        ] {
            assert!(!found(name), "{name:?}");
        }
        assert!(folder.within(Path::new("one")).is_some());
        assert!(folder.within(&inside.join("a/b/c")).is_some());
        assert!(folder.within(&inside.join("linked/secret")).is_none());
        assert!(folder.within(&inside).is_none());
        assert!(Folder::open(&inside.join("one").join(CONFIG)).is_err());
    }
}
