//! What a person sees when the server is up.

use std::net::SocketAddr;

use crate::args::ServerArgs;
use crate::logs::Console;
use crate::readiness::reachable;

/// What the banner says of a server that anybody may use.
const OPEN: &str = "every host of the network, and every web page that a browser here shows, may use this server: \
     set API_KEY, --hostname 127.0.0.1 or --cors-allow-origin";

/// Prints addresses and a first request to paste; in JSON mode log records say the same.
pub fn show(
    console: &Console,
    model_id: &str,
    shards: usize,
    listening: SocketAddr,
    server: &ServerArgs,
) {
    let url = format!("http://{}", reachable(listening));
    if console.is_json() {
        tracing::info!(
            model_id,
            shards,
            url,
            docs = format!("{url}/docs"),
            "Server ready"
        );
    } else {
        console.print(text(model_id, shards, &url, has_key(server)));
    }
    if is_open(listening, server) {
        tracing::warn!("{OPEN}");
    }
}

fn has_key(server: &ServerArgs) -> bool {
    server.api_key.is_some() || server.api_key_file.is_some()
}

/// No key, all interfaces, and pages of any origin.
pub fn is_open(listening: SocketAddr, server: &ServerArgs) -> bool {
    !has_key(server) && listening.ip().is_unspecified() && server.cors_allow_origin.is_empty()
}

fn text(model_id: &str, shards: usize, url: &str, with_key: bool) -> String {
    let plural = if shards == 1 { "" } else { "s" };
    // The key itself is a secret; the shell that pastes the line holds it in API_KEY.
    let key = if with_key {
        r#" -H "Authorization: Bearer $API_KEY""#
    } else {
        ""
    };
    let body = r#"{"inputs": "Once upon a time", "parameters": {"max_new_tokens": 20}}"#;
    format!(
        "\n  {model_id} is ready on {shards} shard{plural}\n\n  API   {url}\n  Docs  {url}/docs\n\n  \
         curl {url}/generate -H 'Content-Type: application/json'{key} -d '{body}'\n"
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    #[test]
    fn a_server_without_any_protection_is_called_open() {
        let open = |flags: &[&str]| {
            let args = Args::try_parse_from(["launcher"].iter().chain(flags)).unwrap();
            is_open((args.server.hostname, 80).into(), &args.server)
        };
        assert!(open(&["--hostname=0.0.0.0"]));
        assert!(open(&["--hostname=::"]));
        for protection in [
            "--hostname=127.0.0.1",
            "--api-key=k",
            "--api-key-file=/keys",
            "--cors-allow-origin=https://a.example",
        ] {
            assert!(!open(&["--hostname=0.0.0.0", protection]), "{protection}");
        }
    }

    #[test]
    fn it_names_model_addresses_and_a_request() {
        let shown = text("org/model", 2, "http://127.0.0.1:3000", false);
        let lines: Vec<&str> = shown
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let curl = "curl http://127.0.0.1:3000/generate -H 'Content-Type: application/json' \
                    -d '{\"inputs\": \"Once upon a time\", \"parameters\": {\"max_new_tokens\": 20}}'";
        let expected = [
            "org/model is ready on 2 shards",
            "API   http://127.0.0.1:3000",
            "Docs  http://127.0.0.1:3000/docs",
            curl,
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_key_is_named_and_not_shown() {
        assert!(
            text("m", 1, "http://127.0.0.1:1", true)
                .contains(r#" -H "Authorization: Bearer $API_KEY" -d "#)
        );
    }
}
