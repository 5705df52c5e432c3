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
///
/// The fields are as the row has them; the methods describe a semaphore by one of its permits.
#[derive(Clone)]
pub struct Holder {
    pub(crate) kind: HolderKind,
    /// When the row was read, by the reader's clock, as all times in milliseconds since the Unix epoch.
    pub(crate) now: u64,
    pub(crate) owner: Option<String>,
    pub(crate) name: Option<String>,
    /// The last number that the key or permit has accepted: of a key, its fence. A semaphore has none, because each permit has
    /// its own. Of a rate, when its next call is due, in microseconds.
    pub(crate) number: Option<u64>,
    /// Of a semaphore, the fence of the last permit.
    pub(crate) fence: Option<u64>,
    /// The number of the last release. If it is the number of the key, nobody has acquired the key since.
    pub(crate) released: Option<u64>,
    /// The number of the acquisition that was asked to run once more.
    pub(crate) asked: Option<u64>,
    /// The largest number that the acquire which this row refused has sent.
    pub(crate) refused: Option<u64>,
    /// The numbers up to this one were given up.
    pub(crate) withdrawn: Option<u64>,
    /// The sequence of the owner's last request.
    pub(crate) sequence: Option<u64>,
    pub(crate) since: Option<u64>,
    /// When the hold began, of which the holder has taken the rest over.
    pub(crate) held_since: Option<u64>,
    /// The end of the lease, with the clock skew, or of the window of a completed run.
    pub(crate) until: u64,
    /// When the key or a permit was last freed: a hint.
    pub(crate) freed_at: Option<u64>,
    /// The TTL of a row that does not use it for anything else.
    pub(crate) ttl: Option<u64>,
    pub(crate) completed: bool,
    pub(crate) data: Option<Data>,
    /// The stored error of a completed record.
    pub(crate) error: Option<Data>,
    /// The digest of the payload fields that must match.
    pub(crate) validation: Option<String>,
    pub(crate) queue: Queue,
    pub(crate) reservation: Option<Reservation>,
    /// The permits of a semaphore. The lease that ends first comes first.
    pub(crate) permits: Vec<Holder>,
    /// The map of a permit.
    pub(crate) map: Option<AttributeValue>,
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
    /// The calls of a rate.
    Rate,
}

impl Holder {
    /// Creates the holder of a row about which nothing is known.
    pub(crate) fn unknown(kind: HolderKind, now: u64) -> Self {
        Self {
            kind,
            now,
            owner: None,
            name: None,
            number: None,
            fence: None,
            released: None,
            asked: None,
            refused: None,
            withdrawn: None,
            sequence: None,
            since: None,
            held_since: None,
            until: 0,
            freed_at: None,
            ttl: None,
            completed: false,
            data: None,
            error: None,
            validation: None,
            queue: Queue::default(),
            reservation: None,
            permits: Vec::new(),
            map: None,
        }
    }

    /// Returns the permit that describes a semaphore: the one whose lease ends first. If all leases have ended, it is the
    /// permit whose lease ended last.
    fn shown(&self) -> &Self {
        self.permits.iter().find(|permit| permit.is_current()).or_else(|| self.permits.last()).unwrap_or(self)
    }

    pub(crate) fn is_owned_by(&self, owner: &str) -> bool {
        self.owner.as_deref() == Some(owner)
    }

    /// Returns `true` if the key was released, or its run completed. Powertools completes a row without a look at its owner,
    /// but leaves `released` unchanged.
    pub(crate) fn is_released(&self) -> bool {
        self.released.is_some() && self.released == self.number
    }

    /// Returns `true` if the acquisition with this number is there, and was neither released nor completed.
    pub(crate) fn is_acquired_with(&self, number: u64) -> bool {
        self.number == Some(number) && !self.has_released()
    }

    /// Returns when the hold began, if its holder has taken it over.
    pub(crate) fn taken_over_since(&self) -> Option<u64> {
        self.held_since.filter(|since| Some(*since) < self.since)
    }

    /// Returns `true` if the holder with this number was asked to run once more.
    pub(crate) fn was_asked(&self, number: u64) -> bool {
        self.asked == Some(number)
    }

    /// Returns `true` if somebody has the key or permit: its lease has not ended.
    pub(crate) fn has_lease(&self) -> bool {
        !self.has_released() && self.until > self.now
    }

    /// Returns when the key or permit becomes free, or when it became free. A release without a minimum hold leaves no end.
    pub(crate) fn end(&self) -> u64 {
        let shown = self.shown();
        let is_free = shown.until <= shown.now && !shown.completed;
        let freed_at = shown.freed_at.filter(|_| is_free && (shown.is_released() || shown.is_semaphore()));
        shown.until.max(freed_at.unwrap_or_default())
    }

    /// Returns the holder's name, for people. By default it is the function and the log stream on Lambda, with the request
    /// id under a middleware, and the process id elsewhere. It is as the row has it: `Display` escapes and shortens it.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.shown().name.as_deref()
    }

    /// Returns the name of the operator, if an operator has ended this lock.
    pub(crate) fn operator(&self) -> Option<&str> {
        self.name().filter(|_| self.owner().is_none())
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
        self.shown().owner.as_deref()
    }

    /// Returns the identity that the acquire was [given](crate::Acquire::identity), such as the ARN of an execution. For an
    /// identity of more than 256 bytes, it is `sha256:` and the digest.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        identity_of(self.owner()?)
    }

    /// Returns the fence of the acquisition. After a release or a completion, it is the number of that request, which is
    /// larger. A row that another library wrote has none.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.shown().fence
    }

    /// Returns when the key was acquired, by the holder's clock.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        self.shown().since.map(time)
    }

    /// Returns when the key becomes free at the latest. For a free key, returns when it became free. For a
    /// [completed](Self::is_completed) run, returns when the window of its result ends.
    #[must_use]
    pub fn until(&self) -> SystemTime {
        time(self.end())
    }

    /// Returns the data that the holder left in the row. For a [completed](Self::is_completed) run, this is the result.
    #[must_use]
    pub fn data(&self) -> Option<&Data> {
        self.data.as_ref()
    }

    /// Returns `true` if the key was held when the row was read, by the reader's clock.
    ///
    /// A key that is not held is free for a lock. A waiter still leaves it to the [waiters before
    /// it](crate::docs::reference::waiting) for a moment. A record of idempotency is free if it [has been
    /// released](Self::has_released): `OnUnfinished::Reject` refuses what a run has left unfinished.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let shown = self.shown();
        shown.until > shown.now
    }

    /// Returns `true` if the holder released the key or completed its run. If this is `false` and the key is free, the lease
    /// ended first: the holder crashed, or its work took too long. With `min_hold`, a released key stays
    /// [held](Self::is_current) for a while.
    #[must_use]
    pub fn has_released(&self) -> bool {
        let shown = self.shown();
        // A semaphore without permits is free.
        shown.completed || shown.is_released() || shown.is_semaphore() || shown.is_rate()
    }

    /// Returns the length of the key's queue when the row was read: the places that were given to waiters and not served. A
    /// waiter that gave up counts until a waiter behind it acquires the key, or until the last waiter has stopped waiting.
    /// Waiters with an explicit backoff take no place, and waiters for a record of idempotency neither.
    #[must_use]
    pub fn waiters(&self) -> u64 {
        self.queue.waiters(self.now)
    }

    /// Returns how long recent holds of the key took, from acquire to release: a mean in which the last hold weighs an eighth.
    /// By as much as the acquire's request took longer than its fastest one, or than 4 ms if it was the first, a hold is
    /// shorter: the first requests of callers that connect or come all at once are slow.
    /// `None` before the first release of a lock or a permit; a release of several keys leaves it as it is.
    #[must_use]
    pub fn hold_time(&self) -> Option<Duration> {
        self.queue.hold_time.map(|time| time.mean)
    }

    /// Returns the permits in the row of a [semaphore](crate::Locks::semaphore), earliest end first. Empty for a
    /// lock, for a record of idempotency, for a permit, and if no permit is in the row.
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
    ///
    /// The other methods of a semaphore's holder describe the permit whose lease ends first. A permit whose holder crashed
    /// stays in the row until another acquire needs it; it is not [current](Self::is_current) after its lease.
    #[must_use]
    pub fn permits(&self) -> &[Self] {
        &self.permits
    }

    /// Returns `true` if this is the row of a [semaphore](crate::Locks::semaphore).
    #[must_use]
    pub fn is_semaphore(&self) -> bool {
        self.kind == HolderKind::Semaphore
    }

    /// Returns `true` if this is the row of a [rate](crate::Locks::rate). [`until`](Self::until) is when its next call is due,
    /// or was due, if calls come evenly. Of a refusal, it is when the call that was refused may come.
    #[must_use]
    pub fn is_rate(&self) -> bool {
        self.kind == HolderKind::Rate
    }

    /// Returns what the row is, for people.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind {
            HolderKind::Key => "a lock or a record of idempotency",
            HolderKind::Semaphore | HolderKind::Permit => "a semaphore",
            HolderKind::Rate => "a rate",
        }
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
        let validation = self.validation.as_ref().map(|_| "…");
        // Another program may have written any text. `Debug` of a string escapes it.
        let shown = |text: Option<&str>| text.map(|text| shortened(text, MAX_SHOWN).into_owned());
        f.debug_struct("Holder")
            .field("kind", &self.kind)
            .field("owner", &shown(self.owner()))
            .field("name", &shown(self.name()))
            .field("fence", &self.fence())
            .field("since", &self.shown().since)
            .field("until", &self.end())
            .field("data", &self.data)
            .field("current", &self.is_current())
            .field("completed", &self.completed)
            .field("released", &self.has_released())
            .field("error", &self.error)
            .field("validation", &validation)
            .field("waiters", &self.waiters())
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

/// Returns the identity of an owner, if it has one. A row that another program wrote may have any owner.
pub(crate) fn identity_of(owner: &str) -> Option<&str> {
    let (length, rest) = owner.split_once('#')?;
    let (identity, nonce) = rest.split_at_checked(length.parse().ok()?)?;
    nonce.starts_with('#').then_some(identity)
}

/// How many holders of permits a text names.
const NAMED: usize = 5;

/// `someone until 2026-11-21T02:53:00.000Z`, ``someone for `an identity` until …``, or `someone, another; the first lease ends
/// at …` for a semaphore.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = humantime::format_rfc3339_millis(self.until());
        let mut permits = self.permits.iter().filter(|permit| permit.is_current() == self.is_current());
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
