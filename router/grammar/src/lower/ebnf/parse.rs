//! Reads EBNF.

use super::Node;
use crate::lower::lark::{NESTING, RULES, too_many_rules};

/// The rules in order.
pub(super) fn parse(text: &str) -> Result<Vec<(String, Node)>, String> {
    let mut parser = Parser {
        text,
        at: 0,
        depth: 0,
    };
    let mut rules: Vec<(String, Node)> = Vec::new();
    parser.skip(true);
    while parser.at < text.len() {
        let name = parser
            .name()
            .ok_or_else(|| parser.wrong("a rule `name ::= ...` was expected"))?;
        parser.skip(true);
        if !parser.take("::=") {
            return Err(parser.wrong("`::=` was expected after the name of a rule"));
        }
        parser.skip(true);
        let node = parser.choice()?;
        if rules.iter().any(|(other, _)| *other == name) {
            return Err(format!("rule `{name}` is there twice"));
        }
        rules.push((name, node));
        if rules.len() > RULES {
            return Err(too_many_rules());
        }
        // A semicolon after a rule is what some tools write.
        parser.take(";");
        parser.skip(true);
    }
    Ok(rules)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Brackets that are open: inside of them a line may end.
    depth: usize,
}

impl Parser<'_> {
    fn choice(&mut self) -> Result<Node, String> {
        let mut options = vec![self.sequence()?];
        while self.take("|") {
            self.skip(true);
            options.push(self.sequence()?);
        }
        Ok(match options.len() {
            1 => options.swap_remove(0),
            _ => Node::Choice(options),
        })
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut items = Vec::new();
        while let Some(item) = self.item()? {
            let item = self.repeated(item)?;
            items.push(item);
            self.skip(self.depth > 0);
        }
        Ok(match items.len() {
            1 => items.swap_remove(0),
            _ => Node::Sequence(items),
        })
    }

    fn item(&mut self) -> Result<Option<Node>, String> {
        let Some(first) = self.peek() else {
            return Ok(None);
        };
        let node = match first {
            '"' | '\'' => Node::Literal(self.literal(first)?),
            '[' => self.class()?,
            '.' => {
                self.at += 1;
                Node::Class {
                    negated: false,
                    ranges: vec![('\0', char::MAX)],
                }
            }
            '<' => self.special()?,
            '(' => self.group()?,
            '/' | '!' | '&' | '~' | '@' | '%' => {
                return Err(self.wrong(&format!(
                    "`{first}` is not part of EBNF; give the grammar in Lark"
                )));
            }
            _ if self.starts_rule() => return Ok(None),
            _ => match self.name() {
                Some(name) => Node::Rule(name),
                None => return Ok(None),
            },
        };
        Ok(Some(node))
    }

    fn group(&mut self) -> Result<Node, String> {
        self.at += 1;
        self.depth += 1;
        if self.depth > NESTING {
            return Err(format!("brackets are nested more than {NESTING} deep"));
        }
        self.skip(true);
        if self.peek() == Some('=') {
            return Err(self.wrong("look-ahead `(= ...)` is not supported"));
        }
        let node = self.choice()?;
        self.skip(true);
        if !self.take(")") {
            return Err(self.wrong("`)` was expected"));
        }
        self.depth -= 1;
        Ok(node)
    }

    /// `*`, `+`, `?` and `{least,most}` after an item.
    fn repeated(&mut self, mut node: Node) -> Result<Node, String> {
        for _ in 0..NESTING {
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    node = self.counted(node)?;
                    continue;
                }
                _ => return Ok(node),
            };
            self.at += 1;
            node = Node::Repeat {
                node: Box::new(node),
                least,
                most,
            };
        }
        Err(self.wrong(&format!("more than {NESTING} repetitions of one item")))
    }

    fn counted(&mut self, node: Node) -> Result<Node, String> {
        let body = self.text[self.at..]
            .find('}')
            .map(|end| &self.text[self.at + 1..self.at + end]);
        let bounds = body.and_then(|body| {
            let (least, most) = match body.split_once(',') {
                None => (body, Some(body)),
                Some((least, most)) if most.trim().is_empty() => (least, None),
                Some((least, most)) => (least, Some(most)),
            };
            let most = most.map(|most| most.trim().parse()).transpose().ok()?;
            Some((least.trim().parse().ok()?, most))
        });
        let (Some(body), Some((least, most))) = (body, bounds) else {
            return Err(self.wrong("a count such as {3}, {2,} or {2,5} was expected"));
        };
        self.at += body.len() + 2;
        Ok(Node::Repeat {
            node: Box::new(node),
            least,
            most,
        })
    }

    fn literal(&mut self, quote: char) -> Result<String, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.character()? {
                (character, false) if character == quote => return Ok(text),
                (character, _) => text.push(character),
            }
        }
    }

    fn class(&mut self) -> Result<Node, String> {
        self.at += 1;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            let first = match self.character()? {
                (']', false) => break,
                (first, _) => first,
            };
            let mut last = first;
            if self.text[self.at..].starts_with('-') && !self.text[self.at..].starts_with("-]") {
                self.at += 1;
                last = self.character()?.0;
            }
            if last < first {
                return Err(self.wrong("the range of characters ends before it begins"));
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() && !negated {
            return Err(self.wrong("a class without characters"));
        }
        Ok(Node::Class { negated, ranges })
    }

    fn special(&mut self) -> Result<Node, String> {
        let rest = &self.text[self.at..];
        let Some(end) = rest.find('>') else {
            return Err(self.wrong("`>` is missing after the name of a special token"));
        };
        self.at += end + 1;
        Ok(Node::Special(rest[..=end].to_owned()))
    }

    /// The next character of a literal or class, and whether it was escaped.
    fn character(&mut self) -> Result<(char, bool), String> {
        let Some(first) = self.peek().filter(|&first| first != '\n') else {
            return Err(self.wrong("a literal or class has no end on its line"));
        };
        self.at += first.len_utf8();
        if first != '\\' {
            return Ok((first, false));
        }
        let Some(kind) = self.peek() else {
            return Err(self.wrong("a character was expected after `\\`"));
        };
        self.at += kind.len_utf8();
        let digits = match kind {
            'n' => return Ok(('\n', true)),
            't' => return Ok(('\t', true)),
            'r' => return Ok(('\r', true)),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other if other.is_ascii_alphanumeric() => {
                return Err(self.wrong(&format!("`\\{other}` is not an escape of EBNF")));
            }
            other => return Ok((other, true)),
        };
        let code = self.text.get(self.at..self.at + digits);
        let character = code.and_then(|code| char::from_u32(u32::from_str_radix(code, 16).ok()?));
        let Some(character) = character else {
            return Err(self.wrong("the escape is not a character"));
        };
        self.at += digits;
        Ok((character, true))
    }

    fn name(&mut self) -> Option<String> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        let name = &rest[..end.unwrap_or(rest.len())];
        self.at += name.len();
        (!name.is_empty()).then(|| name.to_owned())
    }

    /// Whether the next rule begins here, which ends the one before wherever its line ended.
    fn starts_rule(&mut self) -> bool {
        let at = self.at;
        let named = self.name().is_some();
        self.skip(true);
        let starts = named && self.text[self.at..].starts_with("::=");
        self.at = at;
        starts
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.text[self.at..].starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    /// Over spaces and comments, and over the ends of lines if `lines`.
    fn skip(&mut self, lines: bool) {
        while let Some(next) = self.peek() {
            match next {
                '#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find('\n').unwrap_or(rest.len());
                }
                '\n' if !lines => match self.continued() {
                    Some(at) => self.at = at,
                    None => return,
                },
                _ if next.is_whitespace() => self.at += next.len_utf8(),
                _ => return,
            }
        }
    }

    /// Where a line after this end of a line goes on with the rule: at `|`.
    fn continued(&self) -> Option<usize> {
        let rest = self.text[self.at..].trim_start();
        rest.starts_with('|').then(|| self.text.len() - rest.len())
    }

    fn wrong(&self, reason: &str) -> String {
        let before = &self.text[..self.at.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        format!("line {line}, column {column}: {reason}")
    }
}
