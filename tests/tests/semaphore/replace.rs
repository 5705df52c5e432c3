//! Permits whose lease has ended are replaced.

use lambda_lock_tests::World;

use crate::{DAY, KEY, acquire_all, after_the_lease, late_replacement, owners, permits, row};

#[tokio::test]
async fn two_requests_replace_all_permits_whose_lease_has_ended() {
    let world = World::new().await;
    let locks = world.default_locks();
    let long = locks.semaphore(KEY, 4).acquire().lease(DAY).await.unwrap();
    let mut crashed = Vec::new();
    for _ in 0..3 {
        crashed.push(locks.semaphore(KEY, 4).acquire().await.unwrap());
    }
    let (host, later) = after_the_lease(&world);
    let next = later.semaphore(KEY, 4).acquire().await.unwrap();
    assert_eq!(host.requests(), 2);
    assert_eq!(permits(&row(&world).await), owners([&long, &next]));
    assert!(next.fence() > crashed[2].fence());
    // There is room again.
    let another = later.semaphore(KEY, 4).acquire().await.unwrap();
    assert_eq!(host.requests(), 3);
    assert!(another.fence() > next.fence());

    for permit in crashed {
        assert!(permit.release().await.unwrap_err().is_lost());
    }
    assert_eq!(permits(&row(&world).await), owners([&long, &next, &another]));
}

#[tokio::test]
async fn nothing_is_replaced_if_too_many_others_are_held() {
    let world = World::new().await;
    let locks = world.default_locks();
    let crashed = acquire_all(&locks, 1).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(locks.semaphore(KEY, 3).acquire().lease(DAY).await.unwrap());
    }
    let (host, later) = after_the_lease(&world);
    let error = later.semaphore(KEY, 2).acquire().await.unwrap_err();
    assert!(error.is_held());
    assert_eq!(host.requests(), 1);
    // The refusal shows the lease that ends first of those that have not ended, and all permits.
    let holder = error.holder().unwrap();
    assert_eq!(holder.owner(), Some(held[0].owner()));
    assert_eq!(holder.permits().len(), 3);
    assert!(!holder.permits()[0].is_current());
    assert!(!error.to_string().contains("holder 0"), "{error}");
    assert_eq!(permits(&row(&world).await), owners(crashed.iter().chain(&held)));
}

#[tokio::test]
async fn a_permit_that_was_renewed_is_not_replaced() {
    for is_renewed in [true, false] {
        let world = World::new().await;
        let held = acquire_all(&world.default_locks(), 1).await;
        let late = late_replacement(&world, None).await;
        if is_renewed {
            held[0].renew(DAY).await.unwrap();
        }
        assert_eq!(late.deliver(&world).await, !is_renewed);
        assert_eq!(permits(&row(&world).await) == owners(&held), is_renewed);
    }
}

#[tokio::test]
async fn an_acquire_that_is_slower_than_another_takes_the_room_that_is_left() {
    let world = World::new().await;
    let _crashed = acquire_all(&world.default_locks(), 3).await;
    let later: Vec<_> = (0..3).map(|_| after_the_lease(&world).1.semaphore(KEY, 3)).collect();
    let (one, two, three) = tokio::join!(later[0].acquire(), later[1].acquire(), later[2].acquire());
    let held = [one.unwrap(), two.unwrap(), three.unwrap()];
    assert_eq!(permits(&row(&world).await), owners(&held));
    assert!(later[0].try_acquire().await.unwrap().is_none());
}
