//! A bounded exhaustive model of the protocol, for the checker `stateright`.
//!
//! The histories in `tests/src` run the code that ships in random situations. This model tries every situation within its
//! bounds, and it runs the code that ships, too: the loop of an acquire, and each request of a holder and of an
//! operator, with what they make of the answers. Only the table and the network are its own: `table` evaluates conditions and
//! updates on rows in memory, and `world` delivers requests in any order, late, twice or never. A search is small: it has a
//! few clients, and some of the faults.
//!
//! - Clients make one acquisition each. Clocks differ by up to the skew, and step within it.
//! - Time passes in ticks, which are as long as the skew. A lease takes two.
//! - The network loses a request or its answer, delays a request, or applies an unanswered one twice.
//! - A client dies at any moment: it does nothing more, and what it has sent may still arrive.
//! - A client renews its lock, completes its record, or keeps its lock for two processes, which both take it over.
//! - An operator frees what it has seen. TTL deletes a row.

#[expect(dead_code, reason = "the histories use all of it")]
#[path = "../../src/request/expression.rs"]
mod expression;

#[path = "../../src/request/evaluate.rs"]
mod evaluate;

mod mistake;
mod printed;
mod table;
mod world;

use stateright::{Checker, HasDiscoveries, Model};

pub use mistake::Mistake;
use world::World;
pub use world::{Before, Bounds, Subject};

/// What a check has found.
#[derive(Clone, Debug)]
pub struct Report {
    /// How many states it has visited.
    pub states: usize,
    /// It has visited all states within the bounds.
    pub is_complete: bool,
    /// The property that is broken, and how.
    pub broken: Option<String>,
    /// What has happened in some state.
    pub reached: Vec<&'static str>,
}

/// Checks all situations within these bounds.
#[must_use]
pub fn check(subject: Subject, bounds: Bounds, mistake: Option<Mistake>) -> Report {
    let checker = World::new(subject, bounds, mistake).checker();
    let checker = checker.target_state_count(bounds.states).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let broken = checker.discoveries().into_iter().next().map(|(_, path)| {
        let (property, steps) = (path.last_state().broken().unwrap_or_default(), path.into_actions());
        let steps: Vec<_> = steps.iter().map(|action| format!("  {action:?}")).collect();
        format!("{property}\n{}", steps.join("\n"))
    });
    let is_complete = broken.is_none() && checker.state_count() < bounds.states;
    Report { states: checker.unique_state_count(), is_complete, broken, reached: checker.model().reached() }
}
