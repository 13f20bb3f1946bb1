//! Names and contents in hand-written orders of events.

use text_generation_client::types::LoadedAdapter;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::*;

struct Names {
    catalog: Catalog,
    sender: UnboundedSender<u64>,
    unused: UnboundedReceiver<u64>,
}

fn order(name: &str, origin: Origin) -> Order {
    Order {
        name: name.to_owned(),
        source: format!("/srv/{name}"),
        origin,
        pinned: false,
    }
}

impl Names {
    fn new() -> Self {
        let (sender, unused) = mpsc::unbounded_channel();
        Self {
            catalog: Catalog::default(),
            sender,
            unused,
        }
    }

    fn insert(&mut self, name: &str, origin: Origin, generation: u64) -> Arc<Adapter> {
        let order = order(name, origin);
        let loaded = LoadedAdapter {
            generation,
            rank: 8,
            pages: 1,
            bytes: 10,
        };
        let of_start = origin == Origin::Start;
        let weights = self.catalog.weights(generation).unwrap_or_else(|| {
            let sender = self.sender.clone();
            Arc::new(Weights::new(loaded, order.load(), of_start, sender))
        });
        self.catalog.insert(&order, weights)
    }

    fn found(&mut self, name: &str) -> Option<u64> {
        match self.catalog.find(name) {
            Found::Here(adapter) => Some(adapter.generation()),
            Found::Away(_) | Found::Lost | Found::Unknown => None,
        }
    }

    fn dropped(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.unused.try_recv().ok()).collect()
    }
}

#[test]
fn contents_stay_as_long_as_a_name_or_a_request_has_them() {
    let mut names = Names::new();
    let request = names.insert("a", Origin::Loaded, 1);
    names.insert("b", Origin::Loaded, 1);
    names.insert("a", Origin::Loaded, 2);
    assert_eq!((names.found("a"), names.found("b")), (Some(2), Some(1)));
    assert!(names.catalog.remove("b") && !names.catalog.remove("b"));
    assert_eq!(names.dropped(), Vec::<u64>::new());
    drop(request);
    assert_eq!(names.dropped(), [1]);
    names.catalog.forget(1);
    assert_eq!(names.catalog.live().len(), 1);
}

#[test]
fn host_memory_goes_to_others_in_the_order_of_use() {
    let mut names = Names::new();
    names.insert("start", Origin::Start, 1);
    for (generation, name) in (2..).zip(["a", "b", "c", "d"]) {
        let origin = if name == "b" {
            Origin::Loaded
        } else {
            Origin::Folder
        };
        names.insert(name, origin, generation);
    }
    assert_eq!(names.catalog.bytes(), 40, "those of the start do not count");
    let held = names.insert("d", Origin::Folder, 5);
    names.found("a");
    assert!(names.catalog.fit(20));
    assert_eq!(names.dropped(), [3, 4]);
    assert!(
        matches!(names.catalog.find("b"), Found::Away(_)),
        "its name stays"
    );
    assert!(matches!(names.catalog.find("c"), Found::Unknown));
    assert!(!names.catalog.fit(5), "a request has one of them");
    assert_eq!(names.dropped(), [2]);
    drop(held);
    assert!(names.catalog.fit(5));
    assert_eq!(names.found("start"), Some(1));
}

#[test]
fn contents_that_are_lost_end_under_all_their_names() {
    let mut names = Names::new();
    let request = names.insert("a", Origin::Start, 1);
    names.insert("folder", Origin::Folder, 1);
    names.insert("b", Origin::Loaded, 2);
    names.catalog.lose(1);
    assert!(request.weights.is_lost());
    assert!(matches!(names.catalog.find("a"), Found::Lost));
    assert!(matches!(names.catalog.find("folder"), Found::Unknown));
    assert_eq!(names.found("b"), Some(2));
    let again = names.insert("a", Origin::Loaded, 1);
    assert!(!again.weights.is_lost());
    assert_eq!(names.found("a"), Some(1));
    let live: Vec<u64> = names
        .catalog
        .live()
        .iter()
        .map(|one| one.generation)
        .collect();
    assert_eq!(live, [1, 2]);
}

#[test]
fn events_name_the_first_adapter_that_has_the_contents() {
    let mut names = Names::new();
    let first = names.insert("a", Origin::Loaded, 1);
    names.insert("b", Origin::Loaded, 1);
    let named = |names: &Names| names.catalog.with_generation(1).map(|one| one.name.clone());
    assert_eq!(named(&names).as_deref(), Some("a"));
    names.catalog.remove("a");
    assert_eq!(named(&names).as_deref(), Some("a"), "a request has it");
    drop(first);
    assert_eq!(named(&names).as_deref(), Some("b"));
}
