//! Reading the holders of a key and of the whole table, and releasing or completing a key by force.

use std::time::Duration;

use crate::clock::seconds_up;
use crate::error::Error;
use crate::holder::{Data, Holder};
use crate::limits::{MAX_DATA_BYTES, MAX_RETENTION, check_data, check_duration};
use crate::lock::Locks;
use crate::row::{Item, Page};
use crate::text::printable;

impl Locks {
    /// Returns the current or last holder of `key` ([`Holder::is_current`] tells which), or `None` if there is no row.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// match locks.get("nightly-report").await? {
    ///     Some(holder) if holder.is_current() => println!("held by {holder}"),
    ///     Some(holder) if !holder.has_released() => println!("left unfinished by {holder}"),
    ///     _ => println!("free"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// For a [semaphore](Self::semaphore), [`Holder::permits`] has all holders.
    ///
    /// One consistent read; IAM action `dynamodb:GetItem`. The answer can be outdated by the time it arrives: to act on it,
    /// acquire the lock.
    pub async fn get(&self, key: impl Into<String>) -> Result<Option<Holder>, Error> {
        let key = key.into();
        self.check_key(&key)?;
        self.0.table.get(&key, self.0.clock.now()).await
    }

    /// Lists the locks and records of the table, page by page: see [`List`].
    pub fn list(&self) -> List {
        List { locks: self.clone(), after: None, is_read: false, read: 0 }
    }

    /// Frees `key` by force, if the acquisition that was `seen` still has it. `seen` comes from [`get`](Self::get), from a
    /// [list](Self::list) or from a refusal.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// if let Some(holder) = locks.get("nightly-report").await?
    ///     && (holder.is_current() || !holder.has_released())
    /// {
    ///     let freed = locks.force_release("nightly-report", &holder).await?;
    ///     println!("{}", if freed { "freed" } else { "another holder has the key: look again" });
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The holder finds its lock [lost](Error::is_lost) when it renews or releases, and the row names this caller as the
    /// last holder. The holder's work goes on: make sure that the holder has crashed, or that its writes are
    /// [fenced](crate::Lock::fence). An idempotent run that was refused as unfinished can run again: if its work was done, use
    /// [`force_complete`](Self::force_complete) instead.
    ///
    /// For a [semaphore](Self::semaphore), all permits that were `seen` are released, and the row does not name this caller. To
    /// release one of them, give that one of the [permits](Holder::permits). One more request each time that a permit of those
    /// is released meanwhile. If no permit was seen, it sends nothing and returns `false`.
    ///
    /// For a [rate](Self::rate), which nobody holds, the next call passes at once: for one whose next time is far ahead, because of
    /// a wrong period or a wrong clock. Returns `false` if a call has passed since.
    ///
    /// Returns `true` if the key was freed, or if the holder had released it. Returns `false` if the row has changed since
    /// it was seen: another acquisition has the key, the run was completed, or the row was deleted. The row is not modified
    /// then. For permits, returns `true` if the row has none of those that were seen any more, also if their owners have
    /// lost them to others. One request, or one for each 40 permits; IAM action `dynamodb:UpdateItem`.
    #[doc(alias = "unlock")]
    pub async fn force_release(&self, key: impl Into<String>, seen: &Holder) -> Result<bool, Error> {
        let key = key.into();
        self.check_key(&key)?;
        let settings = &self.0;
        let (by, now) = (&settings.holder, settings.clock.now());
        let is_free = settings.table.force_release(&key, by, seen, now).await?;
        let key = settings.table.place().printable_key(&key);
        tracing::warn!(key, from = %seen, by = &*printable(by), is_free, "released by force");
        Ok(is_free)
    }

    /// Stores the result of an idempotent run that did not finish, if its record is still as it was `seen`. `seen` comes from
    /// [`get`](Self::get), from a [list](Self::list) or from the refusal.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Data, Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// if let Some(record) = locks.get("payments#7").await?
    ///     && !record.is_current()
    ///     && !record.has_released()
    /// {
    ///     let receipt = Data::from(r#"{"receipt":17}"#);
    ///     let window = Duration::from_hours(24);
    ///     let completed = locks.force_complete("payments#7", &record, window, Some(receipt)).await?;
    ///     println!("{}", if completed { "completed" } else { "the record has changed: look again" });
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// For example, a payment was made, and its process died before it stored the receipt. With
    /// [`OnUnfinished::Reject`](crate::OnUnfinished::Reject), every retry is refused until the window has passed, and then the
    /// payment would be made again. You know that it was made, so you store its receipt here, and each retry gets it. If the
    /// work was not done, use [`force_release`](Self::force_release) instead. Only records have results: a lock that you
    /// complete stays held until the end of the window.
    ///
    /// `window` is how long the result is replayed from now on, from 1 s to 366 days. `result` is what the run would have
    /// stored: the result as JSON text, or with [`PowertoolsTypeScript`](crate::idempotency::RecordFormat::PowertoolsTypeScript)
    /// another attribute than text. Without it, a retry gets the result that JSON's `null` stands for, which is all that a
    /// handler of a queue returns, or an error of kind [`UnusableResult`](crate::ErrorKind::UnusableResult).
    ///
    /// Returns `true` if the record is completed, and `false` if it has changed since it was seen: the run was completed or
    /// released, another run has begun, or the row was deleted. The row is not modified then. A run that is still alive finds
    /// its lock [lost](Error::is_lost). One request; IAM action `dynamodb:UpdateItem`.
    pub async fn force_complete(
        &self,
        key: impl Into<String>,
        seen: &Holder,
        window: Duration,
        result: Option<Data>,
    ) -> Result<bool, Error> {
        let key = key.into();
        self.check_key(&key)?;
        check_duration("window", window, Duration::from_secs(1), MAX_RETENTION)?;
        if let Some(result) = &result {
            check_data(result, MAX_DATA_BYTES)?;
        }
        let settings = &self.0;
        let (by, now) = (&settings.holder, settings.clock.now());
        let until = seconds_up(now.wall.saturating_add(window));
        let is_completed = settings.table.force_complete(&key, by, seen, now, until, result.as_ref()).await?;
        let key = settings.table.place().printable_key(&key);
        tracing::warn!(key, from = %seen, by = &*printable(by), is_completed, "completed by force");
        Ok(is_completed)
    }
}

/// A list of the lock rows of a table, held or free, in no order.
///
/// ```
/// # use lambda_lock::{Error, Locks};
/// # async fn example(locks: Locks) -> Result<(), Error> {
/// let mut list = locks.list();
/// while let Some(page) = list.next_page().await? {
///     for row in page {
///         match row.holder {
///             Ok(holder) if holder.is_current() => println!("{}: {holder}", row.key),
///             Ok(_) => {}
///             Err(malformed) => println!("{malformed}"),
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// It has the rows with the key prefix of the [`Locks`] and, if they have a sort key, with its value. It skips rows of other
/// kinds.
///
/// A list reads the whole table. Each page is one consistent `Scan` of up to 1 MiB; IAM action `dynamodb:Scan`. DynamoDB
/// bills the rows that it reads, not the rows that it returns. Each [semaphore](Locks::semaphore) costs one more read, a
/// consistent `GetItem`; IAM action `dynamodb:GetItem`. For one key, use [`Locks::get`].
#[derive(Debug)]
#[must_use = "a list reads nothing until a page is requested"]
pub struct List {
    locks: Locks,
    /// The last row before the next page.
    after: Option<Item>,
    is_read: bool,
    read: u64,
}

impl List {
    /// Reads the next page. Returns `None` after the last page. A page can be empty even if others follow.
    ///
    /// After an error, the next call reads the same page. One request, and one more for each semaphore; IAM actions
    /// `dynamodb:Scan` and `dynamodb:GetItem`.
    pub async fn next_page(&mut self) -> Result<Option<Vec<ListedRow>>, Error> {
        let settings = &self.locks.0;
        if self.is_read {
            return Ok(None);
        }
        let Page { rows, read, next } = settings.table.scan(self.after.clone(), settings.clock.now()).await?;
        self.is_read = next.is_none();
        self.after = next;
        self.read += read;
        Ok(Some(rows.into_iter().map(|(key, holder)| ListedRow { key, holder }).collect()))
    }

    /// Returns how many rows of the table were read so far, including rows of other kinds.
    #[must_use]
    pub fn rows_read(&self) -> u64 {
        self.read
    }
}

/// A row in a [`List`].
#[derive(Debug)]
#[non_exhaustive]
pub struct ListedRow {
    /// The key, without the prefix.
    pub key: String,
    /// The current or last holder, without its [data](Holder::data), or an error of kind
    /// [`MalformedRow`](crate::ErrorKind::MalformedRow).
    pub holder: Result<Holder, Error>,
}
