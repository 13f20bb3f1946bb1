//! Flags of adapters.

use std::path::PathBuf;

use clap::value_parser;
use text_generation_core::adapters::{AdapterRules, NamedAdapter};
use text_generation_process::amounts::mebibytes;

use crate::adapter_names::check_name;

const FLAG: &str = "--lora-adapters";
const STORE: &str = "s3://";

/// The adapters that requests may name, and room for them.
#[derive(Debug, Clone, clap::Args)]
pub struct AdapterFlags {
    /// LoRA adapters that requests may name, with commas between them: id, id@revision, name=folder, name=id@revision or
    /// name=s3://bucket/prefix.
    #[arg(long, env, value_name = "ADAPTERS")]
    pub lora_adapters: Option<String>,
    /// Pages of the device for adapters, of 16 rank units each: one of rank 16 takes one. Default: what those of
    /// `--lora-adapters` need, and 32 more where others can come later.
    #[arg(long, env, value_name = "PAGES", value_parser = value_parser!(u32).range(1..=65_536))]
    pub adapter_pages: Option<u32>,
    /// Folder of adapters that requests may name without anybody having loaded them: `name`, or `org/name`, is a folder
    /// below it. Only safetensors are read there.
    #[arg(long, env, value_name = "FOLDER")]
    pub lora_dir: Option<PathBuf>,
    /// Host memory for adapters that come after the start, of all shards together. The least recently used ones leave it.
    #[arg(long, env, value_name = "MIB", default_value_t = 8192, value_parser = mebibytes)]
    pub adapter_host_mib: u32,
    /// Let whoever has the admin key load and unload adapters while the server runs (`/v1/load_lora_adapter`).
    #[arg(long, env)]
    pub allow_adapter_loading: bool,
}

impl AdapterFlags {
    /// What is said of all adapters together.
    pub fn rules(&self) -> AdapterRules {
        AdapterRules {
            pages: self.adapter_pages,
            host_bytes: u64::from(self.adapter_host_mib) << 20,
            folder: self.lora_dir.clone(),
            loading: self.allow_adapter_loading,
        }
    }

    /// What can be known to be wrong before anything starts.
    ///
    /// # Errors
    /// One line that names the flag.
    pub fn check(&self) -> anyhow::Result<()> {
        if let Some(folder) = &self.lora_dir {
            anyhow::ensure!(
                folder.is_dir(),
                "`--lora-dir {}` is not a folder; give one with the folders of adapters in it",
                folder.display()
            );
        }
        self.named().map(drop)
    }

    /// The adapters of the start. One without a name is called by its folder or id.
    ///
    /// # Errors
    /// When the flag cannot be read, or has a name that requests cannot use.
    pub fn named(&self) -> anyhow::Result<Vec<NamedAdapter>> {
        let text = self.lora_adapters.as_deref().unwrap_or_default();
        let entries = text
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty());
        let mut all: Vec<NamedAdapter> = Vec::new();
        for entry in entries {
            let adapter = named(entry)?;
            if let Err(reason) = check_name(&adapter.name) {
                anyhow::bail!(
                    "`{FLAG}` has an adapter that requests cannot name, at `{entry}`: {reason}; give it another name, as name=folder"
                );
            }
            anyhow::ensure!(
                all.iter().all(|other| other.name != adapter.name),
                "`{FLAG}` names `{}` twice: give each adapter a name of its own, as name=folder",
                adapter.name
            );
            all.push(adapter);
        }
        Ok(all)
    }
}

fn named(entry: &str) -> anyhow::Result<NamedAdapter> {
    // A prefix may hold any sign.
    let pair = entry.split_once('=').filter(|_| !entry.starts_with(STORE));
    let (name, source) = match pair {
        Some((name, source)) => (Some(name.trim()), source.trim()),
        None => (None, entry),
    };
    // Folders and object stores have no revisions, and their names may hold an `@`.
    let has_none = source.starts_with(['/', '.', '~']) || source.starts_with(STORE);
    let (id, revision) = match source.split_once('@').filter(|_| !has_none) {
        Some((id, revision)) => (id, Some(revision)),
        None => (source, None),
    };
    let name = name.unwrap_or(id);
    anyhow::ensure!(
        !name.is_empty() && !id.is_empty() && revision != Some(""),
        "`{FLAG}` cannot be read at `{entry}`: write id, id@revision, name=folder, name=id@revision or name=s3://bucket/prefix, with commas between them"
    );
    Ok(NamedAdapter {
        name: name.to_owned(),
        source: source.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, String)>, String> {
        let flags = AdapterFlags {
            lora_adapters: Some(text.to_owned()),
            adapter_pages: None,
            lora_dir: None,
            adapter_host_mib: 1,
            allow_adapter_loading: false,
        };
        let named = flags.named().map_err(|error| error.to_string())?;
        Ok(named
            .into_iter()
            .map(|one| (one.name, one.source))
            .collect())
    }

    #[test]
    fn adapters_are_written_as_tgi_does() {
        let pair = |name: &str, source: &str| (name.to_owned(), source.to_owned());
        assert_eq!(read(""), Ok(Vec::new()));
        assert_eq!(
            read(
                " org/a , org/b@v1,c=/srv/c@2, d = org/d@main ,./e@f,f=s3://models/f@1,s3://g/x=1"
            ),
            Ok(vec![
                pair("org/a", "org/a"),
                pair("org/b", "org/b@v1"),
                pair("c", "/srv/c@2"),
                pair("d", "org/d@main"),
                pair("./e@f", "./e@f"),
                pair("f", "s3://models/f@1"),
                pair("s3://g/x=1", "s3://g/x=1"),
            ])
        );
    }

    #[test]
    fn what_requests_cannot_name_is_refused_with_the_entry() {
        for (text, reason) in [
            ("a,=b", "at `=b`"),
            ("a=", "at `a=`"),
            ("org/a@", "at `org/a@`"),
            ("@v1", "at `@v1`"),
            ("a=/x,a=/y", "names `a` twice"),
            ("tgi=/x", "at `tgi=/x`"),
            ("a\tb=/x", "printable"),
            (&format!("{}=/x", "n".repeat(257)), "256 bytes"),
        ] {
            let message = read(text).expect_err(text);
            assert!(message.contains(reason), "{message}");
        }
    }
}
