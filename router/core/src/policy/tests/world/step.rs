//! From a decision to what the requests have when it was computed.

use super::row::Ahead;
use super::*;
use crate::policy::cost::StepShape;
use crate::queue::turns::OUTPUT_TOKEN;

impl World {
    pub(super) fn apply(
        &mut self,
        decision: &Plan,
        places: &[usize],
        running: &[Running],
        visited: &[(Order, Candidate)],
    ) {
        let lacking = decision
            .decode
            .iter()
            .filter(|&&index| running[index].lacks_slot);
        let starting = decision.admit.iter().map(|a| visited[a.index].1.takes());
        let needed = lacking.count() as u32 + starting.sum::<u32>();
        let spare = self
            .pool
            .free()
            .checked_sub(needed)
            .expect("more slots than there are");
        let plenty = self.pool.capacity() / PLENTY;
        let mut ahead = Ahead {
            spare: spare.saturating_sub(plenty),
            each: RUN.min(plenty / self.limits.max_batch_size),
        };
        let mut shape = StepShape::default();
        let mut rows = Vec::new();
        for &index in &decision.decode {
            let row = self.rows[places[index]].as_mut().unwrap();
            row.decode(&mut self.pool, &mut ahead);
            shape.add_decode(row.computed);
            rows.push(places[index]);
        }
        let mut first_chunk = None;
        let mut charged = Vec::new();
        let mut chunked: Vec<(usize, u32)> = decision
            .chunks
            .iter()
            .map(|&(index, count)| (places[index], count))
            .collect();
        for admission in &decision.admit {
            let entry = self.queue.remove(&visited[admission.index].0).unwrap();
            self.turns.leave(&entry.request.tenant, entry.order);
            self.known.started(visited[admission.index].1.prompt());
            let place = self.rows.iter().position(Option::is_none).expect("a row");
            let row = Row::start(
                entry,
                &mut self.pool,
                &mut ahead,
                self.next_number,
                self.clock_ms,
            );
            self.rows[place] = Some(row);
            chunked.push((place, admission.count));
        }
        for &(place, count) in &chunked {
            let row = self.rows[place].as_mut().unwrap();
            let (first, count) = row.chunk(count);
            first_chunk.get_or_insert((first, count));
            shape.add_chunk(first, count);
            charged.push((place, row.entry.prompt_cost(count)));
            if row.prompt_left() == 0 {
                rows.push(place);
            }
        }
        for (place, _) in &chunked {
            self.rows[*place].as_mut().unwrap().share(&mut self.pool);
        }
        charged.extend(rows.iter().map(|&place| (place, OUTPUT_TOKEN)));
        self.charge(charged);
        self.check_step(&shape, first_chunk);
        self.decodes_since_joining = if decision.admit.is_empty() {
            self.decodes_since_joining + u32::from(!decision.decode.is_empty())
        } else {
            0
        };
        self.in_flight.push_back(Flight {
            number: self.next_number,
            rows,
            took_ms: self.cost.predict(&shape).as_secs_f64() * 1e3,
            busy: self.refused && !self.queue.is_empty(),
        });
        self.next_number += 1;
    }

    fn charge(&mut self, charged: Vec<(usize, u64)>) {
        for (place, cost) in charged {
            let entry = &self.rows[place].as_ref().unwrap().entry;
            self.turns.charge(&entry.request.tenant, cost);
            if self.turns.tenants() > 1 {
                self.report.charge(&entry.request.tenant, cost);
            }
        }
        self.turns.lift();
    }
}
