//! The engine on which paths are walked, and its hosts.

use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::{RetryConfig, RetryPartition, TokenBucket};
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::Locks;
use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock_model::Subject;
use lambda_lock_model::walk::{KEPT, WALKERS};
use lambda_lock_tests::Row;
use lambda_lock_tests::history::Mutation;

use crate::gate::Gate;

pub(crate) const TABLE: &str = "locks";

/// The shortest retention for clocks that are right. For others, it is longer by twice the skew.
const SHORTEST_RETENTION: Duration = Duration::from_mins(15);

/// The longest lease of a permit.
const LONGEST_LEASE: Duration = Duration::from_hours(24);

/// A host with its locks.
struct Station {
    gate: Gate,
    locks: Locks,
    _host: Host,
}

/// An engine with a table, and for each client a host for each clock that it can have.
pub(crate) struct Lab {
    /// A tick of the model: the largest skew, and how late a request can arrive.
    pub(crate) tick: Duration,
    /// How much longer rows stay than in the model.
    pub(crate) kept_longer: Duration,
    engine: DynamoDb,
    pub(crate) client: Client,
    stations: Vec<[Station; 2]>,
    keys: u32,
}

impl Lab {
    /// Creates the hosts for the paths of this subject, whose network makes this mistake.
    pub(crate) async fn new(subject: Subject, mutation: Option<Mutation>) -> Self {
        let is_semaphore = matches!(subject, Subject::Semaphore | Subject::SemaphoreInTurn);
        // No tombstone of a semaphore is a minute old before a path ends.
        let tick = if is_semaphore { Duration::from_secs(5) } else { Duration::from_mins(5) };
        let retention = SHORTEST_RETENTION + 2 * tick;
        let kept_longer = if is_semaphore {
            (LONGEST_LEASE + tick + retention).saturating_sub(tick * u32::from(KEPT))
        } else {
            Duration::ZERO
        };
        // A whole multiple of a tick, so that a tick begins with a second.
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
        let client = engine.client();
        Locks::builder(client.clone(), TABLE).build().unwrap().create_table().await.unwrap();
        let station = |id: usize, ticks: u32| {
            let mut host = engine.host().clock_ahead(tick * ticks);
            if let Some(mutation) = mutation {
                host = host.intercept(mutation);
            }
            let host = host.build();
            let gate = Gate::default();
            let retries = RetryConfig::standard().with_initial_backoff(Duration::ZERO).with_max_attempts(5);
            let tokens = RetryPartition::custom("path").token_bucket(TokenBucket::unlimited()).build();
            let config = gate.before(&host.client()).retry_config(retries).retry_partition(tokens).build();
            // The name says the skew to the mutation that leaves it out.
            let name = format!("client {id}, skew {}", tick.as_millis());
            let locks = Locks::builder(Client::from_conf(config), TABLE).holder(name);
            let locks = locks.clock_skew(tick).retention(retention).build().unwrap();
            Station { gate, locks, _host: host }
        };
        let stations = (0..WALKERS).map(|id| [station(id, 0), station(id, 1)]).collect();
        Self { tick, kept_longer, engine, client, stations, keys: 0 }
    }

    pub(crate) fn now(&self) -> Duration {
        self.engine.now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
    }

    /// Returns the locks of a client whose clock is so many ticks ahead.
    pub(crate) fn station(&self, client: usize, ahead: u8) -> (Locks, Gate) {
        let Station { gate, locks, .. } = &self.stations[client][usize::from(ahead)];
        (locks.clone(), gate.clone())
    }

    /// Returns a key that no other path has. Later keys are greater, and `acquire_all` sorts them.
    pub(crate) fn key(&mut self) -> String {
        self.keys += 1;
        format!("path-{:08}", self.keys)
    }

    pub(crate) async fn row(&self, key: &str) -> Option<Row> {
        let read = self.client.get_item().table_name(TABLE).consistent_read(true);
        Box::pin(read.key("id", AttributeValue::S(key.to_owned())).send()).await.unwrap().item
    }

    pub(crate) async fn delete(&self, key: &str) {
        let delete = self.client.delete_item().table_name(TABLE);
        Box::pin(delete.key("id", AttributeValue::S(key.to_owned())).send()).await.unwrap();
    }
}
