//! A directory that no other user can enter, locked for as long as its server lives. A server that is killed leaves it
//! behind, and the next start removes it.

use std::fs::{self, DirEntry, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::Uid;
use tempfile::TempDir;

const PREFIX: &str = "tgi-";
const MODE: u32 = 0o700;
/// Of the random end of the name.
const RANDOM_LENGTH: usize = 6;
/// Of the files inside.
pub const FILES: &str = "shard";

/// Dropping it removes the directory and what is in it.
#[derive(Debug)]
pub struct PrivateDirectory {
    directory: TempDir,
    /// None where the file system has no locks: no start takes the directory for one that was left behind then.
    _lock: Option<File>,
}

impl PrivateDirectory {
    /// Makes one in `base`, and removes those that killed servers of this user have left there.
    pub fn make(base: &Path) -> io::Result<Self> {
        remove_left_behind(base);
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX).rand_bytes(RANDOM_LENGTH);
        builder.permissions(Permissions::from_mode(MODE));
        loop {
            let directory = builder.tempdir_in(base)?;
            let lock = match lock(directory.path()) {
                Ok(Some(lock)) => Some(lock),
                // Before it was locked, another start took it for one that was left behind.
                Ok(None) => continue,
                Err(_) => None,
            };
            return Ok(Self {
                directory,
                _lock: lock,
            });
        }
    }

    /// What the paths of the files inside begin with.
    pub fn files(&self) -> PathBuf {
        self.directory.path().join(FILES)
    }
}

/// The directory at `path`, locked. None where another process has locked it or has removed it. The kernel lets go of
/// the lock with the process, however that ends.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path);
    let directory = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match directory.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
        Ok(()) => {}
    }
    let locked = directory.metadata()?;
    let named = fs::symlink_metadata(path);
    let is_there =
        named.is_ok_and(|named| (named.dev(), named.ino()) == (locked.dev(), locked.ino()));
    Ok(is_there.then_some(directory))
}

/// Removes the directories of this user's servers that were killed. What cannot be removed harms nobody.
fn remove_left_behind(base: &Path) {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    for path in entries.filter(may_be_ours).map(|entry| entry.path()) {
        if let Ok(Some(_lock)) = lock(&path) {
            let _ = remove(&path);
        }
    }
}

/// Whether it looks as if it had been made here, by a process of this user.
fn may_be_ours(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let has_name = name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
        && name.len() == PREFIX.len() + RANDOM_LENGTH;
    has_name
        && entry.metadata().is_ok_and(|metadata| {
            metadata.is_dir()
                && metadata.uid() == Uid::effective().as_raw()
                && metadata.permissions().mode() & 0o777 == MODE
        })
}

/// Removes the files of shards, and then the directory if nothing else is in it; all of it stays while a shard listens.
fn remove(directory: &Path) -> io::Result<()> {
    let files: Vec<PathBuf> = fs::read_dir(directory)?
        .flatten()
        .filter(|file| {
            file.file_name()
                .as_encoded_bytes()
                .starts_with(FILES.as_bytes())
        })
        .map(|file| file.path())
        .collect();
    if files.iter().any(|file| is_answered(file)) {
        return Ok(());
    }
    files.iter().try_for_each(fs::remove_file)?;
    fs::remove_dir(directory)
}

/// Whether the file is a socket on which a process listens.
pub fn is_answered(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// What a server leaves in `base` when it is killed.
    fn left_behind(base: &Path) -> PathBuf {
        let PrivateDirectory { directory, _lock } = PrivateDirectory::make(base).unwrap();
        directory.keep()
    }

    #[test]
    fn the_next_start_removes_what_a_killed_server_left() {
        let base = tempfile::tempdir().unwrap();
        let left = left_behind(base.path());
        drop(UnixListener::bind(left.join("shard-0")).unwrap());
        fs::write(left.join("shard-rendezvous"), "").unwrap();
        let made = PrivateDirectory::make(base.path()).unwrap();
        assert!(!left.exists() && made.directory.path().exists());
    }

    #[test]
    fn what_is_in_use_or_may_be_of_somebody_else_stays() {
        let base = tempfile::tempdir().unwrap();
        let locked = PrivateDirectory::make(base.path()).unwrap();
        let answered = left_behind(base.path());
        let _listener = UnixListener::bind(answered.join("shard-0")).unwrap();
        let mut stay = vec![locked.directory.path().to_owned(), answered];
        let others = [
            ("tgi-backup", MODE),
            ("tgi-000000", 0o755),
            ("tgi-000001", MODE),
        ];
        for (name, mode) in others {
            let path = base.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            fs::write(path.join("notes"), "precious").unwrap();
            stay.push(path.join("notes"));
        }
        drop(PrivateDirectory::make(base.path()).unwrap());
        assert!(stay.iter().all(|path| path.exists()), "{stay:?}");
    }
}
