//! The playground at `/ui`: what is served, to whom, what its files may not hold, and who is led to it.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;

use std::path::Path;

use common::{Server, answer, header};
use reqwest::redirect::Policy;

/// Libraries of others with their licences; what they may do is up to the policy.
fn is_ours(name: &str) -> bool {
    !name.starts_with("libraries.")
}

/// Every file in the folder of the page, with its text.
fn sources() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
    let entries = std::fs::read_dir(folder).expect("the folder of the page");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        let text = std::fs::read_to_string(&path).expect("text");
        (name.into_owned(), text)
    };
    entries.map(read).collect()
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "text/javascript; charset=utf-8",
    }
}

#[tokio::test]
async fn the_page_and_its_files_are_open_and_may_load_nothing_else() {
    for flags in [&[][..], &["--api-key=Secret"]] {
        let server = Server::with_flags(flags).await;
        let sources = sources();
        assert!(sources.iter().any(|(name, _)| name == "index.html"));
        for (name, text) in &sources {
            let path = match name.as_str() {
                "index.html" => "/ui".to_owned(),
                name => format!("/ui/{name}"),
            };
            let response = server.get(&path).send().await.expect("an answer");
            assert_eq!(response.status(), 200, "{path}");
            assert_eq!(header(&response, "content-type"), content_type(name));
            assert_eq!(header(&response, "x-content-type-options"), "nosniff");
            let policy = header(&response, "content-security-policy").to_owned();
            for directive in policy.split("; ") {
                let (name, sources) = directive.split_once(' ').expect("a directive");
                let closed = matches!(sources, "'none'" | "'self'");
                assert!(
                    closed || name == "require-trusted-types-for",
                    "{directive:?}"
                );
            }
            for needed in [
                "default-src 'none'",
                "script-src 'self'",
                "trusted-types 'none'",
            ] {
                assert!(policy.contains(needed), "{policy}");
            }
            let body = response.text().await.expect("text");
            assert_eq!(&body, text, "{path}");
            assert!(
                !body.contains("test/model"),
                "{path} tells about this server"
            );
        }
    }
}

/// Half a megabyte is not loaded again with each visit.
#[tokio::test]
async fn what_a_browser_has_is_not_sent_again() {
    let server = Server::start().await;
    let mut tags = Vec::new();
    for path in ["/ui", "/ui/libraries.js", "/ui/app.js"] {
        let first = server.get(path).send().await.expect("an answer");
        assert_eq!(header(&first, "cache-control"), "no-cache");
        let tag = header(&first, "etag").to_owned();
        for (known, status) in [
            (tag.clone(), 304),
            (format!("W/{tag}"), 304),
            ("\"0\"".to_owned(), 200),
        ] {
            let request = server.get(path).header("if-none-match", known);
            let again = request.send().await.expect("an answer");
            assert_eq!(again.status(), status, "{path}");
            assert_eq!(header(&again, "etag"), tag);
            assert!(!header(&again, "content-security-policy").is_empty());
        }
        tags.push(tag);
    }
    tags.dedup();
    assert_eq!(tags.len(), 3);
}

#[tokio::test]
async fn browsers_are_led_from_the_root_to_the_page_and_other_clients_are_not() {
    let server = Server::with_flags(&["--api-key=Secret"]).await;
    let client = reqwest::Client::builder().redirect(Policy::none()).build();
    let client = client.expect("a client");
    for (accept, status) in [
        (
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            303,
        ),
        ("application/xml;q=0.9, Text/HTML;level=1;q=0.5", 303),
        ("text/html;q=0, */*", 200),
        ("*/*", 200),
        ("application/json", 200),
        ("text/htmlx", 200),
        ("", 200),
    ] {
        let request = client.get(&server.url).header("accept", accept);
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), status, "{accept:?}");
        let location = if status == 303 { "ui" } else { "" };
        assert_eq!(header(&response, "location"), location, "{accept:?}");
    }
    let request = server.get("/").header("accept", "text/html");
    let followed = request.send().await.expect("an answer");
    assert_eq!(followed.url().path(), "/ui");
    assert_eq!(followed.status(), 200);
}

#[tokio::test]
async fn a_slash_leads_back_and_other_names_are_not_found() {
    let server = Server::with_flags(&["--api-key=Secret"]).await;
    let client = reqwest::Client::builder().redirect(Policy::none()).build();
    let url = format!("{}/ui/", server.url);
    let request = client.expect("a client").get(url);
    let response = request.send().await.expect("an answer");
    assert_eq!(response.status(), 308);
    assert_eq!(header(&response, "location"), "../ui");
    let followed = server.get("/ui/").send().await.expect("an answer");
    assert_eq!(followed.url().path(), "/ui");
    assert_eq!(followed.status(), 200);
    for path in [
        "/ui/index.html",
        "/ui/nope.js",
        "/ui/..%2finfo",
        "/ui/%ff.js",
    ] {
        let (status, body) = answer(server.get(path).send().await.expect("an answer")).await;
        assert_eq!((status, &body["error_type"]), (404, &"not_found".into()));
    }
    let deeper = server.get("/ui/a/b").send().await.expect("an answer");
    assert_eq!(deeper.status(), 401, "not a file of the page");
}

#[test]
fn the_files_name_nothing_outside_and_make_no_markup_of_text() {
    for (name, text) in sources().into_iter().filter(|(name, _)| is_ours(name)) {
        for forbidden in [
            "http:",
            "https:",
            "//",
            "@import",
            "url(",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "DOMParser",
            "createContextualFragment",
            "eval(",
            "new Function",
            "document.cookie",
            "indexedDB",
            " style=",
            " onclick=",
            "<script>",
            "<style>",
        ] {
            assert!(!text.contains(forbidden), "{name} holds {forbidden:?}");
        }
    }
}

/// What the policy would refuse anyhow is not there to be tried; keywords of languages are.
#[test]
fn the_libraries_load_nothing_and_run_no_text() {
    let style = ["@import", "url(", "@font-face"].as_slice();
    let script = [
        "import(",
        "new Worker",
        "XMLHttpRequest(",
        "sendBeacon(",
        "localStorage.",
        "sessionStorage.",
        "document.cookie",
        "eval(",
        "new Function(",
    ]
    .as_slice();
    for (name, text) in sources().into_iter().filter(|(name, _)| !is_ours(name)) {
        let is_style = content_type(&name).starts_with("text/css");
        for &forbidden in if is_style { style } else { script } {
            assert!(!text.contains(forbidden), "{name} holds {forbidden:?}");
        }
    }
}

/// Whoever has the binary has the licences of what is in it.
#[test]
fn the_licences_of_the_libraries_are_there() {
    let sources = sources();
    let text = |wanted: &str| {
        let found = sources.iter().find(|(name, _)| name == wanted);
        found.map(|(_, text)| text.as_str()).expect("the file")
    };
    let licences = text("libraries.txt");
    for library in ["highlight.js ", "lowlight ", "markdown-it ", "temml "] {
        assert!(licences.contains(&format!("\n{library}")), "{library}");
    }
    assert!(licences.matches("Copyright").count() >= 4);
    assert!(text("index.html").contains("href=\"ui/libraries.txt\""));
}

/// What outlives the tab is written by two files, which the API key never reaches.
#[test]
fn only_conversations_and_the_theme_outlive_the_tab() {
    let taken = |text: &str| text.matches("import ").count();
    for (name, text) in sources().into_iter().filter(|(name, _)| is_ours(name)) {
        if text.contains("localStorage") {
            assert!(["store.js", "theme.js"].contains(&name.as_str()), "{name}");
            let content = text.matches("from \"./content.js\"").count();
            assert_eq!(taken(&text), content, "{name} takes from other files");
        }
        if name == "content.js" {
            assert_eq!(taken(&text), 0, "{name} takes from other files");
        }
    }
}

#[test]
fn every_file_is_used_and_every_used_file_is_there() {
    let sources = sources();
    let (_, page) = sources
        .iter()
        .find(|(name, _)| name == "index.html")
        .expect("the page");
    let quoted = |text: &str, start: &str| -> Vec<String> {
        let ends = text.split(start).skip(1);
        ends.filter_map(|rest| rest.split('"').next())
            .map(str::to_owned)
            .collect()
    };
    let mut used = vec!["index.html".to_owned()];
    used.extend(quoted(page, "href=\"ui/"));
    used.extend(quoted(page, "src=\"ui/"));
    for (_, text) in &sources {
        used.extend(quoted(text, "from \"./"));
    }
    used.sort();
    used.dedup();
    let mut names: Vec<String> = sources.into_iter().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(used, names);
}
