//! Acquires a free key as often as its argument says. `.ci/coverage --functions` counts the functions that an acquire enters.

use lambda_lock_tests::World;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let world = World::new().await;
    let locks = world.default_locks();
    let times = std::env::args().nth(1).expect("how often").parse::<u32>().expect("a number");
    for _ in 0..times {
        // Without the release that a drop sends.
        std::mem::forget(locks.acquire("job").await.expect("the key is free"));
    }
}
