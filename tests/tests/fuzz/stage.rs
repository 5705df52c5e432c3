//! A row, and who asks for it at which time.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::Host;
use lambda_lock::{Error, ErrorKind, Locks};
use lambda_lock_tests::rows::{text, to_json};
use lambda_lock_tests::{Row, World};

use crate::rows::{differences, is_ours, number_of};
use crate::{IDENTITY, KEY, assert_readable, since_epoch};

pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) host: Host,
    pub(crate) locks: Locks,
    /// The key of the row.
    pub(crate) key: String,
    pub(crate) before: Row,
}

impl Stage {
    /// Writes a row, which was left so long ago.
    pub(crate) async fn new(world: World, row: Row, age: Duration) -> Self {
        let host = world.host().later(age).build();
        let locks = world.locks(&host).build().unwrap();
        Self::of(world, host, locks, row).await
    }

    pub(crate) async fn of(world: World, host: Host, locks: Locks, row: Row) -> Self {
        let key = row["id"].as_s().unwrap().clone();
        world.put_row(row).await;
        let before = world.row(&key).await.unwrap();
        Self { world, host, locks, key, before }
    }

    pub(crate) fn now(&self) -> Duration {
        since_epoch(self.host.now())
    }

    /// In milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "times are smaller")]
    pub(crate) fn now_millis(&self) -> f64 {
        self.now().as_millis() as f64
    }

    pub(crate) async fn row(&self) -> Option<Row> {
        self.world.row(&self.key).await
    }

    /// Asserts that only these attributes have changed.
    pub(crate) async fn assert_unchanged(&self, except: &[&str]) {
        let changed = differences(Some(&self.before), self.row().await.as_ref());
        assert!(changed.iter().all(|name| except.contains(&name.as_str())), "changed: {changed:?}");
    }

    /// Asserts that attributes of others have not changed, and returns the row.
    pub(crate) async fn changed_row(&self) -> Row {
        let after = self.row().await.expect("the row is there");
        let changed = differences(Some(&self.before), Some(&after));
        let theirs: Vec<_> = changed.iter().filter(|name| !is_ours(name)).collect();
        assert!(theirs.is_empty(), "changed: {theirs:?}");
        after
    }

    /// Asserts that it was refused for one of these reasons, and that the row is as it was.
    pub(crate) async fn assert_refused(&self, error: &Error, kinds: &[ErrorKind]) {
        assert_readable(error, &[KEY, &self.key]);
        assert!(kinds.contains(&error.kind()), "{error:?}");
        self.assert_unchanged(&[]).await;
    }

    pub(crate) fn is_semaphore(&self) -> bool {
        self.before.get("status") == Some(&text("SEMAPHORE"))
    }
}

/// Prints the row of a case that fails.
impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("at {:?}, with the row\n{}", self.now(), to_json(&self.before));
        }
    }
}

/// The start of all owners of the identity.
pub(crate) fn start_of_identity() -> String {
    format!("{}#{IDENTITY}#", IDENTITY.len())
}

/// The permits of a row: the ends of their leases, in milliseconds.
pub(crate) fn ends(row: &Row) -> HashMap<&str, f64> {
    let permits = row.iter().filter_map(|(name, value)| {
        let (Some(_), AttributeValue::M(map)) = (name.strip_prefix("permit:"), value) else { return None };
        Some((name.as_str(), number_of(map, "end")?))
    });
    permits.collect()
}

/// A number of the row has a fraction, which no program writes: it is read without.
pub(crate) fn has_fractions(row: &Row) -> bool {
    row.values().any(|value| match value {
        AttributeValue::N(digits) => digits.contains('.'),
        AttributeValue::M(map) => has_fractions(map),
        _ => false,
    })
}
