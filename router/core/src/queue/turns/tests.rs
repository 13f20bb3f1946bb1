use proptest::prelude::*;

use super::*;
use crate::tenant::Grant;

fn tenant(name: u8, weight: u32) -> Tenant {
    let grant = Grant {
        weight,
        ..Grant::default()
    };
    Tenant::new(&name.to_string(), grant)
}

fn order(due: i64, sequence: u64) -> Order {
    Order { due, sequence }
}

/// Starts so many requests one after the other, each of which costs `cost`; returns whose they are.
fn start<'a>(
    turns: &mut Turns,
    owners: &'a HashMap<u64, Tenant>,
    count: usize,
    cost: u64,
) -> Vec<&'a Tenant> {
    let next = |_| {
        let order = turns.in_turn().next(0)?;
        let tenant = &owners[&order.sequence];
        turns.leave(tenant, order);
        turns.charge(tenant, cost);
        turns.lift();
        Some(tenant)
    };
    (0..count).filter_map(next).collect()
}

/// So many requests of each tenant wait.
fn crowd(turns: &mut Turns, tenants: &[Tenant], each: u64) -> HashMap<u64, Tenant> {
    let mut owners = HashMap::new();
    for (sequence, tenant) in (0..)
        .zip(tenants.iter().cycle())
        .take(tenants.len() * each as usize)
    {
        turns.join(tenant, order(0, sequence));
        owners.insert(sequence, tenant.clone());
    }
    owners
}

#[test]
fn one_tenant_waits_by_priority_and_age() {
    let (mut turns, only) = (Turns::default(), Tenant::default());
    for (sequence, due) in [3, 1, 2, 1].into_iter().enumerate() {
        turns.join(&only, order(due, sequence as u64));
    }
    let mut walk = turns.in_turn();
    let seen: Vec<u64> = std::iter::from_fn(|| walk.next(100))
        .map(|order| order.sequence)
        .collect();
    assert_eq!(seen, [1, 3, 2, 0]);
    assert!(!turns.is_contended());
}

#[test]
fn tenants_take_turns_by_what_was_charged_and_by_weight() {
    let (mut turns, light, heavy) = (Turns::default(), tenant(1, 1), tenant(2, 3));
    let owners = crowd(&mut turns, &[light.clone(), heavy.clone()], 100);
    let started = start(&mut turns, &owners, 80, 10);
    let of_light = started.iter().filter(|tenant| ***tenant == light).count();
    assert!((19..=21).contains(&of_light), "{of_light}");
}

/// The walk of one step is what would happen if each that starts were charged at once.
#[test]
fn a_walk_charges_those_that_start_and_passes_over_the_others() {
    let (mut turns, a, b) = (Turns::default(), tenant(1, 1), tenant(2, 1));
    crowd(&mut turns, &[a, b], 3);
    let walk = |costs: &[u64]| {
        let mut walk = turns.in_turn();
        let costs = std::iter::once(&0).chain(costs);
        let orders = costs.filter_map(|&cost| walk.next(cost));
        orders.map(|order| order.sequence).collect::<Vec<_>>()
    };
    // Even numbers are of one, odd ones of the other.
    assert_eq!(walk(&[1, 1, 1, 1, 1, 1]), [0, 1, 2, 3, 4, 5]);
    assert_eq!(walk(&[3, 1, 1, 1]), [0, 1, 3, 5, 2]);
    assert_eq!(walk(&[5, 0, 0, 0]), [0, 1, 3, 5, 2]);
}

#[test]
fn a_priority_moves_requests_before_those_of_its_own_tenant_alone() {
    let (mut turns, a, b) = (Turns::default(), tenant(1, 1), tenant(2, 1));
    turns.join(&a, order(0, 0));
    turns.join(&b, order(0, 1));
    turns.join(&b, order(i64::MIN, 2));
    let mut walk = turns.in_turn();
    let seen: Vec<u64> = std::iter::from_fn(|| walk.next(1))
        .map(|order| order.sequence)
        .collect();
    assert_eq!(seen, [0, 2, 1]);
}

#[test]
fn who_comes_again_is_where_those_are_who_waited() {
    let (mut turns, busy, idle) = (Turns::default(), tenant(1, 1), tenant(2, 1));
    turns.join(&idle, order(0, 1000));
    let mut owners = crowd(&mut turns, std::slice::from_ref(&busy), 100);
    turns.leave(&idle, order(0, 1000));
    assert_eq!(start(&mut turns, &owners, 50, 10).len(), 50);
    for sequence in 1001..1100 {
        turns.join(&idle, order(0, sequence));
        owners.insert(sequence, idle.clone());
    }
    let started = start(&mut turns, &owners, 20, 10);
    assert_eq!(
        started.iter().filter(|tenant| ***tenant == idle).count(),
        10
    );
}

#[test]
fn what_was_served_while_nobody_waited_is_forgotten() {
    let (mut turns, early, late) = (Turns::default(), tenant(1, 1), tenant(2, 1));
    let owners = crowd(&mut turns, &[early.clone(), late.clone()], 10);
    start(&mut turns, &owners, 20, 10);
    turns.charge(&early, 1_000_000);
    let owners = crowd(&mut turns, &[early.clone(), late], 10);
    let started = start(&mut turns, &owners, 10, 10);
    assert_eq!(
        started.iter().filter(|tenant| ***tenant == early).count(),
        5
    );
}

/// What running requests get while others wait counts, also where their tenant has nobody waiting.
#[test]
fn who_runs_pays_while_others_wait() {
    let (mut turns, a, b) = (Turns::default(), tenant(1, 1), tenant(2, 1));
    let mut owners = crowd(&mut turns, &[a.clone(), b.clone()], 10);
    for sequence in (0..20).filter(|sequence| owners[sequence] == a) {
        turns.leave(&a, order(0, sequence));
    }
    turns.charge(&a, 45);
    turns.lift();
    turns.join(&a, order(0, 100));
    owners.insert(100, a.clone());
    let started = start(&mut turns, &owners, 11, 10);
    assert_eq!(started.iter().position(|tenant| **tenant == a), Some(5));
}

#[test]
fn tenants_that_are_gone_are_forgotten() {
    let (mut turns, stays) = (Turns::default(), Tenant::default());
    turns.join(&stays, order(0, 0));
    for number in 1..10_000 {
        let passing = Tenant::new(&number.to_string(), Grant::default());
        turns.join(&passing, order(0, number));
        turns.charge(&passing, 1);
        turns.leave(&passing, order(0, number));
        turns.charge(&stays, 2);
        turns.lift();
    }
    assert!(turns.lines.len() <= 2 * FEW, "{}", turns.lines.len());
}

#[derive(Debug, Clone)]
enum Deed {
    Join(u8, i64),
    Start(u64),
    Go(u8),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        2 => (0..4_u8, 0..5_i64).prop_map(|(tenant, due)| Deed::Join(tenant, due)),
        2 => (0..100_u64).prop_map(Deed::Start),
        1 => (0..4_u8).prop_map(Deed::Go),
    ];
    prop::collection::vec(deed, 1..300)
}

proptest! {
    /// After any sequence of events: all that wait are walked through once, those of one tenant in their order, and of
    /// two tenants that wait all along none gets ahead by more than what one request of each costs.
    #[test]
    fn nobody_is_lost_or_overtaken(deeds in deeds()) {
        let tenants: Vec<Tenant> = (0..4).map(|name| tenant(name, u32::from(name) + 1)).collect();
        let (mut turns, mut waiting) = (Turns::default(), BTreeSet::new());
        for (sequence, deed) in (0..).zip(deeds) {
            match deed {
                Deed::Join(name, due) => {
                    turns.join(&tenants[usize::from(name)], order(due, sequence));
                    waiting.insert((name, order(due, sequence)));
                }
                Deed::Start(cost) => {
                    let Some(next) = turns.in_turn().next(0) else { continue };
                    let &(name, _) = waiting.iter().find(|(_, order)| *order == next).unwrap();
                    waiting.remove(&(name, next));
                    turns.leave(&tenants[usize::from(name)], next);
                    turns.charge(&tenants[usize::from(name)], cost);
                    turns.lift();
                }
                Deed::Go(name) => {
                    let Some(&(_, last)) = waiting.iter().rfind(|one| one.0 == name) else { continue };
                    waiting.remove(&(name, last));
                    turns.leave(&tenants[usize::from(name)], last);
                }
            }
            prop_assert_eq!(turns.waiting, waiting.len());
            let lines = turns.lines.values().filter(|line| !line.waiting.is_empty());
            let counters: Vec<u64> = lines.map(|line| line.served).collect();
            let (least, most) = (counters.iter().min(), counters.iter().max());
            prop_assert!(most.unwrap_or(&0) - least.unwrap_or(&0) <= 100 * UNIT);
        }
        let mut walk = turns.in_turn();
        let walked: Vec<Order> = std::iter::from_fn(|| walk.next(7)).collect();
        prop_assert_eq!(walked.len(), waiting.len());
        for name in 0..4 {
            let own = |order: &&Order| waiting.contains(&(name, **order));
            prop_assert!(walked.iter().filter(own).is_sorted());
        }
        let all: BTreeSet<Order> = walked.into_iter().collect();
        prop_assert_eq!(all, waiting.into_iter().map(|(_, order)| order).collect::<BTreeSet<_>>());
    }
}
