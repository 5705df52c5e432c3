//! What depends on the millisecond: to whom a waiter leaves a permit that has just become free, and what an identity has just
//! lost.

use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock::{Acquire, Attempt, Locks, Turn};
use lambda_lock_tests::Row;
use lambda_lock_tests::invocation::millis;
use serde_json::{from_value, json};
use tokio::time::sleep;

use crate::{CLOCK_SKEW, KEY, LEASE, digits, text};

const TABLE: &str = "locks";

/// A DynamoDB whose time is paused at a whole millisecond, and a host without latency.
struct Stage {
    engine: DynamoDb,
    host: Host,
    locks: Locks,
}

/// A row of a semaphore. Times are in milliseconds.
#[derive(Clone, Debug)]
struct Situation {
    permits: u32,
    /// How many are held, and the ends of those whose lease has ended.
    held: u32,
    ended: Vec<u64>,
    freed_at: u64,
    /// Places from 1 to this one were given, and none was served.
    tail: u64,
    tail_until: u64,
}

impl Stage {
    async fn set() -> Self {
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
        let host = engine.host().build();
        let locks = Locks::builder(host.client(), TABLE).build().unwrap();
        locks.create_table().await.unwrap();
        Self { engine, host, locks }
    }

    /// An acquire of the only permit for this identity.
    fn asking(&self, identity: &str) -> Acquire {
        self.locks.semaphore(KEY, 1).acquire().lease(LEASE).identity(identity)
    }

    fn now(&self) -> u64 {
        millis(self.host.now())
    }

    /// One of three permits is free since this time.
    fn one_is_free(&self, freed_at: u64) -> Situation {
        let tail_until = self.now() + 60_000;
        Situation { permits: 3, held: 2, ended: Vec::new(), freed_at, tail: 5, tail_until }
    }

    /// The same, but by the end of a lease.
    fn one_has_ended(&self, end: u64) -> Situation {
        Situation { ended: vec![end], ..self.one_is_free(self.now() - 1000) }
    }

    fn row(&self, situation: &Situation) -> Row {
        let Situation { permits: _, held, ended, freed_at, tail, tail_until } = situation;
        let now = self.now();
        let ends: Vec<_> = (0..*held).map(|_| now + 30_000).chain(ended.iter().copied()).collect();
        let mut row = Row::from(
            [
                ("id", text(KEY)),
                ("status", text("SEMAPHORE")),
                ("permits", digits(ends.len() as u64)),
                ("fence", digits(7)),
                ("expiration", digits(now / 1000 + 100_000)),
                ("freed_at", digits(*freed_at)),
                ("head", digits(0)),
                ("tail", digits(*tail)),
                ("tail_until", digits(*tail_until)),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        for (index, end) in ends.into_iter().enumerate() {
            let values = [("no", digits(1)), ("by", text("one")), ("since", digits(1)), ("end", digits(end))];
            let values = values.map(|(name, value)| (name.to_owned(), value)).into();
            row.insert(format!("permit:{index}"), AttributeValue::M(values));
            row.insert(format!("fence:{index}"), digits(index as u64));
        }
        row
    }

    /// Whether a waiter takes a permit that has this place, or none. A waiter with a place knows that holds take 100 ms, so it
    /// leaves permits to those ahead for 6 ms.
    async fn takes(&self, situation: &Situation, place: Option<u64>) -> bool {
        let put = self.engine.client().put_item().table_name(TABLE).set_item(Some(self.row(situation)));
        put.send().await.unwrap();
        let now = self.now();
        let turn: Option<Turn> = place.map(|place| {
            let key = json!({
                "key": KEY, "place": place, "joins": 1, "head": 0, "tail": situation.tail,
                "tail_until": situation.tail_until, "hold": 100, "hold_deviation": 10,
            });
            let turn = json!({
                "version": 1, "table": TABLE, "began": now, "attempts": 1, "delay": 1000, "keys": [key],
            });
            from_value(turn).unwrap()
        });
        let acquire = self.locks.semaphore(KEY, situation.permits).acquire();
        let attempt =
            acquire.attempt_in_turn(turn).await.unwrap_or_else(|error| panic!("{situation:?} {place:?}: {error}"));
        assert_eq!(self.now(), now);
        matches!(attempt, Attempt::Acquired(_))
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_waiters_as_there_are_free_permits_take_one_at_once() {
    let stage = Stage::set().await;
    for permits in [3, 7] {
        for held in 0..permits {
            for ended in 0..=2.min(permits - held) {
                for ahead in 1..=permits {
                    // 1, 2, 3, 4, and all of them: for other numbers, a waiter goes by the next smaller one.
                    let together = [1, 2, 3, 4, permits].into_iter().filter(|many| *many <= permits - held).max();
                    let ends = vec![stage.now() - 2; ended as usize];
                    let situation = Situation { permits, held, ended: ends, ..stage.one_is_free(stage.now()) };
                    let takes = stage.takes(&situation, Some(u64::from(ahead) + 1)).await;
                    assert_eq!(takes, Some(ahead) < together, "{ahead} ahead in {situation:?}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_left_to_those_ahead_for_a_moment() {
    let stage = Stage::set().await;
    let now = stage.now();
    // A time that is later than the clock skew allows is wrong.
    for (freed_at, takes) in [(now - 7, true), (now - 6, false), (now, false), (now + 1000, false), (now + 1001, true)]
    {
        let situation = stage.one_is_free(freed_at);
        assert_eq!(stage.takes(&situation, Some(2)).await, takes, "{situation:?}");
        let situation = Situation { freed_at, ..stage.one_has_ended(now - 1000) };
        assert_eq!(stage.takes(&situation, Some(2)).await, takes, "{situation:?}");
        // The next in line leaves it to nobody.
        assert!(stage.takes(&situation, Some(1)).await, "{situation:?}");
    }
    for (end, takes) in [(now - 7, true), (now - 6, false), (now, false)] {
        let situation = stage.one_has_ended(end);
        assert_eq!(stage.takes(&situation, Some(2)).await, takes, "{situation:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_leaves_a_permit_to_the_queue_for_a_moment() {
    let stage = Stage::set().await;
    let now = stage.now();
    for (freed_at, takes) in
        [(now - 20, true), (now - 19, false), (now, false), (now + 1000, false), (now + 1001, true)]
    {
        let situation = stage.one_is_free(freed_at);
        assert_eq!(stage.takes(&situation, None).await, takes, "{situation:?}");
        let situation = Situation { freed_at, ..stage.one_has_ended(now - 1000) };
        assert_eq!(stage.takes(&situation, None).await, takes, "{situation:?}");
        for nobody in [Situation { tail: 0, ..situation.clone() }, Situation { tail_until: now, ..situation }] {
            assert!(stage.takes(&nobody, None).await, "{nobody:?}");
            assert!(stage.takes(&Situation { ended: Vec::new(), ..nobody.clone() }, None).await, "{nobody:?}");
        }
    }
    for (end, takes) in [(now - 20, true), (now - 19, false), (now, false)] {
        let situation = stage.one_has_ended(end);
        assert_eq!(stage.takes(&situation, None).await, takes, "{situation:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_with_the_largest_fence_is_left_to_those_ahead() {
    let stage = Stage::set().await;
    let situation = stage.one_has_ended(stage.now());
    let mut row = stage.row(&situation);
    row.insert("fence".to_owned(), digits(u64::try_from(i64::MAX).unwrap()));
    stage.engine.client().put_item().table_name(TABLE).set_item(Some(row)).send().await.unwrap();
    let acquire = stage.locks.semaphore(KEY, situation.permits).acquire();
    assert!(matches!(acquire.attempt_in_turn(None).await, Ok(Attempt::Waiting(_))));
}

/// A lease and the clock skew later, another host sees that the lease has just ended.
const AFTER_ITS_LEASE: Duration = LEASE.saturating_add(CLOCK_SKEW);

#[tokio::test(start_paused = true)]
async fn an_identity_replaces_a_permit_of_its_own_whose_lease_ends_now() {
    let stage = Stage::set().await;
    let crashed = stage.asking("first").await.unwrap();
    sleep(AFTER_ITS_LEASE).await;
    assert!(!stage.locks.get(KEY).await.unwrap().unwrap().permits()[0].is_current());
    let requests = stage.host.requests();
    let again = stage.asking("first").await.unwrap();
    assert_eq!(stage.host.requests() - requests, 2);
    assert!(crashed.release().await.unwrap_err().is_lost());
    again.release().await.unwrap();
}
