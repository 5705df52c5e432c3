//! Rows as programs leave them: this crate's of all kinds, and those of Powertools.

use std::sync::OnceLock;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::idempotency::{OnMissingKey, RecordFormat, StoredError};
use lambda_lock::{Attempt, Idempotency, Lock, Locks, OnError};
use lambda_lock_tests::rows::{from_json, number, text, to_json};
use lambda_lock_tests::{Row, World};
use tokio::time::sleep;

use crate::{IDENTITY, KEY, OTHER, SINCE_EPOCH, in_virtual_time};

/// The work of a run, whose input is its key.
pub(crate) type Work = Idempotency<String, serde_json::Value, ()>;

pub(crate) const FORMATS: [RecordFormat; 4] =
    [RecordFormat::Plain, RecordFormat::Hashed, RecordFormat::PowertoolsPython, RecordFormat::PowertoolsTypeScript];

pub(crate) fn work(locks: &Locks, format: RecordFormat) -> Work {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |key: &String| Some(key.clone())).format(format)
}

/// The rows, under [`KEY`]. They are the same in each process.
pub(crate) fn templates() -> &'static [Row] {
    static TEMPLATES: OnceLock<Vec<Row>> = OnceLock::new();
    TEMPLATES.get_or_init(|| {
        let made = (0..).map_while(|number| in_virtual_time(async |world| made(number, &world).await));
        made.chain(of_powertools()).collect()
    })
}

/// Returns the row of this number with owners that are not random.
async fn made(number: usize, world: &World) -> Option<Row> {
    let locks = world.locks(&world.host().build()).holder("a worker").build().unwrap();
    let owners: Vec<String> = leave(number, &locks).await?.iter().map(|lock| lock.owner().to_owned()).collect();
    let all = locks.list().next_page().await.unwrap().unwrap();
    let key = all.iter().map(|row| row.key.as_str()).find(|key| *key != OTHER).unwrap();
    let mut row = to_json(&world.row(key).await.unwrap()).to_string();
    for (index, owner) in owners.iter().enumerate() {
        let nonce = &owner[owner.len() - 32..];
        row = row.replace(nonce, &format!("{:032x}", index + 1));
    }
    let mut row = from_json(&serde_json::from_str(&row).unwrap());
    row.insert("id".to_owned(), text(KEY));
    let nonce = text(&"f".repeat(32));
    for value in row.values_mut() {
        if let AttributeValue::M(permit) = value {
            permit.entry("resumed".to_owned()).and_modify(|resumed| *resumed = nonce.clone());
        }
    }
    row.entry("resumed".to_owned()).and_modify(|resumed| *resumed = nonce);
    Some(row)
}

/// Leaves a row of this number.
async fn leave(number: usize, locks: &Locks) -> Option<Vec<Lock>> {
    let semaphore = locks.semaphore(KEY, 2);
    let result = async |format| {
        work(locks, format)
            .validate(|key: &String| key.clone())
            .run(&KEY.to_owned(), async |_| Ok(7.into()))
            .await
            .unwrap();
        vec![]
    };
    Some(match number {
        0 => vec![locks.acquire(KEY).holder("somebody").await.unwrap()],
        1 => vec![locks.acquire(KEY).identity(IDENTITY).data("left").await.unwrap()],
        2 => {
            let lock = locks.acquire(KEY).min_hold(Duration::from_secs(20)).await.unwrap();
            lock.release().await.unwrap();
            vec![lock]
        }
        3 => {
            let lock = locks.acquire(KEY).attribute("comment", text("kept")).await.unwrap();
            sleep(Duration::from_secs(3)).await;
            lock.release().await.unwrap();
            vec![lock]
        }
        // With a waiter in the queue.
        4 => {
            let lock = locks.acquire(KEY).await.unwrap();
            let Ok(Attempt::Waiting(_)) = locks.acquire(KEY).attempt_in_turn(None).await else { panic!("it is held") };
            vec![lock]
        }
        // Reserved by a waiter for several keys.
        5 => {
            let (lock, other) = (locks.acquire(KEY).await.unwrap(), locks.acquire(OTHER).await.unwrap());
            let wait = locks.acquire_all([KEY, OTHER]).wait(Duration::from_mins(1)).into_future();
            tokio::select! {
                _ = wait => panic!("both are held"),
                () = sleep(Duration::from_secs(2)) => {}
            }
            vec![lock, other]
        }
        6 => {
            let lock = locks.acquire(KEY).await.unwrap();
            let seen = locks.get(KEY).await.unwrap().unwrap();
            assert!(locks.force_release(KEY, &seen).await.unwrap());
            vec![lock]
        }
        7 => {
            let kept = locks.acquire(KEY).identity(IDENTITY).await.unwrap();
            let fence = kept.fence();
            kept.keep();
            vec![locks.acquire(KEY).identity(IDENTITY).take_over_from(fence).await.unwrap()]
        }
        8 => vec![semaphore.acquire().await.unwrap()],
        9 => vec![
            semaphore.acquire().identity(IDENTITY).data("left").await.unwrap(),
            semaphore.acquire().holder("somebody").lease(Duration::from_mins(10)).await.unwrap(),
        ],
        10 => {
            let permits = [semaphore.acquire().await.unwrap(), semaphore.acquire().identity(IDENTITY).await.unwrap()];
            for permit in &permits {
                permit.release().await.unwrap();
            }
            permits.into()
        }
        11 => {
            let permits = [semaphore.acquire().await.unwrap(), semaphore.acquire().identity(IDENTITY).await.unwrap()];
            let Ok(Attempt::Waiting(_)) = semaphore.acquire().attempt_in_turn(None).await else { panic!("it is full") };
            permits.into()
        }
        // A run that crashed.
        12 => {
            let run = work(locks, RecordFormat::Plain);
            let key = KEY.to_owned();
            let run = run.run(&key, async |_| std::future::pending().await);
            tokio::select! {
                _ = run => panic!("it has no end"),
                () = sleep(Duration::from_millis(1)) => {}
            }
            vec![]
        }
        13 => result(RecordFormat::Plain).await,
        14 => result(RecordFormat::PowertoolsPython).await,
        15 => result(RecordFormat::PowertoolsTypeScript).await,
        16 => {
            let error = |(): &()| OnError::Store(StoredError::new("Declined", "by the bank"));
            let run = work(locks, RecordFormat::Plain).on_error(error);
            run.run(&KEY.to_owned(), async |_| Err(())).await.unwrap_err();
            vec![]
        }
        // Freed by its identity, beside a permit that was taken over.
        17 => {
            semaphore.acquire().identity("another").await.unwrap().keep();
            let taken_over = semaphore.acquire().identity("another").take_over().await.unwrap();
            let freed = semaphore.acquire().identity(IDENTITY).await.unwrap();
            assert!(locks.release_identity(KEY, IDENTITY).await.unwrap());
            vec![taken_over, freed]
        }
        _ => return None,
    })
}

/// Powertools for Python and TypeScript write these, in and outside of Lambda.
fn of_powertools() -> impl Iterator<Item = Row> {
    let now = SINCE_EPOCH.as_secs();
    let result = r#"{"a": [1, 2.5, "\u00e9"], "z": null}"#;
    [
        vec![
            ("status", text("INPROGRESS")),
            ("expiration", number(now + 3600)),
            ("in_progress_expiration", number((now + 20) * 1000)),
        ],
        vec![("status", text("INPROGRESS")), ("expiration", number(now + 60))],
        vec![("status", text("COMPLETED")), ("expiration", number(now + 3600)), ("data", text(result))],
    ]
    .into_iter()
    .map(|row| row.into_iter().chain([("id", text(KEY))]).map(|(name, value)| (name.to_owned(), value)).collect())
}
