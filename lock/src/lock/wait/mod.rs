//! How an acquire waits for a contended key, and for how long.
//!
//! | | |
//! | --- | --- |
//! | `settings` | what a caller sets: in turn or not, the budget, the attempts |
//! | `waiting` | one wait: the next attempt, a pause before it, or the end |
//! | `turn` | what a waiter knows of one key, and when it asks next: all constants |
//! | `turns` | the same for each of several keys, and reservations |
//! | `backoff` | the delays of a waiter that takes no turns |

mod backoff;
mod settings;
mod turn;
mod turns;
mod waiting;

pub use self::backoff::{Backoff, Jitter};
pub use self::settings::Wait;
pub(crate) use self::turn::Memory;
pub(crate) use self::turns::Turns;
pub(crate) use self::waiting::{Next, Pause, Paused, Places, Waiting};
