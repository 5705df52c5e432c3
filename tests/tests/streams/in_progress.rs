//! Records that are in progress elsewhere, or were left by a crash.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lambda_lock::WithRun;
use lambda_lock::streams::{KinesisRecord, StreamConsumer};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::invocation;
use tokio::time::sleep;
use tower::service_fn;

use crate::{
    Declined, Payment, Till, again_from, batch, deliver, deliver_in, environment, ms, record, records, work_elsewhere,
};

/// Ten records that a crash has left, in lanes of their own, before ten others.
#[tokio::test(start_paused = true)]
async fn lanes_that_wait_hold_up_no_other_lane() {
    for concurrency in [10, 3] {
        let world = World::in_virtual_time().await;
        let host = world.host().build();
        let consumer = StreamConsumer::by_event_id(world.locks(&host).build().unwrap()).concurrency(concurrency);
        let mut left = Vec::new();
        for number in 1..=10 {
            left.push(work_elsewhere(&world, &number.to_string(), Duration::from_secs(20)).await);
        }
        let records = (1..=20).map(|number| record(&number.to_string(), &format!("key {number}"), "Done"));
        let event = invocation(&host, batch(records));
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let began = Arc::new(Mutex::new(Vec::new()));
        let handler = service_fn({
            let (host, began, most) = (host.clone(), Arc::clone(&began), Arc::clone(&most));
            let start = host.now();
            move |record: KinesisRecord<Payment>| {
                let at = host.now().duration_since(start).unwrap();
                began.lock().unwrap().push((record.sequence_number().unwrap().parse::<usize>().unwrap(), at));
                let (running, most) = (Arc::clone(&running), Arc::clone(&most));
                async move {
                    most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    sleep(ms(10)).await;
                    running.fetch_sub(1, Ordering::Relaxed);
                    Ok::<_, Declined>(())
                }
            }
        });
        assert_eq!(again_from(&consumer, handler, event).await, None);
        let mut began = began.lock().unwrap().clone();
        began.sort_unstable();
        assert!(began.iter().map(|(number, _)| *number).eq(1..=20), "{began:?}");
        assert!(began[..10].iter().all(|(_, at)| (20..28).contains(&at.as_secs())), "{began:?}");
        assert!(began[10..].iter().all(|(_, at)| *at < ms(500)), "{began:?}");
        assert_eq!(most.load(Ordering::Relaxed), concurrency);
    }
}

/// Otherwise thousands of records that a crash has left would ask again and again, all at once.
#[tokio::test(start_paused = true)]
async fn no_more_lanes_wait_at_once_than_run() {
    let world = World::in_virtual_time().await;
    let host = world.host().build();
    let consumer = StreamConsumer::by_event_id(world.locks(&host).build().unwrap()).concurrency(2);
    let mut left = Vec::new();
    for number in 1..=50 {
        left.push(work_elsewhere(&world, &number.to_string(), Duration::from_mins(1)).await);
    }
    let records = (1..=51).map(|number| record(&number.to_string(), &format!("key {number}"), "Done"));
    assert_eq!(deliver(&consumer, &Till::default(), &host, records).await.as_deref(), Some("1"));
    // One for each record, one to store a result, and those of two waits of 29 s.
    assert!((52..52 + 2 * 20).contains(&host.requests()), "{}", host.requests());
}

/// The crash has left record 1 for about a second. The two others take nearly two seconds each.
#[tokio::test(start_paused = true)]
async fn a_lane_that_waited_starts_with_its_whole_lease() {
    let world = World::in_virtual_time().await;
    let host = world.host().build();
    let consumer = StreamConsumer::by_event_id(world.locks(&host).build().unwrap()).lease(ms(2_000)).concurrency(1);
    let _left = work_elsewhere(&world, "1", ms(100)).await;
    let leases = Arc::new(Mutex::new(Vec::new()));
    let handler = service_fn({
        let leases = Arc::clone(&leases);
        move |WithRun { input, run, .. }: WithRun<KinesisRecord<Payment>>| {
            leases.lock().unwrap().push((input.sequence_number().unwrap().to_owned(), run.lock().remaining()));
            async {
                sleep(ms(1_850)).await;
                Ok::<_, Declined>(())
            }
        }
    });
    let event = invocation(&host, batch(records([("a", "Done"), ("b", "Done"), ("c", "Done")])));
    let again = again_from(&consumer, handler, event).await;
    let leases = leases.lock().unwrap().clone();
    assert_eq!((again, leases.len()), (None, 3), "{leases:?}");
    assert!(leases.iter().all(|(_, left)| *left > ms(1_900)), "{leases:?}");
}

#[tokio::test]
async fn a_record_without_time_after_its_wait_does_not_start() {
    let (world, host, consumer, till) = environment().await;
    let other = work_elsewhere(&world, "1", Duration::from_secs(30)).await;
    let one = || batch(records([("a", "Done")]));
    // At the start, the batch has 29 seconds.
    let consumer = consumer.min_remaining_time(Duration::from_secs(26));
    let (again, ()) = tokio::join!(deliver_in(&consumer, &till, invocation(&host, one())), async {
        while host.requests() < 1 {
            sleep(ms(1)).await;
        }
        host.advance_clock(Duration::from_secs(5));
        other.release().await.unwrap();
    });
    assert_eq!(again.as_deref(), Some("1"));
    assert!(till.ran().is_empty());
    // Its record is free.
    assert_eq!(deliver_in(&consumer, &till, invocation(&host, one())).await, None);
    assert_eq!(till.ran(), ["1"]);
}
