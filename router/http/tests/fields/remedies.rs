//! A refusal names what would be obeyed: another field of the route, or another route.

use crate::probe::Probe;
use crate::rows::{Row, implied, rows};

/// The text between `before` and the next backtick.
fn after<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split('`').next()
}

/// What the tables say of a field, which `path` may lead into.
fn row<'a>(rows: &'a [Row], route: &str, path: &str) -> Option<&'a Row> {
    let (route, path) = match path.strip_prefix("parameters.") {
        Some(path) if route == "/" => ("/generate", path),
        _ => (route, path),
    };
    let field = path.split('.').next().unwrap_or_default();
    rows.iter()
        .find(|row| row.route == route && row.field == field && row.becomes == "obeyed")
}

/// Whether the answer names a remedy; fails where that is not one.
async fn remedy(probe: &Probe, rows: &[Row], refused: &Row) -> bool {
    let Some(example) = refused.example.clone() else {
        return false;
    };
    let (_, answer, _) = probe.send_field(refused, example.clone()).await;
    let said = answer.to_string();
    if let Some(instead) = after(&said, "supported here: send `") {
        let row = row(rows, &refused.route, instead);
        assert!(row.is_some(), "{refused:?}: {said}");
        return true;
    }
    let Some(route) = after(&said, "this route does not have it; `") else {
        return false;
    };
    let field = after(&said, " does, as `").unwrap_or(&refused.field);
    let there = row(rows, route, field);
    let there = there.unwrap_or_else(|| panic!("{refused:?}: {said}"));
    let value = match field == refused.field {
        true => example,
        false => there.example.clone().expect("an example"),
    };
    let (status, answer, _) = probe.send_field(there, value).await;
    assert_eq!(status, 200, "{refused:?}: {said}, but {answer}");
    true
}

#[tokio::test]
async fn what_a_refusal_names_is_obeyed() {
    let probe = Probe::start().await;
    let rows = rows();
    let implied = implied(&rows);
    let mut named = 0;
    for refused in rows.iter().chain(&implied) {
        if refused.becomes == "refused" && remedy(&probe, &rows, refused).await {
            named += 1;
        }
    }
    assert!(named > 100, "{named}");
}
