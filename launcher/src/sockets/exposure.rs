//! Check that no other user could put a socket of theirs in the place of one of ours: whoever may write to a directory
//! may rename what is in it, and prompts would go to them.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::Uid;

const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Only owners may rename what is in a directory.
const STICKY: u32 = 0o1000;
const ROOT: u32 = 0;

/// Why others could exchange a file in `directory`, as the end of a sentence; None where they cannot.
pub fn exposure(directory: &Path) -> io::Result<Option<String>> {
    let directory = fs::canonicalize(directory)?;
    // The bit does not help here: the first to make a file of a name is its owner.
    if fs::metadata(&directory)?.mode() & WRITABLE_BY_OTHERS != 0 {
        return Ok(Some("other users may write to that directory".to_owned()));
    }
    for above in directory.ancestors().skip(1) {
        if may_be_renamed_in(&fs::metadata(above)?) {
            let above = above.display();
            return Ok(Some(format!(
                "other users may rename that directory, because they may write to {above}"
            )));
        }
    }
    Ok(None)
}

/// Whether somebody else may rename directories of ours in this one.
fn may_be_renamed_in(above: &Metadata) -> bool {
    let others = above.mode() & (WRITABLE_BY_OTHERS | STICKY);
    let is_foreign = above.uid() != ROOT && above.uid() != Uid::effective().as_raw();
    is_foreign || (others & WRITABLE_BY_OTHERS != 0 && others & STICKY == 0)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn directories_that_others_may_write_to_are_told() {
        let base = tempfile::tempdir().unwrap();
        let (above, below) = (base.path().join("above"), base.path().join("above/below"));
        fs::create_dir_all(&below).unwrap();
        let cases = [
            (0o700, 0o700, None),
            (0o755, 0o755, None),
            // As `/tmp` is.
            (0o1777, 0o700, None),
            (0o700, 0o1777, Some("write to that directory")),
            (0o700, 0o770, Some("write to that directory")),
            (0o777, 0o700, Some("rename that directory")),
            (0o775, 0o700, Some("rename that directory")),
        ];
        for (mode_above, mode, expected) in cases {
            for (path, mode) in [(&above, mode_above), (&below, mode)] {
                fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            }
            let found = exposure(&below).unwrap();
            let fits = match expected {
                Some(text) => found.as_ref().is_some_and(|reason| reason.contains(text)),
                None => found.is_none(),
            };
            assert!(fits, "{mode_above:o} {mode:o}: {found:?}");
        }
    }
}
