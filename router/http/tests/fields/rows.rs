//! The tables of `docs/fields.md`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

#[derive(Debug)]
pub struct Row {
    pub route: String,
    pub field: String,
    pub becomes: String,
    /// None where the table leads to another page.
    pub example: Option<Value>,
}

/// The rows of all tables, with one field each.
pub fn rows() -> Vec<Row> {
    let page = include_str!("../../../../docs/fields.md");
    let (mut route, mut rows) = (String::new(), Vec::new());
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## `POST ") {
            route = heading.trim_end_matches('`').to_owned();
        }
        let Some(cells) = line.strip_prefix("| `") else {
            continue;
        };
        let mut cells = cells.split(" | ");
        let mut cell = || cells.next().unwrap_or_default().trim();
        let (fields, becomes, example) = (cell(), cell().to_owned(), cell());
        let example = example
            .strip_prefix('`')
            .and_then(|text| text.strip_suffix('`'));
        let example = example.map(|text| serde_json::from_str(text).expect(text));
        rows.extend(fields.split(',').map(|field| Row {
            route: route.clone(),
            field: field.trim().trim_matches('`').to_owned(),
            becomes: becomes.clone(),
            example: example.clone(),
        }));
    }
    rows
}

/// What the tables say without a row: on each route, of every field that only other routes have.
pub fn implied(rows: &[Row]) -> Vec<Row> {
    let routes: BTreeSet<&str> = rows.iter().map(|row| row.route.as_str()).collect();
    let mut fields: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        fields.entry(&row.field).or_default().push(row);
    }
    let mut implied = Vec::new();
    for (field, known) in fields {
        let ignored = known.iter().any(|row| row.becomes == "ignored");
        let example = known.iter().find_map(|row| row.example.clone());
        let others = routes
            .iter()
            .filter(|route| known.iter().all(|row| row.route != **route));
        implied.extend(others.map(|route| Row {
            route: (*route).to_owned(),
            field: field.to_owned(),
            becomes: if ignored { "ignored" } else { "refused" }.to_owned(),
            example: Some(example.clone().unwrap_or(json!(1))),
        }));
    }
    implied
}
