//! Bounds of settings, keys and requests, and the checks that enforce them.

use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::AttributeValue;

use crate::clock::{Moment, since_epoch};
use crate::error::Error;
use crate::holder::Data;
use crate::text::{printable, shortened};

/// The longest lease, for a lock that outlives its invocation. After a crash, the key stays held until the lease ends or an
/// operator frees it.
pub(crate) const MAX_LEASE: Duration = Duration::from_hours(366 * 24);
/// The longest lease by default and until a deadline, the longest minimum hold, and the longest delay: longer than any
/// Lambda invocation, short enough that a crash is temporary.
pub(crate) const DAY: Duration = Duration::from_hours(24);
pub(crate) const MIN_LEASE: Duration = Duration::from_millis(1);
pub(crate) const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);
/// AWS refuses a request 5 minutes after it was signed (15 for some services), so no request arrives later than this.
pub(crate) const MIN_RETENTION: Duration = Duration::from_mins(15);
pub(crate) const MAX_RETENTION: Duration = Duration::from_hours(366 * 24);

/// DynamoDB's limit for a partition key.
pub(crate) const MAX_KEY_BYTES: usize = 2048;
/// DynamoDB's limit for the items of a transaction.
const MAX_KEYS: usize = 100;
/// DynamoDB's limit for the name of an attribute that is a key; this crate uses it for all names.
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// The longest identity of an owner.
const MAX_IDENTITY_BYTES: usize = 1024;
/// DynamoDB's limit for a sort key.
pub(crate) const MAX_SORT_KEY_BYTES: usize = 1024;
/// The longest name of a holder, so that a row has room for data, and the row of a semaphore for many holders.
const MAX_HOLDER_BYTES: usize = 1024;
/// The largest value of data: DynamoDB allows 400 KiB for an item. The key, the name of the holder and four owners with their
/// identities, all of the largest size, take less than 7 KiB, and the caller's own attributes 2.
pub(crate) const MAX_DATA_BYTES: usize = 390 * 1024;

/// The largest attributes that an acquire adds to the row, with their names. They stay there, beside the data of any holder.
const MAX_ATTRIBUTES_BYTES: usize = 2 * 1024;

/// The most permits of a semaphore. One update cannot name many more permits to replace.
pub(crate) const MAX_PERMITS: u32 = 100;
/// The largest value of a semaphore's data: the row also has the names of many holders.
pub(crate) const MAX_PERMIT_DATA_BYTES: usize = 200 * 1024;

/// How long the clients of locks try to connect, and how long they wait for the first byte of an answer.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time for a request, including the SDK's retries. An acquire is also limited by its lease.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The time before the deadline that an acquire leaves, so that Lambda gets an answer instead of a timeout.
pub(crate) const TIME_TO_ANSWER: Duration = Duration::from_millis(100);

/// Returns how much of the time that is left may be spent on waiting for DynamoDB: all but [`TIME_TO_ANSWER`], or half if
/// that is more.
pub(crate) fn time_to_ask(left: Duration) -> Duration {
    left.saturating_sub(TIME_TO_ANSWER).max(left / 2)
}

/// Returns the deadline, unless it is more than [`DAY`] ago. A function that runs has a deadline that is to come or has just
/// passed. A deadline long past is none at all: it is zero in a context made by hand, as in tests, and early in 1970 under
/// `cargo lambda watch`.
pub(crate) fn deadline_if_any(deadline: SystemTime, now: Moment) -> Option<SystemTime> {
    Some(deadline).filter(|deadline| since_epoch(*deadline) > now.wall.saturating_sub(DAY))
}

pub(crate) fn check_duration(what: &str, value: Duration, min: Duration, max: Duration) -> Result<(), Error> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    // In days, because `humantime` has years of 365 days and a quarter.
    let text = |time: Duration| match (time.as_secs() / DAY.as_secs(), time.as_secs() % DAY.as_secs()) {
        (days @ 2.., 0) if time.subsec_nanos() == 0 => format!("{days}days"),
        _ => humantime::format_duration(time).to_string(),
    };
    let [value, min, max] = [value, min, max].map(text);
    Err(Error::invalid(format!("the {what} is {value}, not between {min} and {max}")))
}

pub(crate) fn check_key(prefix: &str, key: &str) -> Result<(), Error> {
    let bytes = prefix.len() + key.len();
    if key.is_empty() {
        Err(Error::invalid("the key is empty: name the work to lock"))
    } else if bytes > MAX_KEY_BYTES {
        Err(Error::invalid(format!(
            "the key `{}` has {bytes} bytes with its prefix, more than DynamoDB's {MAX_KEY_BYTES}: hash it",
            printable(key)
        )))
    } else {
        Ok(())
    }
}

/// Checks the keys of one acquire, which are sorted.
pub(crate) fn check_keys(prefix: &str, keys: &[String]) -> Result<(), Error> {
    let count = keys.len();
    if !(1..=MAX_KEYS).contains(&count) {
        return Err(Error::invalid(format!("the number of keys is {count}, not between 1 and {MAX_KEYS}")));
    }
    keys.iter().try_for_each(|key| check_key(prefix, key))?;
    match keys.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => {
            Err(Error::invalid(format!("the key `{}` is named twice: name each key once", printable(&twice[0]))))
        }
        None => Ok(()),
    }
}

pub(crate) fn check_table_name(name: &str) -> Result<(), Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.starts_with("arn:") || ((3..=255).contains(&name.len()) && name.chars().all(allowed)) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the table name `{}` is neither an ARN nor 3 to 255 letters, digits, `_`, `-` and `.`",
        printable(name)
    )))
}

pub(crate) fn check_data(Data(data): &Data, most: usize) -> Result<(), Error> {
    let bytes = size(data);
    if bytes <= most {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the data has {bytes} bytes, more than {most}: store it elsewhere, and its location here"
    )))
}

/// Checks the size of the caller's own attributes.
pub(crate) fn check_attributes(attributes: &[(String, AttributeValue)]) -> Result<(), Error> {
    let bytes: usize = attributes.iter().map(|(name, value)| name.len() + size(value)).sum();
    if bytes <= MAX_ATTRIBUTES_BYTES {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the attributes have {bytes} bytes with their names, more than {MAX_ATTRIBUTES_BYTES}: store them as data"
    )))
}

pub(crate) fn check_identity(identity: &str) -> Result<(), Error> {
    let bytes = identity.len();
    if (1..=MAX_IDENTITY_BYTES).contains(&bytes) {
        return Ok(());
    }
    Err(Error::invalid(format!("the identity of the owner has {bytes} bytes, not 1 to {MAX_IDENTITY_BYTES}: hash it")))
}

pub(crate) fn check_holder(name: &str) -> Result<(), Error> {
    let bytes = name.len();
    if bytes <= MAX_HOLDER_BYTES {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the name of the holder, `{}`, has {bytes} bytes, more than {MAX_HOLDER_BYTES}: shorten it",
        printable(name)
    )))
}

/// Shortens the name of a holder that no user has chosen.
pub(crate) fn holder_within_bounds(name: &str) -> String {
    shortened(name, MAX_HOLDER_BYTES).into_owned()
}

/// Checks the number of permits of a semaphore.
pub(crate) fn check_permits(key: &str, permits: u32) -> Result<(), Error> {
    if (1..=MAX_PERMITS).contains(&permits) {
        return Ok(());
    }
    let key = printable(key);
    Err(Error::invalid(format!("the semaphore on key `{key}` has {permits} permits, not 1 to {MAX_PERMITS}")))
}

/// Returns the largest size that DynamoDB counts for a value ("DynamoDB item sizes and formats" in the developer guide).
fn size(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(digits) => digits.len() + 1,
        AttributeValue::B(bytes) => bytes.as_ref().len(),
        AttributeValue::L(list) => list.iter().map(|value| size(value) + 1).sum::<usize>() + 3,
        AttributeValue::M(map) => map.iter().map(|(name, value)| name.len() + size(value) + 1).sum::<usize>() + 3,
        AttributeValue::Ss(texts) | AttributeValue::Ns(texts) => texts.iter().map(|text| text.len() + 1).sum(),
        AttributeValue::Bs(values) => values.iter().map(|bytes| bytes.as_ref().len()).sum(),
        _ => 1,
    }
}
