//! Filters and methods that can make far more than they are given, with a check before them.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters, tests};

use super::checks::solid;
use super::limits::{charge, nested, shallow, written};
use super::python;

/// The longest number in a format string: a width of more digits is a bomb.
const MOST_WIDTH_DIGITS: usize = 5;

/// Puts a check before methods, and before each built-in filter that can make far more than it is given.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    install_tests(environment);
    for name in ["dict", "namespace"] {
        function(environment, name);
    }
    // It writes every variable there is.
    environment.remove_global("debug");
    environment.add_filter("<replace>", filters::replace);
    environment.add_filter("<join>", filters::join);
    environment.add_filter("<indent>", python::indent);
    environment.add_filter("<format>", filters::format);
    environment.add_filter("<list>", filters::list);
    environment.add_filter("<batch>", filters::batch);
    environment.add_filter("<slice>", filters::slice);
    environment.add_filter("<pprint>", filters::pprint);
    environment.add_filter("<escape>", python::escape);
    environment.add_filter("<string>", python::string);
    environment.add_filter("<upper>", filters::upper);
    environment.add_filter("<lower>", filters::lower);
    environment.add_filter("<title>", filters::title);
    environment.add_filter("<capitalize>", filters::capitalize);
    environment.add_filter("<trim>", filters::trim);
    environment.add_filter("<split>", filters::split);
    environment.add_filter("<lines>", filters::lines);
    environment.add_filter("<sort>", filters::sort);
    environment.add_filter("<unique>", filters::unique);
    environment.add_filter("<min>", filters::min);
    environment.add_filter("<max>", filters::max);
    environment.add_filter("<groupby>", filters::groupby);
    environment.add_filter("<dictsort>", filters::dictsort);
    environment.add_filter("<items>", filters::items);
    environment.add_filter("<reverse>", filters::reverse);
    environment.add_filter("<chain>", filters::chain);
    environment.add_filter("<zip>", filters::zip);
    environment.add_filter("<sum>", filters::sum);
    environment.add_filter("<safe>", filters::safe);
    for (name, built_in) in BOUNDED {
        environment.add_filter(
            name,
            move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
                let args = args.into_values();
                charge(growth(name, &args)?)?;
                let result = solid(state.apply_filter(built_in, &args)?)?;
                charge(nested(&result)?)?;
                Ok(result)
            },
        );
    }
}

/// Puts a check before the tests that compare values, or read them as text.
fn install_tests(environment: &mut Environment<'static>) {
    environment.add_test("<eq>", tests::is_eq);
    environment.add_test("<ne>", tests::is_ne);
    environment.add_test("<lt>", tests::is_lt);
    environment.add_test("<le>", tests::is_le);
    environment.add_test("<gt>", tests::is_gt);
    environment.add_test("<ge>", tests::is_ge);
    environment.add_test("<in>", tests::is_in);
    environment.add_test("<startingwith>", tests::is_startingwith);
    environment.add_test("<endingwith>", tests::is_endingwith);
    environment.add_test("<lower>", tests::is_lower);
    environment.add_test("<upper>", tests::is_upper);
    for (built_in, names) in [
        ("<eq>", &["eq", "equalto", "=="][..]),
        ("<ne>", &["ne", "!="]),
        ("<lt>", &["lt", "lessthan", "<"]),
        ("<le>", &["le", "<="]),
        ("<gt>", &["gt", "greaterthan", ">"]),
        ("<ge>", &["ge", ">="]),
        ("<in>", &["in"]),
        ("<startingwith>", &["startingwith"]),
        ("<endingwith>", &["endingwith"]),
        ("<lower>", &["lower"]),
        ("<upper>", &["upper"]),
    ] {
        for name in names {
            let test = move |state: &mut State<'_, '_>, args: Rest<Value>| -> Result<bool, Error> {
                objects(&args)
                    .map(written)
                    .try_for_each(|bytes| charge(bytes?))?;
                state.perform_test(built_in, &args)
            };
            environment.add_test(*name, test);
        }
    }
}

fn objects(args: &[Value]) -> impl Iterator<Item = &Value> {
    args.iter().filter(|value| value.as_object().is_some())
}

/// Filters, and under which name each is there without its check.
const BOUNDED: [(&str, &str); 30] = [
    ("replace", "<replace>"),
    ("join", "<join>"),
    ("indent", "<indent>"),
    ("format", "<format>"),
    ("list", "<list>"),
    ("batch", "<batch>"),
    ("slice", "<slice>"),
    ("pprint", "<pprint>"),
    ("e", "<escape>"),
    ("escape", "<escape>"),
    ("string", "<string>"),
    ("upper", "<upper>"),
    ("lower", "<lower>"),
    ("title", "<title>"),
    ("capitalize", "<capitalize>"),
    ("trim", "<trim>"),
    ("split", "<split>"),
    ("lines", "<lines>"),
    ("sort", "<sort>"),
    ("unique", "<unique>"),
    ("min", "<min>"),
    ("max", "<max>"),
    ("groupby", "<groupby>"),
    ("dictsort", "<dictsort>"),
    ("items", "<items>"),
    ("reverse", "<reverse>"),
    ("chain", "<chain>"),
    ("zip", "<zip>"),
    ("sum", "<sum>"),
    ("safe", "<safe>"),
];

/// Puts a check before a function that keeps the values that it is given.
fn function(environment: &mut Environment<'static>, name: &'static str) {
    let Some(built_in) = environment
        .globals()
        .find_map(|(global, value)| (global == name).then_some(value))
    else {
        return;
    };
    environment.add_function(
        name,
        move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
            let args = args.into_values();
            args.iter().try_for_each(|arg| charge(nested(arg)?))?;
            built_in.call(state, &args)
        },
    );
}

/// Python's methods of strings, lists and dictionaries.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let mut operands = vec![value.clone()];
    operands.extend_from_slice(args);
    if name == "join" {
        // The separator is the object here, the list there.
        operands.reverse();
    }
    charge(growth(name, &operands)?)?;
    objects(args).try_for_each(|arg| charge(nested(arg)?))?;
    let result = python::method(state, value, name, args)?;
    charge(nested(&result)?)?;
    Ok(result)
}

/// The most bytes that a filter or method makes of its operands.
fn growth(name: &str, args: &[Value]) -> Result<usize, Error> {
    let text = |index: usize| args.get(index).and_then(Value::as_str).unwrap_or_default();
    let subject = args.first().map_or(0, shallow);
    Ok(match name {
        "replace" => {
            let most = text(0).len() / text(1).len().max(1) + 1;
            most.saturating_mul(text(2).len()).saturating_add(subject)
        }
        "join" => {
            let separator = args.get(1).map_or(0, separator);
            let entries = args.first().and_then(Value::len).unwrap_or(0);
            written_or_zero(args.first())?.saturating_add(entries.saturating_mul(separator))
        }
        "indent" => {
            let lines = text(0).split('\n').count();
            lines.saturating_mul(numbers(args)).saturating_add(subject)
        }
        "batch" | "slice" => numbers(args)
            .saturating_mul(size_of::<Value>())
            .saturating_add(subject),
        "format" => formatted(text(0), args)?,
        "pprint" => written_or_zero(args.first())?,
        _ => {
            // What it compares, or writes as text.
            let objects: Result<usize, _> = objects(args).map(written).sum();
            objects?.saturating_add(subject)
        }
    })
}

fn written_or_zero(value: Option<&Value>) -> Result<usize, Error> {
    value.map_or(Ok(0), written)
}

/// Bytes of what is put between the entries of a list.
fn separator(value: &Value) -> usize {
    let named = || Kwargs::try_from(value.clone()).ok()?.get::<Value>("d").ok();
    shallow(&named().unwrap_or_else(|| value.clone()))
}

/// The sum of the whole numbers among arguments, also those that were given by name.
fn numbers(args: &[Value]) -> usize {
    let number = |value: &Value| value.as_usize().unwrap_or(0);
    args.iter()
        .flat_map(|value| match value.kind() {
            ValueKind::Map if value.is_kwargs() => value
                .try_iter()
                .map(|keys| keys.filter_map(|key| value.get_item(&key).ok()).collect())
                .unwrap_or_default(),
            _ => vec![value.clone()],
        })
        .fold(0, |sum: usize, value| sum.saturating_add(number(&value)))
}

/// Bytes of a formatted string, whose widths may be far beyond what is formatted.
fn formatted(format: &str, args: &[Value]) -> Result<usize, Error> {
    let mut most = format.len();
    for width in format.split(|character: char| !character.is_ascii_digit()) {
        let width = if width.len() > MOST_WIDTH_DIGITS {
            usize::MAX
        } else {
            width.parse().unwrap_or(0)
        };
        most = most.saturating_add(width);
    }
    // Widths may be arguments, and an argument may be written more than once.
    if format.contains(['*', '{']) {
        most = most.saturating_add(numbers(args.get(1..).unwrap_or_default()));
    }
    let places = format.matches(['%', '{']).count();
    for argument in args.iter().skip(1) {
        most = most.saturating_add(written(argument)?.saturating_mul(places));
    }
    Ok(most)
}
