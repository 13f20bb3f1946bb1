//! The banner that a person sees when the server is up.

use std::net::SocketAddr;

use serde_json::json;

use crate::args::{ModelArgs, ServerArgs};
use crate::logs::Console;
use crate::readiness::reachable;

/// What the banner says of a server that anybody may use.
const OPEN: &str = "anyone who reaches this port can use the server, from a web page of any origin too: \
     set API_KEY, --hostname 127.0.0.1 or --cors-allow-origin";

/// Prints addresses and a first request to paste; in JSON mode log records say the same.
pub fn show(
    console: &Console,
    model: &ModelArgs,
    shards: usize,
    listening: SocketAddr,
    server: &ServerArgs,
) {
    let url = format!("http://{}", reachable(listening));
    let name = served_name(model);
    if console.is_json() {
        tracing::info!(
            model_id = model.model_id,
            served_model_name = name,
            shards,
            url,
            page = format!("{url}/ui"),
            docs = format!("{url}/docs"),
            "Server ready"
        );
    } else {
        console.print(text(name, shards, &url, has_key(server)));
    }
    if is_open(listening, server) {
        tracing::warn!("{OPEN}");
    }
}

/// The name that the router shows of the model.
fn served_name(model: &ModelArgs) -> &str {
    let mut given = model.served_model_name.iter();
    let given = given.find(|name| !name.is_empty());
    given.or(model.model_id.as_ref()).map_or("", String::as_str)
}

fn has_key(server: &ServerArgs) -> bool {
    server.api_key.is_some() || server.api_key_file.is_some()
}

/// No key, all interfaces, and pages of any origin.
pub fn is_open(listening: SocketAddr, server: &ServerArgs) -> bool {
    !has_key(server) && listening.ip().is_unspecified() && server.cors_allow_origin.is_empty()
}

fn text(name: &str, shards: usize, url: &str, with_key: bool) -> String {
    let plural = if shards == 1 { "" } else { "s" };
    // The key itself is a secret; the shell that pastes the line holds it in API_KEY.
    let key = if with_key {
        r#" -H "Authorization: Bearer $API_KEY""#
    } else {
        ""
    };
    let model = quoted(&json!(name).to_string());
    let body = format!(
        r#"{{"model": {model}, "messages": [{{"role": "user", "content": "Hello!"}}], "max_tokens": 50}}"#
    );
    format!(
        "\n  {name} is ready on {shards} shard{plural}\n\n  \
         Web page  {url}/ui\n  API       {url}/v1\n  API docs  {url}/docs\n\n  \
         curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'\n"
    )
}

/// Text for a place between single quotes of a shell.
fn quoted(text: &str) -> String {
    text.replace('\'', r"'\''")
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
        let curl = "curl http://127.0.0.1:3000/v1/chat/completions -H 'Content-Type: application/json' \
                    -d '{\"model\": \"org/model\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \
                    \"max_tokens\": 50}'";
        let expected = [
            "org/model is ready on 2 shards",
            "Web page  http://127.0.0.1:3000/ui",
            "API       http://127.0.0.1:3000/v1",
            "API docs  http://127.0.0.1:3000/docs",
            curl,
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn it_names_the_model_as_clients_do() {
        let name = |flags: &[&str]| {
            let args = Args::try_parse_from(["launcher"].iter().chain(flags)).unwrap();
            served_name(&args.model).to_owned()
        };
        assert_eq!(name(&["--model-id=/models/m"]), "/models/m");
        let named = ["--model-id=/models/m", "--served-model-name=,it's \"m\",n"];
        assert_eq!(name(&named), "it's \"m\"");
        let shown = text("it's \"m\"", 1, "http://127.0.0.1:1", false);
        let body = r#"-d '{"model": "it'\''s \"m\"", "#;
        assert!(shown.contains(body), "{shown}");
    }

    #[test]
    fn the_key_is_named_and_not_shown() {
        assert!(
            text("m", 1, "http://127.0.0.1:1", true)
                .contains(r#" -H "Authorization: Bearer $API_KEY" -d "#)
        );
    }
}
