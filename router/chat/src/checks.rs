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

use super::engine;
use super::limits::{self, Limit, charge, nested, written};

/// Numbers up to this one name tests that the engine looks up only once; the others have this one.
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
}

impl Check {
    const ALL: [Self; 6] = [
        Self::Made,
        Self::Length,
        Self::Written,
        Self::Compared,
        Self::Searched,
        Self::Stored,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Made => "<made>",
            Self::Length => "<length>",
            Self::Written => "<written>",
            Self::Compared => "<compared>",
            Self::Searched => "<searched>",
            Self::Stored => "<stored>",
        }
    }

    fn run(self, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
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
            Self::Searched | Self::Stored => Ok(()),
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
            syntax_config: engine::syntax(),
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
        // Something short is known to be on top of the stack.
        let constant = !targets.contains(&at)
            && at.checked_sub(1).is_some_and(|before| {
                matches!(all.get(before as usize), Some(Instruction::LoadConst(_)))
            });
        writer.step(step, constant);
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

/// Writes instructions with the checks that they need.
struct Writer {
    steps: Instructions<'static>,
    next: u32,
    line: u16,
    /// The first number of a test that the template itself has left.
    free: u8,
}

impl Writer {
    fn new(plain: &Instructions<'static>, all: &[&Instruction<'static>]) -> Self {
        let taken = all.iter().filter_map(|step| match step {
            Instruction::PerformTest(_, _, id) if *id != NOT_KEPT => Some(*id + 1),
            _ => None,
        });
        Self {
            steps: Instructions::new(plain.name(), plain.source()),
            next: 0,
            line: 0,
            free: taken.max().unwrap_or(0),
        }
    }

    fn step(&mut self, step: &Instruction<'static>, constant: bool) {
        use Instruction as I;
        match step {
            I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::CompareAndPreserve(_)
                if !constant =>
            {
                self.top(Check::Compared);
                self.second(Check::Compared);
            }
            I::In => {
                // The container is on top.
                self.top(Check::Searched);
                self.second(Check::Compared);
            }
            I::StringConcat => {
                if !constant {
                    self.top(Check::Written);
                }
                self.second(Check::Written);
            }
            I::GetItem if !constant => self.top(Check::Compared),
            // The namespace is on top.
            I::SetAttr(_) => self.second(Check::Stored),
            _ => {}
        }
        self.put(step.clone());
        match step {
            I::BuildList(_) | I::BuildTuple(_) | I::BuildMap(_) => self.top(Check::Made),
            I::Add if !constant => self.top(Check::Length),
            I::Mul => {
                self.top(Check::Length);
                self.put(I::ApplyFilter(SOLID, Some(1), NOT_KEPT));
            }
            I::Slice => {
                self.put(I::ApplyFilter(SOLID, Some(1), NOT_KEPT));
            }
            _ => {}
        }
    }

    /// Checks what is on top of the stack.
    fn top(&mut self, check: Check) {
        let id = self.free.saturating_add(check as u8);
        let id = if id < KEPT { id } else { NOT_KEPT };
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
