//! `List`: the rows of the table, page by page.

use crate::error::Error;
use crate::holder::Holder;
use crate::locks::Locks;
use crate::protocol::{Cursor, Scanned};

/// The rows of the [`Locks`]' table, held or not, in no order: those with their key prefix and, where they have one, their
/// sort key's value. What is not a lock row is passed over.
///
/// It reads the whole table. Each page is one consistent `Scan` of up to 1 MiB; IAM action `dynamodb:Scan`, which counts
/// what it reads, not what it finds. For one key, [`Locks::get`].
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
#[derive(Debug)]
#[must_use = "nothing is read until a page is asked for"]
pub struct List {
    locks: Locks,
    cursor: Cursor,
    read: u64,
}

impl List {
    pub(crate) fn new(locks: Locks) -> Self {
        Self { locks, cursor: Cursor::Start, read: 0 }
    }

    /// The rows of the next page; `None` after the last one. A page before that may be empty.
    ///
    /// After an error, the same page can be asked for again. One request.
    pub async fn next_page(&mut self) -> Result<Option<Vec<ListedRow>>, Error> {
        let settings = &self.locks.0;
        let Some(Scanned { rows, read, cursor }) = settings.table.scan(&self.cursor, settings.clock.now()).await?
        else {
            return Ok(None);
        };
        self.cursor = cursor;
        self.read += read;
        Ok(Some(rows))
    }

    /// How many rows of the table were read so far, whatever they are.
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
    /// Who holds it, or held it last, without their [data](Holder::data); or the error that
    /// [`is_malformed_row`](Error::is_malformed_row).
    pub holder: Result<Holder, Error>,
}
