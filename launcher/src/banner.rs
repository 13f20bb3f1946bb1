//! What a person sees when the server is up.

use std::net::SocketAddr;

use crate::logs::Console;

/// Prints addresses and a first request to paste; in JSON mode one log record says the same.
pub fn show(console: &Console, model_id: &str, shards: usize, address: SocketAddr, with_key: bool) {
    let url = format!("http://{address}");
    if console.is_json() {
        tracing::info!(
            model_id,
            shards,
            url,
            docs = format!("{url}/docs"),
            "Server ready"
        );
    } else {
        console.print(text(model_id, shards, &url, with_key));
    }
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
    use super::*;

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
