//! Pixels of images on their way to the shards: through a file in the folder of their sockets where they are on this
//! host, else within the call.
//!
//! A call over a Unix socket copies its bytes several times in Python; a file is mapped. It has mode 0600, lies in a
//! folder that only this server can enter, and is gone when all shards have answered.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::future::join_all;
use text_generation_proto::v1;
use text_generation_proto::v1::put_media_request::Source;

use crate::error::ClientError;
use crate::sharded::ShardedClient;
use crate::types::PutMedia;

/// A file that is removed when this is dropped.
#[derive(Debug)]
struct Pixels {
    path: PathBuf,
    name: String,
}

impl Pixels {
    fn write(folder: &Path, name: String, pixels: &[u8]) -> io::Result<Self> {
        let path = folder.join(&name);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let written = Self { path, name };
        file.write_all(pixels)?;
        Ok(written)
    }
}

impl Drop for Pixels {
    fn drop(&mut self) {
        // Whoever clears the folder may have been faster.
        let _ = fs::remove_file(&self.path);
    }
}

impl ShardedClient {
    /// Brings an item to every rank; plans may name it once all have answered. The future owns all it needs.
    ///
    /// # Errors
    /// What the first rank that refuses it says, or why its pixels could not be written.
    pub fn put_media(
        &self,
        put: PutMedia,
    ) -> impl Future<Output = Result<(), ClientError>> + Send + 'static {
        let shards = self.shards().to_vec();
        async move {
            let folder = shards.iter().find_map(|shard| shard.folder().cloned());
            let file = match folder {
                Some(folder) => Some(write(folder, &put).await?),
                None => None,
            };
            let calls = shards.iter().map(|shard| {
                let source = match (&file, shard.folder()) {
                    (Some(file), Some(_)) => Source::File(file.name.clone()),
                    _ => Source::Pixels(put.pixels.clone().into()),
                };
                shard.put_media(request(&put, source))
            });
            let answers = join_all(calls).await;
            answers.into_iter().collect::<Result<(), _>>()
        }
    }
}

async fn write(folder: PathBuf, put: &PutMedia) -> Result<Pixels, ClientError> {
    let (name, pixels): (String, Bytes) = (format!("media-{}", put.item.0), put.pixels.clone());
    let written = tokio::task::spawn_blocking(move || Pixels::write(&folder, name, &pixels)).await;
    let written = written.unwrap_or_else(|error| Err(io::Error::other(error)));
    written.map_err(|error| ClientError::Pixels(error.to_string()))
}

fn request(put: &PutMedia, source: Source) -> v1::PutMediaRequest {
    v1::PutMediaRequest {
        item: put.item.0,
        views: put.views.iter().map(|view| (*view).into()).collect(),
        grid_height: put.grid.height,
        grid_width: put.grid.width,
        rows: put.rows,
        source: Some(source),
    }
}
