//! Texts that name keys and holders: on one line, and not too long.

use std::fmt::Display;

use lambda_lock::{Error, ErrorKind, Holder};
use lambda_lock_tests::World;

use crate::waiting::Refuse;
use crate::{number, text};

/// A value that would begin a line of a log, and reverses the direction of text.
const FORGED: &str = "a\n2026-11-23 ERROR forged\r\u{85}\u{2028}\u{2029}\u{1b}[2J\u{202e}";
/// The same without characters that mislead.
const SHOWN: &str = r"a\n2026-11-23 ERROR forged\r\u{85}\u{2028}\u{2029}\u{1b}[2J\u{202e}";

#[track_caller]
fn assert_shows(text: impl Display, shown: &str) {
    let text = text.to_string();
    assert!(text.contains(shown), "`{text}` lacks `{shown}`");
    assert!(!text.contains(|c: char| c.is_control() || "\u{2028}\u{2029}\u{202e}".contains(c)), "{text:?}");
    assert!(text.len() < 1500, "{} bytes: {text}", text.len());
}

#[tokio::test]
async fn an_error_shows_the_key_and_its_holder_on_one_line() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire(FORGED).holder(FORGED).await.unwrap();
    let error = locks.acquire(FORGED).await.unwrap_err();
    assert_shows(&error, &format!("key `{SHOWN}` in table"));
    assert_shows(&error, &format!("held by {SHOWN} until"));
    assert_shows(format!("{error:?}"), SHOWN);
    assert_eq!((error.key(), error.holder().and_then(Holder::name)), (FORGED, Some(FORGED)), "values are as they are");
    let several = locks.acquire_all(["b", FORGED]).await.unwrap_err();
    assert_shows(&several, &format!("key `{SHOWN}`"));
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_holder_is_shown_on_one_line() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").holder(FORGED).await.unwrap();
    let holder = locks.get("job").await.unwrap().unwrap();
    assert_shows(&holder, SHOWN);
    assert_shows(format!("{holder:?}"), SHOWN);
    lock.release().await.unwrap();
    let permit = locks.semaphore("bank-api", 1).acquire().holder(FORGED).await.unwrap();
    let semaphore = locks.get("bank-api").await.unwrap().unwrap();
    assert_shows(&semaphore, SHOWN);
    assert_shows(format!("{semaphore:?}"), SHOWN);
    permit.release().await.unwrap();
}

#[tokio::test]
async fn a_holder_with_an_empty_name_is_unnamed() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").holder(" ").await.unwrap();
    assert_shows(locks.acquire("job").await.unwrap_err(), "held by an unnamed holder until");
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_long_key_is_shortened_and_an_ordinary_one_is_complete() {
    let world = World::new().await;
    let locks = world.default_locks();
    let ordinary = "k".repeat(256);
    let lock = locks.acquire(&ordinary).await.unwrap();
    assert_shows(locks.acquire(&ordinary).await.unwrap_err(), &format!("`{ordinary}`"));
    lock.release().await.unwrap();

    let longest = format!("first{}last", "k".repeat(2048 - 9));
    let lock = locks.acquire(&longest).await.unwrap();
    let error = locks.acquire(&longest).await.unwrap_err();
    assert_shows(&error, "`firstkkk");
    assert_shows(&error, "kkklast (2048 bytes)`");
    assert_eq!(error.key(), longest);
    lock.release().await.unwrap();
    let error = locks.acquire(format!("{FORGED}{}", "k".repeat(100_000))).await.unwrap_err();
    assert_shows(&error, SHOWN);
    assert_shows(&error, &format!("{} bytes", FORGED.len() + 100_000));
}

#[tokio::test]
async fn a_row_of_another_program_does_not_make_an_error_long() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").await.unwrap();
    let mut row = world.row("job").await.unwrap();
    let name = FORGED.repeat(2000);
    row.insert("holder".to_owned(), text(&name));
    row.insert("owner".to_owned(), text(&name));
    world.put_row(row).await;
    let error = locks.acquire("job").await.unwrap_err();
    assert_shows(&error, &format!("({} bytes)", name.len()));
    assert_shows(format!("{:?}", error.holder().unwrap()), &format!("({} bytes)", name.len()));
    assert_eq!(error.holder().unwrap().name(), Some(&*name));
    assert_shows(lock.release().await.unwrap_err(), &format!("lost to {SHOWN}"));

    let mut row = world.row("job").await.unwrap();
    assert!(number(&row, "fence") > 0);
    row.insert("status".to_owned(), text(&name));
    world.put_row(row).await;
    let error = locks.acquire("job").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MalformedRow);
    assert_shows(&error, r"a\n2026");
}

#[tokio::test]
async fn an_error_of_a_setting_shows_its_value_on_one_line() {
    let world = World::without_table();
    let host = world.host().build();
    let long = FORGED.repeat(2000);
    assert_shows(world.locks(&host).partition_key(&long).build().unwrap_err(), SHOWN);
    let locks = world.locks(&host).build().unwrap();
    assert_shows(locks.acquire("job").attribute(&long, text("x")).await.unwrap_err(), SHOWN);
    assert_shows(locks.acquire_all([FORGED, FORGED]).await.unwrap_err(), SHOWN);
    assert_shows(lambda_lock::Locks::builder(host.client(), &long).build().unwrap_err(), SHOWN);
}

#[tokio::test]
async fn other_keys_of_the_table_are_named_with_those_of_the_settings() {
    let world = World::new().await;
    let locks = |name: &str| world.locks(&world.host().build()).partition_key(name);
    let named = locks("pk").build().unwrap();
    let with_sort_key = locks("id").sort_key("sk", "LOCK").build().unwrap();
    // DynamoDB Local says it in other words.
    let why = match std::env::var("LOCK_TEST_ENDPOINT") {
        Ok(_) => &["required keys was not given a value", "number of conditions on the keys is invalid"][..],
        Err(_) => &["does not match the schema"],
    };
    for (error, keys) in [
        (named.acquire("job").await.unwrap_err(), "only `pk`"),
        (named.semaphore("bank-api", 1).acquire().await.unwrap_err(), "only `pk`"),
        (named.get("job").await.unwrap_err(), "only `pk`"),
        (with_sort_key.acquire("job").await.unwrap_err(), "`id` and `sk`"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert_shows(&error, &format!("the settings use {keys} as the key"));
        assert_shows(&error, "LocksBuilder::partition_key");
        assert!(why.iter().any(|text| error.to_string().contains(text)), "{error}");
        let shown = format!("{error:?}");
        assert_eq!(why.iter().map(|text| shown.matches(text).count()).sum::<usize>(), 1, "{shown}");
    }
}

async fn refused_with(code: &'static str) -> Error {
    let world = World::new().await;
    let locks = world.locks(&world.host().intercept(Refuse(400, code)).build()).build().unwrap();
    locks.acquire("job").await.unwrap_err()
}

#[tokio::test]
async fn a_rejection_has_the_message_of_dynamodb() {
    let error = refused_with("ValidationException").await;
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert_shows(&error, "(ValidationException: said by DynamoDB)");
}

#[tokio::test]
async fn refused_credentials_are_to_be_renewed_and_no_policy_is_named() {
    for code in ["UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException", "RequestExpired"]
    {
        let error = refused_with(code).await;
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{code}");
        assert_shows(&error, "does not accept the credentials for key `job`");
        assert_shows(&error, "renew them");
        assert!(!error.to_string().contains("dynamodb:"), "{error}");
    }
    assert_shows(refused_with("AccessDeniedException").await, "allow dynamodb:UpdateItem");
}

#[tokio::test]
async fn a_missing_table_may_still_be_created() {
    assert_shows(refused_with("ResourceNotFoundException").await, "wait while it is being created");
}
