//! A recorder of the metrics of one thread.

use std::collections::BTreeMap;
use std::fmt::Debug;

use lambda_lock::metrics as names;
use metrics::{LocalRecorderGuard, Unit, set_default_local_recorder};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

/// The names of the metrics, which dashboards use.
const PINNED: [(&str, Unit); 18] = [
    ("lambda_lock_acquired", Unit::Count),
    ("lambda_lock_taken_over", Unit::Count),
    ("lambda_lock_refused", Unit::Count),
    ("lambda_lock_released", Unit::Count),
    ("lambda_lock_work_failed", Unit::Count),
    ("lambda_lock_release_failed", Unit::Count),
    ("lambda_lock_lost", Unit::Count),
    ("lambda_lock_retry_attempts", Unit::Count),
    ("lambda_lock_retries_exhausted", Unit::Count),
    ("lambda_lock_replays", Unit::Count),
    ("lambda_lock_in_progress_refusals", Unit::Count),
    ("lambda_lock_batch_items", Unit::Count),
    ("lambda_lock_http_problems", Unit::Count),
    ("lambda_lock_acquire_time", Unit::Milliseconds),
    ("lambda_lock_wait_time", Unit::Milliseconds),
    ("lambda_lock_release_time", Unit::Milliseconds),
    ("lambda_lock_hold_time", Unit::Milliseconds),
    ("lambda_lock_waiters_ahead", Unit::Count),
];

/// The labels of each metric, and their values.
const LABELS: [(&str, &str, &[&str]); 5] = [
    (names::HTTP_PROBLEMS, names::PROBLEM, &["key-malformed", "key-missing", "key-reused", "key-too-long"]),
    (
        names::REFUSED,
        names::REASON,
        &[
            "held",
            "lost",
            "throttled",
            "unavailable",
            "conflict",
            "access_denied",
            "table_not_found",
            "malformed_row",
            "wrong_kind",
            "invalid",
            "not_sent",
            "rejected",
            "cancelled",
            "unfinished",
            "mismatch",
            "key_missing",
            "used_up",
            "left_to_holder",
        ],
    ),
    (names::RELEASE_FAILED, names::REASON, &["lost", "throttled", "unavailable", "access_denied", "invalid"]),
    (names::RETRIES_EXHAUSTED, names::REASON, &["held", "throttled", "unavailable", "conflict", "in_progress"]),
    (
        names::BATCH_ITEMS,
        names::OUTCOME,
        &[
            "done",
            "duplicate",
            "in_progress",
            "used_up",
            "failed",
            "unreadable",
            "not_started",
            "timed_out",
            "dead_lettered",
        ],
    ),
];

/// Records the metrics of this thread until it is dropped.
pub(crate) struct Metrics {
    pub(crate) snapshotter: Snapshotter,
    pub(crate) _guard: LocalRecorderGuard<'static>,
}

/// The counts and the measured values, by the name of the metric without `lambda_lock_`.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) counters: BTreeMap<String, u64>,
    pub(crate) histograms: BTreeMap<String, Vec<f64>>,
}

impl Metrics {
    pub(crate) fn begin() -> Self {
        // Leaked because the guard borrows it.
        let recorder = Box::leak(Box::new(DebuggingRecorder::new()));
        Self { snapshotter: recorder.snapshotter(), _guard: set_default_local_recorder(recorder) }
    }

    /// The metrics since the last call. Panics for a metric without a description, and for an unknown name, unit or
    /// label.
    pub(crate) fn take(&self) -> Counted {
        let mut counted = Counted::default();
        for (key, unit, description, value) in self.snapshotter.snapshot().into_vec() {
            let (_, key) = key.into_parts();
            let (_, wanted) = PINNED.iter().find(|(name, _)| *name == key.name()).expect("a name that is pinned");
            assert_eq!(unit, Some(*wanted), "the unit of {key}");
            assert!(description.is_some_and(|description| !description.is_empty()), "{key} is not described");
            let labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
            let allowed = LABELS.iter().find(|(name, ..)| *name == key.name());
            let name = key.name().strip_prefix("lambda_lock_").unwrap();
            let name = match (allowed, &labels[..]) {
                (None, []) => name.to_owned(),
                (Some((_, label, values)), [(key, value)]) if label == key && values.contains(value) => {
                    format!("{name}: {value}")
                }
                _ => panic!("{name} has the labels {labels:?}"),
            };
            match value {
                DebugValue::Counter(0) => {}
                DebugValue::Counter(count) => assert_eq!(counted.counters.insert(name, count), None),
                DebugValue::Histogram(values) if values.is_empty() => {}
                DebugValue::Histogram(values) => {
                    let values = values.into_iter().map(f64::from).collect();
                    assert_eq!(counted.histograms.insert(name, values), None);
                }
                DebugValue::Gauge(_) => panic!("{name} is a gauge"),
            }
        }
        counted
    }

    /// Asserts the metrics since the last call: each counter with its count, each histogram with its values.
    #[track_caller]
    pub(crate) fn assert(&self, expected: &[&str]) {
        let Counted { counters, histograms } = self.take();
        let mut lines: Vec<_> = counters.iter().map(|(name, count)| format!("{name} {count}")).collect();
        lines.extend(histograms.iter().map(|(name, values)| format!("{name} {values:?}")));
        lines.sort();
        let mut expected: Vec<_> = expected.iter().map(|&line| line.to_owned()).collect();
        expected.sort();
        assert_eq!(lines, expected);
    }
}

impl Counted {
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    /// The count over all labels.
    pub(crate) fn sum(&self, name: &str) -> u64 {
        let labelled = format!("{name}: ");
        self.counters.iter().filter(|(each, _)| each.starts_with(&labelled)).map(|(_, count)| count).sum()
    }

    pub(crate) fn values(&self, name: &str) -> &[f64] {
        self.histograms.get(name).map_or(&[], Vec::as_slice)
    }
}
