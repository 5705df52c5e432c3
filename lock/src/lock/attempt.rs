//! A wait of which each attempt can be in another process: a workflow sleeps in between.

use std::fmt;
use std::time::Duration;

use super::held::Lock;
use super::wait::Memory;
use crate::clock::millis_up;
use crate::error::Error;
use crate::row::{Table, is_same_table};
use crate::text::{MAX_SHOWN, printable, shortened};

/// The outcome of one [attempt](crate::Acquire::attempt_in_turn).
#[derive(Debug)]
pub enum Attempt {
    /// The lock was acquired.
    Acquired(Lock),
    /// Another holder has the key. Sleep for [`Turn::delay`], and continue with the turn.
    Waiting(Turn),
}

/// The turn of a waiter between two [attempts](crate::Acquire::attempt_in_turn), which may be in two processes. With the feature
/// `serde` it is serialisable: a workflow keeps it in its state. It holds nothing, so it can be dropped or used twice: two
/// waiters then ask at the same time, and one of them is refused.
///
/// ```json
/// {"version":1,"table":"locks","began":1795254763639,"attempts":1,"delay":20000,"keys":[{"key":"deploy","place":3,"joins":1}]}
/// ```
///
/// It has no secret. Another program can change it, which costs time and no guarantee.
///
/// # Format
///
/// Times are in milliseconds, and `began` since the Unix epoch. `key` is the key of the row, with the prefix. More fields of a
/// key say what the last attempt saw: `head`, `tail`, `tail_until`, `hold`, `hold_deviation`, `fence` and `seen`. Unknown
/// fields are ignored, and so is a place that no queue reaches. An unknown version, or another field that is missing or out of
/// bounds, is an error that says so.
#[derive(Clone, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize, serde::Serialize),
    serde(try_from = "format::Written", into = "format::Written")
)]
#[must_use = "without the turn, the waiter starts at the end of the queue"]
pub struct Turn {
    table: String,
    /// When the wait began, in milliseconds since the epoch.
    pub(super) began: u64,
    pub(super) attempts: u32,
    delay: Duration,
    /// The keys as they are in the rows, with the memory of each.
    keys: Vec<(String, Memory)>,
}

impl Turn {
    pub(super) fn new(
        table: &Table,
        began: u64,
        attempts: u32,
        delay: Duration,
        keys: impl Iterator<Item = (String, Memory)>,
    ) -> Self {
        let place = table.place();
        let keys = keys.map(|(key, memory)| (place.row_key(&key), memory)).collect();
        // As it is written, so that a turn that was read equals the turn that was written.
        let delay = Duration::from_millis(millis_up(delay));
        Self { table: table.name.clone(), began, attempts, delay, keys }
    }

    /// Returns how long to sleep before the next attempt. A longer sleep costs time. The next attempt may come earlier.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns the delay in whole seconds, rounded up, as a state machine or a durable wait takes it: at least 1.
    #[must_use]
    pub fn delay_in_seconds(&self) -> u64 {
        self.delay.as_millis().div_ceil(1000).max(1).try_into().unwrap_or(u64::MAX)
    }

    /// Returns the keys as they are in the rows, in alphabetical order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|(key, _)| key.as_str())
    }

    /// Returns how many attempts were made.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    pub(super) fn memories(&self) -> impl Iterator<Item = &Memory> {
        self.keys.iter().map(|(_, memory)| memory)
    }

    /// Checks that this is the turn of a waiter for these keys.
    pub(super) fn check(&self, table: &Table, keys: &[String]) -> Result<(), Error> {
        let own: Vec<_> = keys.iter().map(|key| table.place().row_key(key)).collect();
        if is_same_table(&self.table, &table.name) && self.keys().eq(own.iter().map(String::as_str)) {
            return Ok(());
        }
        let names = |keys: &mut dyn Iterator<Item = &str>| {
            let names: Vec<_> = keys.map(|key| format!("`{}`", printable(key))).collect();
            shortened(&names.join(", "), MAX_SHOWN).into_owned()
        };
        Err(Error::invalid(format!(
            "the turn is for {} in table `{}`, and the acquire for {} in table `{}`: continue with the turn of this acquire, \
             or without one",
            names(&mut self.keys()),
            printable(&self.table),
            names(&mut own.iter().map(String::as_str)),
            printable(&table.name)
        )))
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, began: _, attempts, delay, keys: _ } = self;
        let keys: Vec<_> = self.keys().map(printable).collect();
        f.debug_struct("Turn")
            .field("table", &printable(table))
            .field("keys", &keys)
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
    use crate::lock::wait::Memory;

    const VERSION: u64 = 1;
    /// The end of the year 9999.
    const LATEST: u64 = 253_402_300_799_999;
    /// A queue has fewer places. A row holds much larger numbers, so a forged turn leaves room for later places.
    const MAX_PLACE: u64 = 1 << 48;
    const DAY: u64 = 86_400_000;

    /// The fields are optional, so that the version is looked at first.
    #[derive(Deserialize, Serialize)]
    #[serde(expecting = "a turn")]
    pub(super) struct Written {
        version: Option<u64>,
        table: Option<String>,
        began: Option<u64>,
        attempts: Option<u32>,
        delay: Option<u64>,
        keys: Option<Vec<WrittenKey>>,
    }

    #[derive(Deserialize, Serialize)]
    #[serde(expecting = "a key of a turn")]
    struct WrittenKey {
        key: Option<String>,
        #[serde(flatten)]
        memory: Memory,
    }

    impl From<Turn> for Written {
        fn from(Turn { table, began, attempts, delay, keys }: Turn) -> Self {
            let written = |(key, memory)| WrittenKey { key: Some(key), memory };
            Self {
                version: Some(VERSION),
                table: Some(table),
                began: Some(began),
                attempts: Some(attempts),
                delay: Some(crate::clock::millis(delay)),
                keys: Some(keys.into_iter().map(written).collect()),
            }
        }
    }

    impl TryFrom<Written> for Turn {
        type Error = String;

        fn try_from(written: Written) -> Result<Self, String> {
            let Written { version, table, began, attempts, delay, keys } = written;
            let version = version.ok_or_else(|| missing("version"))?;
            if version != VERSION {
                return Err(format!(
                    "the turn has version {version}, and this program reads version {VERSION}: use the same version of \
                     lambda-lock in all steps"
                ));
            }
            let read = |WrittenKey { key, mut memory }| {
                // The row can have such large numbers, too. The waiter takes another place, or asks without a place.
                for place in [&mut memory.place, &mut memory.head, &mut memory.tail] {
                    place.take_if(|place| *place > MAX_PLACE);
                }
                for (name, value, most) in [
                    ("tail_until", memory.tail_until, LATEST),
                    ("hold", memory.hold, DAY),
                    ("hold_deviation", memory.hold_deviation, DAY),
                    ("seen", memory.seen, LATEST),
                ] {
                    within(name, value.unwrap_or_default(), most)?;
                }
                Ok((key.ok_or_else(|| missing("key"))?, memory))
            };
            Ok(Self {
                table: table.ok_or_else(|| missing("table"))?,
                began: within("began", began.ok_or_else(|| missing("began"))?, LATEST)?,
                attempts: attempts.ok_or_else(|| missing("attempts"))?,
                delay: Duration::from_millis(within("delay", delay.ok_or_else(|| missing("delay"))?, DAY)?),
                keys: keys.ok_or_else(|| missing("keys"))?.into_iter().map(read).collect::<Result<_, String>>()?,
            })
        }
    }

    fn missing(name: &str) -> String {
        format!("the turn has no field `{name}`: pass on the whole turn")
    }

    fn within(name: &str, value: u64, most: u64) -> Result<u64, String> {
        if value <= most {
            return Ok(value);
        }
        Err(format!("the field `{name}` of the turn is {value}, not between 0 and {most}"))
    }
}
