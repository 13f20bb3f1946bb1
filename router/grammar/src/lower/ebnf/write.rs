//! Writes rules of EBNF as Lark.
//!
//! In Lark a text is first cut into terminals, the longest ones, where EBNF knows characters only. A rule that does not
//! contain itself is therefore written as one terminal, which is exact. Where rules contain themselves the terminals
//! between them are the longest that fit.

use std::collections::{HashMap, HashSet};

use super::Node;
use crate::text::literal;

pub(super) fn write(rules: &[(String, Node)]) -> Result<String, String> {
    let numbers: HashMap<&str, usize> = rules
        .iter()
        .enumerate()
        .map(|(number, (name, _))| (name.as_str(), number))
        .collect();
    let Some(&root) = numbers.get("root") else {
        return Err("there is no rule `root`, where a text begins".to_owned());
    };
    for (name, node) in rules {
        if let Some(missing) = references(node)
            .into_iter()
            .find(|name| !numbers.contains_key(name))
        {
            return Err(format!(
                "rule `{name}` uses `{missing}`, which is not there"
            ));
        }
    }
    let writer = Writer {
        regular: regular(rules),
        nullable: nullable(rules),
        numbers,
    };
    let mut text = format!("start: {}\n", writer.reference(root));
    for (number, (_, node)) in rules.iter().enumerate() {
        text.push_str(&writer.rule(number, node));
    }
    Ok(text)
}

struct Writer<'a> {
    numbers: HashMap<&'a str, usize>,
    /// Rules that do not contain themselves, nor special tokens.
    regular: HashSet<usize>,
    /// Rules that the empty text matches.
    nullable: HashSet<usize>,
}

impl Writer<'_> {
    fn rule(&self, number: usize, node: &Node) -> String {
        if !self.regular.contains(&number) {
            return format!("r{number}: {}\n", self.node(node, false));
        }
        let body = self.node(node, true);
        if self.nullable.contains(&number) {
            // No terminal may be empty, so where it is used in a rule it is optional instead.
            return format!("F{number}: {body}\nR{number}: F{number} & /(?s:.)+/\n");
        }
        format!("R{number}: {body}\n")
    }

    /// A rule as rules that are not terminals name it.
    fn reference(&self, number: usize) -> String {
        match (
            self.regular.contains(&number),
            self.nullable.contains(&number),
        ) {
            (true, true) => format!("R{number}?"),
            (true, false) => format!("R{number}"),
            (false, _) => format!("r{number}"),
        }
    }

    fn node(&self, node: &Node, terminal: bool) -> String {
        let all = |nodes: &[Node]| -> Vec<String> {
            nodes.iter().map(|node| self.node(node, terminal)).collect()
        };
        match node {
            Node::Literal(text) => literal(text),
            Node::Class { negated, ranges } => class(*negated, ranges),
            Node::Special(name) => name.clone(),
            Node::Rule(name) => match self.numbers.get(name.as_str()) {
                Some(number) if terminal && self.nullable.contains(number) => format!("F{number}"),
                Some(number) if terminal => format!("R{number}"),
                Some(&number) => format!("({})", self.reference(number)),
                None => String::new(),
            },
            Node::Sequence(nodes) if nodes.is_empty() => "\"\"".to_owned(),
            Node::Sequence(nodes) => format!("({})", all(nodes).join(" ")),
            Node::Choice(nodes) => format!("({})", all(nodes).join(" | ")),
            Node::Repeat { node, least, most } => {
                let node = self.node(node, terminal);
                match (least, most) {
                    (0, None) => format!("({node})*"),
                    (1, None) => format!("{node}+"),
                    (least, None) => format!("({node}){{{least},}}"),
                    (0, Some(1)) => format!("({node})?"),
                    (least, Some(most)) => format!("({node}){{{least},{most}}}"),
                }
            }
        }
    }
}

fn class(negated: bool, ranges: &[(char, char)]) -> String {
    let code = |character: char| format!("\\x{{{:x}}}", character as u32);
    let ranges: Vec<String> = ranges
        .iter()
        .map(|&(first, last)| match first == last {
            true => code(first),
            false => format!("{}-{}", code(first), code(last)),
        })
        .collect();
    match (negated, ranges.is_empty()) {
        (true, true) => class(false, &[('\0', char::MAX)]),
        (true, false) => format!("/[^{}]/", ranges.concat()),
        (false, _) => format!("/[{}]/", ranges.concat()),
    }
}

fn references(node: &Node) -> Vec<&str> {
    match node {
        Node::Rule(name) => vec![name],
        Node::Sequence(nodes) | Node::Choice(nodes) => nodes.iter().flat_map(references).collect(),
        Node::Repeat { node, .. } => references(node),
        Node::Literal(_) | Node::Class { .. } | Node::Special(_) => Vec::new(),
    }
}

fn has_special(node: &Node) -> bool {
    match node {
        Node::Special(_) => true,
        Node::Sequence(nodes) | Node::Choice(nodes) => nodes.iter().any(has_special),
        Node::Repeat { node, .. } => has_special(node),
        Node::Literal(_) | Node::Class { .. } | Node::Rule(_) => false,
    }
}

/// Rules of which everything that they use is already known to be regular, until there are no more.
fn regular(rules: &[(String, Node)]) -> HashSet<usize> {
    grow(rules, |node, known| {
        !has_special(node) && references(node).iter().all(|name| known.contains(name))
    })
}

fn nullable(rules: &[(String, Node)]) -> HashSet<usize> {
    grow(rules, is_empty)
}

/// Whether the empty text matches, given the rules that it is known to match.
fn is_empty(node: &Node, known: &HashSet<&str>) -> bool {
    match node {
        Node::Literal(text) => text.is_empty(),
        Node::Class { .. } | Node::Special(_) => false,
        Node::Rule(name) => known.contains(name.as_str()),
        Node::Sequence(nodes) => nodes.iter().all(|node| is_empty(node, known)),
        Node::Choice(nodes) => nodes.iter().any(|node| is_empty(node, known)),
        Node::Repeat { node, least, .. } => *least == 0 || is_empty(node, known),
    }
}

/// The smallest set of rules that has every rule for which `belongs` holds, given the set.
fn grow(
    rules: &[(String, Node)],
    belongs: impl Fn(&Node, &HashSet<&str>) -> bool,
) -> HashSet<usize> {
    let (mut known, mut numbers) = (HashSet::new(), HashSet::new());
    loop {
        let before = known.len();
        for (number, (name, node)) in rules.iter().enumerate() {
            if !numbers.contains(&number) && belongs(node, &known) {
                known.insert(name.as_str());
                numbers.insert(number);
            }
        }
        if known.len() == before {
            return numbers;
        }
    }
}
