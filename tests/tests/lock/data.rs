//! Data and attributes that a holder writes into the row.

use lambda_lock::{Data, ErrorKind};
use lambda_lock_tests::World;

use crate::{assert_contains, lose_answers, text};

#[tokio::test]
async fn data_passes_to_the_next_holder_until_it_is_replaced() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(lock.data(), None);
    lock.release().await.unwrap();
    let lock = locks.acquire("job").data("page 1").await.unwrap();
    assert_eq!(lock.data().and_then(Data::as_str), Some("page 1"));
    lock.release().await.unwrap();
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(lock.data().and_then(Data::as_str), Some("page 1"), "kept");
    lock.release().await.unwrap();
    let lock = locks.acquire("job").data(vec![1, 2, 3]).await.unwrap();
    assert_eq!(lock.data().and_then(Data::as_bytes), Some(&[1, 2, 3][..]), "replaced");
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_whose_answer_was_lost_has_its_data() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(1..=1)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").data("page 1").await.unwrap();
    assert_eq!((host.requests(), lock.data().and_then(Data::as_str)), (2, Some("page 1")));
    lock.release().await.unwrap();
}

#[tokio::test]
async fn an_acquire_writes_other_attributes_but_not_those_of_the_lock() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let lock = locks.acquire("job").attribute("tenant", text("a")).attribute("size of it", text("7")).await.unwrap();
    lock.release().await.unwrap();
    let lock = locks.acquire("job").attribute("tenant", text("b")).await.unwrap();
    let row = world.row("job").await.unwrap();
    assert_eq!((&row["tenant"], &row["size of it"]), (&text("b"), &text("7")));
    let sent = host.requests();
    for name in ["status", "owner", "fence", "expiration", "in_progress_expiration", "data", "id", "", ":", "lease:end"]
    {
        let error = locks.acquire("job").attribute(name, text("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_contains(&error, &["attribute", &format!("`{name}`")]);
    }
    let reserved = locks.acquire("job").attribute("of:later", text("x")).await.unwrap_err();
    assert_contains(&reserved, &["reserved", "without `:`"]);
    let twice = locks.acquire("job").attribute("tenant", text("a")).attribute("tenant", text("b"));
    assert_contains(&twice.await.unwrap_err(), &["`tenant`", "twice"]);
    assert_eq!(host.requests(), sent);
    lock.release().await.unwrap();
}
