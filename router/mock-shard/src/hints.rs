//! Hints of plans: what the rows of a mock draft from, as a real shard would.

use std::collections::BTreeMap;

use text_generation_proto::v1;

/// By row.
#[derive(Debug, Default)]
pub(crate) struct Hints(BTreeMap<u32, v1::Hint>);

impl Hints {
    /// Takes in those of a plan. A row that gets another request has none.
    pub(crate) fn apply(&mut self, plan: &v1::StepPlan) {
        let admitted = plan.admit.iter().map(|request| &request.row);
        for row in plan.drop.iter().chain(admitted) {
            self.0.remove(row);
        }
        for hint in &plan.hints {
            self.0.insert(hint.row, hint.clone());
        }
    }

    /// What comes next in the hint of a row of these ids, where it fits.
    pub(crate) fn drafts(&self, row: u32, ids: &[u32]) -> Option<Vec<u32>> {
        let hint = self.0.get(&row)?;
        let since = ids.get(hint.at as usize..)?;
        let rest = hint.ids.strip_prefix(since)?;
        (!rest.is_empty()).then(|| rest.to_vec())
    }
}
