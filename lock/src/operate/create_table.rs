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

impl Locks {
    /// Prepares the creation of the table, if it does not exist yet: see [`CreateTable`].
    pub fn create_table(&self) -> CreateTable {
        CreateTable { table: self.0.table.clone(), throughput: None, tags: Vec::new() }
    }
}

/// A request to create the lock table, with the keys of the [`Locks`], on-demand billing by default, and TTL.
///
/// Await it. It waits up to five minutes until the table is active. If the table exists, it only turns TTL on if that is
/// off. An acquire never creates the table.
///
/// A table with [multi-Region strong consistency](crate::LocksBuilder::multi_region_strong_consistency) has no TTL. With that
/// setting, TTL stays off, so that the new table can become one while it is empty.
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
        match create.send().await {
            Ok(_) => {}
            Err(error) if error.code() == Some("ResourceInUseException") => {}
            Err(error) => return Err(Error::from_sdk(error, self.table.place(), "")),
        }
        let found = client
            .wait_until_table_exists()
            .table_name(name)
            .wait(Duration::from_mins(5))
            .await
            .map_err(|error| Error::new(Cause::Unavailable, self.table.place(), "").with_source(error))?;
        let is_strong = found.as_result().is_ok_and(|found| found.table().is_some_and(has_strong_regions));
        if is_strong || self.table.has_strong_regions { Ok(()) } else { self.turn_on_ttl().await }
    }

    async fn turn_on_ttl(&self) -> Result<(), Error> {
        let Table { client, name, .. } = &self.table;
        let described = client.describe_time_to_live().table_name(name).send().await;
        let described = described.map_err(|error| Error::from_sdk(error, self.table.place(), ""))?;
        if let Some(ttl) = described.time_to_live_description
            && matches!(ttl.time_to_live_status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling))
        {
            return match ttl.attribute_name.as_deref() {
                Some(EXPIRATION) => Ok(()),
                other => Err(Error::invalid(format!(
                    "table `{name}` has TTL on attribute `{}`, not `{EXPIRATION}`: turn it off there, or use another table",
                    other.unwrap_or_default(),
                ))),
            };
        }
        let specification = TimeToLiveSpecification::builder().attribute_name(EXPIRATION).enabled(true).build();
        let specification =
            specification.map_err(|error| Error::new(Cause::Rejected, self.table.place(), "").with_source(error))?;
        match client.update_time_to_live().table_name(name).time_to_live_specification(specification).send().await {
            Ok(_) => Ok(()),
            // Another caller created the table at the same time.
            Err(error) if error.message().is_some_and(|text| text.contains("already enabled")) => Ok(()),
            Err(error) => Err(Error::from_sdk(error, self.table.place(), "")),
        }
    }
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
