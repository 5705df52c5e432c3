//! From options and environment to `Locks`.

use std::env;
use std::time::Duration;

use aws_config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::Client;
use lambda_lock::Locks;

use crate::arguments::{self, TableOptions};
use crate::{CONFIGURATION, Failure};

/// The locks, and the table's name for others to use.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) locks: Locks,
    pub(crate) table: String,
}

/// Sends no request to the table, unless there is none yet in the file of `--embedded`.
pub(crate) async fn connect(options: &TableOptions, holder: String) -> Result<Connection, Failure> {
    let table = table(options)?;
    let (client, in_file) = client(options).await?;
    let mut builder = Locks::builder(client, &table).holder(holder);
    if let Some(skew) = options.clock_skew {
        builder = builder.clock_skew(skew);
    } else if let Some(skew) = variable("LOCK_CLOCK_SKEW", arguments::clock_skew)? {
        builder = builder.clock_skew(skew);
    }
    if let Some(lease) = variable("LOCK_LEASE", arguments::lease)? {
        builder = builder.lease(lease);
    }
    if let Some(prefix) = options.key_prefix.clone().or_else(|| env::var("LOCK_KEY_PREFIX").ok()) {
        builder = builder.key_prefix(prefix);
    }
    if let Some(name) = &options.partition_key {
        builder = builder.partition_key(name);
    }
    if let Some((name, value)) = &options.sort_key {
        builder = builder.sort_key(name, value);
    }
    let locks = builder.build()?;
    if in_file {
        locks.create_table().await?;
    }
    Ok(Connection { locks, table })
}

/// Whether `LOCK_ENABLED` leaves locking on.
pub(crate) fn is_enabled() -> Result<bool, Failure> {
    let read = |text: &str| text.trim().parse().map_err(|_| "it is neither `true` nor `false`".to_owned());
    Ok(variable("LOCK_ENABLED", read)?.unwrap_or(true))
}

/// How long `run` holds a lock that is asked for without `--lease`.
pub(crate) fn default_lease() -> Result<Duration, Failure> {
    Ok(variable("LOCK_LEASE", arguments::lease)?.unwrap_or(Duration::from_secs(30)))
}

fn variable<T>(name: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, Failure> {
    let Ok(value) = env::var(name) else { return Ok(None) };
    read(&value).map(Some).map_err(|why| {
        let message = format!("the environment variable {name} is `{value}`: {why}, so set it right or unset it");
        Failure::new(CONFIGURATION, message)
    })
}

fn table(options: &TableOptions) -> Result<String, Failure> {
    let named = options.table.clone().or_else(|| env::var("LOCK_TABLE_NAME").ok().filter(|name| !name.is_empty()));
    #[cfg(feature = "embedded")]
    let named = named.or_else(|| options.embedded.as_ref().map(|_| "locks".to_owned()));
    named.ok_or_else(|| {
        let message = "there is no table to use: name it with --table or in the environment variable LOCK_TABLE_NAME";
        Failure::new(CONFIGURATION, message)
    })
}

/// The client, and whether its tables are in a file.
async fn client(options: &TableOptions) -> Result<(Client, bool), Failure> {
    #[cfg(feature = "embedded")]
    if let Some(file) = &options.embedded {
        return Ok((lambda_lock::embedded::Engine::open(file)?.client(), true));
    }
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    if let Some(profile) = &options.profile {
        loader = loader.profile_name(profile);
    }
    if let Some(region) = &options.region {
        loader = loader.region(Region::new(region.clone()));
    }
    if let Some(url) = &options.endpoint_url {
        loader = loader.endpoint_url(url);
    }
    let config = loader.load().await;
    if config.region().is_none() {
        let message = "there is no region: give --region, set AWS_REGION, or name one in the profile";
        return Err(Failure::new(CONFIGURATION, message));
    }
    Ok((Client::new(&config), false))
}
