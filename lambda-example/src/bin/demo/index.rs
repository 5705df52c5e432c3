//! A search index that is rebuilt after each change: events are skipped during a rebuild, and one more follows.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anstream::println;
use lambda_lock::{HandlerError, LockLayer, Locks};
use lambda_runtime::{Error, LambdaEvent};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

use super::{Cloud, context};
use crate::scene::{Scene, expect, table};

const CHANGES: usize = 6;
const REBUILD: Duration = Duration::from_millis(600);

pub(crate) const SCENES: &[Scene] = &[Scene {
    name: "rebuild",
    title: "Changes come while an index is rebuilt",
    world: "Six changes come, 50 ms apart, and each one asks for a rebuild of the search index. A rebuild reads all \
            changes first, and then takes 600 ms, so it misses those that come later.",
    should: "The changes that come during the rebuild are skipped, but the index is rebuilt once more after them, so it \
             has all six changes.",
    guide: "recipes/rebuild",
    play: |cloud| Box::pin(changes(cloud)),
}];

async fn changes(cloud: &Cloud) -> Result<String, Error> {
    let prefix = cloud.new_prefix("search-index");
    let index = Arc::new(Mutex::new(Index::default()));
    let mut answers = JoinSet::new();
    for number in 1..=CHANGES {
        change(&index, |index| index.changes = number);
        let host = cloud.host();
        let locks = Locks::builder(host.client(), &cloud.table).key_prefix(&prefix).build()?;
        let layer = LockLayer::new(locks).on_held(|_| "skipped".to_owned()).coalesce(Duration::from_secs(2));
        let index = Arc::clone(&index);
        let function = layer.layer(service_fn(move |_: LambdaEvent<()>| rebuild(Arc::clone(&index))));
        let event = LambdaEvent::new((), context("search-index", number, host.now() + Duration::from_secs(30)));
        answers.spawn(async move {
            let answer = function.oneshot(event).await?;
            Ok::<_, HandlerError<Infallible>>((number, answer, host.requests()))
        });
        sleep(Duration::from_millis(50)).await;
    }
    let mut answers = answers.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    answers.sort_unstable();
    let mut table = table(["change", "its event", "requests"]);
    for (number, answer, requests) in answers {
        table.add_row([number.to_string(), answer, requests.to_string()]);
    }
    println!("{table}");
    let (rebuilds, has) = change(&index, |index| (index.rebuilds, index.has));
    expect(has == CHANGES, format!("the index has {has} changes, not {CHANGES}"))?;
    // A slow machine may bring the last change while the second rebuild runs.
    expect((2..=3).contains(&rebuilds), format!("there were {rebuilds} rebuilds"))?;
    Ok(format!("The index has {has} of {CHANGES} changes, after {rebuilds} rebuilds."))
}

/// The changes, and those that the last rebuild has read.
#[derive(Default)]
struct Index {
    changes: usize,
    has: usize,
    rebuilds: usize,
}

fn change<T>(index: &Mutex<Index>, change: impl FnOnce(&mut Index) -> T) -> T {
    change(&mut index.lock().unwrap_or_else(PoisonError::into_inner))
}

async fn rebuild(index: Arc<Mutex<Index>>) -> Result<String, Infallible> {
    let read = change(&index, |index| index.changes);
    sleep(REBUILD).await;
    change(&index, |index| (index.has, index.rebuilds) = (read, index.rebuilds + 1));
    Ok("rebuilt the index".to_owned())
}
