//! Count of the rules that may begin at one place of a grammar. The parser makes an item of each, and to make them takes a time that
//! grows with the square of their number: every token that comes to such a place would wait for it.

use llguidance::earley::{CGrammar, CSymIdx};

/// Steps that looking at a grammar may take; each is some nanoseconds. One that needs more is as bad as one that has too
/// many rules at a place.
const STEPS: usize = 50_000_000;

/// Whether at most `limit` rules may begin at each place: at the start, and behind each symbol of a rule.
///
/// Where several rules go on at once they share a place, which this does not see: the clock ends what they cost.
pub(crate) fn within(grammar: &CGrammar, limit: usize) -> bool {
    Places::new(grammar, limit).all_within()
}

struct Places<'a> {
    grammar: &'a CGrammar,
    limit: usize,
    /// By symbol, the last place from which it was reached.
    reached: Vec<u32>,
    place: u32,
    /// Symbols that were reached at this place and whose rules were not counted yet.
    open: Vec<CSymIdx>,
    /// Symbols of places that were counted: whatever begins with them alone has fewer rules.
    few: Vec<bool>,
    steps: usize,
}

impl<'a> Places<'a> {
    fn new(grammar: &'a CGrammar, limit: usize) -> Self {
        Self {
            grammar,
            limit,
            reached: Vec::new(),
            place: 0,
            open: Vec::new(),
            few: Vec::new(),
            steps: 0,
        }
    }

    /// Goes from the start outwards, as the rules of an object lead from the first property to the last: nearly all
    /// places are parts of one that was counted before.
    fn all_within(&mut self) -> bool {
        let start = self.grammar.start();
        if !self.is_within(&[start]) {
            return false;
        }
        let mut known = Vec::new();
        mark(&mut known, start, true);
        let mut next = vec![start];
        while let Some(symbol) = next.pop() {
            for &rule in self.grammar.rules_of(symbol) {
                let (symbols, _, _) = self.grammar.rule_rhs(rule);
                for (at, &after) in symbols.iter().enumerate() {
                    // Behind what may be empty is a part of the place before.
                    if at > 0
                        && !self.may_be_empty(symbols[at - 1])
                        && !self.is_within(&symbols[at..])
                    {
                        return false;
                    }
                    if !mark(&mut known, after, true) {
                        next.push(after);
                    }
                }
            }
        }
        true
    }

    /// Whether no more rules than the limit begin where `symbols` come next.
    fn is_within(&mut self, symbols: &[CSymIdx]) -> bool {
        if let [first, rest @ ..] = symbols
            && (rest.is_empty() || !self.may_be_empty(*first))
            && self.few.get(first.as_index()) == Some(&true)
        {
            return true;
        }
        self.place += 1;
        let mut rules = self.lead(symbols);
        while let Some(symbol) = self.open.pop() {
            mark(&mut self.few, symbol, true);
            let grammar = self.grammar;
            for &rule in grammar.rules_of(symbol) {
                rules += self.lead(grammar.rule_rhs(rule).0);
            }
            self.steps += grammar.rules_of(symbol).len();
            if rules > self.limit || self.steps > STEPS {
                return false;
            }
        }
        true
    }

    /// Opens the symbols with which `symbols` may begin; the items that this takes.
    fn lead(&mut self, symbols: &[CSymIdx]) -> usize {
        let mut items = 1;
        for &symbol in symbols {
            self.steps += 1;
            if mark(&mut self.reached, symbol, self.place) != self.place {
                self.open.push(symbol);
            }
            if !self.may_be_empty(symbol) {
                break;
            }
            items += 1;
        }
        items
    }

    fn may_be_empty(&self, symbol: CSymIdx) -> bool {
        let symbol = self.grammar.sym_data(symbol);
        symbol.is_nullable || !symbol.cond_nullable.is_empty()
    }
}

/// Writes down `value` for a symbol; what was there before.
fn mark<T: Default + Clone>(marks: &mut Vec<T>, symbol: CSymIdx, value: T) -> T {
    let index = symbol.as_index();
    if index >= marks.len() {
        marks.resize(index + 1, T::default());
    }
    std::mem::replace(&mut marks[index], value)
}
