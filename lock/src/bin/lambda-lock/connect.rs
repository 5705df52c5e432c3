//! From options and environment to `Locks`.

use std::env;
use std::time::Duration;

use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::ProvideCredentials as _;
use lambda_lock::{Locks, client_config};

use crate::arguments::{self, TableOptions};
use crate::{CONFIGURATION, Failure, cause};

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

/// The lease without `--lease`: as the library has it.
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
        return Ok((lambda_lock::embedded::DynamoDb::open(file)?.client(), true));
    }
    check_endpoint(options)?;
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    if let Some(profile) = &options.profile {
        // Before credentials in the environment, as the AWS command line interface has it.
        let credentials = ProfileFileCredentialsProvider::builder().profile_name(profile).build();
        if let Err(error) = credentials.provide_credentials().await {
            let cause = cause(&error);
            let message = format!(
                "profile `{profile}` gives no credentials ({cause}): look at it in ~/.aws/config, or log in again"
            );
            return Err(Failure::new(CONFIGURATION, message));
        }
        loader = loader.profile_name(profile).credentials_provider(credentials);
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
    Ok((Client::from_conf(client_config(&config).build()), false))
}

/// The SDK would take what it cannot use for a server that does not answer.
fn check_endpoint(options: &TableOptions) -> Result<(), Failure> {
    let variable = |name| env::var(name).ok().map(|url| (name, url));
    let named = options.endpoint_url.clone().map(|url| ("--endpoint-url", url));
    let named = named.or_else(|| variable("AWS_ENDPOINT_URL_DYNAMODB")).or_else(|| variable("AWS_ENDPOINT_URL"));
    match named {
        Some((name, url)) if !url.starts_with("http://") && !url.starts_with("https://") => {
            let message =
                format!("{name} is `{url}`, which is no URL of a server: write it like `http://localhost:8000`");
            Err(Failure::new(CONFIGURATION, message))
        }
        _ => Ok(()),
    }
}
