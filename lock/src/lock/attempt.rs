//! A wait of which each attempt can be in another process: a workflow sleeps in between.

use std::fmt;
use std::time::Duration;

use super::held::Lock;
use super::turn::Memory;
use crate::error::Error;
use crate::row::Table;
use crate::text::printable;

/// The outcome of one [attempt](crate::Acquire::attempt).
#[derive(Debug)]
pub enum Attempt {
    /// The lock was acquired.
    Acquired(Lock),
    /// Another holder has the key. Sleep for [`Turn::delay`], and continue with the turn.
    Waiting(Turn),
}

/// The turn of a waiter between two [attempts](crate::Acquire::attempt), which may be in two processes. With the feature
/// `serde` it is serialisable: a workflow keeps it in its state. It holds nothing, so it can be dropped or used twice: two
/// waiters then ask at the same time, and one of them is refused.
///
/// It has no secret. Another program can change it, which costs time and no guarantee.
///
/// # Format
///
/// ```json
/// {"version":1,"table":"locks","key":"deploy","began":1795254763639,"attempts":1,"delay":20000,"place":3,"joins":1}
/// ```
///
/// Times are in milliseconds, and `began` since the Unix epoch. `key` is that of the row, with the prefix. More fields say
/// what the last attempt saw: `head`, `tail`, `tail_until`, `hold`, `hold_deviation`, `fence` and `seen`. Unknown fields are
/// ignored. An unknown version, or a field that is missing or out of bounds, is an error that says so.
#[derive(Clone, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize, serde::Serialize),
    serde(try_from = "format::Written", into = "format::Written")
)]
#[must_use = "without the turn, the waiter starts at the end of the queue"]
pub struct Turn {
    table: String,
    key: String,
    /// When the wait began, in milliseconds since the epoch.
    pub(super) began: u64,
    pub(super) attempts: u32,
    delay: Duration,
    pub(super) memory: Memory,
}

impl Turn {
    pub(super) fn new(
        table: &Table,
        key: &str,
        began: u64,
        attempts: u32,
        delay: Duration,
        memory: Memory,
    ) -> Self {
        let place = table.place();
        Self { table: table.name.clone(), key: place.row_key(key), began, attempts, delay, memory }
    }

    /// Returns how long to sleep before the next attempt. A longer sleep costs time. The next attempt may come earlier.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns the key as it is in the row.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns how many attempts were made.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Checks that this is the turn of a waiter for this key.
    pub(super) fn check(&self, table: &Table, key: &str) -> Result<(), Error> {
        let own = table.place().row_key(key);
        if self.table == table.name && self.key == own {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the turn is for key `{}` in table `{}`, and the acquire for key `{}` in table `{}`: continue with the turn of \
             this acquire, or without one",
            printable(&self.key),
            printable(&self.table),
            printable(&own),
            printable(&table.name)
        )))
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, key, began: _, attempts, delay, memory: _ } = self;
        f.debug_struct("Turn")
            .field("table", &printable(table))
            .field("key", &printable(key))
            .field("attempts", attempts)
            .field("delay", delay)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "serde")]
mod format {
    use std::time::Duration;

    use serde::{Deserialize, Serialize};

    use super::Turn;
    use crate::lock::turn::Memory;

    const VERSION: u64 = 1;
    /// The end of the year 9999.
    const LATEST: u64 = 253_402_300_799_999;
    /// A queue has fewer places. A row holds much larger numbers, so a forged turn leaves room for later places.
    const MAX_PLACE: u64 = 1 << 48;
    const DAY: u64 = 86_400_000;

    /// The fields are optional, so that the version is looked at first.
    #[derive(Deserialize, Serialize)]
    pub(super) struct Written {
        version: Option<u64>,
        table: Option<String>,
        key: Option<String>,
        began: Option<u64>,
        attempts: Option<u32>,
        delay: Option<u64>,
        #[serde(flatten)]
        memory: Memory,
    }

    impl From<Turn> for Written {
        fn from(Turn { table, key, began, attempts, delay, memory }: Turn) -> Self {
            Self {
                version: Some(VERSION),
                table: Some(table),
                key: Some(key),
                began: Some(began),
                attempts: Some(attempts),
                delay: Some(crate::clock::millis(delay)),
                memory,
            }
        }
    }

    impl TryFrom<Written> for Turn {
        type Error = String;

        fn try_from(written: Written) -> Result<Self, String> {
            let Written { version, table, key, began, attempts, delay, memory } = written;
            let version = version.ok_or("`version` of the turn is missing")?;
            if version != VERSION {
                return Err(format!("`version` of the turn is {version}: this library reads {VERSION}"));
            }
            let missing = |name: &str| format!("`{name}` of the turn is missing");
            let within = |name: &str, value: u64, most: u64| {
                if value <= most { Ok(value) } else { Err(format!("`{name}` of the turn is {value}, more than {most}")) }
            };
            for (name, value, most) in [
                ("place", memory.place, MAX_PLACE),
                ("head", memory.head, MAX_PLACE),
                ("tail", memory.tail, MAX_PLACE),
                ("tail_until", memory.tail_until, LATEST),
                ("hold", memory.hold, DAY),
                ("hold_deviation", memory.hold_deviation, DAY),
                ("seen", memory.seen, LATEST),
            ] {
                within(name, value.unwrap_or_default(), most)?;
            }
            Ok(Self {
                table: table.ok_or_else(|| missing("table"))?,
                key: key.ok_or_else(|| missing("key"))?,
                began: within("began", began.ok_or_else(|| missing("began"))?, LATEST)?,
                attempts: attempts.ok_or_else(|| missing("attempts"))?,
                delay: Duration::from_millis(within("delay", delay.ok_or_else(|| missing("delay"))?, DAY)?),
                memory,
            })
        }
    }
}
