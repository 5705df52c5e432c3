//! `ItemOutcome`: how an item of a batch ended.

/// How an item of a batch ended.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ItemOutcome {
    NotStarted,
    /// Started, but unfinished when its lease ended or the answer was due.
    TimedOut,
    Unreadable,
    InProgress,
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

    /// Returns the name in the metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::TimedOut => "timed_out",
            Self::Unreadable => "unreadable",
            Self::InProgress => "in_progress",
            Self::Failed => "failed",
            Self::Done => "done",
            Self::Duplicate => "duplicate",
            Self::DeadLettered => "dead_lettered",
        }
    }
}
