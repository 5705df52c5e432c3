//! `Faults`: the fate of each request on the network.

use std::ops::Range;
use std::time::Duration;

/// The faults of a host's network, drawn from a seed.
///
/// ```
/// use std::time::Duration;
/// use lambda_lock::embedded::Faults;
///
/// let bad_network = Faults::seeded(42)
///     .latency(Duration::from_millis(2)..Duration::from_millis(40))
///     .lose_requests(0.05)
///     .lose_answers(0.05)
///     .repeat(0.05, Duration::from_secs(10));
/// # let _ = bad_network;
/// ```
///
/// Each chance is between 0 and 1, is 0 by default, and is drawn for each request independently. To a client, a lost
/// request or answer is a broken connection, which the SDK retries.
#[derive(Clone, Debug)]
#[must_use]
pub struct Faults {
    random: fastrand::Rng,
    latency: Range<Duration>,
    lose_requests: f64,
    lose_answers: f64,
    throttle: f64,
    server_errors: f64,
    replicated_write_conflicts: f64,
    repeat: (f64, Duration),
    late: (f64, Duration),
}

impl Faults {
    /// Creates a network without faults or latency. The same seed draws the same faults.
    pub fn seeded(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            latency: Duration::ZERO..Duration::ZERO,
            lose_requests: 0.0,
            lose_answers: 0.0,
            throttle: 0.0,
            server_errors: 0.0,
            replicated_write_conflicts: 0.0,
            repeat: (0.0, Duration::ZERO),
            late: (0.0, Duration::ZERO),
        }
    }

    /// Sets the time that a request takes to arrive, and its answer to return.
    pub fn latency(mut self, each_way: Range<Duration>) -> Self {
        self.latency = each_way;
        self
    }

    /// Sets the chance that a request never arrives.
    pub fn lose_requests(mut self, chance: f64) -> Self {
        self.lose_requests = chance;
        self
    }

    /// Sets the chance that a request is applied and its answer is lost.
    pub fn lose_answers(mut self, chance: f64) -> Self {
        self.lose_answers = chance;
        self
    }

    /// Sets the chance that a request is throttled, by the table or by the account. A transaction that the table throttles is
    /// cancelled with the reason `ThrottlingError`.
    pub fn throttle(mut self, chance: f64) -> Self {
        self.throttle = chance;
        self
    }

    /// Sets the chance of a server error. Half of these errors occur after the request was applied.
    pub fn server_errors(mut self, chance: f64) -> Self {
        self.server_errors = chance;
        self
    }

    /// Sets the chance that a write meets one of another region to the same row and is not applied, as in a [table with
    /// multi-Region strong consistency](crate::embedded::DynamoDb::multi_region_strong_consistency):
    /// `ReplicatedWriteConflictException`.
    pub fn replicated_write_conflicts(mut self, chance: f64) -> Self {
        self.replicated_write_conflicts = chance;
        self
    }

    /// Sets the chance that an answered request arrives again, up to `later` afterwards.
    pub fn repeat(mut self, chance: f64, later: Duration) -> Self {
        self.repeat = (chance, later);
        self
    }

    /// Sets the chance that a request seems lost but arrives up to `later` afterwards.
    pub fn late(mut self, chance: f64, later: Duration) -> Self {
        self.late = (chance, later);
        self
    }

    /// Draws the fate of one request.
    pub(super) fn draw(&mut self) -> Fate {
        let there = self.time_up_to(self.latency.end.saturating_sub(self.latency.start)) + self.latency.start;
        let back = self.time_up_to(self.latency.end.saturating_sub(self.latency.start)) + self.latency.start;
        // One draw for all outcomes that exclude each other, so that each has the chance it was given.
        let mut draw = self.random.f64();
        let mut hit = |chance: f64| {
            draw -= chance;
            draw < 0.0
        };
        let delivery = if hit(self.lose_requests) {
            Delivery::Lost
        } else if hit(self.lose_answers) {
            Delivery::AnswerLost
        } else if hit(self.throttle) {
            Delivery::Throttled { by_account: self.random.bool() }
        } else if hit(self.server_errors) {
            Delivery::ServerError { applied: self.random.bool() }
        } else if hit(self.replicated_write_conflicts) {
            Delivery::Conflict
        } else if hit(self.late.0) {
            Delivery::Late(self.time_up_to(self.late.1))
        } else {
            Delivery::Answered
        };
        let repeated = self.random.f64() < self.repeat.0;
        let repeat = (repeated && delivery == Delivery::Answered).then(|| self.time_up_to(self.repeat.1));
        Fate { there, back, delivery, repeat }
    }

    fn time_up_to(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.random.u64(0..=u64::try_from(most.as_micros()).unwrap_or(u64::MAX - 1)))
    }
}

/// The fate of one request.
#[derive(Debug)]
pub(super) struct Fate {
    pub(super) there: Duration,
    pub(super) back: Duration,
    pub(super) delivery: Delivery,
    /// The request arrives again, this much later.
    pub(super) repeat: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Delivery {
    Answered,
    Lost,
    AnswerLost,
    Throttled {
        by_account: bool,
    },
    ServerError {
        applied: bool,
    },
    /// A write meets one of another region. All other requests are answered.
    Conflict,
    Late(Duration),
}
