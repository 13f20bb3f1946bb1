//! The model that a request names: the base, or one of its adapters.

use text_generation_core::adapters::Adapters;
use text_generation_core::tenant::Tenant;

use crate::bounds::MAX_MODEL_BYTES;
use crate::error::{ApiError, refused};
use crate::state::AppState;
use crate::tenant;

/// What TGI's clients call any model.
pub const TGI: &str = "tgi";

/// What `model` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedModel {
    /// What the answer calls it.
    pub name: String,
    /// The name of an adapter of this server.
    pub adapter: Option<String>,
}

impl AskedModel {
    /// Reads `model`, which may be left out: the base.
    ///
    /// # Errors
    /// A name that is too long, or that neither the base nor an adapter has. Where there are no adapters, every name is
    /// the base's, as in TGI.
    pub fn read(given: Option<String>, state: &AppState) -> Result<Self, ApiError> {
        let given = given.unwrap_or_default();
        if given.len() > MAX_MODEL_BYTES {
            return Err(refused(format_args!(
                "`model` must have at most {MAX_MODEL_BYTES} bytes"
            )));
        }
        let (names, adapters) = (&state.answers.model_names, state.infer.adapters());
        let served = &state.info.model_id;
        if given.is_empty() || given == TGI {
            return Ok(Self::base(served.clone()));
        }
        let tenant = &tenant::current().tenant;
        if let Some(adapter) = adapter_named(&given, names, adapters, tenant) {
            return Ok(Self {
                name: given,
                adapter: Some(adapter),
            });
        }
        if adapters.is_none() || names.contains(&given) {
            return Ok(Self::base(given));
        }
        Err(ApiError::unknown_model(served, &adapters.names(tenant)))
    }

    fn base(name: String) -> Self {
        Self {
            name,
            adapter: None,
        }
    }
}

/// What `adapter_id` names by the same rules: none where it is a name of the base. Another name stays as it is, for
/// whoever checks the parameters to refuse it.
pub fn adapter_id(given: String, state: &AppState) -> Option<String> {
    let names = &state.answers.model_names;
    let tenant = &tenant::current().tenant;
    let adapter = adapter_named(&given, names, state.infer.adapters(), tenant);
    adapter.or_else(|| (given != TGI && !names.contains(&given)).then_some(given))
}

/// The adapter of this name, or of `base:name`, if the tenant may use it. Names may hold colons themselves.
pub fn adapter_named(
    given: &str,
    base: &[String],
    adapters: &Adapters,
    tenant: &Tenant,
) -> Option<String> {
    let known = |name: &str| adapters.knows(name, tenant).then(|| name.to_owned());
    let behind_base = || {
        let bases = base.iter().map(String::as_str).chain([TGI]);
        let rest = |name| given.strip_prefix(name)?.strip_prefix(':');
        bases.filter_map(rest).find_map(known)
    };
    known(given).or_else(behind_base)
}
