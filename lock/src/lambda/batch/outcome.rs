//! `ItemOutcome`: how an item of a batch ended.

use crate::metrics;

/// How an item of a batch ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ItemOutcome {
    /// An item before it failed, or the consumer stopped.
    NotStarted,
    /// There was no time left to start it.
    NoTime,
    /// Started, but unfinished when its lease ended or the answer was due.
    TimedOut,
    Unreadable,
    InProgress,
    /// Its rate lets it pass later.
    UsedUp,
    Failed,
    Done,
    Duplicate,
    /// Failed for good, and sent to the dead letters.
    DeadLettered,
}

impl ItemOutcome {
    pub(super) fn is_done(self) -> bool {
        matches!(self, Self::Done | Self::Duplicate | Self::DeadLettered)
    }

    /// Whether the item was tried, or could not be, and comes again.
    pub(super) fn is_failed(self) -> bool {
        matches!(self, Self::Failed | Self::TimedOut | Self::Unreadable)
    }

    /// Whether there was no time for the item, or not enough.
    pub(super) fn is_cut_off(self) -> bool {
        matches!(self, Self::NoTime | Self::TimedOut)
    }

    /// Returns the name in the metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NotStarted | Self::NoTime => "not_started",
            Self::TimedOut => "timed_out",
            Self::Unreadable => "unreadable",
            Self::InProgress => "in_progress",
            Self::UsedUp => metrics::USED_UP,
            Self::Failed => "failed",
            Self::Done => "done",
            Self::Duplicate => "duplicate",
            Self::DeadLettered => "dead_lettered",
        }
    }
}

/// Whether no item of a batch is done, and at least one failed. An item that is in progress elsewhere, or that its rate lets
/// pass later, is on its way to be done.
pub(super) fn all_failed(outcomes: &[ItemOutcome], has_failure: bool) -> bool {
    let is_in_order =
        |outcome: &ItemOutcome| outcome.is_done() || matches!(outcome, ItemOutcome::InProgress | ItemOutcome::UsedUp);
    (has_failure || outcomes.iter().any(|outcome| outcome.is_failed())) && !outcomes.iter().any(is_in_order)
}

#[cfg(test)]
mod tests {
    use super::ItemOutcome::*;
    use super::all_failed;

    #[test]
    fn a_batch_failed_if_an_item_failed_and_none_is_done_or_in_progress() {
        for failed in [&[Failed][..], &[TimedOut, Failed], &[Unreadable, NotStarted], &[NoTime, Failed, NotStarted]] {
            assert!(all_failed(failed, false), "{failed:?}");
        }
        for other in [
            &[InProgress][..],
            &[Failed, InProgress],
            &[Failed, UsedUp],
            &[Failed, Done],
            &[Failed, Duplicate],
            &[DeadLettered],
        ] {
            assert!(!all_failed(other, true), "{other:?}");
        }
        for not_started in [&[][..], &[NoTime, NotStarted]] {
            assert!(!all_failed(not_started, false), "{not_started:?}");
        }
        // Code of the user has panicked before they started.
        assert!(all_failed(&[NotStarted], true));
    }
}
