//! `Locks`: the table, the settings, and what can be done without holding a lock.

use std::env;
use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::client::Waiters;
use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ProvisionedThroughput, ScalarAttributeType, Tag,
    TimeToLiveSpecification, TimeToLiveStatus,
};

use tokio::sync::watch;

use crate::acquire::Acquire;
use crate::client::client_config;
use crate::clock::Clock;
use crate::error::{Error, Kind};
use crate::holder::Holder;
use crate::list::List;
use crate::lock::{Lock, Ownership};
use crate::protocol::{self, Table};

/// The longest lease, and the longest hold: longer than any Lambda invocation, short enough that a crash is not for ever.
pub(crate) const MAX_LEASE: Duration = Duration::from_hours(24);
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);
/// Lambda's init phase has 10 s.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(3);
/// AWS refuses a request 5 minutes after it was signed (15 for some services), so that none is later than that.
const MIN_RETENTION: Duration = Duration::from_mins(15);
pub(crate) const MAX_RETENTION: Duration = Duration::from_hours(366 * 24);

/// Named locks in one DynamoDB table. Cheap to clone.
///
/// ```
/// # use lambda_lock::{Error, Locks};
/// # async fn example(client: aws_sdk_dynamodb::Client) -> Result<(), Error> {
/// let locks = Locks::builder(client, "locks").build()?;
/// let Some(lock) = locks.try_acquire("nightly-report").await? else {
///     return Ok(()); // someone else is at it
/// };
/// // … the work …
/// lock.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Locks(pub(crate) Arc<Settings>);

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) table: Table,
    pub(crate) clock: Clock,
    pub(crate) lease: Duration,
    pub(crate) clock_skew: Duration,
    pub(crate) retention: Duration,
    pub(crate) holder: String,
    pub(crate) enabled: bool,
    /// How many releases are under way in the background.
    pub(crate) in_background: watch::Sender<usize>,
}

impl Locks {
    /// Starts with a client that the caller built and the name (or ARN) of the table.
    pub fn builder(client: Client, table: impl Into<String>) -> LocksBuilder {
        LocksBuilder {
            table: Table {
                client,
                name: table.into(),
                partition_key: protocol::DEFAULT_PARTITION_KEY.to_owned(),
                sort_key: None,
                key_prefix: String::new(),
            },
            lease: Duration::from_secs(30),
            clock_skew: Duration::from_secs(1),
            retention: Duration::from_hours(24),
            holder: None,
            enabled: true,
        }
    }

    /// Everything from the environment: the client as the AWS SDK does it (region, credentials, `AWS_ENDPOINT_URL`,
    /// …), with the short retries and timeouts of [`client_config`], and the rest from these variables.
    ///
    /// | variable | meaning | default |
    /// | --- | --- | --- |
    /// | `LOCK_TABLE_NAME` | the table's name or ARN | required |
    /// | `LOCK_LEASE` | [`LocksBuilder::lease`], like `30s`, `2m` or `500ms` | `30s` |
    /// | `LOCK_CLOCK_SKEW` | [`LocksBuilder::clock_skew`], likewise | `1s` |
    /// | `LOCK_KEY_PREFIX` | [`LocksBuilder::key_prefix`] | empty |
    /// | `LOCK_ENABLED` | [`LocksBuilder::enabled`], `true` or `false` | `true` |
    ///
    /// Sends no request. An error names the variable and its value.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lambda_lock::Error> {
    /// let locks = lambda_lock::Locks::from_env().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn from_env() -> Result<Self, Error> {
        // The variables first: no need to look for a region when the table's name is missing.
        let settings = Variables::read(|name| env::var(name).ok())?;
        let config = aws_config::defaults(BehaviorVersion::latest()).load().await;
        settings.apply(Client::from_conf(client_config(&config).build())).build()
    }

    /// Returns the client. Use it for your own requests too: a second client opens a second connection and looks the
    /// credentials up again, which makes a cold start slower.
    ///
    /// With [`client_config`], it repeats a request that is not answered within a second, up to five times. The first one
    /// may have been applied: give your own writes a condition or a `ClientRequestToken`, or set other timeouts.
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
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.0.table.client
    }

    /// Returns the name or ARN of the table.
    #[must_use]
    pub fn table_name(&self) -> &str {
        &self.0.table.name
    }

    /// Opens the connection to DynamoDB and resolves the credentials, so that the first acquire does not wait for it.
    ///
    /// Call it before `Runtime::run`. Lambda runs that init phase with a full CPU, whatever the function's memory is,
    /// while the first invocation has the function's share of a CPU. The TLS handshake and its random numbers take tens
    /// of milliseconds of CPU, which a small function spends several times over.
    ///
    /// It sends one `UpdateItem` that cannot be applied, which DynamoDB counts as one write. The IAM action is
    /// `dynamodb:UpdateItem`, and the key is the prefix followed by `lambda-lock-check`. A denial warms up as well as a
    /// refusal does. A failure is logged at level `debug`, and the first acquire then opens the connection. It takes at
    /// most 3 s, so that it does not use up the init phase, and sends nothing if locking is
    /// [switched off](LocksBuilder::enabled).
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
    pub async fn warm_up(&self) {
        if self.0.enabled
            && let Err(error) = self.0.table.reach(WARM_UP_TIMEOUT).await
        {
            tracing::debug!(%error, "warming up failed");
        }
    }

    /// Asks for the lock on `key`: await the result, or set more before. Without [`Acquire::wait`], one request.
    pub fn acquire(&self, key: impl Into<String>) -> Acquire {
        Acquire::new(self.clone(), key.into())
    }

    /// The lock on `key`, or `None` if someone else holds it. One request; IAM action `dynamodb:UpdateItem`.
    pub async fn try_acquire(&self, key: impl Into<String>) -> Result<Option<Lock>, Error> {
        match self.acquire(key).await {
            Ok(lock) => Ok(Some(lock)),
            Err(error) if error.is_held() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Who holds `key`, or held it last ([`Holder::is_current`] tells which); `None` when there is no row.
    ///
    /// One consistent read; IAM action `dynamodb:GetItem`. Needs no lock. What it says may have changed by the time
    /// it is read: to act on it, acquire.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// match locks.get("nightly-report").await? {
    ///     Some(holder) if holder.is_current() => println!("held by {holder}"),
    ///     _ => println!("free"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get(&self, key: impl Into<String>) -> Result<Option<Holder>, Error> {
        let key = key.into();
        self.check_key(&key)?;
        self.0.table.get(&key, self.0.clock.now()).await
    }

    /// Reads the table's locks and records, page by page: see [`List`].
    pub fn list(&self) -> List {
        List::new(self.clone())
    }

    /// Frees `key` for whoever asks next, by an operator's hand: the acquisition that was `seen`, by [`get`](Self::get),
    /// in a [list](Self::list) or in a refusal, no longer holds it, and finds it [lost](Error::is_lost) when it releases or
    /// renews. The row then names this caller as the last holder.
    ///
    /// It does not stop the work of that holder: make sure that it has crashed, or that its writes are
    /// [fenced](Lock::fence). A run of idempotent work that is refused as unfinished may then run again.
    ///
    /// `true` also if that holder has released it itself. `false` if the row is no longer as it was seen, because someone
    /// else has taken it, the run was completed, or the row was deleted; it is then left alone. One request; IAM action
    /// `dynamodb:UpdateItem`.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// if let Some(holder) = locks.get("nightly-report").await?
    ///     && holder.is_current()
    /// {
    ///     let freed = locks.force_release("nightly-report", &holder).await?;
    ///     println!("{}", if freed { "freed" } else { "it has changed hands: look again" });
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn force_release(&self, key: impl Into<String>, seen: &Holder) -> Result<bool, Error> {
        let key = key.into();
        self.check_key(&key)?;
        let settings = &self.0;
        let (owner, now) = (Ownership::new(self, &key)?.owner, settings.clock.now());
        let by = &settings.holder;
        let is_free = settings.table.force_release(&key, &owner, by, seen, now, settings.retention).await?;
        tracing::warn!(key, from = %seen, by, is_free, "released by force");
        Ok(is_free)
    }

    /// Waits until the releases that were sent in the background, of locks that were dropped and of acquires that ended
    /// without an answer, are answered: before a process ends, or an environment is frozen. No request by itself; each of
    /// those takes up to 10 s.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// let Err(error) = locks.acquire("nightly-report").await else { return Ok(()) };
    /// // The request may have been applied all the same.
    /// locks.flush().await;
    /// Err(error)
    /// # }
    /// ```
    pub async fn flush(&self) {
        let mut releases = self.0.in_background.subscribe();
        while *releases.borrow_and_update() > 0 {
            // It fails if the sender is gone; that is in here.
            if releases.changed().await.is_err() {
                return;
            }
        }
    }

    /// Creates the table as the locks need it, if it is not there: see [`CreateTable`].
    pub fn create_table(&self) -> CreateTable {
        CreateTable { table: self.0.table.clone(), throughput: None, tags: Vec::new() }
    }

    pub(crate) fn check_key(&self, key: &str) -> Result<(), Error> {
        let bytes = self.0.table.key_prefix.len() + key.len();
        if key.is_empty() {
            Err(Error::invalid("the key is empty: name what shall be locked"))
        } else if bytes > protocol::MAX_KEY_BYTES {
            Err(Error::invalid(format!(
                "the key with its prefix has {bytes} bytes, and DynamoDB allows {}: hash it (the key begins with `{}`)",
                protocol::MAX_KEY_BYTES,
                key.chars().take(40).collect::<String>(),
            )))
        } else {
            Ok(())
        }
    }
}

/// The settings of [`Locks`]; checked by [`build`](Self::build).
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
#[derive(Clone, Debug)]
#[must_use = "settings do nothing until they are built"]
pub struct LocksBuilder {
    table: Table,
    lease: Duration,
    clock_skew: Duration,
    retention: Duration,
    holder: Option<String>,
    enabled: bool,
}

impl LocksBuilder {
    /// How long a lock is held at the most when the acquire does not say; 30 s by default, up to a day.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// By how much the clocks of two hosts may differ; 1 s by default, up to 5 minutes.
    ///
    /// It is part of every lease: others see the key free this much after the holder's own deadline. If clocks
    /// differ by more, two holders can believe to hold the key at once.
    pub fn clock_skew(mut self, clock_skew: Duration) -> Self {
        self.clock_skew = clock_skew;
        self
    }

    /// How long a row stays after its lease before DynamoDB's TTL may delete it; a day by default.
    ///
    /// At least 15 minutes more than twice the clock skew; up to 366 days. A new row's fence starts at the clock of the
    /// acquire, and AWS refuses a request minutes after it was signed. So with this minimum, a request that arrives after
    /// the row was deleted was sent after the deleted row's last acquisition, and its fence is larger.
    ///
    /// A row that is deleted earlier, by hand or by Powertools after a failure, gives no such guarantee: the next fence is
    /// the clock of the next holder, and may be smaller by as much as the two clocks differ.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// What is put before every key; empty by default.
    ///
    /// Prefix and key are joined as they are: end the prefix with a character that sets it apart, such as `#`.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table.key_prefix = prefix.into();
        self
    }

    /// The name of the table's partition key attribute, a string; `id` by default.
    pub fn partition_key(mut self, name: impl Into<String>) -> Self {
        self.table.partition_key = name.into();
        self
    }

    /// The name of the table's sort key attribute, a string, and the value that lock rows have there; none by default.
    pub fn sort_key(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.table.sort_key = Some((name.into(), value.into()));
        self
    }

    /// What others read as the holder's name; by default the Lambda function's name and log stream, elsewhere the
    /// process id.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// `false` turns locking off: every acquire succeeds at once, sends nothing, and gives a lock that is not
    /// [enforced](Lock::is_enforced). One warning is logged when the settings are built.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Checks the settings. Sends nothing. With the feature `metrics`, it describes them to the exporter.
    pub fn build(self) -> Result<Locks, Error> {
        let Table { name, partition_key, sort_key, .. } = &self.table;
        check_table_name(name)?;
        check_attribute_name("partition key attribute", partition_key)?;
        if let Some((name, value)) = sort_key {
            check_attribute_name("sort key attribute", name)?;
            if name == partition_key {
                return Err(Error::invalid(format!(
                    "partition key and sort key are both `{name}`: name two attributes"
                )));
            }
            if value.is_empty() || value.len() > 1024 {
                let bytes = value.len();
                return Err(Error::invalid(format!("the sort key's value has {bytes} bytes, not 1 to 1024")));
            }
        }
        check_duration("lease", self.lease, Duration::from_millis(1), MAX_LEASE)?;
        check_duration("clock skew", self.clock_skew, Duration::ZERO, MAX_CLOCK_SKEW)?;
        check_duration("retention", self.retention, MIN_RETENTION + 2 * self.clock_skew, MAX_RETENTION)?;
        #[cfg(feature = "metrics")]
        crate::metrics::describe();
        if !self.enabled {
            tracing::warn!(table = name, "locking is switched off: work runs without locks");
        }
        Ok(Locks(Arc::new(Settings {
            clock: Clock::new(self.table.client.config().time_source()),
            table: self.table,
            lease: self.lease,
            clock_skew: self.clock_skew,
            retention: self.retention,
            holder: self.holder.unwrap_or_else(default_holder),
            enabled: self.enabled,
            in_background: watch::Sender::default(),
        })))
    }
}

fn default_holder() -> String {
    match (env::var("AWS_LAMBDA_FUNCTION_NAME"), env::var("AWS_LAMBDA_LOG_STREAM_NAME")) {
        (Ok(function), Ok(stream)) => format!("{function} {stream}"),
        (Ok(function), Err(_)) => function,
        (Err(_), _) => format!("process {}", std::process::id()),
    }
}

pub(crate) fn check_duration(what: &str, value: Duration, least: Duration, most: Duration) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let [value, least, most] = [value, least, most].map(humantime::format_duration);
    Err(Error::invalid(format!("the {what} is {value}, not between {least} and {most}")))
}

fn check_table_name(name: &str) -> Result<(), Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.starts_with("arn:") || ((3..=255).contains(&name.len()) && name.chars().all(allowed)) {
        return Ok(());
    }
    Err(Error::invalid(format!("the table name `{name}` is not 3 to 255 letters, digits, `_`, `-` or `.`, nor an ARN")))
}

pub(crate) fn check_attribute_name(what: &str, name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > 255 {
        return Err(Error::invalid(format!("the {what} `{name}` has {} bytes, not 1 to 255", name.len())));
    }
    if protocol::is_reserved(name) {
        return Err(Error::invalid(format!(
            "the {what} `{name}` is an attribute of the lock itself: choose another name"
        )));
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
}

impl Variables {
    fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        fn parsed<T, E: Display>(
            name: &str,
            value: Option<String>,
            parse: impl Fn(&str) -> Result<T, E>,
            like: &str,
        ) -> Result<Option<T>, Error> {
            let Some(value) = value else { return Ok(None) };
            match parse(value.trim()) {
                Ok(parsed) => Ok(Some(parsed)),
                Err(why) => Err(Error::invalid(format!(
                    "the environment variable {name} is `{value}`, which cannot be read ({why}): write {like}"
                ))),
            }
        }
        let table = lookup("LOCK_TABLE_NAME").filter(|name| !name.is_empty()).ok_or_else(|| {
            Error::invalid("the environment variable LOCK_TABLE_NAME is not set: set it to the name of the lock table")
        })?;
        let duration = |name| parsed(name, lookup(name), humantime::parse_duration, "it like `30s` or `500ms`");
        let variables = Self {
            table,
            lease: duration("LOCK_LEASE")?,
            clock_skew: duration("LOCK_CLOCK_SKEW")?,
            key_prefix: lookup("LOCK_KEY_PREFIX"),
            enabled: parsed("LOCK_ENABLED", lookup("LOCK_ENABLED"), str::parse::<bool>, "`true` or `false`")?,
        };
        let named = |name: &str, checked: Result<(), Error>| {
            checked.map_err(|error| Error::invalid(format!("the environment variable {name}: {error}")))
        };
        named("LOCK_TABLE_NAME", check_table_name(&variables.table))?;
        if let Some(lease) = variables.lease {
            named("LOCK_LEASE", check_duration("lease", lease, Duration::from_millis(1), MAX_LEASE))?;
        }
        if let Some(skew) = variables.clock_skew {
            named("LOCK_CLOCK_SKEW", check_duration("clock skew", skew, Duration::ZERO, MAX_CLOCK_SKEW))?;
        }
        Ok(variables)
    }

    fn apply(self, client: Client) -> LocksBuilder {
        let mut builder = Locks::builder(client, self.table);
        builder.lease = self.lease.unwrap_or(builder.lease);
        builder.clock_skew = self.clock_skew.unwrap_or(builder.clock_skew);
        builder.enabled = self.enabled.unwrap_or(builder.enabled);
        builder.table.key_prefix = self.key_prefix.unwrap_or_default();
        builder
    }
}

/// Creates the lock table: on-demand billing unless told otherwise, string keys as the [`Locks`] have them, TTL on.
///
/// Await it. It waits until the table is active, for up to five minutes, and is harmless when the table is there
/// already; only TTL is then turned on if it is off. Acquiring never calls it.
///
/// IAM actions: `dynamodb:CreateTable`, `dynamodb:DescribeTable`, `dynamodb:DescribeTimeToLive`,
/// `dynamodb:UpdateTimeToLive`, and with tags `dynamodb:TagResource`.
///
/// ```
/// # use lambda_lock::{Error, Locks};
/// # async fn example(locks: Locks) -> Result<(), Error> {
/// locks.create_table().tag("team", "billing").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is created until it is awaited"]
pub struct CreateTable {
    table: Table,
    throughput: Option<(i64, i64)>,
    tags: Vec<(String, String)>,
}

impl CreateTable {
    /// Provisioned read and write capacity units in place of on-demand billing.
    pub fn provisioned(mut self, read: i64, write: i64) -> Self {
        self.throughput = Some((read, write));
        self
    }

    /// Adds a tag to the table.
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.push((key.into(), value.into()));
        self
    }

    async fn create(self) -> Result<(), Error> {
        let Table { client, name, partition_key, sort_key, .. } = &self.table;
        let refused =
            |error: aws_sdk_dynamodb::error::BuildError| Error::new(Kind::Refused, name, "").with_source(error);
        let mut create = client.create_table().table_name(name);
        let sort_key = sort_key.iter().map(|(name, _)| (name, KeyType::Range));
        for (attribute, key_type) in [(partition_key, KeyType::Hash)].into_iter().chain(sort_key) {
            let element = KeySchemaElement::builder().attribute_name(attribute).key_type(key_type);
            let definition =
                AttributeDefinition::builder().attribute_name(attribute).attribute_type(ScalarAttributeType::S);
            create = create
                .key_schema(element.build().map_err(refused)?)
                .attribute_definitions(definition.build().map_err(refused)?);
        }
        create = match self.throughput {
            None => create.billing_mode(BillingMode::PayPerRequest),
            Some((read, write)) => create.billing_mode(BillingMode::Provisioned).provisioned_throughput(
                ProvisionedThroughput::builder()
                    .read_capacity_units(read)
                    .write_capacity_units(write)
                    .build()
                    .map_err(refused)?,
            ),
        };
        for (key, value) in &self.tags {
            create = create.tags(Tag::builder().key(key).value(value).build().map_err(refused)?);
        }
        match create.send().await {
            Ok(_) => {}
            Err(error) if error.code() == Some("ResourceInUseException") => {}
            Err(error) => return Err(Error::from_sdk(error, name, "")),
        }
        client
            .wait_until_table_exists()
            .table_name(name)
            .wait(Duration::from_mins(5))
            .await
            .map_err(|error| Error::new(Kind::Unavailable, name, "").with_source(error))?;
        self.turn_on_ttl().await
    }

    async fn turn_on_ttl(&self) -> Result<(), Error> {
        let Table { client, name, .. } = &self.table;
        let described = client.describe_time_to_live().table_name(name).send().await;
        let described = described.map_err(|error| Error::from_sdk(error, name, ""))?;
        if let Some(ttl) = described.time_to_live_description
            && matches!(ttl.time_to_live_status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling))
        {
            return match ttl.attribute_name.as_deref() {
                Some(protocol::EXPIRATION) => Ok(()),
                other => Err(Error::invalid(format!(
                    "table `{name}` has TTL on attribute `{}`, not `{}`: turn it off there, or use another table",
                    other.unwrap_or_default(),
                    protocol::EXPIRATION
                ))),
            };
        }
        let specification =
            TimeToLiveSpecification::builder().attribute_name(protocol::EXPIRATION).enabled(true).build();
        let specification = specification.map_err(|error| Error::new(Kind::Refused, name, "").with_source(error))?;
        match client.update_time_to_live().table_name(name).time_to_live_specification(specification).send().await {
            Ok(_) => Ok(()),
            // Someone else created the table at the same time and was quicker.
            Err(error) if error.message().is_some_and(|text| text.contains("already enabled")) => Ok(()),
            Err(error) => Err(Error::from_sdk(error, name, "")),
        }
    }
}

impl IntoFuture for CreateTable {
    type Output = Result<(), Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.create())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Variables, Error> {
        Variables::read(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    // behaviour 37
    #[test]
    fn settings_come_from_the_environment() {
        let variables = read(&[
            ("LOCK_TABLE_NAME", "jobs"),
            ("LOCK_LEASE", "2m"),
            ("LOCK_CLOCK_SKEW", "250ms"),
            ("LOCK_KEY_PREFIX", "app#"),
            ("LOCK_ENABLED", "false"),
        ])
        .unwrap();
        let client =
            Client::from_conf(aws_sdk_dynamodb::Config::builder().behavior_version(BehaviorVersion::latest()).build());
        let locks = variables.apply(client).build().unwrap();
        assert!(format!("{locks:?}").len() < 1000, "{locks:?}");
        assert_eq!(locks.0.table.name, "jobs");
        assert_eq!(locks.0.lease, Duration::from_mins(2));
        assert_eq!(locks.0.clock_skew, Duration::from_millis(250));
        assert_eq!(locks.0.table.key_prefix, "app#");
        assert!(!locks.0.enabled);
    }

    // behaviours 37, 47
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
            assert!(error.is_invalid());
            for part in expected {
                assert!(error.to_string().contains(part), "`{error}` lacks `{part}`");
            }
        }
    }
}
