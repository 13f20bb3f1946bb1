//! Choice of the environment variable that counts for a flag.

use std::ffi::{OsStr, OsString};

/// What variables mean to one command beyond being the flags of the same name.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// Further variables for some flags.
    pub stand_ins: &'static [StandIn],
    /// Variables whose empty value is a mistake that must not pass for one that is not set.
    pub never_empty: &'static [&'static str],
    /// Values that others' images set, which mean nothing here.
    pub foreign: &'static [ForeignValues],
}

/// A variable that stands in for the one that a flag is named after.
#[derive(Debug, Clone, Copy)]
pub struct StandIn {
    /// The variable that is named like the flag.
    pub own: &'static str,
    pub variable: &'static str,
    /// Whether it counts also where the flag's own variable is set.
    pub wins: bool,
}

/// Values of a variable that are ignored.
#[derive(Debug, Clone, Copy)]
pub struct ForeignValues {
    pub variable: &'static str,
    pub values: &'static [&'static str],
    /// What the values are, as the warning says it.
    pub reason: &'static str,
}

/// What becomes of the variable of a flag.
#[derive(Debug, PartialEq, Eq)]
pub enum Counts {
    Own,
    Another(&'static str),
    /// It is as if it were not set. The warning, where the value was meant for something.
    Nothing(Option<String>),
}

impl Rules {
    /// Which variable counts for the flag whose own is `own`, with the values that `lookup` gives.
    pub fn judge(&self, own: &str, lookup: impl Fn(&str) -> Option<OsString>) -> Counts {
        let is_set = |name: &str| lookup(name).is_some_and(|value| !is_blank(&value));
        let stand_in = self
            .stand_ins
            .iter()
            .find(|other| other.own == own && is_set(other.variable));
        if let Some(other) = stand_in
            && (other.wins || !is_set(own))
        {
            return Counts::Another(other.variable);
        }
        let Some(value) = lookup(own) else {
            return Counts::Own;
        };
        if is_blank(&value) && !self.never_empty.contains(&own) {
            return Counts::Nothing(None);
        }
        let text = value.to_string_lossy();
        if is_service_link(own, &text) {
            return Counts::Nothing(Some(format!(
                "{own}={text} is ignored: Kubernetes sets it for a service of that name. Give the flag, or set \
                 `enableServiceLinks: false` in the pod"
            )));
        }
        let foreign = self.foreign.iter().find(|foreign| {
            let known = |value: &&str| value.eq_ignore_ascii_case(text.trim());
            foreign.variable == own && foreign.values.iter().any(known)
        });
        match foreign {
            Some(ForeignValues { reason, .. }) => {
                Counts::Nothing(Some(format!("{own}={text} is ignored: {reason}")))
            }
            None => Counts::Own,
        }
    }
}

fn is_blank(value: &OsStr) -> bool {
    value.to_string_lossy().trim().is_empty()
}

/// Whether Kubernetes, or a link of Docker, has set a variable to the address of a service: `REDIS_PORT=tcp://10.0.0.9:6379`.
pub fn is_service_link(name: &str, value: &str) -> bool {
    let is_port = name == "PORT" || name.ends_with("_PORT");
    let scheme = value.split_once("://").map(|(scheme, _)| scheme);
    is_port && matches!(scheme, Some("tcp" | "udp" | "sctp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        stand_ins: &[
            StandIn {
                own: "MODEL_ID",
                variable: "HF_MODEL_ID",
                wins: true,
            },
            StandIn {
                own: "API_KEY",
                variable: "OTHER_API_KEY",
                wins: false,
            },
        ],
        never_empty: &["API_KEY"],
        foreign: &[ForeignValues {
            variable: "ATTENTION",
            values: &["paged"],
            reason: "it is another's",
        }],
    };

    fn judge(own: &str, env: &[(&str, &str)]) -> Counts {
        RULES.judge(own, |name| {
            let found = env.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn what_is_set_to_nothing_is_not_set() {
        assert_eq!(judge("DTYPE", &[]), Counts::Own);
        assert_eq!(judge("DTYPE", &[("DTYPE", "x")]), Counts::Own);
        assert_eq!(judge("DTYPE", &[("DTYPE", " ")]), Counts::Nothing(None));
        assert_eq!(judge("API_KEY", &[("API_KEY", "")]), Counts::Own);
    }

    #[test]
    fn services_and_values_of_others_are_ignored_with_a_warning() {
        let said = |own, value| match judge(own, &[(own, value)]) {
            Counts::Nothing(warning) => warning.unwrap_or_default(),
            _ => String::new(),
        };
        for name in ["PORT", "PROMETHEUS_PORT", "A_SERVICE_PORT"] {
            let warning = said(name, "tcp://10.0.0.9:80");
            assert!(
                warning.contains(name) && warning.contains("enableServiceLinks"),
                "{warning}"
            );
        }
        assert_eq!(judge("PORT", &[("PORT", "80")]), Counts::Own);
        let collector = ("OTLP_ENDPOINT", "tcp://10.0.0.9:80");
        assert_eq!(judge("OTLP_ENDPOINT", &[collector]), Counts::Own);
        assert!(said("ATTENTION", "Paged").contains("it is another's"));
        assert_eq!(judge("ATTENTION", &[("ATTENTION", "torch")]), Counts::Own);
    }

    #[test]
    fn other_variables_count_where_they_are_set() {
        let both = [("MODEL_ID", "a"), ("HF_MODEL_ID", "b")];
        assert_eq!(judge("MODEL_ID", &both), Counts::Another("HF_MODEL_ID"));
        let empty = [("MODEL_ID", "a"), ("HF_MODEL_ID", "")];
        assert_eq!(judge("MODEL_ID", &empty), Counts::Own);
        let other = ("OTHER_API_KEY", "k");
        assert_eq!(judge("API_KEY", &[other]), Counts::Another(other.0));
        assert_eq!(judge("API_KEY", &[("API_KEY", "a"), other]), Counts::Own);
    }
}
