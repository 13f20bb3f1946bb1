//! Names that an adapter may have.

use crate::asked_model::TGI;
use crate::bounds::MAX_MODEL_BYTES;

/// Whether requests can name an adapter so.
///
/// # Errors
/// Why not.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_MODEL_BYTES {
        return Err(format!("a name has 1 to {MAX_MODEL_BYTES} bytes"));
    }
    if name.chars().any(char::is_control) {
        return Err("a name has printable characters alone".to_owned());
    }
    if name == TGI {
        return Err(format!("`{TGI}` is the base"));
    }
    Ok(())
}
