//! What the flags mean together: names, keys, addresses and limits.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Context;
use text_generation_client::ClusterTls;
use text_generation_process::address;

use super::Config;
use crate::api_keys::{ApiKeys, KeyLines};
use crate::token_limits::TokenLimits;

impl Config {
    /// What can be known to be wrong before anything starts.
    ///
    /// # Errors
    /// One line that names the flags.
    pub fn validate(&self) -> anyhow::Result<()> {
        self.token_limits().check()?;
        self.adapters.check()
    }

    /// The folder with the tokenizer.
    ///
    /// # Errors
    /// When it is not set or not a folder.
    pub fn tokenizer_folder(&self) -> anyhow::Result<&Path> {
        let folder = self
            .tokenizer_name
            .as_deref()
            .context("`--tokenizer-name` is not set; give the folder of the model")?;
        anyhow::ensure!(
            folder.is_dir(),
            "`--tokenizer-name {}` is not a folder; give the folder of the model",
            folder.display()
        );
        Ok(folder)
    }

    /// The names that the model is served under, at least one: as given, or what was asked to be served.
    pub fn model_names(&self, folder: &Path) -> Vec<String> {
        let given = self.served_model_name.iter();
        let names: Vec<String> = given.filter(|name| !name.is_empty()).cloned().collect();
        if names.is_empty() {
            let model_id = self.model_id.clone();
            return vec![model_id.unwrap_or_else(|| folder.display().to_string())];
        }
        names
    }

    /// The keys of both places; none where neither was given.
    ///
    /// # Errors
    /// When a place has no keys that can be used. The message shows none.
    pub fn api_keys(&self) -> anyhow::Result<ApiKeys> {
        let file = self.api_key_file.as_deref();
        let file = file.map(ApiKeys::from_file).transpose()?;
        let given = self.api_key.as_ref().map(KeyLines::keys).transpose();
        let given =
            given.map_err(|reason| anyhow::anyhow!("`--api-key` (or API_KEY): {reason}"))?;
        Ok(given.unwrap_or_default().and(&file.unwrap_or_default()))
    }

    /// The key of the administrator; none where there is nothing to administer.
    ///
    /// # Errors
    /// When it cannot be used, or adapters may be loaded and it is missing: everybody could load them then.
    pub fn admin_key(&self) -> anyhow::Result<ApiKeys> {
        let given = self.admin_api_key.as_ref().map(KeyLines::keys).transpose();
        let given = given
            .map_err(|reason| anyhow::anyhow!("`--admin-api-key` (or ADMIN_API_KEY): {reason}"))?;
        let given = given.unwrap_or_default();
        anyhow::ensure!(
            !self.adapters.allow_adapter_loading || !given.is_empty(),
            "`--allow-adapter-loading` needs a key for those who may load adapters: set ADMIN_API_KEY (or `--admin-api-key`)"
        );
        Ok(given)
    }

    /// Whether the log has every detail of this server.
    pub fn logs_details(&self) -> bool {
        ["debug", "trace"].contains(&self.log_level.trim().to_ascii_lowercase().as_str())
    }

    /// The certificates for shards of other nodes, where there are any.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn cluster_tls(&self) -> anyhow::Result<Option<ClusterTls>> {
        match (&self.cluster_cert, &self.cluster_key, &self.cluster_ca) {
            (Some(certificate), Some(key), Some(authority)) => {
                Ok(Some(ClusterTls::from_files(certificate, key, authority)?))
            }
            _ => Ok(None),
        }
    }

    /// The collector of traces. A variable that is set to nothing names none.
    pub fn collector(&self) -> Option<&str> {
        let endpoint = self.otlp_endpoint.as_deref();
        endpoint.filter(|text| !text.is_empty())
    }

    /// The token limits as given.
    pub fn token_limits(&self) -> TokenLimits {
        TokenLimits {
            max_input_tokens: self.max_input_tokens,
            max_total_tokens: self.max_total_tokens,
            max_batch_prefill_tokens: self.max_batch_prefill_tokens,
            max_batch_total_tokens: self.max_batch_total_tokens,
            prefill_chunking: self.prefill_chunking,
        }
    }

    /// The address to listen on.
    pub fn address(&self) -> IpAddr {
        ip_address("--hostname", &self.hostname)
    }

    /// The address for probes and metrics, where they have one of their own.
    pub fn management_address(&self) -> Option<SocketAddr> {
        let port = self.prometheus_port?;
        let own = self.prometheus_hostname.as_deref();
        let ip = own.map_or_else(
            || self.address(),
            |hostname| ip_address("--prometheus-hostname", hostname),
        );
        Some(SocketAddr::new(ip, port))
    }
}

/// Containers set `HOSTNAME` to a name of theirs, which stands for all addresses.
fn ip_address(flag: &str, hostname: &str) -> IpAddr {
    address::ip_address(hostname).unwrap_or_else(|_| {
        tracing::warn!("`{flag} {hostname}` is not an IP address: listening on 0.0.0.0");
        Ipv4Addr::UNSPECIFIED.into()
    })
}
