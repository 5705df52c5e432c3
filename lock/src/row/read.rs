//! Reading a row: from a refusal, by its key, or by a scan of the table.

use std::time::Duration;

use aws_sdk_dynamodb::operation::scan::ScanOutput;
use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::join_all;

pub(super) use super::attribute::{number_at, string_at};
use super::expression::{Attribute as _, Condition, Path, all, any, text};
use super::names::{
    ACQUIRED_AT, ASKED, COMPLETED, DATA, DUE, ERROR, EXPIRATION, FENCE, FREED_AT, HEAD, HELD_SINCE, HOLD,
    HOLD_DEVIATION, HOLDER, IN_PROGRESS, LATEST, LATEST_MICROS, LEASE_END, MAX_FENCE, MAX_PLACE, MAX_SEQUENCE, OWNER,
    PERMITS, RATE, RELEASED, RESERVED_BY, RESERVED_UNTIL, SEMAPHORE, SEQUENCE, STATUS, TAIL, TAIL_UNTIL, VALIDATION,
    WITHDRAWN,
};
use super::rendered::Rendered;
use super::semaphore::permits;
use super::table::{Item, Table, in_time};
use crate::clock::{Moment, millis_up};
use crate::error::{Error, ErrorKind};
use crate::holder::{Data, Holder, HolderKind};
use crate::limits::{DAY, REQUEST_TIMEOUT};
use crate::queue::{HoldTime, Queue, Reservation};

/// Why the SDK cannot read a row: JavaScript can write half of a surrogate pair.
pub(super) const NOT_UNICODE: &str = "a text has half of a surrogate pair, which is no character";

impl Holder {
    /// Reads a row that any program may have written. The error says what is wrong with it.
    pub(crate) fn read(mut item: Item, now: Moment) -> Result<Self, String> {
        let now = now.millis();
        if is_semaphore(&item) {
            return Self::read_semaphore(item, now);
        }
        if has_status(&item, RATE) {
            return Self::read_rate(&item, now);
        }
        let lease_end = number_at(&item, LEASE_END, LATEST)?;
        let acquired_at = number_at(&item, ACQUIRED_AT, LATEST)?;
        let expiration = number_at(&item, EXPIRATION, LATEST / 1000)?.map(|seconds| seconds * 1000);
        let (completed, end) = match string_at(&mut item, STATUS)?.as_deref() {
            Some(IN_PROGRESS) => (false, lease_end.or(expiration)),
            Some(COMPLETED) => (true, expiration),
            Some(other) => {
                let other: String = other.chars().take(40).collect();
                return Err(format!("`{STATUS}` is `{other}`, not {IN_PROGRESS}, {COMPLETED}, {SEMAPHORE} or {RATE}"));
            }
            None => return Err(format!("`{STATUS}` is missing")),
        };
        let fence = number_at(&item, FENCE, MAX_FENCE + 1)?;
        Ok(Self {
            completed,
            until: end.ok_or_else(|| format!("`{LEASE_END}` and `{EXPIRATION}` are missing"))?,
            owner: string_at(&mut item, OWNER)?,
            // An acquire does not write `released`, so a row that it took from another program can have any value.
            released: number_at(&item, RELEASED, MAX_FENCE).unwrap_or_default(),
            // A value that is not a number is from another program, and asks for nothing.
            asked: number_at(&item, ASKED, MAX_FENCE).unwrap_or_default(),
            withdrawn: withdrawn(&item)?,
            freed_at: number_at(&item, FREED_AT, LATEST).unwrap_or_default(),
            // Another program wrote a value that is not a number.
            sequence: number_at(&item, SEQUENCE, MAX_SEQUENCE).unwrap_or_default(),
            name: string_at(&mut item, HOLDER)?,
            number: fence,
            fence,
            since: acquired_at,
            held_since: number_at(&item, HELD_SINCE, LATEST).unwrap_or_default().or(acquired_at),
            // The TTL of an unfinished run of Powertools is also the end of the time in which it is refused.
            ttl: expiration.filter(|_| !completed && lease_end.is_some() && acquired_at.is_some()),
            error: if completed { string_at(&mut item, ERROR)?.map(Data::from) } else { None },
            // A value that is not a string is no digest.
            validation: string_at(&mut item, VALIDATION).unwrap_or_default(),
            queue: queue(&item),
            reservation: reservation(&mut item),
            data: item.remove(DATA).map(Data),
            ..Self::unknown(HolderKind::Key, now)
        })
    }

    fn read_rate(item: &Item, now: u64) -> Result<Self, String> {
        let due = number_at(item, DUE, LATEST_MICROS)?.ok_or_else(|| format!("`{DUE}` is missing"))?;
        let until = millis_up(Duration::from_micros(due));
        Ok(Self { number: Some(due), until, ..Self::unknown(HolderKind::Rate, now) })
    }

    fn read_semaphore(mut item: Item, now: u64) -> Result<Self, String> {
        Ok(Self {
            withdrawn: withdrawn(&item)?,
            freed_at: number_at(&item, FREED_AT, LATEST).unwrap_or_default(),
            fence: number_at(&item, FENCE, MAX_FENCE + 1)?,
            queue: queue(&item),
            permits: permits(&mut item, now)?,
            data: item.remove(DATA).map(Data),
            ..Self::unknown(HolderKind::Semaphore, now)
        })
    }

    /// Returns `true` if TTL may delete the row before this time, in seconds.
    pub(super) fn is_deleted_before(&self, seconds: u64) -> bool {
        self.ttl.is_some_and(|ttl| ttl < seconds.saturating_mul(1000))
    }
}

impl Table {
    /// Reads the row of a key. One consistent read.
    pub(crate) async fn get(&self, key: &str, now: Moment) -> Result<Option<Holder>, Error> {
        let read = self.sender.get_item().table_name(&self.name).consistent_read(true);
        let output = in_time(REQUEST_TIMEOUT, Box::pin(read.set_key(Some(self.key(key))).send())).await;
        match output.map_err(|error| Error::from_sdk(error, self.place(), key))?.item {
            Some(item) => Holder::read(item, now).map(Some).map_err(|why| self.malformed(key, why)),
            None => Ok(None),
        }
    }

    /// The row has the key prefix and the sort key, and this crate has written it or can take it over.
    pub(super) fn is_ours(&self) -> Condition<'_> {
        let is_status = |name, status| STATUS.is(text(name, status));
        let mut is_ours = all([
            any([
                is_status("in_progress", IN_PROGRESS),
                is_status("completed", COMPLETED),
                is_status("semaphore", SEMAPHORE),
                is_status("rate", RATE),
            ]),
            any([LEASE_END.exists(), EXPIRATION.exists()]),
        ]);
        if !self.key_prefix.is_empty() {
            is_ours = is_ours.and(self.key_path().begins_with(text("prefix", &self.key_prefix)));
        }
        if let Some((name, value)) = self.fixed_attribute() {
            is_ours = is_ours.and(Path::named("fixed", name.clone()).is(text("fixed", value)));
        }
        is_ours
    }

    /// Reads the rows of the next page, after this row. One consistent scan of up to 1 MiB, and one consistent
    /// read for each semaphore: the scan cannot name the attributes of its permits.
    pub(crate) async fn scan(&self, after: Option<Item>, now: Moment) -> Result<Page, Error> {
        // Data and results are left out: they can be large and confidential.
        let attributes = [
            STATUS,
            OWNER,
            RELEASED,
            WITHDRAWN,
            FREED_AT,
            HOLDER,
            FENCE,
            ACQUIRED_AT,
            LEASE_END,
            EXPIRATION,
            TAIL,
            HEAD,
            TAIL_UNTIL,
            HOLD,
            DUE,
        ];
        let attributes: Vec<_> = [self.key_path()].into_iter().chain(attributes.map(Path::from)).collect();
        let (attributes, filter) = Rendered::of_list(&attributes, &self.is_ours());
        let output = self.scan_page(after, attributes, filter, true).await?;
        let (mut rows, mut semaphores) = (Vec::new(), Vec::new());
        for mut item in output.items.unwrap_or_default() {
            let Ok(Some(id)) = string_at(&mut item, self.key_attribute()) else { continue };
            let Some(key) = id.strip_prefix(&self.key_prefix).map(str::to_owned) else { continue };
            if is_semaphore(&item) {
                semaphores.push(key);
                continue;
            }
            let row = Holder::read(item, now).map_err(|why| self.malformed(&key, why));
            rows.push((key, row));
        }
        for some in semaphores.chunks(READS_AT_A_TIME) {
            let read = join_all(some.iter().map(|key| self.listed_semaphore(key, now))).await;
            for semaphore in read {
                rows.extend(semaphore?);
            }
        }
        Ok(Page {
            rows,
            read: u64::try_from(output.scanned_count).unwrap_or_default(),
            next: output.last_evaluated_key,
        })
    }

    /// Reads these attributes of the rows that match, after this row.
    pub(super) async fn scan_page(
        &self,
        after: Option<Item>,
        attributes: String,
        filter: Rendered,
        is_consistent: bool,
    ) -> Result<ScanOutput, Error> {
        let request = self
            .sender
            .scan()
            .table_name(&self.name)
            .consistent_read(is_consistent)
            .set_exclusive_start_key(after)
            .projection_expression(attributes)
            .set_filter_expression(filter.condition)
            .set_expression_attribute_names(filter.names)
            .set_expression_attribute_values(filter.values);
        let page = in_time(REQUEST_TIMEOUT, Box::pin(request.send())).await;
        page.map_err(|error| Error::from_sdk(error, self.place(), ""))
    }

    /// Reads a semaphore of a list without its data. Returns `None` if its row is gone.
    async fn listed_semaphore(&self, key: &str, now: Moment) -> Result<Option<ListedRow>, Error> {
        let row = match self.get(key, now).await {
            Err(error) if error.kind() != ErrorKind::MalformedRow => return Err(error),
            row => row.transpose(),
        };
        Ok(row.map(|row| (key.to_owned(), row.map(|holder| Holder { data: None, ..holder }))))
    }
}

/// How many semaphores of a page are read at once.
const READS_AT_A_TIME: usize = 10;

/// A row with its key, without the prefix; or an error if it is malformed.
type ListedRow = (String, Result<Holder, Error>);

/// The rows that one request of a scan found.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) rows: Vec<ListedRow>,
    /// How many rows the request read to find these.
    pub(crate) read: u64,
    /// The last row before the next page, if there is a next page.
    pub(crate) next: Option<Item>,
}

/// The row has attributes that only this crate and Powertools write. The rows of another program may have a `status` and an
/// `expiration`, too: this is the condition of each write whose key the caller has not named.
pub(super) fn is_written_by_locks() -> Condition<'static> {
    let is_status = |name, status| STATUS.is(text(name, status));
    any([
        all([any([is_status("in_progress", IN_PROGRESS), is_status("completed", COMPLETED)]), LEASE_END.exists()]),
        all([is_status("semaphore", SEMAPHORE), PERMITS.exists()]),
        all([is_status("rate", RATE), DUE.exists()]),
    ])
}

fn is_semaphore(item: &Item) -> bool {
    has_status(item, SEMAPHORE)
}

fn has_status(item: &Item, expected: &str) -> bool {
    matches!(item.get(STATUS), Some(AttributeValue::S(status)) if status == expected)
}

/// Returns the number up to which attempts were given up. A value that is no number gives up nothing.
fn withdrawn(item: &Item) -> Result<Option<u64>, String> {
    match item.get(WITHDRAWN) {
        Some(AttributeValue::N(_)) => number_at(item, WITHDRAWN, MAX_FENCE),
        _ => Ok(None),
    }
}

/// Reads the queue. A value that no join and no release writes counts as none: the queue is a hint.
pub(super) fn queue(item: &Item) -> Queue {
    let (tail, head) = (number_at(item, TAIL, MAX_PLACE), number_at(item, HEAD, MAX_PLACE));
    Queue {
        is_malformed: tail.is_err() || head.is_err(),
        tail: tail.ok().flatten().unwrap_or_default(),
        head: head.ok().flatten().unwrap_or_default(),
        until: number_at(item, TAIL_UNTIL, LATEST).ok().flatten().unwrap_or_default(),
        hold_time: duration_at(item, HOLD).map(|mean| HoldTime {
            mean,
            deviation: duration_at(item, HOLD_DEVIATION)
                .filter(|deviation| !deviation.is_zero())
                .map(|deviation| deviation.min(mean * 2)),
        }),
    }
}

fn reservation(item: &mut Item) -> Option<Reservation> {
    let until = number_at(item, RESERVED_UNTIL, LATEST).ok().flatten()?;
    // A reservation without an owner is nobody's: until it ends, the row refuses each waiter that respects reservations.
    let owner = string_at(item, RESERVED_BY).ok().flatten().unwrap_or_default();
    Some(Reservation { owner, until })
}

/// Returns a time of a hold, which is in milliseconds with a fraction.
fn duration_at(item: &Item, name: &str) -> Option<Duration> {
    let Some(AttributeValue::N(text)) = item.get(name) else { return None };
    let duration = Duration::try_from_secs_f64(text.parse::<f64>().ok()? / 1000.0).ok()?;
    (duration <= DAY).then_some(duration)
}
