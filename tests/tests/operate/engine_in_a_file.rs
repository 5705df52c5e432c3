//! The embedded engine on a file: several engines share it.

use std::sync::mpsc;
use std::thread;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Backoff, ErrorKind, Jitter, Locks, Wait};
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::{ms, s, seen};

/// Locks in an engine on this file, as another process opens it.
fn locks_in(file: &std::path::Path) -> Locks {
    Locks::builder(DynamoDb::open(file).unwrap().client(), "locks").build().unwrap()
}

#[tokio::test]
async fn a_reopened_engine_keeps_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.sqlite");
    let (fence, owner) = {
        let locks = locks_in(&file);
        locks.create_table().await.unwrap();
        let lock = locks.acquire("nightly").lease(s(3600)).await.unwrap();
        let kept = (lock.fence(), lock.owner().to_owned());
        std::mem::forget(lock);
        kept
    };
    let locks = locks_in(&file);
    let holder = seen(&locks, "nightly").await;
    assert!(holder.is_current());
    assert_eq!((holder.fence(), holder.owner()), (Some(fence), Some(&*owner)));
    assert!(locks.try_acquire("nightly").await.unwrap().is_none());
}

#[test]
fn threads_with_engines_on_one_file_exclude_each_other() {
    const THREADS: u32 = 4;
    const TIMES: u32 = 15;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.sqlite");
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    runtime().block_on(async { locks_in(&file).create_table().await.unwrap() });
    // Only the lock synchronises this count: without it, counts get lost.
    let count = folder.path().join("count");
    std::fs::write(&count, "0").unwrap();
    let (failed, failures) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (file, count, failed) = (&file, &count, failed.clone());
            scope.spawn(move || {
                let work = async {
                    let locks = locks_in(file);
                    let wait = Wait::backoff(Backoff::new().base(ms(2)).cap(ms(20)).jitter(Jitter::Full)).up_to(s(60));
                    for _ in 0..TIMES {
                        let counted = locks.acquire("count").wait(wait).run(async |_| {
                            let seen: u32 = std::fs::read_to_string(count).unwrap().parse().unwrap();
                            sleep(ms(1)).await;
                            std::fs::write(count, (seen + 1).to_string()).unwrap();
                        });
                        if let Err(error) = counted.await {
                            failed.send(error).unwrap();
                        }
                    }
                };
                runtime().block_on(work);
            });
        }
        drop(failed);
    });
    assert_eq!(failures.iter().map(|error| error.to_string()).collect::<Vec<_>>(), [""; 0]);
    assert_eq!(std::fs::read_to_string(&count).unwrap(), (THREADS * TIMES).to_string());
}

#[test]
fn a_file_that_is_not_a_database_is_refused_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    let text = "not a database, but something that someone may still want\n".repeat(100);
    std::fs::write(&file, &text).unwrap();
    let nowhere = folder.path().join("no such folder").join("locks.sqlite");
    for path in [&*file, folder.path(), &nowhere] {
        let error = DynamoDb::open(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}
