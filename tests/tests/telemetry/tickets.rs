//! Metrics of tickets.

use lambda_lock::{ErrorKind, Locks, Ticket};
use tokio::time::sleep;
use tracing::Level;

use crate::{Stage, TABLE, locks_of, locks_on, ms, s};

#[tokio::test(start_paused = true)]
async fn each_use_of_a_ticket_counts() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    let ticket = locks.acquire("deploy").await.unwrap().into_ticket().unwrap();
    stage.metrics.assert(&["acquired 1", "acquire_time [0.0]"]);

    locks.renew_ticket(&ticket, s(60)).await.unwrap();
    stage.metrics.assert(&["tickets: renewed 1"]);
    sleep(ms(500)).await;

    let lock = locks.resume(&ticket).await.unwrap();
    assert_eq!(locks.resume(&ticket).await.unwrap_err().kind(), ErrorKind::TicketUsed);
    stage.metrics.assert(&["tickets: resumed 1", "tickets: ticket_used 1"]);

    sleep(ms(250)).await;
    let next = lock.into_ticket().unwrap();
    locks.release_ticket(&next).await.unwrap();
    stage.metrics.assert(&["hold_time [750.0]", "released 1", "tickets: released 1"]);
}

#[tokio::test(start_paused = true)]
async fn the_hold_of_a_lock_that_is_resumed_begins_with_its_acquire() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    let ticket = locks.acquire("deploy").await.unwrap().into_ticket().unwrap();
    sleep(ms(500)).await;
    let lock = locks.resume(&ticket).await.unwrap();
    sleep(ms(250)).await;
    stage.metrics.take();
    lock.release().await.unwrap();
    stage.metrics.assert(&["hold_time [750.0]", "release_time [0.0]", "released 1"]);
}

#[tokio::test(start_paused = true)]
async fn each_use_of_a_ticket_that_holds_no_lock_logs_a_warning() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let real = locks.acquire("deploy").await.unwrap().into_ticket().unwrap();
    let mut edited = serde_json::to_value(&real).unwrap();
    edited["enforced"] = false.into();
    edited["key"] = "any\nkey".into();
    let edited: Ticket = serde_json::from_value(edited).unwrap();
    let (sent, warned) = (host.requests(), |count: usize| {
        let warnings = stage.traces.logged("the ticket holds no lock");
        assert_eq!(warnings.len(), count, "{warnings:?}");
        assert!(warnings.iter().all(|event| event.level == Level::WARN && event.fields["key"] == r"any\nkey"));
    });
    locks.renew_ticket(&edited, s(60)).await.unwrap();
    warned(1);
    assert_eq!(locks.resume(&edited).await.unwrap().fence(), 0);
    warned(2);
    locks.release_ticket(&edited).await.unwrap();
    warned(3);
    assert_eq!(host.requests(), sent);

    locks.renew_ticket(&real, s(60)).await.unwrap();
    let disabled = locks_of(&host).enabled(false).build().unwrap();
    disabled.renew_ticket(&edited, s(60)).await.unwrap();
    warned(3);
}

#[tokio::test(start_paused = true)]
async fn a_refused_ticket_counts_by_its_reason() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let ticket = locks.acquire("deploy").await.unwrap().into_ticket().unwrap();
    stage.metrics.take();
    let others = Locks::builder(host.client(), TABLE).key_prefix("other-").build().unwrap();
    assert_eq!(others.renew_ticket(&ticket, s(60)).await.unwrap_err().kind(), ErrorKind::TicketForeign);
    stage.metrics.assert(&["tickets: ticket_foreign 1"]);

    let seen = locks.get("deploy").await.unwrap().unwrap();
    assert!(locks.force_release("deploy", &seen).await.unwrap());
    assert!(locks.release_ticket(&ticket).await.unwrap_err().is_lost());
    stage.metrics.assert(&["tickets: lost 1"]);
}
