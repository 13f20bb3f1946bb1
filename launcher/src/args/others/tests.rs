use clap::CommandFactory;

use super::*;
use crate::args::Args;

const PAGE: &str = include_str!("../../../../docs/coming-from-vllm.md");

/// The cells of the rows of the table of flags.
fn rows() -> Vec<Vec<&'static str>> {
    let table = PAGE.split("## Environment").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `-"));
    rows.map(|row| row.split('|').map(str::trim).collect())
        .collect()
}

#[test]
fn the_page_says_of_every_flag_what_the_launcher_does() {
    let mut rows = rows();
    for (names, answer) in all() {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let found = rows.iter().position(|cells| cells[1] == names.join(", "));
        let cells = rows.remove(found.unwrap_or_else(|| panic!("no row for {names:?}")));
        let here = match answer {
            Answer::Alias(ours) | Answer::List(ours) => format!("`{ours}`"),
            Answer::Switch { on, .. } => format!("`{}`", on.join(" ")),
            Answer::Needless(_) => "no effect".to_owned(),
            Answer::Instead(_) => "refused".to_owned(),
        };
        assert_eq!(cells[2], here, "{names:?}");
    }
    assert!(rows.is_empty(), "{rows:?}");
}

#[test]
fn no_flag_of_ours_is_taken_for_one_of_others() {
    let command = Args::command();
    let ours: Vec<String> = command
        .get_arguments()
        .filter_map(|arg| Some(format!("--{}", arg.get_long()?)))
        .collect();
    for (names, answer) in all() {
        assert!(
            names.iter().all(|name| !ours.iter().any(|own| own == name)),
            "{names:?}"
        );
        let targets: Vec<&str> = match answer {
            Answer::Alias(target) | Answer::List(target) => vec![target],
            Answer::Switch { on, off } => on.iter().chain(off).copied().collect(),
            _ => Vec::new(),
        };
        for target in targets {
            let flag = target.split('=').next().unwrap();
            assert!(ours.iter().any(|own| own == flag), "{target}");
        }
    }
}
