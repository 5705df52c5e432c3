//! `Locks::create_table`: the table as the locks need it.

use std::pin::Pin;
use std::time::Duration;

use aws_sdk_dynamodb::client::Waiters;
use aws_sdk_dynamodb::error::{BuildError, ProvideErrorMetadata};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, MultiRegionConsistency, ProvisionedThroughput,
    ScalarAttributeType, TableDescription, Tag, TimeToLiveSpecification, TimeToLiveStatus,
};

use crate::error::{Cause, Error};
use crate::lock::Locks;
use crate::row::{EXPIRATION, Table};
use crate::text::printable;

impl Locks {
    /// Prepares the creation of the table, if it does not exist yet: see [`CreateTable`].
    pub fn create_table(&self) -> CreateTable {
        CreateTable { table: self.0.table.clone(), throughput: None, tags: Vec::new() }
    }
}

/// A request to create the lock table, with the keys of the [`Locks`], on-demand billing by default, and TTL.
///
/// ```
/// # use lambda_lock::{Error, Locks};
/// # async fn example(locks: Locks) -> Result<(), Error> {
/// locks.create_table().tag("team", "billing").await?;
/// # Ok(())
/// # }
/// ```
///
/// Await it. It waits up to five minutes until the table is active. An acquire never creates the table.
///
/// If the table exists, only its TTL can change: it is turned on if it is off, and if all rows are those of locks and records.
/// TTL deletes every row whose attribute `expiration` has passed, also the rows of another program. So a table with such rows,
/// with other keys, or with TTL on another attribute is left as it is, and you get an error of kind
/// [`Invalid`](crate::ErrorKind::Invalid) that says what to do. To find such rows, the call reads the table until the first one,
/// up to 1 MiB with each `Scan`.
///
/// A table with [multi-Region strong consistency](crate::LocksBuilder::multi_region_strong_consistency) has no TTL. With that
/// setting, TTL stays off, so that the new table can become one while it is empty.
///
/// IAM actions: `dynamodb:CreateTable`, `dynamodb:DescribeTable`, `dynamodb:DescribeTimeToLive`,
/// `dynamodb:UpdateTimeToLive`, with tags `dynamodb:TagResource`, and for a table that exists without TTL `dynamodb:Scan`.
#[derive(Debug)]
#[must_use = "the table is not created unless this is awaited"]
pub struct CreateTable {
    table: Table,
    throughput: Option<(i64, i64)>,
    tags: Vec<(String, String)>,
}

impl CreateTable {
    /// Sets provisioned read and write capacity units, instead of on-demand billing.
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
        let rejected = |error: BuildError| Error::new(Cause::Rejected, self.table.place(), "").with_source(error);
        let mut create = client.create_table().table_name(name);
        let sort_key = sort_key.iter().map(|(name, _)| (name, KeyType::Range));
        for (attribute, key_type) in [(partition_key, KeyType::Hash)].into_iter().chain(sort_key) {
            let element = KeySchemaElement::builder().attribute_name(attribute).key_type(key_type);
            let definition =
                AttributeDefinition::builder().attribute_name(attribute).attribute_type(ScalarAttributeType::S);
            create = create
                .key_schema(element.build().map_err(rejected)?)
                .attribute_definitions(definition.build().map_err(rejected)?);
        }
        create = match self.throughput {
            None => create.billing_mode(BillingMode::PayPerRequest),
            Some((read, write)) => create.billing_mode(BillingMode::Provisioned).provisioned_throughput(
                ProvisionedThroughput::builder()
                    .read_capacity_units(read)
                    .write_capacity_units(write)
                    .build()
                    .map_err(rejected)?,
            ),
        };
        for (key, value) in &self.tags {
            create = create.tags(Tag::builder().key(key).value(value).build().map_err(rejected)?);
        }
        let is_new = match create.send().await {
            Ok(_) => true,
            Err(error) if error.code() == Some("ResourceInUseException") => false,
            Err(error) => return Err(Error::from_sdk(error, self.table.place(), "")),
        };
        let found = client
            .wait_until_table_exists()
            .table_name(name)
            .wait(Duration::from_mins(5))
            .await
            .map_err(|error| Error::new(Cause::Unavailable, self.table.place(), "").with_source(error))?;
        let description = found.into_result().ok().and_then(|found| found.table);
        if let Some(description) = &description {
            compare_keys(&self.table, description)
                .map_err(|why| Error::invalid(format!("table `{name}` was not changed, because {why}")))?;
        }
        let is_strong = description.as_ref().is_some_and(has_strong_regions);
        if is_strong || self.table.has_strong_regions { Ok(()) } else { self.turn_on_ttl(is_new).await }
    }

    async fn turn_on_ttl(&self, is_new: bool) -> Result<(), Error> {
        let Table { client, name, .. } = &self.table;
        let described = client.describe_time_to_live().table_name(name).send().await;
        let described = described.map_err(|error| Error::from_sdk(error, self.table.place(), ""))?;
        if let Some(ttl) = described.time_to_live_description
            && matches!(ttl.time_to_live_status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling))
        {
            return match ttl.attribute_name.as_deref() {
                Some(EXPIRATION) => Ok(()),
                other => Err(Error::invalid(format!(
                    "table `{name}` has TTL on attribute `{}`, not `{EXPIRATION}`: use another table, or turn TTL off there if \
                     no row needs it",
                    other.unwrap_or_default(),
                ))),
            };
        }
        if !is_new && let Some(key) = self.table.row_of_others().await? {
            return Err(Error::invalid(format!(
                "table `{name}` was not changed, because its row `{}` is not one of a lock or a record, and TTL deletes each row \
                 whose attribute `{EXPIRATION}` has passed: use another table; or, if TTL may do that, turn it on yourself: \
                 aws dynamodb update-time-to-live --table-name {name} --time-to-live-specification \
                 Enabled=true,AttributeName={EXPIRATION}",
                printable(&key)
            )));
        }
        let specification = TimeToLiveSpecification::builder().attribute_name(EXPIRATION).enabled(true).build();
        let specification =
            specification.map_err(|error| Error::new(Cause::Rejected, self.table.place(), "").with_source(error))?;
        match client.update_time_to_live().table_name(name).time_to_live_specification(specification).send().await {
            Ok(_) => Ok(()),
            // Another caller created the table at the same time.
            Err(error) if error.message().is_some_and(|text| text.contains("already enabled")) => Ok(()),
            Err(error) if error.code() == Some("UnknownOperationException") => Err(Error::invalid(format!(
                "table `{name}` is there, but this endpoint has no TTL, so old rows stay: call Locks::delete_expired (lambda-lock \
                 delete-expired) on a schedule, or use DynamoDB or DynamoDB Local"
            ))),
            Err(error) => Err(Error::from_sdk(error, self.table.place(), "")),
        }
    }
}

/// Compares the keys of a table with those of the locks. Returns the keys, or what differs and what to do.
pub(super) fn compare_keys(table: &Table, description: &TableDescription) -> Result<String, String> {
    let Table { partition_key, sort_key, .. } = table;
    let key = |wanted: KeyType| {
        let element = description.key_schema().iter().find(|element| *element.key_type() == wanted)?;
        let mut definitions = description.attribute_definitions().iter();
        let definition = definitions.find(|definition| definition.attribute_name() == element.attribute_name());
        let kind = definition.map_or("", |definition| definition.attribute_type().as_str());
        Some(format!("`{}` ({kind})", element.attribute_name()))
    };
    let keys = |partition_key: &str, sort_key: Option<String>| match sort_key {
        Some(sort_key) => format!("partition key {partition_key}, sort key {sort_key}"),
        None => format!("partition key {partition_key}, no sort key"),
    };
    let has = keys(&key(KeyType::Hash).unwrap_or_default(), key(KeyType::Range));
    let wanted = keys(&format!("`{partition_key}` (S)"), sort_key.as_ref().map(|(name, _)| format!("`{name}` (S)")));
    if has == wanted {
        return Ok(has);
    }
    Err(format!(
        "the table has {has}, but the locks expect {wanted}: set LocksBuilder::partition_key (--partition-key) and sort_key \
         (--sort-key) to the keys of the table, which must be strings, or use another table"
    ))
}

/// Returns `true` for a replica of a global table with multi-Region strong consistency.
pub(super) fn has_strong_regions(table: &TableDescription) -> bool {
    matches!(table.multi_region_consistency(), Some(MultiRegionConsistency::Strong))
}

impl IntoFuture for CreateTable {
    type Output = Result<(), Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.create())
    }
}
