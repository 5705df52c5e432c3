//! What a row says about the one who holds, or last held, its key.

use std::fmt;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::AttributeValue;

/// Who holds a key, or held it last: what a refusal names and what [`Locks::get`](crate::Locks::get) reads.
///
/// ```
/// # use lambda_lock::{Error, Locks};
/// # async fn example(locks: Locks) -> Result<(), Error> {
/// if let Err(error) = locks.acquire("nightly-report").await
///     && let Some(holder) = error.holder()
/// {
///     println!("held by {} until {:?}", holder.name().unwrap_or("someone"), holder.until());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Holder {
    pub(crate) owner: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) fence: Option<u64>,
    /// Milliseconds since the Unix epoch, as in the row.
    pub(crate) since: Option<u64>,
    pub(crate) until: u64,
    pub(crate) data: Option<Data>,
    pub(crate) current: bool,
    pub(crate) completed: bool,
    pub(crate) released: bool,
    /// A stored error, in place of a result.
    pub(crate) error: Option<Data>,
    /// The digest of the payload fields that must match.
    pub(crate) validation: Option<String>,
}

impl Holder {
    /// For people: what the holder gave as its name; inside Lambda the function, the request and the log stream.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The nonce of the acquisition. A row written by another library has none.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// The fence of the acquisition. A row written by another library has none.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// When the key was acquired, by the holder's clock.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        self.since.map(time)
    }

    /// When the key is free for others at the latest; for a key that is free, when it became so. For a
    /// [completed](Self::is_completed) run, when the window of its result ends.
    #[must_use]
    pub fn until(&self) -> SystemTime {
        time(self.until)
    }

    /// What the holder left in the row; for a [completed](Self::is_completed) run, its result.
    #[must_use]
    pub fn data(&self) -> Option<&Data> {
        self.data.as_ref()
    }

    /// Whether the key was held when the row was read, by the reader's clock.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.current
    }

    /// Whether the holder gave the key back, or completed its run. If it did not and the key is free, its lease ended: it
    /// crashed, or overran it. With `hold_at_least`, a key that was given back is still [held](Self::is_current) for a
    /// while.
    #[must_use]
    pub fn has_released(&self) -> bool {
        self.released
    }

    /// Whether this is the record of a run that was completed, rather than of one that is or was in progress.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.completed
    }
}

/// Without the digest of the payload: what it is of can be guessed.
impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, name, fence, since, until, data, current, completed, released, error, validation: _ } = self;
        f.debug_struct("Holder")
            .field("owner", owner)
            .field("name", name)
            .field("fence", fence)
            .field("since", since)
            .field("until", until)
            .field("data", data)
            .field("current", current)
            .field("completed", completed)
            .field("released", released)
            .field("error", error)
            .finish_non_exhaustive()
    }
}

/// `someone until 2026-11-21T02:53:00.000Z`
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = humantime::format_rfc3339_millis(self.until());
        write!(f, "{} until {until}", self.name().unwrap_or("an unnamed holder"))
    }
}

/// The row's milliseconds are at most [`crate::protocol::LATEST`], so this cannot overflow.
fn time(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// What a holder leaves in the row for the next one: text or bytes.
///
/// Another library may have left a value of another type, which [`as_attribute`](Self::as_attribute) still shows.
///
/// ```
/// use lambda_lock::Data;
///
/// assert_eq!(Data::from("page 12").as_str(), Some("page 12"));
/// assert_eq!(Data::from(vec![1, 2, 3]).as_bytes(), Some(&[1, 2, 3][..]));
/// ```
#[derive(Clone, PartialEq)]
pub struct Data(pub(crate) AttributeValue);

impl Data {
    /// The text, if it is text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_s().ok().map(String::as_str)
    }

    /// The bytes, if it is binary.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        self.0.as_b().ok().map(AsRef::as_ref)
    }

    /// The attribute as it stands in the row.
    #[must_use]
    pub fn as_attribute(&self) -> &AttributeValue {
        &self.0
    }
}

/// The size alone: data may be what nobody wants in a log.
impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            AttributeValue::S(text) => write!(f, "Data({} bytes of text)", text.len()),
            AttributeValue::B(bytes) => write!(f, "Data({} bytes)", bytes.as_ref().len()),
            _ => f.write_str("Data(neither text nor bytes)"),
        }
    }
}

impl From<&str> for Data {
    fn from(text: &str) -> Self {
        Self(AttributeValue::S(text.to_owned()))
    }
}

impl From<String> for Data {
    fn from(text: String) -> Self {
        Self(AttributeValue::S(text))
    }
}

impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Self {
        Self(AttributeValue::B(bytes.into()))
    }
}
