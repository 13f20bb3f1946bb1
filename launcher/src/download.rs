//! Runs the download step to its end and learns the model folder.

use crate::error::LauncherError;
use crate::process::Process;

/// Waits for `text-generation-server download-weights` and returns the `model_path` of its last record.
pub async fn model_folder(step: &Process, model_id: &str) -> Result<String, LauncherError> {
    let exit = step.exited().await;
    let failed = |reason: String| LauncherError::Download {
        model_id: model_id.to_owned(),
        reason,
    };
    if !exit.status.success() {
        return Err(failed(
            exit.last_error.clone().unwrap_or_else(|| exit.to_string()),
        ));
    }
    match exit
        .last_record
        .as_ref()
        .map(|record| record.text("model_path"))
    {
        Some(folder) if !folder.is_empty() => Ok(folder.to_owned()),
        _ => Err(failed(
            "the download step ended without naming the model's folder; \
             check that text-generation-server and text-generation-launcher have the same version"
                .to_owned(),
        )),
    }
}
