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
    /// How long the consumer waits by default for an item that is in progress elsewhere.
    #[doc(hidden)]
    const WAIT: Duration = Duration::ZERO;
    /// What the name of an item is.
    #[doc(hidden)]
    const NAME: &'static str;
    /// What the log says about several items that are not done.
    #[doc(hidden)]
    const UNFINISHED: &'static str;

    /// Returns the items of an event, or why the source cannot consume it, which it has logged: the whole batch counts as
    /// failed.
    #[doc(hidden)]
    fn batch(&self, event: Self::Event) -> Result<Vec<Self::Raw>, &'static str>;

    /// Returns the name of an item in the answer and in the log. An item without a name does not run.
    #[doc(hidden)]
    fn name(raw: &Self::Raw) -> Option<String>;

    /// Returns what tells the queue, the stream or the topic from all others. It is a part of the key of the item's row, so
    /// that two sources of a function do not share their records.
    #[doc(hidden)]
    fn source(raw: &Self::Raw) -> Option<String>;

    /// Returns the name of the queue, the stream or the cluster, for the log.
    #[doc(hidden)]
    fn origin(raw: &Self::Raw) -> Option<String> {
        Self::source(raw)
    }

    /// Returns how often the item was received, if the source counts.
    #[doc(hidden)]
    #[must_use]
    fn receive_count(_: &Self::Raw) -> Option<u32> {
        None
    }

    /// Returns after how many receives an item that is not done is not delivered again, if it is known.
    #[doc(hidden)]
    fn max_receive_count(&self) -> Option<u32> {
        None
    }

    /// Returns the lane of an item. An item without a lane has no order.
    #[doc(hidden)]
    fn lane(raw: &Self::Raw) -> Option<Self::Lane>;

    /// Parses an item, or says why it cannot be read. May panic, because the parser is the user's code.
    #[doc(hidden)]
    fn read(&self, raw: Self::Raw) -> Result<Self::Item, String>;

    /// Returns what tells the source about the fate of this item, if the source can do something about it.
    #[doc(hidden)]
    fn inform(&self, _: &Self::Raw) -> Option<Inform> {
        None
    }

    /// Logs that an item is not done: see `log_not_done`.
    #[doc(hidden)]
    fn log(item: &Label, why: &NotDone<'_>);

    /// Logs that so many items are not done, of which some are named: see `log_not_done`.
    #[doc(hidden)]
    fn log_several(named: &[&Label], count: usize, dead_letter: Option<bool>, reason: &str);

    /// Returns the answer with the names of the items that are not done, in the order of the batch. The name is empty for an
    /// item without one, for which Lambda delivers the whole batch again.
    #[doc(hidden)]
    fn answer(not_done: Vec<String>) -> Self::Answer;
}

/// Tells the source about the fate of an item. Returns whether the source has it as a dead letter, which is false for any
/// other fate. The future borrows nothing, because an item need not be `Sync`.
pub(in crate::lambda) type Inform = Box<dyn Fn(Fate) -> BoxFuture<'static, bool> + Send + Sync>;

/// The fate of an item that a source can do something about.
#[derive(Debug)]
pub enum Fate {
    /// It is in progress elsewhere, for this long.
    InProgress(Duration),
    /// It failed, and comes again.
    Failed,
    /// No retry can succeed. The source has this long for the dead letter.
    Dead { reason: String, within: Duration },
}

/// What the log says about an item.
#[derive(Clone, Debug, Default)]
pub struct Label {
    pub(in crate::lambda) name: Option<String>,
    /// The name of the queue or the stream.
    pub(in crate::lambda) origin: Option<String>,
    /// The key of the row, for people.
    pub(in crate::lambda) key: Option<String>,
    pub(in crate::lambda) receive_count: Option<u32>,
    /// Whether the item is a dead letter if it is not done now.
    pub(in crate::lambda) is_last: Option<bool>,
}

impl Label {
    pub(super) fn of<S: Source>(source: &S, raw: &S::Raw) -> Self {
        let receive_count = S::receive_count(raw);
        let is_last = source.max_receive_count().zip(receive_count).map(|(most, count)| count >= most);
        Self { name: S::name(raw), origin: S::origin(raw), key: None, receive_count, is_last }
    }
}

/// Why an item is not done, or done without success.
#[derive(Debug)]
pub enum NotDone<'a> {
    /// Routine, and not an error: a duplicate arrived while the first delivery is in progress.
    InProgress {
        error: &'a str,
    },
    Failed {
        error_type: Option<&'a str>,
        error: &'a str,
    },
    /// It failed, and is a dead letter now.
    Dead {
        error_type: Option<&'a str>,
        error: &'a str,
    },
}

/// Defines [`Source::log`] and [`Source::log_several`], by the fields with the name of an item and of its origin, and by the
/// message. Fields of `tracing` are constants, so that one function cannot log the items of all sources.
macro_rules! log_not_done {
    ($name:ident, $origin:ident, $message:literal) => {
        fn log(item: &Label, why: &NotDone<'_>) {
            let Label { name, origin, key, receive_count, is_last } = item;
            let ($name, $origin, key) = (name.as_deref(), origin.as_deref(), key.as_deref());
            let (receive_count, dead_letter) = (*receive_count, *is_last);
            match *why {
                NotDone::InProgress { error } => {
                    let reason = "in_progress";
                    tracing::info!($name, $origin, key, receive_count, dead_letter, reason, error, $message);
                }
                NotDone::Failed { error_type, error } => {
                    tracing::error!($name, $origin, key, receive_count, dead_letter, error_type, error, $message);
                }
                NotDone::Dead { error_type, error } => {
                    let (dead_letter, message) = (true, "sent to the dead-letter queue");
                    tracing::error!($name, $origin, key, receive_count, dead_letter, error_type, error, "{message}");
                }
            }
        }

        fn log_several(named: &[&Label], count: usize, dead_letter: Option<bool>, reason: &str) {
            let names: Vec<_> = named.iter().filter_map(|item| item.name.as_deref()).collect();
            let ($name, $origin) = (&*names.join(", "), named.first().and_then(|item| item.origin.as_deref()));
            tracing::warn!($name, $origin, count, dead_letter, "{}: {}", Self::UNFINISHED, reason);
        }
    };
}

pub(in crate::lambda) use log_not_done;

/// Describes an error of a parser without serde's message, which would show the value in the log.
pub(in crate::lambda) fn json_error(error: &serde_json::Error) -> String {
    format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column())
}
