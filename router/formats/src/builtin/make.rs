//! Parts of declarations, in few words.

use crate::format::{
    Arguments, Call, Calls, Envelope, Format, Head, Ids, Layout, NameForm, Parameters, Reasoning,
    Section, Text, text,
};

pub(super) fn think() -> Reasoning {
    reasoning("<think>", "</think>")
}

pub(super) fn reasoning(open: impl Into<Text>, close: impl Into<Text>) -> Reasoning {
    Reasoning {
        open: open.into(),
        close: close.into(),
        ended_by_calls: false,
        others: &[],
    }
}

pub(super) fn section(open: impl Into<Text>, close: impl Into<Text>) -> Section {
    Section {
        open: open.into(),
        close: close.into(),
        at_start: false,
    }
}

/// A section without a marker.
pub(super) fn bare(open: &'static str, close: &'static str) -> Section {
    Section {
        at_start: true,
        ..section(open, close)
    }
}

pub(super) fn named(
    open: impl Into<Text>,
    end: impl Into<Text>,
    arguments: Arguments,
    close: impl Into<Text>,
) -> Call {
    Call {
        head: Head::Named {
            open: open.into(),
            end: end.into(),
            form: NameForm::Plain,
        },
        arguments,
        close: close.into(),
    }
}

/// A call with one element for each argument.
pub(super) fn element(
    parameters: Parameters,
    open: impl Into<Text>,
    end: impl Into<Text>,
    close: impl Into<Text>,
) -> Call {
    named(open, end, Arguments::Parameters(parameters), close)
}

/// Every section holds one call.
pub(super) fn one(sections: &[Section], call: Call) -> Layout {
    Layout::Calls(Calls {
        sections: sections.to_vec(),
        separator: text(""),
        several: false,
        call,
    })
}

pub(super) fn list(sections: &[Section], separator: &'static str, call: Call) -> Layout {
    Layout::Calls(Calls {
        sections: sections.to_vec(),
        separator: text(separator),
        several: true,
        call,
    })
}

pub(super) fn parameters(
    open: impl Into<Text>,
    key_end: impl Into<Text>,
    close: impl Into<Text>,
    padding: &'static str,
) -> Parameters {
    Parameters {
        open: open.into(),
        key_end: key_end.into(),
        close: close.into(),
        padding,
        separator: "",
        attribute: None,
        cdata: false,
    }
}

pub(super) fn format(
    name: &'static str,
    aliases: &'static [&'static str],
    layout: Layout,
) -> Format {
    Format {
        name: text(name),
        aliases,
        reasoning: None,
        envelope: None,
        layout,
        ids: Ids::Call,
        special: false,
    }
}

impl Call {
    pub(super) fn form(mut self, name_form: NameForm) -> Self {
        if let Head::Named { form, .. } = &mut self.head {
            *form = name_form;
        }
        self
    }

    /// Writes this between two elements.
    pub(super) fn spaced(mut self, between: &'static str) -> Self {
        if let Arguments::Parameters(parameters) = &mut self.arguments {
            parameters.separator = between;
        }
        self
    }
}

impl Reasoning {
    /// A call that begins inside the reasoning ends it.
    pub(super) fn or_calls(self) -> Self {
        Self {
            ended_by_calls: true,
            ..self
        }
    }
}

impl Format {
    pub(super) fn thinks(mut self, reasoning: Reasoning) -> Self {
        self.reasoning = Some(reasoning);
        self
    }

    pub(super) fn ids(mut self, ids: Ids) -> Self {
        self.ids = ids;
        self
    }

    pub(super) fn special(mut self) -> Self {
        self.special = true;
        self
    }

    pub(super) fn envelope(mut self, envelope: Envelope) -> Self {
        self.envelope = Some(envelope);
        self
    }
}

/// Content stands between these markers.
pub(super) fn between(open: &'static str, close: &'static str) -> Envelope {
    Envelope {
        open,
        close,
        before: &[],
        after: &[],
        header: None,
    }
}
