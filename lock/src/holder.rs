//! The holder of a key, as a row describes it, and the data that it leaves.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::AttributeValue;

use crate::queue::{Queue, Reservation};
use crate::text::{MAX_SHOWN, printable, shortened};

/// The current or last holder of a key, as a refusal names it and [`Locks::get`](crate::Locks::get) reads it.
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
    /// The number in its place: of a key, the fence.
    pub(crate) number: Option<u64>,
    /// The numbers up to this one were given up.
    pub(crate) withdrawn: Option<u64>,
    /// Milliseconds since the Unix epoch, as in the row.
    pub(crate) since: Option<u64>,
    /// When the hold began, of which the holder has taken the rest over.
    pub(crate) held_since: Option<u64>,
    pub(crate) until: u64,
    pub(crate) data: Option<Data>,
    pub(crate) current: bool,
    pub(crate) completed: bool,
    pub(crate) released: bool,
    /// The stored error of a completed record.
    pub(crate) error: Option<Data>,
    /// The digest of the payload fields that must match.
    pub(crate) validation: Option<String>,
    pub(crate) waiters: u64,
    pub(crate) queue: Queue,
    pub(crate) reservation: Option<Reservation>,
    pub(crate) kind: HolderKind,
    /// The permits of a semaphore.
    pub(crate) permits: Vec<Holder>,
}

/// What a [`Holder`] describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolderKind {
    /// The holder of a lock, or the run of a record.
    Key,
    /// All permits of a semaphore.
    Semaphore,
    /// One permit of a semaphore.
    Permit,
}

impl Holder {
    /// Creates the holder of a released row, about which no more is known.
    pub(crate) fn released(kind: HolderKind, owner: String, name: Option<String>, until: u64) -> Self {
        Self {
            owner: Some(owner),
            name,
            fence: None,
            number: None,
            withdrawn: None,
            since: None,
            held_since: None,
            until,
            data: None,
            current: false,
            completed: false,
            released: true,
            error: None,
            validation: None,
            waiters: 0,
            queue: Queue::default(),
            reservation: None,
            kind,
            permits: Vec::new(),
        }
    }

    /// Returns the holder's name, for people. By default it is the function and the log stream on Lambda, with the request
    /// id under a middleware, and the process id elsewhere. It is as the row has it: `Display` escapes and shortens it.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the name and the identity, for people.
    fn printable_name(&self) -> Cow<'_, str> {
        let name = self.name().filter(|name| !name.trim().is_empty());
        let name = printable(name.unwrap_or("an unnamed holder"));
        match self.identity() {
            Some(identity) => Cow::Owned(format!("{name} for `{}`", printable(identity))),
            None => name,
        }
    }

    /// Returns the nonce of the acquisition. A row that another library wrote has none.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Returns the identity that the acquire was [given](crate::Acquire::identity), such as the ARN of an execution. For one
    /// of more than 256 bytes, it is `sha256:` and the digest.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        let (length, rest) = self.owner()?.split_once('#')?;
        let (identity, nonce) = rest.split_at_checked(length.parse().ok()?)?;
        nonce.starts_with('#').then_some(identity)
    }

    /// Returns the fence of the acquisition. After a release or a completion, it is the number of that, which is larger. A row
    /// that another library wrote has none.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// Returns when the key was acquired, by the holder's clock.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        self.since.map(time)
    }

    /// Returns when the key becomes free at the latest. For a free key, returns when it became free. For a
    /// [completed](Self::is_completed) run, returns when the window of its result ends.
    #[must_use]
    pub fn until(&self) -> SystemTime {
        time(self.until)
    }

    /// Returns the data that the holder left in the row. For a [completed](Self::is_completed) run, this is the result.
    #[must_use]
    pub fn data(&self) -> Option<&Data> {
        self.data.as_ref()
    }

    /// Returns `true` if the key was held when the row was read, by the reader's clock.
    ///
    /// A key that is not held is free for a lock. For a record of idempotency, it is free if it
    /// [has been released](Self::has_released): `OnUnfinished::Reject` refuses what a run has left unfinished.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.current
    }

    /// Returns `true` if the holder released the key or completed its run. If this is `false` and the key is free, the lease
    /// ended first: the holder crashed, or its work took too long. With `min_hold`, a released key stays
    /// [held](Self::is_current) for a while.
    #[must_use]
    pub fn has_released(&self) -> bool {
        self.released
    }

    /// Returns the length of the key's queue when the row was read: the places that were given to waiters and not served. A
    /// waiter that gave up counts until a waiter behind it acquires the key, or until the last one has stopped waiting.
    /// Waiters with an explicit backoff take no place, and waiters for a record of idempotency neither.
    #[must_use]
    pub fn waiters(&self) -> u64 {
        self.waiters
    }

    /// Returns how long recent holds of the key took, from acquire to release: a mean in which the last hold weighs an eighth.
    /// `None` before the first release of a lock or a permit; a release of several keys leaves it as it is.
    #[must_use]
    pub fn hold_time(&self) -> Option<Duration> {
        self.queue.hold_time.map(|time| time.mean)
    }

    /// Returns the permits in the row of a [semaphore](crate::Locks::semaphore), earliest end first. Empty for a
    /// lock, for a record of idempotency, for a permit, and if no permit is in the row.
    ///
    /// The other methods of a semaphore's holder describe the permit whose lease ends first. A permit whose holder crashed
    /// stays in the row until another acquire needs its place; it is not [current](Self::is_current) after its lease.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// if let Some(semaphore) = locks.get("bank-api").await? {
    ///     for permit in semaphore.permits().iter().filter(|permit| permit.is_current()) {
    ///         println!("{} with fence {:?}", permit.name().unwrap_or("someone"), permit.fence());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn permits(&self) -> &[Self] {
        &self.permits
    }

    /// Returns `true` if this is the row of a [semaphore](crate::Locks::semaphore).
    #[must_use]
    pub fn is_semaphore(&self) -> bool {
        self.kind == HolderKind::Semaphore
    }

    /// Returns `true` if this is the record of a completed run.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.completed
    }
}

/// Hides the digest of the payload, from which a short payload can be guessed.
impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            owner,
            name,
            fence,
            number: _,
            withdrawn: _,
            since,
            held_since: _,
            until,
            data,
            current,
            completed,
            released,
            error,
            validation,
            waiters,
            queue: _,
            reservation: _,
            kind,
            permits,
        } = self;
        let validation = validation.as_ref().map(|_| "…");
        // Another program may have written any text. `Debug` of a string escapes it.
        let [owner, name] = [owner, name].map(|text| text.as_deref().map(|text| shortened(text, MAX_SHOWN)));
        f.debug_struct("Holder")
            .field("owner", &owner)
            .field("name", &name)
            .field("fence", fence)
            .field("since", since)
            .field("until", until)
            .field("data", data)
            .field("current", current)
            .field("completed", completed)
            .field("released", released)
            .field("error", error)
            .field("validation", &validation)
            .field("waiters", waiters)
            .field("kind", kind)
            .field("permits", permits)
            .finish_non_exhaustive()
    }
}

/// How many holders of permits a text names.
const NAMED: usize = 5;

/// `someone until 2026-11-21T02:53:00.000Z`, ``someone for `an identity` until …``, or `someone, another; the first lease ends at …` for a semaphore.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = humantime::format_rfc3339_millis(self.until());
        let mut permits = self.permits.iter().filter(|permit| permit.current == self.current);
        let Some(first) = permits.next() else { return write!(f, "{} until {until}", self.printable_name()) };
        f.write_str(&first.printable_name())?;
        for permit in permits.by_ref().take(NAMED - 1) {
            write!(f, ", {}", permit.printable_name())?;
        }
        match permits.count() {
            0 => {}
            more => write!(f, " and {more} more")?,
        }
        write!(f, "; the first lease ends at {until}")
    }
}

/// Cannot overflow: a row's milliseconds end with the year 9999.
fn time(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// The data that a holder leaves in the row for the next one: text or bytes.
///
/// ```
/// use lambda_lock::Data;
///
/// assert_eq!(Data::from("page 12").as_str(), Some("page 12"));
/// assert_eq!(Data::from(vec![1, 2, 3]).as_bytes(), Some(&[1, 2, 3][..]));
/// ```
///
/// Another library may have written a value of another type. [`as_attribute`](Self::as_attribute) returns any type.
#[derive(Clone, PartialEq)]
pub struct Data(pub(crate) AttributeValue);

impl Data {
    /// Returns the text, or `None` if the data is not text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_s().ok().map(String::as_str)
    }

    /// Returns the bytes, or `None` if the data is not binary.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        self.0.as_b().ok().map(AsRef::as_ref)
    }

    /// Returns the attribute as the row has it.
    #[must_use]
    pub fn as_attribute(&self) -> &AttributeValue {
        &self.0
    }
}

/// Shows only the size, because data may be confidential.
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
