//! The row of a rate: when its next call is due.

use serde_json::Value;

use super::{bounds, number_in, set};
use crate::request::expression::Operand;
use crate::request::{DUE, Write};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rate {
    /// In microseconds.
    due: u64,
}

impl Rate {
    pub(super) fn of(item: &Value) -> Self {
        Self { due: number_in(item, DUE) }
    }
}

/// A call at a time, which makes the next one due an interval later.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    now: u64,
    interval: u64,
    /// It follows calls that are due until then. Otherwise it is the first one after a time in which none was due.
    follows_until: Option<u64>,
}

impl Call {
    pub(super) fn of(write: &Write) -> Self {
        let (from, to) = bounds(write, DUE);
        match write.sets(DUE) {
            Some(Operand::Plus(_, interval)) => {
                let interval = interval.number_in(&Value::Null).unwrap_or_else(|| panic!("{write:?}"));
                Self { now: from, interval, follows_until: Some(to) }
            }
            _ => Self { now: to + 1, interval: set(write, DUE) - (to + 1), follows_until: None },
        }
    }

    pub(super) fn accepted(&self, rate: Option<&Rate>) -> Option<Rate> {
        let Self { now, interval, follows_until } = *self;
        let begun = Rate { due: now + interval };
        let Some(Rate { due }) = rate else { return Some(begun) };
        match follows_until {
            Some(latest) => (*due >= now && *due <= latest).then_some(Rate { due: due + interval }),
            None => (*due < now).then_some(begun),
        }
    }
}
