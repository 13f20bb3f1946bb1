//! Why adapters are not served.

use super::{InferError, Overload, ValidationError};

/// Why an adapter is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdapterError {
    #[error("the adapter `{name}` cannot be loaded: {message}")]
    Invalid { name: String, message: String },
    #[error("there is no folder of the adapter `{name}`")]
    NotFound { name: String },
    #[error("the adapter `{name}` is loaded already")]
    Exists { name: String },
    #[error(
        "the adapter `{name}` takes {needed} pages on the device, of {most} (`--adapter-pages`): start the server with more"
    )]
    Pages {
        name: String,
        needed: u32,
        most: u32,
    },
    #[error("all {most} MiB of host memory for adapters are in use (`--adapter-host-mib`)")]
    HostMemory { most: u64 },
    #[error("a server has at most {most} adapters: unload one")]
    Names { most: usize },
    #[error("too many adapters wait to be loaded")]
    Busy,
    /// Shards that have started again have read other files, or none.
    #[error(
        "the files of the adapter have changed since it was loaded, or are gone: load it again"
    )]
    Changed,
    #[error("`--lora-dir {path}` cannot be used: {error}")]
    Folder { path: String, error: String },
    #[error("the shards did not load the adapter: {0}")]
    Shards(String),
    /// Its files may be what ends them, so they are not read again.
    #[error(
        "the shards were lost again while they read the adapter: try it alone, on a server that nobody needs"
    )]
    Lost,
    #[error("{0} has panicked")]
    Panicked(String),
}

impl From<AdapterError> for InferError {
    fn from(error: AdapterError) -> Self {
        match error {
            AdapterError::Changed => Self::AdapterChanged,
            AdapterError::Busy => Self::Overloaded(Overload::AdapterLoads),
            AdapterError::HostMemory { most } => Self::Overloaded(Overload::AdapterMemory { most }),
            AdapterError::Shards(_) | AdapterError::Lost | AdapterError::Panicked(_) => {
                Self::Generation(error.to_string())
            }
            error => Self::Validation(ValidationError::Adapter(error)),
        }
    }
}
