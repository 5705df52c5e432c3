//! The behaviours, by their numbers.

use lambda_lock_tests::World;

// behaviours 1, 6
#[tokio::test]
async fn a_free_key_is_acquired_and_a_held_one_is_not_until_its_release() {
    let world = World::new().await;
    let (ours, theirs) = (world.default_locks(), world.default_locks());
    let lock = ours.try_acquire("job").await.unwrap().unwrap();
    assert!(theirs.try_acquire("job").await.unwrap().is_none());
    let error = theirs.acquire("job").await.unwrap_err();
    println!("{error}");
    lock.release().await.unwrap();
    let next = theirs.try_acquire("job").await.unwrap().unwrap();
    assert!(next.fence() > lock.fence());
    next.release().await.unwrap();
}
