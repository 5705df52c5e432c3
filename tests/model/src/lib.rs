//! A bounded exhaustive model of the protocol, for the checker `stateright`.
//!
//! The histories in `tests/src` run the code that ships in random situations. This model tries every situation within its
//! bounds, and it runs the code that ships, too: the loop of an acquire, its withdrawal and its release, the conditions and the
//! updates. Only the table and the network are its own: [`table`] evaluates conditions and updates on rows in memory, and
//! [`world`] delivers requests in any order, late, twice or never.
//!
//! - Clients make one acquisition each. Clocks differ by up to the skew, and step within it.
//! - Time passes in ticks, which are as long as the skew. A lease takes two.
//! - The network loses a request or its answer, delays a request, or applies an unanswered one twice.
//! - A client dies at any moment: it does nothing more, and what it has sent may still arrive.
//! - An operator frees what a dead client has.

#[expect(dead_code, reason = "the histories use all of it")]
#[path = "../../src/request/expression.rs"]
mod expression;

#[path = "../../src/request/evaluate.rs"]
mod evaluate;

mod table;
mod world;

use stateright::{Checker, Model};

use world::World;
pub use world::{Bounds, Mistake, Subject};

/// What a check has found.
#[derive(Clone, Debug)]
pub struct Report {
    /// How many states it has visited.
    pub states: usize,
    /// The property that is broken, and how.
    pub broken: Option<String>,
    /// What has happened in some state.
    pub reached: Vec<&'static str>,
}

/// Checks all situations within these bounds.
#[must_use]
pub fn check(subject: Subject, bounds: Bounds, mistake: Option<Mistake>) -> Report {
    let checker =
        World::new(subject, bounds, mistake).checker().threads(2).target_state_count(bounds.states).spawn_bfs();
    let checker = checker.join();
    let discoveries = checker.discoveries();
    let mut broken = None;
    let mut reached = Vec::new();
    for (name, path) in discoveries {
        if world::is_event(name) {
            reached.push(name);
        } else if broken.is_none() {
            let actions: Vec<_> = path.into_actions().iter().map(|action| format!("  {action:?}")).collect();
            broken = Some(format!("{name}\n{}", actions.join("\n")));
        }
    }
    Report { states: checker.unique_state_count(), broken, reached }
}
