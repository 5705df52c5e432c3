//! Work that runs under the locks on several keys.

use lambda_lock_tests::World;

use crate::{CLOCK_SKEW, KEYS, LEASE};

#[tokio::test]
async fn run_cancels_a_body_whose_renewal_finds_a_key_lost_and_frees_the_others() {
    let world = World::new().await;
    let theirs = world.host().build();
    let others = world.locks(&theirs).build().unwrap();
    let running = world.default_locks().acquire_all(KEYS).run(async |set| {
        theirs.advance_clock(LEASE + CLOCK_SKEW);
        let _next = others.acquire(KEYS[1]).await.unwrap();
        assert!(set.renew(LEASE).await.unwrap_err().is_lost());
        std::future::pending::<()>().await;
    });
    assert!(Box::pin(running).await.unwrap_err().is_lost());
    assert!(world.default_locks().try_acquire(KEYS[0]).await.unwrap().is_some());
}
