//! Errors name the key as it is in the row, so that an operator finds it.

use lambda_lock::{Error, Locks};
use lambda_lock_tests::World;

use crate::subject::Subject;
use crate::{AFTER_THE_LEASE, LEASE, acquired};

const PREFIX: &str = "shop#";

fn locks(world: &World) -> Locks {
    world.locks(&world.host().build()).key_prefix(PREFIX).build().unwrap()
}

async fn assert_names_the_row(world: &World, error: &Error) {
    assert!(error.to_string().contains(&format!("`{}`", error.key())), "{error}");
    assert!(world.row(error.key()).await.is_some(), "{error}");
}

pub(crate) async fn a_refusal_names_the_key_of_the_row<S: Subject>() {
    let world = World::new().await;
    let mut held: S = acquired(&locks(&world)).await;
    let Err(error) = S::acquire(&locks(&world), LEASE).await else { panic!("it was granted") };
    assert_names_the_row(&world, &error).await;
    assert_eq!(error.holders().count(), S::KEYS.len());
    for (key, holder) in error.holders() {
        let row = world.row(key).await.unwrap_or_else(|| panic!("there is no row `{key}`"));
        assert!(holder.fence().is_some() && !row.is_empty());
        assert!(error.to_string().contains(&format!("`{key}`")), "{error}");
    }
    held.release().await.unwrap();
}

pub(crate) async fn a_loss_names_the_key_of_the_row<S: Subject>() {
    let world = World::new().await;
    let mut held: S = acquired(&locks(&world)).await;
    let later = world.locks(&world.host().later(AFTER_THE_LEASE).build()).key_prefix(PREFIX).build().unwrap();
    let mut next: S = acquired(&later).await;
    assert_names_the_row(&world, &held.renew(LEASE).await.unwrap_err()).await;
    next.release().await.unwrap();
}
