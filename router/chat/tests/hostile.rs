//! Templates that need more than they may: each ends soon with an error of its own.

mod common;

use std::time::{Duration, Instant};

use common::{limited, render, rendered, template, user};
use text_generation_chat::{ChatTemplateError, Limit, Limits};

/// Small enough for a test, large enough that the limit meant to be hit is hit first.
fn limits() -> Limits {
    Limits {
        steps: 200_000,
        memory: 16 << 20,
        output: 1 << 20,
        time: Duration::from_secs(60),
        ..Limits::default()
    }
}

fn limit_of(source: &str) -> Limit {
    let started = Instant::now();
    let result = limited(source, limits()).and_then(|template| template.render(&user("hi")));
    assert!(
        started.elapsed() < Duration::from_secs(60),
        "{source}: {:?}",
        started.elapsed()
    );
    assert!(
        matches!(result, Err(ChatTemplateError::Limit(_))),
        "{source:.200}: {result:?}"
    );
    let Err(ChatTemplateError::Limit(limit)) = result else {
        unreachable!("asserted above");
    };
    limit
}

#[test]
fn endless_work_runs_out_of_steps() {
    for source in [
        "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{{ '' }}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(18) }}",
    ] {
        assert_eq!(limit_of(source), Limit::Steps(200_000), "{source}");
    }
}

#[test]
fn deep_calls_and_values_are_refused() {
    for source in [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(300) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l={}) %}{% for i in range(300) %}{% set ns.l = {'a': ns.l} %}{% endfor %}{{ ns.l|tojson }}",
        "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.self = [ns] %}{{ ns|pprint }}",
        "{% set ns = namespace() %}{% set ns.d = dict(x=ns) %}{{ ns }}",
    ] {
        assert_eq!(limit_of(source), Limit::Depth, "{source}");
    }
}

#[test]
fn memory_is_bounded() {
    let doubling = |step: &str| {
        format!(
            "{{% set ns = namespace(s='abcdefgh', l=[1]) %}}{{% for i in range(60) %}}{step}{{% endfor %}}"
        )
    };
    let sources = [
        doubling("{% set ns.s = [ns.s, ns.s]|join %}"),
        doubling("{% set ns.s = ns.s|replace('a', ns.s) %}"),
        doubling("{% set ns.s = ns.s.replace('a', ns.s) %}"),
        doubling("{% set ns.s = '%s%s'|format(ns.s, ns.s) %}"),
        doubling("{% set ns.s = '{0}{0}'.format(ns.s) %}"),
        doubling("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
        "{{ range(100000)|join('a' * 100000) }}".to_owned(),
        "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}".to_owned(),
        "{{ ('a' * 100000).replace('', 'b' * 100000) }}".to_owned(),
        "{{ ('\\n' * 100000)|indent(100000, true, true) }}".to_owned(),
        "{{ ('\\n' * 100000)|indent(width=100000, blank=true) }}".to_owned(),
        "{{ [1]|batch(999999999, 0)|list }}".to_owned(),
        "{{ [1]|slice(999999999)|list }}".to_owned(),
        "{{ '%999999999d'|format(1) }}".to_owned(),
        "{{ '%*d'|format(999999999, 1) }}".to_owned(),
        "{{ '{:999999999}'.format(1) }}".to_owned(),
    ];
    for source in sources {
        assert_eq!(limit_of(&source), Limit::Memory(16 << 20), "{source:.200}");
    }
}

#[test]
fn shared_values_do_not_explode_when_they_are_walked() {
    for last in ["{{ ns.l }}", "{{ ns.l|tojson }}"] {
        let source = format!(
            "{{% set ns = namespace(l=[1]) %}}{{% for i in range(60) %}}\
             {{% set ns.l = [ns.l, ns.l] %}}{{% endfor %}}{last}"
        );
        assert_eq!(limit_of(&source), Limit::Memory(16 << 20), "{source}");
    }
}

#[test]
fn a_long_prompt_is_refused() {
    for source in [
        "{{ 'a' * 1100000 }}",
        "{% for i in range(11000) %}More and more text, which no expression makes, until there is too much of it: a hundred bytes and a half\
         {% endfor %}",
    ] {
        assert_eq!(limit_of(source), Limit::Output(1 << 20), "{source}");
    }
}

#[test]
fn slow_steps_run_out_of_time() {
    let time = Duration::from_millis(1);
    let slow = Limits {
        time,
        ..Limits::default()
    };
    for source in [
        "{% for i in range(90000) %}{{ i }}{% endfor %}",
        // Each walks through the text.
        "{% set s = 'é' * 100000 %}{% for i in range(9000) %}{% set c = s[-1] %}{% endfor %}",
        "{% set s = 'é' * 100000 %}{% for i in range(9000) %}{% set c = s[-9:] %}{% endfor %}",
    ] {
        let error = limited(source, slow).and_then(|template| template.render(&user("hi")));
        assert_eq!(
            error.expect_err("too slow"),
            ChatTemplateError::Limit(Limit::Time(time)),
            "{source}"
        );
    }
}

#[test]
fn large_and_deep_sources_are_refused() {
    let large = "a".repeat(Limits::default().source + 1);
    assert!(matches!(
        template(&large),
        Err(ChatTemplateError::Limit(Limit::Source { max, given })) if max + 1 == given
    ));
    let parentheses = format!("{{{{ {}1{} }}}}", "(".repeat(2000), ")".repeat(2000));
    let lists = format!("{{{{ {}{} }}}}", "[".repeat(2000), "]".repeat(2000));
    let blocks = "{% if true %}x".repeat(6000);
    let more = "(".repeat(6000);
    for source in [parentheses, lists, blocks, format!("{{{{ {more}1 }}}}")] {
        let error = template(&source).expect_err("too deep");
        assert!(
            matches!(error, ChatTemplateError::Syntax { .. }),
            "{source:.40}: {error}"
        );
    }
}

#[test]
fn long_chains_in_a_source_do_not_overflow_the_stack() {
    let most = Limits::default().source;
    for link in ["+1", "|e", ".a", "()"] {
        let links = (most - "{{ 1 }}".len()) / link.len();
        // Whatever it is, it is a result.
        let _ = render(&format!("{{{{ 1{} }}}}", link.repeat(links)));
    }
    let signs = "-".repeat(most - "{{ 1 }}".len());
    let _ = render(&format!("{{{{ {signs}1 }}}}"));
    let elifs = "{% elif 0 %}".repeat(most / "{% elif 0 %}".len() - 3);
    assert_eq!(rendered(&format!("{{% if 0 %}}{elifs}{{% endif %}}")), "");
}

#[test]
fn nothing_outside_the_template_can_be_reached() {
    for source in [
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% from 'os' import path %}",
        "{% extends 'base' %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ ''|attr('__class__')|attr('__mro__')|first }}",
        "{{ range(10**9) }}",
        "{{ range(100001)|list }}",
    ] {
        match render(source) {
            Ok(prompt) => assert_eq!(prompt, "", "{source}"),
            Err(error) => assert!(
                matches!(error, ChatTemplateError::Render(_)),
                "{source}: {error}"
            ),
        }
    }
}
