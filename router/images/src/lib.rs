//! Pictures for models that see: what a client sends becomes views of 8-bit RGB pixels, and rows of a prompt.
//!
//! Knows no request and no tokenizer, and of HTTP only how a [`Fetcher`] asks for a file. Models are data here: an
//! [`ImageSpec`] is read from a model's files.

mod data_url;
mod decode;
mod error;
mod fetch;
mod header;
mod key;
mod pool;
mod resize;
mod spec;

pub use self::data_url::{check_length, data_url, decode_base64};
pub use self::decode::{Rgb, decode};
pub use self::error::{DataUrlError, ImageError, SpecError};
pub use self::fetch::{DomainError, Domains, FetchError, FetchOptions, Fetcher, FetcherError};
pub use self::header::{Format, Header, Limits, probe};
pub use self::key::{ItemKey, KeySecret};
pub use self::pool::{Pool, PoolOptions};
pub use self::resize::{Filter, Size, Squared, Window, resize};
pub use self::spec::{Detail, ImageSpec, Plan, Segment, View};
