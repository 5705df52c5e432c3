//! `Source`: what the batches of queues and streams do differently.

use std::hash::Hash;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, ready};

use crate::error::Error;
use crate::lock::Locks;

/// The records of one kind of event: how to read and name them, and which run in order.
pub(in crate::lambda) trait Source: Clone {
    /// A record of the event.
    type Record: Send + 'static;
    /// The parsed record, which is the input of the handler.
    type Item;
    /// What is kept of an item that has the same key as an earlier one.
    type Copy: Send + Sync + 'static;
    /// Items of one lane run in order, one at a time.
    type Lane: Clone + Eq + Hash;

    /// For how long an item counts as done by default: for longer than it may be delivered again.
    const WINDOW: Duration;
    /// What the log says about an item that is not done.
    const NOT_DONE: &'static str;
    /// What the log says about items that no longer have time to finish.
    const UNFINISHED: &'static str;

    /// Returns the name of a record in the log.
    fn name(record: &Self::Record) -> Name;

    /// Returns the lane of a record. A record without a lane has no order.
    fn lane(record: &Self::Record) -> Option<Self::Lane>;

    /// Parses a record, or says why it cannot be read. May panic, because the parser is the user's code.
    fn read(&self, record: Self::Record) -> Result<Self::Item, String>;

    /// Drops the user's part of an item, which may panic, and keeps the rest.
    fn copy(item: Self::Item) -> Self::Copy;

    /// Acts on an item and its copies after the record of their key was not acquired. The future borrows nothing, because
    /// an item need not be `Sync`.
    fn refused(&self, _: &Self::Item, _: &[Self::Copy], _: &Error, _: &Locks) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }
}

/// The name of a record in the log. Each kind has its own field.
pub(in crate::lambda) enum Name {
    Message(Option<String>),
    #[cfg(feature = "streams")]
    Record(Option<String>),
}

impl Name {
    pub(super) fn message_id(&self) -> Option<&str> {
        match self {
            Self::Message(id) => id.as_deref(),
            #[cfg(feature = "streams")]
            Self::Record(_) => None,
        }
    }

    pub(super) fn sequence_number(&self) -> Option<&str> {
        match self {
            Self::Message(_) => None,
            #[cfg(feature = "streams")]
            Self::Record(number) => number.as_deref(),
        }
    }
}

/// Describes an error of a parser without serde's message, which would show the value in the log.
pub(in crate::lambda) fn json_error(error: &serde_json::Error) -> String {
    format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column())
}
