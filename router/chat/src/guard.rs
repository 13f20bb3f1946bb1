//! Makes a compiled template count what it uses.
//!
//! The engine's own limits are its fuel and its recursion depth. Neither sees that one `a ~ a` doubles a string, so
//! that forty of them fill any memory, nor that comparing two long strings takes a millisecond. Here every instruction
//! that copies, nests or walks through values gets a call of the meter before it.

use std::collections::BTreeMap;

use minijinja::machinery::{CodeGenerator, Instruction, Instructions, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, Value};

use super::limits::{Limit, charge, is_namespace, nested, shallow, written};
use super::python::printable;

// Filters whose names no template can write. All but the first give the operands back in the order that puts them on
// the stack as they were.
const MADE: &str = "<made>";
const JOINED: &str = "<joined>";
const ADDED: &str = "<added>";
const REPEATED: &str = "<repeated>";
const SLICED: &str = "<sliced>";
const STORED: &str = "<stored>";
/// No slot in the engine's cache of filters.
const UNCACHED: u8 = !0;

/// A template that counts what it uses.
pub(super) struct Guarded {
    pub instructions: Instructions<'static>,
    pub blocks: BTreeMap<&'static str, Instructions<'static>>,
}

/// Compiles `source`, which lives as long as the process, as the templates of a server do.
pub(super) fn compile(
    name: &'static str,
    source: &'static str,
    syntax: SyntaxConfig,
) -> Result<Guarded, Error> {
    let ast = parse(source, name, syntax)?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&ast);
    let (instructions, blocks) = generator.finish();
    let blocks = blocks.iter();
    Ok(Guarded {
        instructions: counted(&instructions, name, source),
        blocks: blocks
            .map(|(block, code)| (*block, counted(code, name, source)))
            .collect(),
    })
}

/// Copies instructions, the meter's in between, and moves the targets of jumps.
fn counted(
    plain: &Instructions<'static>,
    name: &'static str,
    source: &'static str,
) -> Instructions<'static> {
    let mut rewritten = Instructions::new(name, source);
    let mut moved = Vec::new();
    while let Some(instruction) = u32::try_from(moved.len()).ok().and_then(|at| plain.get(at)) {
        let line = plain.get_line(moved.len() as u32).unwrap_or(0);
        let line = u16::try_from(line).unwrap_or(u16::MAX);
        let mut group = guarded(instruction).into_iter();
        let mut add = |next| rewritten.add_with_line(next, line);
        moved.push(group.next().map(&mut add).unwrap_or_default());
        group.for_each(|next| {
            add(next);
        });
    }
    // A jump past the last instruction ends the template.
    let end = rewritten.add(Instruction::LoadConst(Value::UNDEFINED));
    moved.push(end);
    for index in 0..end {
        if let Some(target) = rewritten.get_mut(index).and_then(target)
            && let Some(new) = moved.get(*target as usize)
        {
            *target = *new;
        }
    }
    rewritten
}

/// Where an instruction may go on instead of at the next.
fn target<'a>(instruction: &'a mut Instruction<'static>) -> Option<&'a mut u32> {
    match instruction {
        Instruction::Iterate(target)
        | Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

/// What stands in place of an instruction.
fn guarded(instruction: &Instruction<'static>) -> Vec<Instruction<'static>> {
    let checked = |check, operands: u16| {
        vec![
            Instruction::ApplyFilter(check, Some(operands), UNCACHED),
            Instruction::UnpackList(usize::from(operands)),
            instruction.clone(),
        ]
    };
    match instruction {
        // The formatter counts; raw text would pass it by.
        Instruction::EmitRaw(text) => {
            vec![Instruction::LoadConst((*text).into()), Instruction::Emit]
        }
        Instruction::Add => checked(ADDED, 2),
        Instruction::StringConcat => checked(JOINED, 2),
        Instruction::Mul => checked(REPEATED, 2),
        Instruction::Slice => checked(SLICED, 4),
        Instruction::SetAttr(_) => checked(STORED, 2),
        Instruction::ApplyFilter(..)
        | Instruction::BuildList(_)
        | Instruction::BuildTuple(_)
        | Instruction::BuildMap(_)
        | Instruction::CallFunction(..) => {
            vec![
                instruction.clone(),
                Instruction::ApplyFilter(MADE, Some(1), UNCACHED),
            ]
        }
        // Printing nothing looks at the clock.
        Instruction::Iterate(_)
        | Instruction::GetItem
        | Instruction::Eq
        | Instruction::Ne
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::In
        | Instruction::CompareAndPreserve(_)
        | Instruction::PerformTest(..)
        | Instruction::UnpackList(_)
        | Instruction::UnpackLists(_) => vec![
            Instruction::LoadConst("".into()),
            Instruction::Emit,
            instruction.clone(),
        ],
        other => vec![other.clone()],
    }
}

/// Adds the filters that compiled templates call.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_filter(MADE, |value: Value| {
        charge(nested(&value)?)?;
        Ok::<_, Error>(value)
    });
    environment.add_filter(ADDED, |left: Value, right: Value| {
        charge(shallow(&left).saturating_add(shallow(&right)))?;
        Ok::<_, Error>(vec![right, left])
    });
    environment.add_filter(JOINED, |left: Value, right: Value| {
        charge(written(&left)?.saturating_add(written(&right)?))?;
        let text = |value| printable(value).into_owned();
        Ok::<_, Error>(vec![text(&right), text(&left)])
    });
    environment.add_filter(REPEATED, |left: Value, right: Value| {
        let times = |count: &Value, value: &Value| match count.as_usize() {
            Some(count) => count.saturating_mul(shallow(value)),
            None => 0,
        };
        charge(times(&left, &right).max(times(&right, &left)))?;
        Ok::<_, Error>(vec![right, left])
    });
    environment.add_filter(
        SLICED,
        |value: Value, start: Value, stop: Value, step: Value| {
            charge(shallow(&value))?;
            Ok::<_, Error>(vec![step, stop, start, value])
        },
    );
    environment.add_filter(STORED, |value: Value, namespace: Value| {
        if is_namespace(&value) {
            return Err(Limit::Depth.into());
        }
        Ok(vec![namespace, value])
    });
}
