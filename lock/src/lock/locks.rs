//! `Locks`: the table and the settings of its locks.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_sdk_dynamodb::Client;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::background::Background;
use super::register::Register;
use crate::client::{client_config, for_locks, shareable};
use crate::clock::Clock;
use crate::error::{Cause, Error};
use crate::limits::{
    DAY, MAX_CLOCK_SKEW, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_RETENTION, MAX_SORT_KEY_BYTES, MIN_LEASE, MIN_RETENTION,
    check_duration, check_holder, check_key, check_table_name, holder_within_bounds,
};
use crate::row::{self, Table};
use crate::sdk::{load_config, variable};
use crate::text::printable;

/// The limit of a warm-up: Lambda's init phase has 10 s.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(3);

/// The locks of one DynamoDB table.
///
/// ```
/// # use lambda_lock::{Error, Locks};
/// # async fn example(client: aws_sdk_dynamodb::Client) -> Result<(), Error> {
/// let locks = Locks::builder(client, "locks").build()?;
/// let Some(lock) = locks.try_acquire("nightly-report").await? else {
///     return Ok(()); // another invocation does the work
/// };
/// // … the work …
/// lock.release().await
/// # }
/// ```
///
/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Locks(pub(crate) Arc<Settings>);

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) table: Table,
    pub(crate) clock: Clock,
    pub(crate) lease: Duration,
    /// The name of the Lambda function. Empty elsewhere.
    pub(crate) function: String,
    pub(crate) holder: String,
    pub(crate) enabled: bool,
    pub(super) background: Background,
    /// The locks that are held.
    pub(super) held: Register,
}

impl Locks {
    /// Returns the default settings for this client and this table, given by its name or ARN.
    ///
    /// Use [`Locks::client`] for your own requests, because then they share a connection with the requests of the locks. The
    /// client that you pass, and locks of other tables with the same client, share the connection only if the configuration of
    /// the client names an HTTP client, as the configuration of [`client_config`] does.
    pub fn builder(client: Client, table: impl Into<String>) -> LocksBuilder {
        let client = shareable(client);
        LocksBuilder {
            table: Table {
                sender: for_locks(&client),
                client,
                name: table.into(),
                partition_key: row::DEFAULT_PARTITION_KEY.to_owned(),
                sort_key: None,
                has_key_in_sort_key: false,
                key_prefix: String::new(),
                clock_skew: Duration::from_secs(1),
                retention: Duration::from_hours(24),
                has_strong_regions: false,
                is_in_background: false,
            },
            lease: Duration::from_secs(30),
            holder: None,
            enabled: true,
        }
    }

    /// Reads all settings from the environment. The AWS SDK finds region, credentials and endpoint as usual, which
    /// [`load_config`] checks, and the client has the short retries and timeouts of [`client_config`]. These variables set the
    /// rest:
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lambda_lock::Error> {
    /// let locks = lambda_lock::Locks::from_env().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// | variable | meaning | default |
    /// | --- | --- | --- |
    /// | `LOCK_TABLE_NAME` | the table's name or ARN | required |
    /// | `LOCK_LEASE` | [`LocksBuilder::lease`], such as `30s`, `2m` or `500ms` | `30s` |
    /// | `LOCK_CLOCK_SKEW` | [`LocksBuilder::clock_skew`], in the same form | `1s` |
    /// | `LOCK_KEY_PREFIX` | [`LocksBuilder::key_prefix`] | empty |
    /// | `LOCK_ENABLED` | [`LocksBuilder::enabled`], `true` or `false` | `true` |
    /// | `LOCK_MULTI_REGION_STRONG_CONSISTENCY` | [`LocksBuilder::multi_region_strong_consistency`], `true` or `false` | `false` |
    ///
    /// Sends no request. An error names the variable and its value, unless the value is a secret.
    pub async fn from_env() -> Result<Self, Error> {
        // Check the variables first: without a table, there is no point in looking up a region.
        let settings = Variables::read(variable)?;
        let config = load_config(aws_config::defaults(BehaviorVersion::latest()), None).await?;
        settings.apply(Client::from_conf(client_config(&config).build())).build()
    }

    /// Returns the client. Use it for your own requests too: a second client opens a second connection and resolves the
    /// credentials again, which makes a cold start slower.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example() -> Result<(), Error> {
    /// let locks = Locks::from_env().await?;
    /// let (client, table) = (locks.client().clone(), locks.table_name().to_owned());
    /// # let _ = (client, table);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With [`client_config`], the client repeats a request that is not answered within a second, up to five times. An
    /// unanswered attempt may have been applied, so give your own writes a condition or a `ClientRequestToken`, or set
    /// other timeouts.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.0.table.client
    }

    /// Returns the name or ARN of the table.
    #[must_use]
    pub fn table_name(&self) -> &str {
        &self.0.table.name
    }

    /// Opens the connection to DynamoDB and resolves the credentials, so that the first acquire need not.
    ///
    /// ```no_run
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example() -> Result<(), Error> {
    /// let locks = Locks::from_env().await?;
    /// locks.warm_up().await;
    /// // Runtime::new(layer.layer(service_fn(handler))).run().await
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Call it before `Runtime::run`. Lambda runs the init phase with a full CPU, but the first invocation only with the
    /// function's share of a CPU. The first connection takes about 24 ms of a full CPU, most of it because the crypto
    /// library collects randomness, and several times as long on a small function. With `SnapStart`, [register the
    /// locks](crate::docs::operate::deploying#snapstart) as well.
    ///
    /// One `UpdateItem` that is never applied, which DynamoDB counts as one write. The IAM action is
    /// `dynamodb:UpdateItem`, and the key is the prefix followed by `lambda-lock-check`; a denial warms up just as well. A
    /// failure is logged at level `debug`, and the first acquire then opens the connection. Takes at most 3 s, to leave
    /// time in the init phase. Sends nothing if locking is [disabled](LocksBuilder::enabled).
    #[doc(alias = "cold start")]
    pub async fn warm_up(&self) {
        if self.0.enabled
            && let Err(error) = self.0.table.reach(WARM_UP_TIMEOUT).await
        {
            tracing::debug!(?error, "warm-up failed");
        }
    }

    /// Waits until all background requests are answered, for at most `limit`: the releases of dropped locks, and the
    /// withdrawals of acquires that ended without an answer. Call it before Lambda freezes the environment.
    ///
    /// Fails with the first error of a background request since the last flush: the key of this request may stay held until its
    /// lease ends. A lock that was lost is no error. Fails with an error of kind [`Unavailable`](crate::ErrorKind::Unavailable)
    /// if requests are unanswered when the limit ends; they go on.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// let Err(error) = locks.acquire("nightly-report").await else { return Ok(()) };
    /// // The request may have been applied, even though it was not answered.
    /// locks.flush(Duration::from_secs(2)).await?;
    /// Err(error)
    /// # }
    /// ```
    ///
    /// Sends no request. Each background request takes up to 10 s, in which it is repeated if DynamoDB answers with an error
    /// that a later attempt can mend, and a withdrawal usually sends one or two.
    pub async fn flush(&self, limit: Duration) -> Result<(), Error> {
        let are_answered = self.0.background.flush(limit).await?;
        if are_answered { Ok(()) } else { Err(Error::new(Cause::Unavailable, self.0.table.place(), "")) }
    }

    /// Releases all locks and permits that these `Locks` and their clones hold, within `limit`, before the process ends. Also
    /// waits for background requests, as [`flush`](Self::flush) does. Can be repeated.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = lambda_lock::Locks::from_env().await?;
    /// let held = locks.clone();
    /// // With the feature `graceful-shutdown` of `lambda_runtime`, in its `spawn_graceful_shutdown_handler`:
    /// let on_sigterm = async move || {
    ///     let _logged = held.release_all(Duration::from_millis(400)).await;
    /// };
    /// # on_sigterm().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Each lock whose release fails or is not answered is logged at level `warn`, and its key is free when its lease ends.
    /// The error is the first of them.
    ///
    /// All locks end at once ([`Lock::until_lost`](crate::Lock::until_lost) returns), and all releases are sent at the same time.
    /// Their requests are those of [`Lock::release`](crate::Lock::release). Work that runs under a lock, in
    /// [`Acquire::run`](crate::Acquire::run), [`Lock::while_held`](crate::Lock::while_held) or a middleware, is cancelled at
    /// its next await point as if the lease had ended, and only then is the lock released. If the work does not stop, its
    /// lock is not released: do not call this from within such work. Other work must watch `lost` itself. A [minimum
    /// hold](crate::Acquire::min_hold) ends.
    ///
    /// An idempotent run is cancelled in the same way, so its record is released, and a retry runs the work again. With
    /// `OnUnfinished::Reject`, the record stays, and a retry is refused. A run whose work is done stores its result, and this
    /// call waits for it.
    ///
    /// Call `release_all` on SIGTERM. Lambda sends this signal to a function with an extension, and ends the process 500 ms
    /// later. A lock that is acquired after the call is not released.
    pub async fn release_all(&self, limit: Duration) -> Result<(), Error> {
        let started = self.0.clock.now();
        let left = || limit.saturating_sub(self.0.clock.now().since(started));
        let (mut outcome, mut stopped) = (Ok(()), HashMap::new());
        // Several rounds, because an acquire that was waiting may get a key that is released.
        loop {
            let held = self.0.held.stop(&mut stopped);
            if held.is_empty() {
                return outcome.and(self.flush(left()).await);
            }
            let releases = held.iter().map(async |held| {
                timeout(left(), held.released()).await.unwrap_or_else(|_| Err(held.unanswered())).err()
            });
            // A lock that was lost is not held.
            for error in join_all(releases).await.into_iter().flatten().filter(|error| !error.is_lost()) {
                tracing::warn!(key = error.key(), ?error, "a lock was not released before the end");
                outcome = outcome.and(Err(error));
            }
        }
    }

    pub(crate) fn check_key(&self, key: &str) -> Result<(), Error> {
        check_key(&self.0.table.key_prefix, key)
    }
}

/// The settings of [`Locks`].
///
/// ```
/// # use std::time::Duration;
/// # use lambda_lock::{Error, Locks};
/// # fn example(client: aws_sdk_dynamodb::Client) -> Result<(), Error> {
/// let locks = Locks::builder(client, "app")
///     .partition_key("PK")
///     .sort_key("SK", "LOCK")
///     .key_prefix("lock#")
///     .lease(Duration::from_mins(1))
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// [`build`](Self::build) checks the settings.
#[derive(Clone, Debug)]
#[must_use = "settings have no effect until `build`"]
pub struct LocksBuilder {
    table: Table,
    lease: Duration,
    holder: Option<String>,
    enabled: bool,
}

impl LocksBuilder {
    /// Sets the default lease, the longest time that a lock is held: 30 s by default, from 1 ms to a day.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how far the clocks of two hosts may differ: 1 s by default, up to 5 minutes. All hosts must use the same value.
    ///
    /// Other hosts see the key as free this long after the holder's own deadline. If a host's clock differs from DynamoDB's by
    /// more, acquires and renewals there fail with an error of kind [`ClockSkew`](crate::ErrorKind::ClockSkew), as soon as whole
    /// seconds [show it](crate::docs::reference::times#a-clock-that-is-wrong). Until then, two holders can consider themselves
    /// valid at once.
    pub fn clock_skew(mut self, clock_skew: Duration) -> Self {
        self.table.clock_skew = clock_skew;
        self
    }

    /// Sets how long a row stays after its lease before DynamoDB's TTL may delete it: a day by default, up to 366 days, and
    /// at least 15 minutes plus twice the clock skew.
    ///
    /// The fence of a new row starts at the clock of its acquire, and AWS rejects a request some minutes after it was
    /// signed. So a request that arrives after TTL deleted the row was sent after the last acquisition of that row, and
    /// its fence is larger.
    ///
    /// A row that is deleted earlier, by hand or by Powertools after a failure, has no such guarantee. The next fence is
    /// then the clock of the next holder, and can be smaller by as much as the two clocks differ.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.table.retention = retention;
        self
    }

    /// Sets the prefix of every key: empty by default.
    ///
    /// Nothing is inserted between prefix and key, so end the prefix with a separator such as `#`.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table.key_prefix = prefix.into();
        self
    }

    /// Sets the name of the table's partition key, an attribute of type string: `id` by default.
    pub fn partition_key(mut self, name: impl Into<String>) -> Self {
        self.table.partition_key = name.into();
        self
    }

    /// Sets the name of the table's sort key, an attribute of type string, and its value in lock rows: none by default.
    pub fn sort_key(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.table.sort_key = Some((name.into(), value.into()));
        self.table.has_key_in_sort_key = false;
        self
    }

    /// Sets the name of the table's sort key, an attribute of type string, which then has the key of each row; and the value of
    /// the partition key, which is the same in each row. This is the composite layout of
    /// [Powertools](crate::docs::reference::powertools), whose settings are `sort_key_attr` and `static_pk_value`. Replaces
    /// [`sort_key`](Self::sort_key).
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # fn example(client: aws_sdk_dynamodb::Client) -> Result<(), Error> {
    /// let locks = Locks::builder(client, "app").key_in_sort_key("SK", "idempotency#orders").build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// All rows are then in one partition of DynamoDB, which takes about 1,000 writes a second. A key has at most 1,024 bytes
    /// with its prefix: DynamoDB rejects a longer one.
    pub fn key_in_sort_key(mut self, sort_key: impl Into<String>, partition: impl Into<String>) -> Self {
        self.table.sort_key = Some((sort_key.into(), partition.into()));
        self.table.has_key_in_sort_key = true;
        self
    }

    /// Sets the holder's name that others read, up to 1,024 bytes: by default the function's name and log stream on Lambda,
    /// and the process id elsewhere.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// Enables or disables locking. Without locking, every acquire succeeds at once, sends nothing, and returns a lock
    /// that is not [enforced](crate::Lock::is_enforced); `build` logs one warning. Enabled by default.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Says that the table is a global table with multi-Region strong consistency, so that locks hold across its regions. Off by
    /// default.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # fn example(client: aws_sdk_dynamodb::Client) -> Result<(), Error> {
    /// let locks = Locks::builder(client, "locks").multi_region_strong_consistency(true).build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A table with multi-Region strong consistency has no transactions. With this setting, an operation that needs a
    /// transaction fails with an error of kind [`Invalid`](crate::ErrorKind::Invalid) before anything is sent: [several
    /// keys](Locks::acquire_all), [`condition_check`](crate::Lock::condition_check) and
    /// [`Run::complete_in`](crate::Run::complete_in). Without the setting, DynamoDB rejects the transaction. The table has no
    /// TTL either: [`Locks::delete_expired`] deletes old rows, and [`Locks::create_table`] leaves TTL off.
    pub fn multi_region_strong_consistency(mut self, is_strong: bool) -> Self {
        self.table.has_strong_regions = is_strong;
        self
    }

    /// Checks the settings and returns the locks. Sends nothing. With the feature `metrics`, gives the exporter the units and
    /// descriptions of the metrics.
    pub fn build(self) -> Result<Locks, Error> {
        let Table { name, partition_key, sort_key, clock_skew, retention, .. } = &self.table;
        check_table_name(name)?;
        check_attribute_name("partition key attribute", partition_key)?;
        if let Some((name, value)) = sort_key {
            check_attribute_name("sort key attribute", name)?;
            if name == partition_key {
                return Err(Error::invalid(format!(
                    "the partition key and the sort key are both `{}`: name two attributes",
                    printable(name)
                )));
            }
            let (what, most) = if self.table.has_key_in_sort_key {
                ("partition key", MAX_KEY_BYTES)
            } else {
                ("sort key", MAX_SORT_KEY_BYTES)
            };
            if value.is_empty() || value.len() > most {
                let bytes = value.len();
                return Err(Error::invalid(format!("the value of the {what} has {bytes} bytes, not 1 to {most}")));
            }
        }
        check_duration("lease", self.lease, MIN_LEASE, DAY)?;
        check_duration("clock skew", *clock_skew, Duration::ZERO, MAX_CLOCK_SKEW)?;
        check_duration("retention", *retention, MIN_RETENTION + 2 * *clock_skew, MAX_RETENTION)?;
        let function = variable("AWS_LAMBDA_FUNCTION_NAME")?.unwrap_or_default();
        let holder = self.holder.map_or_else(|| default_holder(&function), Ok)?;
        check_holder(&holder)?;
        #[cfg(feature = "metrics")]
        crate::metrics::describe();
        if !self.enabled {
            tracing::warn!(table = &*printable(name), "locking is disabled: work runs without locks");
        }
        Ok(Locks(Arc::new(Settings {
            clock: Clock::new(self.table.client.config().time_source()),
            table: self.table,
            lease: self.lease,
            function,
            holder,
            enabled: self.enabled,
            background: Background::default(),
            held: Register::default(),
        })))
    }
}

fn default_holder(function: &str) -> Result<String, Error> {
    let name = match (function, variable("AWS_LAMBDA_LOG_STREAM_NAME")?) {
        ("", _) => format!("process {}", std::process::id()),
        (function, Some(stream)) => format!("{function} {stream}"),
        (function, None) => function.to_owned(),
    };
    Ok(holder_within_bounds(&name))
}

pub(crate) fn check_attribute_name(what: &str, name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        let (bytes, name) = (name.len(), printable(name));
        return Err(Error::invalid(format!("the {what} `{name}` has {bytes} bytes, not 1 to {MAX_NAME_BYTES}")));
    }
    if row::is_reserved(name) {
        return Err(Error::invalid(format!("the {what} `{name}` is reserved for lock rows: use another, without `:`")));
    }
    Ok(())
}

/// The settings that [`Locks::from_env`] reads.
#[derive(Debug)]
struct Variables {
    table: String,
    lease: Option<Duration>,
    clock_skew: Option<Duration>,
    key_prefix: Option<String>,
    enabled: Option<bool>,
    has_strong_regions: Option<bool>,
}

impl Variables {
    fn read(lookup: impl Fn(&str) -> Result<Option<String>, Error>) -> Result<Self, Error> {
        fn parsed<T, E: Display>(
            name: &str,
            value: Result<Option<String>, Error>,
            parse: impl Fn(&str) -> Result<T, E>,
            like: &str,
        ) -> Result<Option<T>, Error> {
            let Some(value) = value? else { return Ok(None) };
            match parse(value.trim()) {
                Ok(parsed) => Ok(Some(parsed)),
                Err(why) => Err(Error::invalid(format!(
                    "the environment variable {name} is `{}`, which is invalid ({why}): write {like}",
                    printable(&value)
                ))),
            }
        }
        let table = lookup("LOCK_TABLE_NAME")?.filter(|name| !name.is_empty()).ok_or_else(|| {
            Error::invalid("the environment variable LOCK_TABLE_NAME is not set: set it to the name of the lock table")
        })?;
        let flag = |name| parsed(name, lookup(name), str::parse::<bool>, "`true` or `false`");
        let duration = |name| parsed(name, lookup(name), humantime::parse_duration, "a duration like `30s` or `500ms`");
        let variables = Self {
            table,
            lease: duration("LOCK_LEASE")?,
            clock_skew: duration("LOCK_CLOCK_SKEW")?,
            key_prefix: lookup("LOCK_KEY_PREFIX")?,
            enabled: flag("LOCK_ENABLED")?,
            has_strong_regions: flag("LOCK_MULTI_REGION_STRONG_CONSISTENCY")?,
        };
        let named = |name: &str, checked: Result<(), Error>| {
            checked.map_err(|error| Error::invalid(format!("the environment variable {name}: {error}")))
        };
        named("LOCK_TABLE_NAME", check_table_name(&variables.table))?;
        if let Some(lease) = variables.lease {
            named("LOCK_LEASE", check_duration("lease", lease, MIN_LEASE, DAY))?;
        }
        if let Some(skew) = variables.clock_skew {
            named("LOCK_CLOCK_SKEW", check_duration("clock skew", skew, Duration::ZERO, MAX_CLOCK_SKEW))?;
        }
        Ok(variables)
    }

    fn apply(self, client: Client) -> LocksBuilder {
        let mut builder = Locks::builder(client, self.table);
        builder.lease = self.lease.unwrap_or(builder.lease);
        builder.table.clock_skew = self.clock_skew.unwrap_or(builder.table.clock_skew);
        builder.enabled = self.enabled.unwrap_or(builder.enabled);
        builder.table.has_strong_regions = self.has_strong_regions.unwrap_or(builder.table.has_strong_regions);
        builder.table.key_prefix = self.key_prefix.unwrap_or_default();
        builder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn read(variables: &[(&str, &str)]) -> Result<Variables, Error> {
        Variables::read(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            Ok(found.map(|(_, value)| (*value).to_owned()))
        })
    }

    #[test]
    fn settings_come_from_the_environment() {
        let variables = read(&[
            ("LOCK_TABLE_NAME", "jobs"),
            ("LOCK_LEASE", "2m"),
            ("LOCK_CLOCK_SKEW", "250ms"),
            ("LOCK_KEY_PREFIX", "app#"),
            ("LOCK_ENABLED", "false"),
            ("LOCK_MULTI_REGION_STRONG_CONSISTENCY", "true"),
        ])
        .unwrap();
        let client =
            Client::from_conf(aws_sdk_dynamodb::Config::builder().behavior_version(BehaviorVersion::latest()).build());
        let locks = variables.apply(client).build().unwrap();
        assert!(format!("{locks:?}").len() < 1000, "{locks:?}");
        assert_eq!(locks.0.table.name, "jobs");
        assert_eq!(locks.0.lease, Duration::from_mins(2));
        assert_eq!(locks.0.table.clock_skew, Duration::from_millis(250));
        assert_eq!(locks.0.table.key_prefix, "app#");
        assert!(!locks.0.enabled);
        assert!(locks.0.table.has_strong_regions);
    }

    #[test]
    fn a_wrong_variable_is_named_with_its_value() {
        for (variables, expected) in [
            (&[][..], vec!["LOCK_TABLE_NAME", "not set"]),
            (&[("LOCK_TABLE_NAME", "a b")], vec!["LOCK_TABLE_NAME", "`a b`", "3 to 255"]),
            (&[("LOCK_TABLE_NAME", "jobs"), ("LOCK_LEASE", "soon")], vec!["LOCK_LEASE", "`soon`", "30s"]),
            (&[("LOCK_TABLE_NAME", "jobs"), ("LOCK_LEASE", "0s")], vec!["LOCK_LEASE", "0s", "1ms", "1day"]),
            (&[("LOCK_TABLE_NAME", "jobs"), ("LOCK_CLOCK_SKEW", "1h")], vec!["LOCK_CLOCK_SKEW", "1h", "5m"]),
            (&[("LOCK_TABLE_NAME", "jobs"), ("LOCK_ENABLED", "yes")], vec!["LOCK_ENABLED", "`yes`", "`true`"]),
        ] {
            let error = read(variables).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            for part in expected {
                assert!(error.to_string().contains(part), "`{error}` lacks `{part}`");
            }
        }
    }
}
