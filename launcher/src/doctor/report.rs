//! Findings as a person reads them, or as one JSON record a line.

use serde_json::json;

use super::{Finding, Status};

/// The whole report, ending with a line break. Without a model a start fails, whatever else was found.
pub fn text(findings: &[Finding], names_model: bool, as_json: bool) -> String {
    if as_json {
        return findings.iter().map(record).collect();
    }
    let (plans, found): (Vec<_>, Vec<_>) = findings
        .iter()
        .partition(|finding| finding.status == Status::Plan);
    let mut text = String::from("A start would\n");
    plans
        .iter()
        .for_each(|plan| text.push_str(&format!("  {}\n", plan.text)));
    text.push('\n');
    found
        .iter()
        .for_each(|finding| text.push_str(&line(finding)));
    text.push_str(&format!("\n{}\n", summary(findings, names_model)));
    text
}

fn record(finding: &Finding) -> String {
    let record = json!({
        "subject": finding.subject,
        "status": finding.status.name(),
        "text": finding.text,
        "remedy": finding.remedy,
    });
    format!("{record}\n")
}

fn line(finding: &Finding) -> String {
    let status = finding.status.name();
    let line = format!("{status:<8} {:<14} {}\n", finding.subject, finding.text);
    match &finding.remedy {
        Some(remedy) => format!("{line}{:24}-> {remedy}\n", ""),
        None => line,
    }
}

fn summary(findings: &[Finding], names_model: bool) -> String {
    let count = |status| {
        findings
            .iter()
            .filter(|finding| finding.status == status)
            .count()
    };
    let named = |count: usize, name: &str| match count {
        1 => format!("1 {name}"),
        _ => format!("{count} {name}s"),
    };
    match (count(Status::Error), count(Status::Warning)) {
        (0, _) if !names_model => {
            "A start needs a model, and none was named. Nothing else would keep it from working."
                .to_owned()
        }
        (0, 0) => "A start would work.".to_owned(),
        (0, warnings) => format!("A start would work, with {}.", named(warnings, "warning")),
        (errors, warnings) => format!(
            "A start would fail: {}, {}.",
            named(errors, "error"),
            named(warnings, "warning")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_with_its_remedy_and_counted() {
        let findings = [
            Finding::new("address", Status::Plan, "listen on 127.0.0.1:3000"),
            Finding::new("devices", Status::Ok, "no GPU"),
            Finding::new("memory", Status::Error, "too little").remedied_by("buy some"),
        ];
        assert_eq!(
            text(&findings, true, false),
            "A start would\n  listen on 127.0.0.1:3000\n\n\
             ok       devices        no GPU\n\
             error    memory         too little\n                        -> buy some\n\n\
             A start would fail: 1 error, 0 warnings.\n"
        );
        let records = text(&findings, true, true);
        let read: Vec<_> = records.lines().filter_map(Finding::from_record).collect();
        assert_eq!(read, findings);
    }

    #[test]
    fn no_start_is_promised_without_a_model() {
        let findings = [Finding::new("devices", Status::Ok, "no GPU")];
        let told = |names_model| text(&findings, names_model, false);
        assert!(told(true).ends_with("\nA start would work.\n"));
        let nameless = told(false);
        assert!(
            nameless.contains("needs a model, and none was named")
                && !nameless.contains("start would work"),
            "{nameless}"
        );
    }
}
