//! Checks between the instructions of a template: where lists and objects are made, and where they are walked through.
//!
//! The engine counts steps and the texts that operators make. Of lists and objects it counts what they hold themselves,
//! and not what is inside that: a list that holds the list before it twice is small, and to write or compare it takes
//! for ever. Operators cannot be replaced, but the instructions that a template was compiled to can be read and written
//! again, with tests of ours among them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use minijinja::machinery::{CompiledTemplate, Instruction, Instructions, TemplateConfig};
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, State, Value};

use super::limits::{self, Limit, charge, nested, written};
use super::syntax::syntax;

/// Tests and filters with a number are looked up only once; the others have this one.
const NOT_KEPT: u8 = u8::MAX;
/// How many it keeps.
const KEPT: u8 = 50;
/// Bytes of text for one step, as the engine counts them.
const BYTES_A_STEP: usize = 64;
/// Texts up to this long are compared without a look at the clock.
const SHORT: usize = 1024;

/// What a value is looked at for. Each is a test of the environment, with a name that no template can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    /// A list or object that was just made.
    Made,
    /// The result of `+` or `*`: a list that is no longer than lists may be.
    Length,
    /// Will be written as text.
    Written,
    /// Will be compared, or be the key of a look-up.
    Compared,
    /// Will be searched.
    Searched,
    /// Will be an attribute of a namespace.
    Stored,
    /// What a loop goes on with: a look at the clock, whatever the turn before has done.
    Turn,
}

impl Check {
    const ALL: [Self; 7] = [
        Self::Made,
        Self::Length,
        Self::Written,
        Self::Compared,
        Self::Searched,
        Self::Stored,
        Self::Turn,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Made => "<made>",
            Self::Length => "<length>",
            Self::Written => "<written>",
            Self::Compared => "<compared>",
            Self::Searched => "<searched>",
            Self::Stored => "<stored>",
            Self::Turn => "<turn>",
        }
    }

    fn run(self, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
        if self == Self::Turn {
            return charge(0);
        }
        if let Some(text) = value.as_bytes() {
            return match self {
                Self::Compared => compared(state, text.len()),
                _ => Ok(()),
            };
        }
        if value.as_object().is_none() {
            return Ok(());
        }
        let is_map = || matches!(value.kind(), ValueKind::Map | ValueKind::Plain);
        match self {
            Self::Made | Self::Compared => charge(nested(value)?),
            Self::Searched if !is_map() => charge(nested(value)?),
            Self::Written => charge(written(value)?),
            Self::Length => {
                let length = value.len().unwrap_or(0);
                state.consume_fuel((length / BYTES_A_STEP) as u64)?;
                limits::bounded_length(length)
            }
            Self::Stored if limits::is_namespace(value) => Err(Limit::Depth.into()),
            Self::Searched | Self::Stored | Self::Turn => Ok(()),
        }
    }
}

fn compared(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    if bytes <= SHORT {
        return Ok(());
    }
    state.consume_fuel((bytes / BYTES_A_STEP) as u64)?;
    charge(0)
}

/// Adds what compiled templates call.
pub(super) fn install(environment: &mut Environment<'static>) {
    for check in Check::ALL {
        let test = move |state: &State<'_, '_>, value: &Value| -> Result<bool, Error> {
            check.run(state, value).map(|()| true)
        };
        environment.add_test(check.name(), test);
    }
    environment.add_filter(SOLID, solid);
}

/// The filter [`solid`].
const SOLID: &str = "<solid>";

/// A list for what the engine would make an entry of when it is asked for: views of views of a list overflow the stack.
pub(super) fn solid(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable && !is_chain(&value) {
        return Ok(value);
    }
    limits::bounded_length(value.len().unwrap_or(0))?;
    Ok(value.try_iter()?.collect())
}

/// Whether it is what `chain` makes of several lists.
fn is_chain(value: &Value) -> bool {
    let object = value.as_object();
    object.is_some_and(|object| object.type_name().ends_with("::MergeSeq"))
}

/// A template with its checks.
#[derive(Debug)]
pub(super) struct Code {
    pub instructions: Instructions<'static>,
    pub blocks: BTreeMap<&'static str, Instructions<'static>>,
}

impl Code {
    /// Compiles `source`, which is there until the process ends, as the templates of a model are.
    pub(super) fn compile(name: &str, source: &str) -> Result<Self, Error> {
        let config = TemplateConfig {
            syntax_config: syntax(),
            default_auto_escape: Arc::new(|_| AutoEscape::None),
        };
        let kept = |text: &str| -> &'static str { Box::leak(text.into()) };
        let plain = CompiledTemplate::new(kept(name), kept(source), &config)?;
        let blocks = plain.blocks.iter();
        Ok(Self {
            instructions: checked(&plain.instructions),
            blocks: blocks
                .map(|(name, block)| (*name, checked(block)))
                .collect(),
        })
    }
}

/// The same instructions with checks before and behind those that need them.
fn checked(plain: &Instructions<'static>) -> Instructions<'static> {
    let all: Vec<_> = (0..).map_while(|at| plain.get(at)).collect();
    let targets: HashSet<u32> = all.iter().filter_map(|&step| target(step)).collect();
    let mut writer = Writer::new(plain, &all);
    let mut places = Vec::with_capacity(all.len() + 1);
    for (at, step) in (0..).zip(&all) {
        places.push(writer.next);
        let line = plain.get_line(at).and_then(|line| u16::try_from(line).ok());
        writer.line = line.unwrap_or_default();
        if targets.contains(&at) {
            // Whoever comes from elsewhere may have left something else.
            writer.known.0.clear();
        }
        writer.step(step);
    }
    places.push(writer.next);
    let mut steps = writer.steps;
    for at in 0..writer.next {
        if let Some(to) = steps.get_mut(at).and_then(target_mut)
            && let Some(place) = places.get(*to as usize)
        {
            *to = *place;
        }
    }
    steps
}

/// What is known of a value before the template runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    Text,
    /// It stands in the template, and is short.
    Constant {
        text: bool,
    },
}

impl Kind {
    fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::Constant { text: true })
    }

    fn is_constant(self) -> bool {
        matches!(self, Self::Constant { .. })
    }
}

/// What is known of the top of the stack. Texts are most of what templates work with, and need no checks.
struct Known(Vec<Kind>);

impl Known {
    /// Of the value that lies below so many others.
    fn below(&self, others: usize) -> Kind {
        let kind = self.0.iter().rev().nth(others);
        kind.copied().unwrap_or(Kind::Unknown)
    }

    fn after(&mut self, step: &Instruction<'static>) {
        use Instruction as I;
        let text = self.below(0).is_text() || self.below(1).is_text();
        let (taken, made) = match step {
            I::LoadConst(value) => {
                let text = value.as_str().is_some();
                (0, Some(Kind::Constant { text }))
            }
            I::Lookup(_) => (0, Some(Kind::Unknown)),
            I::GetAttr(_) => (1, Some(Kind::Unknown)),
            I::GetItem => (2, Some(Kind::Unknown)),
            // A text and something else are no sum.
            I::Add if text => (2, Some(Kind::Text)),
            I::StringConcat => (2, Some(Kind::Text)),
            I::Add | I::Eq | I::Ne | I::In => (2, Some(Kind::Unknown)),
            I::ApplyFilter(_, Some(count), _)
            | I::PerformTest(_, Some(count), _)
            | I::CallFunction(_, Some(count))
            | I::CallMethod(_, Some(count)) => (usize::from(*count), Some(Kind::Unknown)),
            I::Emit | I::StoreLocal(_) => (1, None),
            _ => return self.0.clear(),
        };
        self.0.truncate(self.0.len().saturating_sub(taken));
        self.0.extend(made);
    }
}

/// Filters of one text that need a check where they are given something else, and what each is called without one.
const OF_TEXT: [(&str, &str); 6] = [
    ("trim", "<trim>"),
    ("string", "<string>"),
    ("upper", "<upper>"),
    ("lower", "<lower>"),
    ("title", "<title>"),
    ("capitalize", "<capitalize>"),
];

/// Writes instructions with the checks that they need.
struct Writer {
    steps: Instructions<'static>,
    next: u32,
    line: u16,
    known: Known,
    /// The first numbers of tests and filters that the template itself has left.
    free_tests: u8,
    free_filters: u8,
}

impl Writer {
    fn new(plain: &Instructions<'static>, all: &[&Instruction<'static>]) -> Self {
        let first_free = |number: fn(&Instruction<'static>) -> Option<u8>| {
            let taken = all.iter().filter_map(|step| number(step));
            let taken = taken.filter(|&id| id != NOT_KEPT).max();
            taken.map_or(0, |id| id.saturating_add(1))
        };
        Self {
            steps: Instructions::new(plain.name(), plain.source()),
            next: 0,
            line: 0,
            known: Known(Vec::new()),
            free_tests: first_free(|step| match step {
                Instruction::PerformTest(_, _, id) => Some(*id),
                _ => None,
            }),
            free_filters: first_free(|step| match step {
                Instruction::ApplyFilter(_, _, id) => Some(*id),
                _ => None,
            }),
        }
    }

    fn step(&mut self, step: &Instruction<'static>) {
        use Instruction as I;
        let (top, second) = (self.known.below(0), self.known.below(1));
        match step {
            // Both are walked through at once, until one ends.
            I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::CompareAndPreserve(_)
                if !top.is_constant() && !second.is_constant() =>
            {
                self.top(Check::Compared);
            }
            I::In => {
                // The container is on top.
                self.top(Check::Searched);
                if !second.is_constant() {
                    self.second(Check::Compared);
                }
            }
            I::StringConcat => {
                if !top.is_text() {
                    self.top(Check::Written);
                }
                if !second.is_text() {
                    self.second(Check::Written);
                }
            }
            I::GetItem if !top.is_constant() => self.top(Check::Compared),
            // The namespace is on top.
            I::SetAttr(_) => self.second(Check::Stored),
            _ => {}
        }
        self.put_filter(step);
        match step {
            I::Iterate(_) => self.top(Check::Turn),
            I::BuildList(_) | I::BuildTuple(_) | I::BuildMap(_) => self.top(Check::Made),
            I::Add if !top.is_text() && !second.is_text() => self.top(Check::Length),
            I::Mul => {
                self.top(Check::Length);
                self.put(I::ApplyFilter(SOLID, Some(1), NOT_KEPT));
            }
            I::Slice => self.put(I::ApplyFilter(SOLID, Some(1), NOT_KEPT)),
            _ => {}
        }
        self.known.after(step);
    }

    /// Writes a step. A filter of a text comes without the check that it has for others who call it, `map` for example.
    fn put_filter(&mut self, step: &Instruction<'static>) {
        let plain = match step {
            Instruction::ApplyFilter(name, Some(1), _) => {
                OF_TEXT.iter().position(|(checked, _)| checked == name)
            }
            _ => None,
        };
        let Some((index, (_, name))) = plain.and_then(|at| Some((at, OF_TEXT.get(at)?))) else {
            return self.put(step.clone());
        };
        if !self.known.below(0).is_text() {
            self.top(Check::Written);
        }
        let id = kept(self.free_filters, index);
        self.put(Instruction::ApplyFilter(name, Some(1), id));
    }

    /// Checks what is on top of the stack.
    fn top(&mut self, check: Check) {
        let id = kept(self.free_tests, check as usize);
        self.put(Instruction::DupTop);
        self.put(Instruction::PerformTest(check.name(), Some(1), id));
        self.put(Instruction::DiscardTop);
    }

    /// Checks what is below that.
    fn second(&mut self, check: Check) {
        self.put(Instruction::Swap);
        self.top(check);
        self.put(Instruction::Swap);
    }

    fn put(&mut self, step: Instruction<'static>) {
        self.next = self.steps.add_with_line(step, self.line) + 1;
    }
}

/// The number of one of ours, if there is one left.
fn kept(free: u8, index: usize) -> u8 {
    let id = u8::try_from(index)
        .ok()
        .and_then(|index| free.checked_add(index));
    id.filter(|&id| id < KEPT).unwrap_or(NOT_KEPT)
}

/// Where an instruction may lead.
fn target(step: &Instruction<'static>) -> Option<u32> {
    target_mut(&mut step.clone()).copied()
}

fn target_mut<'a>(step: &'a mut Instruction<'static>) -> Option<&'a mut u32> {
    match step {
        Instruction::Iterate(to)
        | Instruction::Jump(to)
        | Instruction::JumpIfFalse(to)
        | Instruction::JumpIfFalseOrPop(to)
        | Instruction::JumpIfTrueOrPop(to)
        | Instruction::BuildMacro(_, to, _) => Some(to),
        _ => None,
    }
}
