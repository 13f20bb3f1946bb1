//! Templates that double what they have, by every way there is: each ends soon, in little memory, with an error.

mod common;

use std::time::{Duration, Instant};

use common::{limited, template, user};
use text_generation_chat::{ChatTemplateError, Limit, Limits};

/// What one step makes of `ns.s`, a text, of `ns.l`, a list, and of `ns.d`, an object.
const STEPS: [&str; 44] = [
    "{% set ns.s = ns.s ~ ns.s %}",
    "{% set ns.s = ns.s + ns.s %}",
    "{% set ns.s = ns.s * 2 %}",
    "{% set ns.s = 2 * ns.s %}",
    "{% set ns.s = [ns.s, ns.s]|join %}",
    "{% set ns.s = ''.join([ns.s, ns.s]) %}",
    "{% set ns.s = ns.s|replace('a', 'aa') %}",
    "{% set ns.s = ns.s.replace('a', 'aa') %}",
    "{% set ns.s = '%s%s'|format(ns.s, ns.s) %}",
    "{% set ns.s = '{}{}'.format(ns.s, ns.s) %}",
    "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}",
    "{% set ns.s %}{% filter upper %}{{ ns.s }}{{ ns.s }}{% endfilter %}{% endset %}",
    "{% set ns.s = twice(ns.s) %}",
    "{% set ns.s = [ns.s, ns.s]|string %}",
    "{% set ns.s = [ns.s, ns.s]|tojson %}",
    "{% set ns.s = [ns.s, ns.s]|pprint %}",
    "{% set ns.s = [ns.s, ns.s]|escape %}",
    "{% set ns.s = [ns.s, ns.s]|upper %}",
    "{% set ns.s = ([ns.s, ns.s] ~ '') %}",
    "{% set ns.s = ns.s|indent(ns.s|length, true) %}",
    "{% set ns.s = (ns.s ~ '\\n' ~ ns.s)|indent(ns.s|length, true) %}",
    "{% set ns.l = ns.l + ns.l %}",
    "{% set ns.l = ns.l * 2 %}",
    "{% set ns.l = (ns.l + ns.l)|list %}",
    "{% set ns.l = [ns.l, ns.l]|sum(start=[]) %}",
    "{% set ns.l = ns.l|chain(ns.l) %}",
    "{% set ns.l = ns.l|batch(2, ns.l)|list %}{{ ns.l }}",
    "{% set ns.l = [ns.l, ns.l] %}{{ ns.l }}",
    "{% set ns.l = [ns.l, ns.l] %}{% set ns.s = ns.l ~ '' %}",
    "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{{ ns.l == ns.m }}",
    "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{{ ns.l < ns.m < ns.l }}",
    "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{{ ns.l in [ns.m] }}",
    "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{{ ns.l is eq(ns.m) }}",
    "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{{ [ns.l, ns.m]|sort|length }}",
    "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{{ [ns.l, ns.m]|unique|list|length }}",
    "{% set ns.l = [ns.l, ns.l] %}{{ {ns.l: 1} }}",
    "{% set ns.l = [ns.l, ns.l] %}{{ ns.l in 'abc' }}",
    "{% set ns.l = [ns.l, ns.l] %}{{ ns.d[ns.l] }}",
    "{% set ns.l = [ns.l, ns.l] %}{{ [ns.l].count(ns.l ~ '') }}",
    "{% set ns.l = ns.l|zip(ns.l)|list %}{{ ns.l|string|length }}",
    "{% set ns.d = {'a': ns.d, 'b': ns.d} %}{{ ns.d }}",
    "{% set ns.d = dict(a=ns.d, b=ns.d) %}{{ ns.d ~ '' }}",
    "{% set ns.l = (ns.l, ns.l) %}{{ ns.l|string }}",
    "{% set ns.l = ns.l + ns.l %}{{ ns.l|map('string')|join }}",
];

/// Deep enough for a stack to overflow, if nothing stops it.
const DEEP: [&str; 10] = [
    "{% set ns.l = [ns.l] %}",
    "{% set ns.l = (ns.l,) %}",
    "{% set ns.l = {'a': ns.l} %}",
    "{% set ns.l = dict(a=ns.l) %}",
    "{% set ns.l = ns.l|batch(1)|list %}",
    "{% set ns.l = ns.l|zip|list %}",
    "{% set ns.x = namespace(next=ns.x) %}",
    "{% set new = namespace() %}{% set new.next = ns.x %}{% set ns.x = new %}",
    "{% set ns.l = [{'a': ns.l}]|groupby('a')|list %}",
    "{% set ns.l = ns.l|items|list if ns.l is mapping else {'a': ns.l} %}",
];

/// Views of views: not refused, but in the end written as the list that they are.
const VIEWS: [&str; 4] = [
    "{% set ns.l = ns.l[0:] %}",
    "{% set ns.l = ns.l * 1 %}",
    "{% set ns.l = ns.l|reverse %}",
    "{% set ns.l = ns.l|chain([]) %}",
];

fn looped(step: &str, times: usize, end: &str) -> String {
    format!(
        "{{% macro twice(x) %}}{{{{ x }}}}{{{{ x }}}}{{% endmacro %}}\
         {{% set ns = namespace(s='aaaaaaaa', l=['a'], m=['a'], d={{'a': 'b'}}, x=1) %}}\
         {{% for i in range(1000) %}}{{% for j in range({times}) %}}{step}{{% endfor %}}{{% endfor %}}{end}"
    )
}

fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kilobytes.unwrap_or(0) >> 10
}

#[test]
fn whatever_doubles_or_nests_is_refused_soon_and_in_little_memory() {
    let limits = Limits {
        steps: 200_000,
        memory: 2 << 20,
        time: Duration::from_secs(60),
        ..Limits::default()
    };
    for step in STEPS.iter().chain(&DEEP) {
        let started = Instant::now();
        let source = looped(step, 90, "");
        let result = limited(&source, limits).and_then(|template| template.render(&user("hi")));
        assert!(
            matches!(&result, Err(ChatTemplateError::Limit(limit)) if !matches!(limit, Limit::Time(_))),
            "{step}: {:.200}",
            format!("{result:?}")
        );
        let (time, mebibytes) = (started.elapsed(), peak());
        assert!(time < Duration::from_secs(20), "{step}: {time:?}");
        assert!(mebibytes < 512, "{step}: {mebibytes} MiB");
    }
}

#[test]
fn views_of_views_are_lists() {
    for step in VIEWS {
        let source = looped(step, 20, "{{ ns.l }}");
        let result = template(&source).and_then(|template| template.render(&user("hi")));
        assert_eq!(result.as_deref(), Ok("['a']"), "{step}");
    }
}
