//! The errors of an invocation.

use std::io;

use lambda_lock::{HandlerError, LockLayer};
use lambda_lock_tests::invocation::reported;
use lambda_runtime::LambdaEvent;
use tower::{Layer, ServiceExt, service_fn};

use crate::{FUNCTION, OutOfPaper, environment, hold_elsewhere, invocation};

#[tokio::test]
async fn the_error_of_a_handler_keeps_its_type_and_message() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn(|_: LambdaEvent<()>| async { Err::<(), _>(OutOfPaper) }));
    let error = service.oneshot(invocation(&host, ())).await.unwrap_err();
    assert_eq!(reported(error), ("OutOfPaper".to_owned(), "fill the tray".to_owned()));
}

#[tokio::test]
async fn a_handler_error_displays_the_error_that_it_wraps() {
    let (world, host, locks) = environment().await;
    let own = HandlerError::Handler(io::Error::other("fill the tray"));
    assert_eq!(own.to_string(), "fill the tray");
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks).layer(service_fn(|_: LambdaEvent<()>| async { Ok::<_, io::Error>(()) }));
    let error = service.oneshot(invocation(&host, ())).await.unwrap_err();
    let shown = error.to_string();
    let HandlerError::Lock(lock) = error else { panic!("{error:?}") };
    assert_eq!(shown, lock.to_string());
}
