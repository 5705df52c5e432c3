//! `Locks` from the options and the environment.

use std::env::{self, VarError};
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::Client;
use lambda_lock::{ErrorKind, Locks, client_config, load_config};

use crate::arguments::{self, TableOptions};
use crate::failure::{CONFIGURATION, Failure};

/// The locks, with the name of their table and the prefix of their keys.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) locks: Locks,
    pub(crate) table: String,
    pub(crate) key_prefix: String,
}

/// A key on the command line of an operator.
#[derive(Debug)]
pub(crate) struct Key {
    /// Without the prefix, as the library takes it.
    pub(crate) name: String,
    /// As it is in the row, in logs and in errors.
    pub(crate) of_row: String,
}

impl Connection {
    /// Returns the key without the prefix.
    pub(crate) fn key(&self, name: String) -> Key {
        Key { of_row: [self.key_prefix.as_str(), &name].concat(), name }
    }

    /// Returns the key that an operator has named: with the prefix, as logs show it, or without.
    pub(crate) fn named_key(&self, named: &str) -> Key {
        self.key(named.strip_prefix(&self.key_prefix).unwrap_or(named).to_owned())
    }
}

/// Connects without a request to the table. In the file of `--embedded`, it creates the table if there is none.
pub(crate) async fn connect(options: &TableOptions, holder: String) -> Result<Connection, Failure> {
    connect_if(true, options, holder).await
}

/// Connects to locks that exclude others only if they are enabled.
pub(crate) async fn connect_if(enabled: bool, options: &TableOptions, holder: String) -> Result<Connection, Failure> {
    let table = table(options)?;
    let (client, in_file) = client(options).await?;
    let mut builder = Locks::builder(client, &table).holder(holder).enabled(enabled);
    if let Some(skew) = options.clock_skew {
        builder = builder.clock_skew(skew);
    } else if let Some(skew) = variable("LOCK_CLOCK_SKEW", arguments::clock_skew)? {
        builder = builder.clock_skew(skew);
    }
    if let Some(is_strong) = variable("LOCK_MULTI_REGION_STRONG_CONSISTENCY", flag)? {
        builder = builder.multi_region_strong_consistency(is_strong);
    }
    let key_prefix = key_prefix(options)?;
    builder = builder.key_prefix(&key_prefix);
    if let Some(name) = &options.partition_key {
        builder = builder.partition_key(name);
    }
    if let Some((name, value)) = &options.sort_key {
        builder = builder.sort_key(name, value);
    }
    if let Some((name, value)) = &options.key_in_sort_key {
        builder = builder.key_in_sort_key(name, value);
    }
    let locks = builder.build()?;
    // A table with other keys is there, too. The command says what is wrong with it.
    if in_file
        && let Err(error) = locks.create_table().await
        && error.kind() != ErrorKind::Invalid
    {
        return Err(error.into());
    }
    Ok(Connection { locks, table, key_prefix })
}

/// Returns whether `LOCK_ENABLED` leaves locking on.
pub(crate) fn is_enabled() -> Result<bool, Failure> {
    Ok(variable("LOCK_ENABLED", flag)?.unwrap_or(true))
}

pub(crate) fn flag(text: &str) -> Result<bool, String> {
    text.trim().parse().map_err(|_| "must be `true` or `false`".to_owned())
}

/// Returns the lease without `--lease`, which defaults to that of the library.
pub(crate) fn default_lease() -> Result<Duration, Failure> {
    Ok(variable("LOCK_LEASE", arguments::lease)?.unwrap_or(Duration::from_secs(30)))
}

/// Returns what the environment variable says, if it is set.
pub(crate) fn variable<T>(name: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, Failure> {
    let failed = |what: &str, why: &str| {
        let message = format!("invalid value{what} of the environment variable {name}: {why}; correct it or unset it");
        Failure::new(CONFIGURATION, message)
    };
    match env::var(name) {
        Ok(value) => read(&value).map(Some).map_err(|why| failed(&format!(" `{value}`"), &why)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(failed("", "must be UTF-8")),
    }
}

fn text(name: &str) -> Result<Option<String>, Failure> {
    variable(name, |value| Ok(value.to_owned()))
}

fn key_prefix(options: &TableOptions) -> Result<String, Failure> {
    let named = || text("LOCK_KEY_PREFIX").map(Option::unwrap_or_default);
    options.key_prefix.clone().map_or_else(named, Ok)
}

fn table(options: &TableOptions) -> Result<String, Failure> {
    let named = || text("LOCK_TABLE_NAME").map(|name| name.filter(|name| !name.is_empty()));
    let named = options.table.clone().map_or_else(named, |table| Ok(Some(table)))?;
    #[cfg(feature = "embedded")]
    let named = named.or_else(|| options.embedded.as_ref().map(|_| "locks".to_owned()));
    named.ok_or_else(|| {
        let message = "no table is given: set --table or the environment variable LOCK_TABLE_NAME";
        Failure::new(CONFIGURATION, message)
    })
}

/// Returns the client, and whether its tables are in a file.
async fn client(options: &TableOptions) -> Result<(Client, bool), Failure> {
    #[cfg(feature = "embedded")]
    if let Some(file) = &options.embedded {
        return Ok((lambda_lock::embedded::DynamoDb::open(file)?.client(), true));
    }
    let config = sdk_config(options).await?;
    Ok((Client::from_conf(client_config(&config).build()), false))
}

/// Returns what the options and the environment say about AWS.
pub(crate) async fn sdk_config(options: &TableOptions) -> Result<SdkConfig, Failure> {
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    if let Some(region) = &options.region {
        loader = loader.region(Region::new(region.clone()));
    }
    if let Some(url) = &options.endpoint_url {
        loader = loader.endpoint_url(url);
    }
    let config = load_config(loader, options.profile.as_deref()).await?;
    if config.region().is_none() {
        let message = "no region is given: set --region, AWS_REGION or the region of the profile";
        return Err(Failure::new(CONFIGURATION, message));
    }
    Ok(config)
}
