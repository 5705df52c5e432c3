//! `Source`: where the batches of a consumer come from. It alone knows the event and the answer.

use std::hash::Hash;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::super::handler_input::PlainInput;

/// Where the batches of a [`Consumer`](super::Consumer) come from: how an event is read, how its items are named and
/// ordered, and how it is answered.
///
/// This trait is sealed.
pub trait Source: Clone {
    /// The event that has a batch.
    type Event;
    /// The answer that Lambda expects.
    type Answer;
    /// One item of a batch, as its handler gets it.
    type Item: PlainInput;

    /// One item of an event.
    #[doc(hidden)]
    type Raw: Send + 'static;
    /// Items of one lane run in order, one at a time.
    #[doc(hidden)]
    type Lane: Clone + Eq + Hash;

    /// For how long an item counts as done by default: for longer than it may be delivered again.
    #[doc(hidden)]
    const WINDOW: Duration;
    /// What the name of an item is.
    #[doc(hidden)]
    const NAME: &'static str;
    /// What the log says about items that no longer have time to finish.
    #[doc(hidden)]
    const UNFINISHED: &'static str;

    /// Returns the items of an event. `None` is an event that the source cannot consume, which it has logged: the whole
    /// batch counts as failed.
    #[doc(hidden)]
    fn batch(&self, event: Self::Event) -> Option<Vec<Self::Raw>>;

    /// Returns the name of an item in the answer and in the log. An item without a name does not run.
    #[doc(hidden)]
    fn name(raw: &Self::Raw) -> Option<String>;

    /// Returns the lane of an item. An item without a lane has no order.
    #[doc(hidden)]
    fn lane(raw: &Self::Raw) -> Option<Self::Lane>;

    /// Parses an item, or says why it cannot be read. May panic, because the parser is the user's code.
    #[doc(hidden)]
    fn read(&self, raw: Self::Raw) -> Result<Self::Item, String>;

    /// Returns what hides this item while it is in progress elsewhere, if the source can.
    #[doc(hidden)]
    fn hide(&self, _: &Self::Raw) -> Option<Hide> {
        None
    }

    /// Logs that the item of this name is not done: see `log_not_done`.
    #[doc(hidden)]
    fn log(name: Option<&str>, why: &NotDone<'_>);

    /// Returns the answer with the names of the items that are not done, in the order of the batch. The name is empty for an
    /// item without one, for which Lambda delivers the whole batch again.
    #[doc(hidden)]
    fn answer(not_done: Vec<String>) -> Self::Answer;
}

/// Hides an item for this long. The future borrows nothing, because an item need not be `Sync`.
pub(in crate::lambda) type Hide = Box<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>;

/// Why an item is not done.
#[derive(Debug)]
pub enum NotDone<'a> {
    /// Routine, and not an error: a duplicate arrived while the first delivery is in progress.
    InProgress {
        error: &'a str,
    },
    /// There was no time left.
    NotStarted,
    Failed {
        error_type: Option<&'a str>,
        error: &'a str,
    },
}

/// Defines [`Source::log`], by the field with the name of an item and by the message. Fields of `tracing` are constants, so
/// that one function cannot log the names of all sources.
macro_rules! log_not_done {
    ($name:ident, $message:literal) => {
        fn log($name: Option<&str>, why: &NotDone<'_>) {
            match *why {
                NotDone::InProgress { error } => tracing::info!($name, reason = "in_progress", error, $message),
                NotDone::NotStarted => tracing::warn!($name, concat!($message, ": no time left")),
                NotDone::Failed { error_type, error } => tracing::error!($name, error_type, error, $message),
            }
        }
    };
}

pub(in crate::lambda) use log_not_done;

/// Describes an error of a parser without serde's message, which would show the value in the log.
pub(in crate::lambda) fn json_error(error: &serde_json::Error) -> String {
    format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column())
}
