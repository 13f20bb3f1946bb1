//! What is known of a field that some API has: what it may hold where a route does not read it, and what to send there
//! instead.

use std::fmt;

use super::takes::Takes;

/// Fields of one meaning.
#[derive(Debug)]
pub struct Known {
    names: &'static [&'static str],
    pub takes: Takes,
    /// Paths of fields that mean the same: the first that a route reads is its own.
    instead: &'static [&'static str],
    /// A route that has it, where none of these is.
    pub elsewhere: Option<Elsewhere>,
    /// What to do where there is no such field.
    pub advice: &'static str,
    /// Whether a route that reads one of the names reads all of them: their values have one form.
    one_field: bool,
}

/// A name as it was sent, and that by which the object reads it.
#[derive(Debug, Clone, Copy)]
pub struct Name {
    pub sent: &'static str,
    pub read: &'static str,
}

/// A field of another route.
#[derive(Debug)]
pub struct Elsewhere {
    route: &'static str,
    /// None where it has the same name there.
    field: Option<&'static str>,
}

impl Elsewhere {
    /// What is said of the field `key`.
    pub fn of(&self, key: &str) -> impl fmt::Display + use<> {
        let route = self.route;
        match self.field {
            Some(field) if field != key => {
                format!("this route does not have it; `{route}` does, as `{field}`")
            }
            _ => format!("this route does not have it; `{route}` does"),
        }
    }
}

impl Known {
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    pub fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }

    /// What an object that reads `fields` has in its place.
    pub fn instead(&self, fields: &[&str]) -> Option<&'static str> {
        let read = |path: &&str| fields.contains(&path.split('.').next().unwrap_or_default());
        self.instead.iter().copied().find(read)
    }

    /// The name `key`, where an object that reads `fields` reads any of the names.
    pub fn name_of(&self, key: &str, fields: &[&str]) -> Option<Name> {
        if !self.one_field {
            return None;
        }
        let sent = self.names.iter().copied().find(|name| *name == key)?;
        let read = match fields.contains(&sent) {
            true => sent,
            false => self
                .instead(fields)
                .filter(|name| self.names.contains(name))?,
        };
        Some(Name { sent, read })
    }

    /// `route` has it.
    pub const fn on(self, route: &'static str) -> Self {
        let elsewhere = Some(Elsewhere { route, field: None });
        Self { elsewhere, ..self }
    }

    /// `route` has it as `field`.
    pub const fn on_as(self, route: &'static str, field: &'static str) -> Self {
        let field = Some(field);
        let elsewhere = Some(Elsewhere { route, field });
        Self { elsewhere, ..self }
    }

    /// How a refusal goes on that has nothing to send instead.
    pub const fn advised(self, advice: &'static str) -> Self {
        Self { advice, ..self }
    }
}

pub const fn known(
    names: &'static [&'static str],
    takes: Takes,
    instead: &'static [&'static str],
) -> Known {
    Known {
        names,
        takes,
        instead,
        elsewhere: None,
        advice: "",
        one_field: false,
    }
}

/// Names of one field, of which every route that reads one reads all.
pub const fn one_field(
    names: &'static [&'static str],
    takes: Takes,
    instead: &'static [&'static str],
) -> Known {
    Known {
        one_field: true,
        ..known(names, takes, instead)
    }
}
