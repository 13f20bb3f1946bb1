//! The adapters that requests may name: the router owns names, contents and pages, shards own tensors.
//!
//! A name stands for contents in the host memory of the shards, which go to pages of the device when a request of theirs
//! is to start. Contents have a generation, equal for equal contents. Loads run beside everything else, and nothing is
//! told to the batcher before all ranks have read and checked the files. A request keeps what its name stood for when it
//! came; contents stay in host memory as long as a name or a request holds them.

mod catalog;
mod folder;
mod loader;
mod pool;
mod weights;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use text_generation_client::types::LoadAdapter;
use text_generation_client::{ClientError, ShardedClient};
use tokio::sync::{mpsc, watch};

pub use self::catalog::Listed;
pub(crate) use self::catalog::Origin;
use self::catalog::{Catalog, Found, Order};
use self::folder::Folder;
use self::loader::Shards;
pub(crate) use self::pool::PagePool;
pub(crate) use self::weights::Weights;
pub use self::weights::{Adapter, Place};
use crate::error::AdapterError;
use crate::tenant::Tenant;

/// Pages beside those of the start's adapters, where others can come later and the operator names no number.
const PAGES_FOR_OTHERS: u32 = 32;

/// Loads of different names at once, those that wait among them.
const MOST_LOADS: usize = 64;

/// How many names a message shows.
const MOST_SHOWN: usize = 20;

/// What the operator says of adapters.
#[derive(Debug, Clone, Default)]
pub struct AdapterRules {
    /// Of the device; left out: what the adapters of the start need, and some more where others can come.
    pub pages: Option<u32>,
    /// Host memory of adapters that come after the start.
    pub host_bytes: u64,
    /// Requests may name adapters in this folder.
    pub folder: Option<PathBuf>,
    /// Adapters may be loaded while the server runs.
    pub loading: bool,
}

impl AdapterRules {
    /// Whether adapters can come after the start.
    fn later(&self) -> bool {
        self.loading || self.folder.is_some()
    }
}

/// An adapter of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedAdapter {
    pub name: String,
    /// A folder or a hub id.
    pub source: String,
}

/// An adapter that an administrator loads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterToLoad {
    pub name: String,
    pub path: PathBuf,
    /// The name may stand for something already, and stands for this from now on.
    pub replaces: bool,
    pub pinned: bool,
}

/// Why a load has ended, for everybody who waits for it.
type Outcome = Option<Result<Arc<Adapter>, AdapterError>>;

/// All adapters of a server. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Adapters(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    catalog: Mutex<Catalog>,
    /// By name: loads that requests wait for.
    loads: Mutex<HashMap<String, watch::Receiver<Outcome>>>,
    folder: Option<Folder>,
    later: bool,
    pages: u32,
    host_bytes: u64,
    /// Set where there may be adapters.
    shards: Option<Shards>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Adapters {
    /// Loads the adapters of the start, before warm-up: by them it is known which matrices are changed. Needs a tokio
    /// runtime.
    ///
    /// # Errors
    /// When one of them cannot be served, the folder of adapters is none, or the pages are too few.
    pub async fn start(
        client: &ShardedClient,
        rules: &AdapterRules,
        named: &[NamedAdapter],
    ) -> Result<Self, AdapterError> {
        let folder = rules.folder.as_deref();
        let folder = folder.map(|path| {
            Folder::open(path).map_err(|error| AdapterError::Folder {
                path: path.display().to_string(),
                error: error.to_string(),
            })
        });
        let (unused, dropped) = mpsc::unbounded_channel();
        let mut shared = Shared {
            folder: folder.transpose()?,
            later: rules.later(),
            pages: u32::MAX,
            host_bytes: rules.host_bytes,
            shards: Some(Shards::new(client.clone(), unused)),
            ..Shared::default()
        };
        let mut needed = HashMap::new();
        let mut all = Vec::new();
        for NamedAdapter { name, source } in named {
            let order = Order {
                name: name.clone(),
                source: source.clone(),
                origin: Origin::Start,
                pinned: true,
            };
            let adapter = shared.load(&order).await?;
            needed.insert(adapter.generation(), adapter.weights.pages);
            tracing::info!(
                adapter = name,
                source,
                rank = adapter.rank(),
                generation = format!("{:016x}", adapter.generation()),
                "an adapter is loaded"
            );
            all.push(adapter);
        }
        let others = if rules.later() { PAGES_FOR_OTHERS } else { 0 };
        let default = needed
            .values()
            .fold(others, |sum, pages| sum.saturating_add(*pages));
        shared.pages = match rules.pages {
            Some(pages) if shared.later || !named.is_empty() => pages,
            _ => default,
        };
        for adapter in all {
            shared.check_pages(&adapter.name, adapter.weights.pages)?;
        }
        let adapters = Self(Arc::new(shared));
        loader::watch_unused(&adapters.0, dropped);
        Ok(adapters)
    }

    /// Pages of the device.
    pub fn pages(&self) -> u32 {
        self.0.pages
    }

    /// Whether adapters can come after the start.
    pub fn later(&self) -> bool {
        self.0.later
    }

    /// The folder below which requests may name adapters.
    pub fn folder(&self) -> Option<&Path> {
        self.0.folder.as_ref().map(Folder::path)
    }

    /// Whether this is the whole name of an adapter that a tenant may use, also of one that was not read yet.
    pub fn knows(&self, name: &str, tenant: &Tenant) -> bool {
        tenant.may_use(name) && (self.0.catalog().has(name) || self.0.in_folder(name).is_some())
    }

    /// Whether no name can be that of an adapter.
    pub fn is_none(&self) -> bool {
        !self.0.later && self.0.catalog().is_empty()
    }

    /// In the order in which they came.
    pub fn list(&self) -> Vec<Listed> {
        self.0.catalog().list()
    }

    /// Those that a tenant may use.
    pub fn list_for(&self, tenant: &Tenant) -> Vec<Listed> {
        let mut all = self.list();
        all.retain(|listed| tenant.may_use(&listed.name));
        all
    }

    /// What a message may say of them to a tenant.
    pub fn names(&self, tenant: &Tenant) -> String {
        let all = self.list_for(tenant);
        let more = all.len().saturating_sub(MOST_SHOWN);
        let names = all.iter().take(MOST_SHOWN);
        let mut names: Vec<String> = names.map(|each| format!("`{}`", each.name)).collect();
        if more > 0 {
            names.push(format!("and {more} more"));
        }
        names.join(", ")
    }

    /// What a request of this name gets, once it is in host memory. `None`: there is none that its tenant may use.
    ///
    /// # Errors
    /// When its files cannot be served, or there is no room for it.
    pub async fn resolve(
        &self,
        name: &str,
        tenant: &Tenant,
    ) -> Result<Option<Arc<Adapter>>, AdapterError> {
        if !tenant.may_use(name) {
            return Ok(None);
        }
        let found = self.0.catalog().find(name);
        let order = match found {
            Found::Here(adapter) => return Ok(Some(adapter)),
            Found::Lost => return Err(AdapterError::Changed),
            Found::Away(order) => order,
            Found::Unknown => match self.0.in_folder(name) {
                None => return Ok(None),
                Some(path) => Order {
                    name: name.to_owned(),
                    source: path.display().to_string(),
                    origin: Origin::Folder,
                    pinned: false,
                },
            },
        };
        loader::join(&self.0, order).await.map(Some)
    }

    /// Loads an adapter under a name.
    ///
    /// # Errors
    /// When the name is taken, there are too many, or its files cannot be served.
    pub async fn load(&self, asked: AdapterToLoad) -> Result<Arc<Adapter>, AdapterError> {
        let AdapterToLoad {
            name,
            path,
            replaces,
            pinned,
        } = asked;
        if !replaces && self.0.catalog().has(&name) {
            return Err(AdapterError::Exists { name });
        }
        let path = match &self.0.folder {
            None => Some(path.clone()),
            Some(folder) => folder.within(&path),
        };
        let Some(path) = path.filter(|path| path.is_dir()) else {
            return Err(AdapterError::NotFound { name });
        };
        let order = Order {
            name,
            source: path.display().to_string(),
            origin: Origin::Loaded,
            pinned,
        };
        // It goes on where the caller does not wait.
        let shared = self.0.clone();
        let load = tokio::spawn(async move { shared.load(&order).await });
        load.await
            .unwrap_or_else(|error| Err(AdapterError::Panicked(error.to_string())))
    }

    /// New requests find no such name; those that have it go on. Returns whether there was one.
    pub fn unload(&self, name: &str) -> bool {
        self.0.catalog().remove(name)
    }

    /// The first one with these contents.
    pub(crate) fn with_generation(&self, generation: u64) -> Option<Arc<Adapter>> {
        self.0.catalog().with_generation(generation)
    }

    /// Counts changes of what is pinned.
    pub(crate) fn pins(&self) -> u64 {
        self.0.catalog().pins
    }

    /// Adapters that keep their pages.
    pub(crate) fn pinned(&self) -> Vec<Arc<Adapter>> {
        self.0.catalog().pinned()
    }

    /// The shards are lost: nothing that they have read counts.
    pub(crate) fn shards_lost(&self) {
        if let Some(shards) = &self.0.shards {
            let _catalog = self.0.catalog();
            shards.lost();
        }
    }

    /// What shards that start again are asked for.
    pub(crate) fn live(&self) -> Vec<LoadAdapter> {
        self.0.catalog().live()
    }

    /// The shards have started again, and have all but these.
    pub(crate) fn shards_back(&self, lost: &[(u64, ClientError)]) {
        let mut catalog = self.0.catalog();
        for (generation, error) in lost {
            tracing::error!(%error, "an adapter cannot be loaded again");
            catalog.lose(*generation);
        }
        if let Some(shards) = &self.0.shards {
            shards.back();
        }
    }
}

impl Shared {
    fn catalog(&self) -> MutexGuard<'_, Catalog> {
        lock(&self.catalog)
    }

    /// Where the folder of adapters has one of this name.
    fn in_folder(&self, name: &str) -> Option<PathBuf> {
        self.folder.as_ref()?.find(name)
    }

    fn check_pages(&self, name: &str, needed: u32) -> Result<(), AdapterError> {
        let most = self.pages;
        if needed <= most {
            return Ok(());
        }
        Err(AdapterError::Pages {
            name: name.to_owned(),
            needed,
            most,
        })
    }
}
