//! The directory of the shards' sockets.

mod exposure;
mod private;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::Uid;

use self::exposure::exposure;
use self::private::{PrivateDirectory, is_answered};
use crate::error::LauncherError;
use crate::plan::{rendezvous_path, socket_path};

/// Longest path that fits a socket address, whose 108 bytes end with a zero.
const LONGEST_PATH: usize = 107;

const OWN: &str = "give --shard-uds-path a path in a directory of your own, or leave it out";

/// Where the shards listen. Dropping it removes the sockets, and the directory if it was made here.
#[derive(Debug)]
pub struct Sockets {
    prefix: String,
    shards: usize,
    place: Place,
    notice: Option<String>,
}

/// What keeps others from a prefix for as long as it lives.
#[derive(Debug)]
enum Place {
    /// Made here, for us alone.
    Private { _directory: PrivateDirectory },
    /// A file beside the sockets, which one process at a time can lock.
    Locked { path: PathBuf, _file: File },
}

impl Sockets {
    /// Takes the prefix a user gave, or makes a private directory under `XDG_RUNTIME_DIR` or the temporary folder; that
    /// as well where other users could exchange the sockets at the prefix.
    pub fn prepare(given: Option<&Path>, shards: usize) -> Result<Self, LauncherError> {
        let Some(given) = given else {
            return Self::private(shards);
        };
        let directory = directory_of(given)?;
        let exposed = exposure(directory).map_err(|error| refusal(directory, error))?;
        let Some(reason) = exposed else {
            return Self::at(given, directory, shards);
        };
        let mut sockets = Self::private(shards)?;
        let (given, prefix) = (given.display(), &sockets.prefix);
        sockets.notice = Some(format!(
            "the sockets are at {prefix} and not at --shard-uds-path {given}: {reason}; give a path in a directory \
             that only you can write to, or leave the flag out"
        ));
        Ok(sockets)
    }

    /// What its user should know of the place.
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// Shard r listens on `<prefix>-<r>`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn directory_owned(&self) -> bool {
        matches!(self.place, Place::Private { .. })
    }

    /// Removes what shards that were killed have left, so that others can listen on the same paths.
    pub fn clear(&self) -> Result<(), LauncherError> {
        self.files()
            .try_for_each(|path| match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(refusal(Path::new(&path), error))
                }
                _ => Ok(()),
            })
    }

    /// The rendezvous file and the sockets.
    fn files(&self) -> impl Iterator<Item = String> {
        let sockets = (0..self.shards).map(|rank| socket_path(&self.prefix, rank));
        std::iter::once(rendezvous_path(&self.prefix)).chain(sockets)
    }

    fn private(shards: usize) -> Result<Self, LauncherError> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute());
        let in_runtime = runtime.and_then(|base| Self::inside(&base, shards).ok());
        in_runtime.map_or_else(|| Self::inside(&std::env::temp_dir(), shards), Ok)
    }

    fn inside(base: &Path, shards: usize) -> Result<Self, LauncherError> {
        let directory = PrivateDirectory::make(base).map_err(|error| refusal(base, error))?;
        let prefix = checked_prefix(&directory.files(), shards)?;
        Ok(Self {
            prefix,
            shards,
            place: Place::Private {
                _directory: directory,
            },
            notice: None,
        })
    }

    fn at(given: &Path, directory: &Path, shards: usize) -> Result<Self, LauncherError> {
        let prefix = checked_prefix(given, shards)?;
        let metadata = fs::metadata(directory).map_err(|error| refusal(directory, error))?;
        if metadata.uid() != Uid::effective().as_raw() {
            return Err(refusal(
                directory,
                format!("it belongs to another user; {OWN}"),
            ));
        }
        let path = PathBuf::from(format!("{prefix}-lock"));
        let file = lock(&path)?;
        // From here on it is removed again, whatever is found.
        let place = Place::Locked { path, _file: file };
        for rank in 0..shards {
            clear_stale(Path::new(&socket_path(&prefix, rank)))?;
        }
        clear_rendezvous(Path::new(&rendezvous_path(&prefix)))?;
        Ok(Self {
            prefix,
            shards,
            place,
            notice: None,
        })
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        // A shard removes its files itself, unless it was killed. The place goes by its own drop, after this.
        for path in self.files() {
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Locked { path, .. } = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// The file at `path`, made and locked. The kernel lets go of it with the process, however that ends.
fn lock(path: &Path) -> Result<File, LauncherError> {
    loop {
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(0o600);
        options.custom_flags(OFlag::O_NOFOLLOW.bits());
        let file = options.open(path).map_err(|error| refusal(path, error))?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => refusal(
                path,
                "another server has its sockets there; give another --shard-uds-path",
            ),
            TryLockError::Error(error) => refusal(path, error),
        })?;
        let locked = file.metadata().map_err(|error| refusal(path, error))?;
        // A server that has just ended may have removed the file between the two steps.
        if found(path)?.is_some_and(|named| named.ino() == locked.ino()) {
            return Ok(file);
        }
    }
}

fn refusal(path: &Path, reason: impl ToString) -> LauncherError {
    LauncherError::Sockets {
        path: path.display().to_string(),
        reason: reason.to_string(),
    }
}

/// That of a prefix that was given. Nobody may lead it elsewhere later.
fn directory_of(given: &Path) -> Result<&Path, LauncherError> {
    let directory = match given.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let metadata = fs::symlink_metadata(directory).map_err(|error| refusal(directory, error))?;
    if metadata.is_symlink() {
        return Err(refusal(directory, format!("it is a symbolic link; {OWN}")));
    }
    Ok(directory)
}

fn checked_prefix(prefix: &Path, shards: usize) -> Result<String, LauncherError> {
    let text = prefix
        .to_str()
        .ok_or_else(|| refusal(prefix, "the path is not UTF-8"))?;
    // The rendezvous file needs no socket address, so only sockets count.
    let longest = socket_path(text, shards.saturating_sub(1)).len();
    if longest > LONGEST_PATH {
        let reason = format!(
            "with shard numbers the path has {longest} bytes and a socket path at most {LONGEST_PATH}; \
             set XDG_RUNTIME_DIR or TMPDIR to a shorter directory, or give a shorter --shard-uds-path"
        );
        return Err(refusal(prefix, reason));
    }
    Ok(text.to_owned())
}

/// Removes the socket that an earlier server left behind, but none that answers and nothing that is no socket.
fn clear_stale(path: &Path) -> Result<(), LauncherError> {
    let Some(metadata) = found(path)? else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(refusal(
            path,
            "a file that is not a socket is in the way; give another --shard-uds-path",
        ));
    }
    if is_answered(path) {
        return Err(refusal(
            path,
            "another server listens there; give another --shard-uds-path",
        ));
    }
    fs::remove_file(path).map_err(|error| refusal(path, error))
}

/// Removes the rendezvous file that an earlier server left behind: shards would read its entries as their own.
fn clear_rendezvous(path: &Path) -> Result<(), LauncherError> {
    let Some(metadata) = found(path)? else {
        return Ok(());
    };
    if !metadata.is_file() || metadata.uid() != Uid::effective().as_raw() {
        return Err(refusal(
            path,
            "it is not a file of an earlier server; give another --shard-uds-path",
        ));
    }
    fs::remove_file(path).map_err(|error| refusal(path, error))
}

fn found(path: &Path) -> Result<Option<fs::Metadata>, LauncherError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(refusal(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn at(prefix: &Path) -> Result<Sockets, LauncherError> {
        Sockets::prepare(Some(prefix), 2)
    }

    fn refused(prefix: &Path) -> String {
        at(prefix).unwrap_err().to_string()
    }

    #[test]
    fn a_fresh_directory_is_private_and_goes_away() {
        let base = tempfile::tempdir().unwrap();
        let sockets = Sockets::inside(base.path(), 2).unwrap();
        let directory = Path::new(sockets.prefix()).parent().unwrap().to_owned();
        assert_eq!(
            fs::metadata(&directory).unwrap().permissions().mode() & 0o777,
            0o700
        );
        fs::write(socket_path(sockets.prefix(), 1), "").unwrap();
        drop(sockets);
        assert!(!directory.exists());
    }

    #[test]
    fn a_long_path_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let message = refused(&base.path().join("x".repeat(LONGEST_PATH)));
        assert!(
            message.contains("at most 107") && message.contains("--shard-uds-path"),
            "{message}"
        );
    }

    #[test]
    fn a_linked_or_missing_directory_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let link = base.path().join("link");
        symlink(base.path(), &link).unwrap();
        assert!(refused(&link.join("shard")).contains("symbolic link"));
        assert!(refused(&base.path().join("none/shard")).contains("No such file"));
    }

    #[test]
    fn where_others_may_write_a_private_directory_is_taken_instead() {
        let base = tempfile::tempdir().unwrap();
        let shared = base.path().join("shared");
        fs::create_dir(&shared).unwrap();
        // As `/tmp` is, where TGI has its sockets.
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
        let prefix = shared.join("text-generation-server");
        let sockets = at(&prefix).unwrap();
        let notice = sockets.notice().unwrap();
        assert!(
            notice.contains("other users may write") && notice.contains("--shard-uds-path"),
            "{notice}"
        );
        assert!(sockets.directory_owned());
        let directory = Path::new(sockets.prefix()).parent().unwrap();
        let mode = fs::metadata(directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert_eq!(fs::read_dir(&shared).unwrap().count(), 0);
    }

    #[test]
    fn only_dead_sockets_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let prefix = base.path().join("s");
        let socket = base.path().join("s-1");
        let listener = UnixListener::bind(&socket).unwrap();
        assert!(refused(&prefix).contains("another server"));
        drop(listener);
        drop(at(&prefix).unwrap());
        assert!(!socket.exists());
        fs::write(&socket, "precious").unwrap();
        assert!(refused(&prefix).contains("not a socket"));
        assert!(socket.exists());
    }

    #[test]
    fn one_server_at_a_time_has_a_prefix_and_its_files() {
        let base = tempfile::tempdir().unwrap();
        let (prefix, file) = (base.path().join("s"), base.path().join("s-rendezvous"));
        let first = at(&prefix).unwrap();
        fs::write(&file, "of the first").unwrap();
        assert!(refused(&prefix).contains("another server"));
        assert!(file.exists());
        drop(first);
        drop(at(&prefix).unwrap());
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
        symlink("/etc/passwd", base.path().join("s-lock")).unwrap();
        assert!(refused(&prefix).contains("s-lock"));
    }

    #[test]
    fn a_rendezvous_file_of_an_earlier_server_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let (prefix, file) = (base.path().join("s"), base.path().join("s-rendezvous"));
        fs::write(&file, "stale").unwrap();
        let sockets = at(&prefix).unwrap();
        assert!(!file.exists());
        fs::write(&file, "of this server").unwrap();
        drop(sockets);
        assert!(!file.exists());
        symlink("/etc/passwd", &file).unwrap();
        assert!(refused(&prefix).contains("not a file of an earlier server"));
    }
}
