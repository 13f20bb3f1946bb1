//! Suspects: the requests that may be the reason that the shards were lost.
//!
//! Nobody can tell from outside why a process has died. So requests that were there are tried: one at a time computes its
//! prompt with no other prompt beside it, and if the shards are lost once more, it is the one. A request is ended only
//! then, so what happened to be there when a machine failed goes on.

use text_generation_client::types::Row;

use super::in_flight::InFlight;
use super::running::RunningEntry;
use crate::standing::Standing;

/// Of the rows in the plans that were lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// On trial when it happened: it is ended.
    pub(super) guilty: Option<Row>,
    pub(super) suspects: Vec<Row>,
    pub(super) witnesses: Vec<Row>,
}

impl Findings {
    /// Of the plans that were not answered. A row counts where it has the owner that the plan is about.
    pub(super) fn of(plans: &[InFlight], rows: &[Option<RunningEntry>]) -> Self {
        let owner = |row: Row, number: u64| {
            let running = rows.get(row.index())?.as_ref()?;
            (running.since <= number).then_some(running.entry.standing())
        };
        let find = |rows: fn(&InFlight) -> &[Row]| {
            let mut found: Vec<(Row, Standing)> = plans
                .iter()
                .flat_map(|plan| rows(plan).iter().map(|&row| (row, plan.number)))
                .filter_map(|(row, number)| Some((row, owner(row, number)?)))
                .collect();
            found.sort_unstable_by_key(|&(row, _)| row);
            found.dedup_by_key(|&mut (row, _)| row);
            found
        };
        judge(&find(|plan| &plan.chunks), &find(|plan| &plan.rows))
    }
}

/// `prompts`: those of whom parts of prompts were computed; `tokens`: those who were to get a token.
fn judge(prompts: &[(Row, Standing)], tokens: &[(Row, Standing)]) -> Findings {
    let mut all = [prompts, tokens].concat();
    all.sort_unstable_by_key(|&(row, _)| row);
    all.dedup_by_key(|&mut (row, _)| row);
    let suspected = all
        .iter()
        .find(|(_, standing)| matches!(standing, Standing::Suspect { .. }));
    if let Some(&(guilty, _)) = suspected {
        return Findings {
            guilty: Some(guilty),
            suspects: Vec::new(),
            witnesses: rows(&all, |row, _| row != guilty),
        };
    }
    // Prompts are new, decodes mostly are not; of those that decode, one that was alone, or was at this place before.
    let alone = all.len() == 1;
    let suspects = if prompts.is_empty() {
        rows(&all, |_, standing| alone || standing != Standing::Clear)
    } else {
        rows(prompts, |_, _| true)
    };
    let witnesses = rows(&all, |row, _| !suspects.contains(&row));
    Findings {
        guilty: None,
        suspects,
        witnesses,
    }
}

fn rows(of: &[(Row, Standing)], which: impl Fn(Row, Standing) -> bool) -> Vec<Row> {
    let which = of.iter().filter(|&&(row, standing)| which(row, standing));
    which.map(|&(row, _)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITNESS: Standing = Standing::Witness { generated: 4 };
    const SUSPECT: Standing = Standing::Suspect { generated: 4 };

    fn clear(row: u32) -> (Row, Standing) {
        (Row(row), Standing::Clear)
    }

    fn findings(guilty: Option<u32>, suspects: &[u32], witnesses: &[u32]) -> Findings {
        let rows = |of: &[u32]| of.iter().copied().map(Row).collect();
        Findings {
            guilty: guilty.map(Row),
            suspects: rows(suspects),
            witnesses: rows(witnesses),
        }
    }

    #[test]
    fn prompts_are_suspect_before_those_that_decode() {
        let found = judge(
            &[clear(1), clear(2)],
            &[clear(0), clear(2), (Row(3), WITNESS)],
        );
        assert_eq!(found, findings(None, &[1, 2], &[0, 3]));
    }

    #[test]
    fn of_those_that_decode_who_was_at_this_place_before_or_is_alone() {
        assert_eq!(
            judge(&[], &[clear(0), clear(1)]),
            findings(None, &[], &[0, 1])
        );
        assert_eq!(
            judge(&[], &[clear(0), (Row(1), WITNESS)]),
            findings(None, &[1], &[0])
        );
        assert_eq!(judge(&[], &[clear(0)]), findings(None, &[0], &[]));
    }

    #[test]
    fn only_who_is_on_trial_is_guilty() {
        let found = judge(
            &[(Row(5), SUSPECT)],
            &[clear(0), (Row(5), SUSPECT), (Row(6), WITNESS)],
        );
        assert_eq!(found, findings(Some(5), &[], &[0, 6]));
    }
}
