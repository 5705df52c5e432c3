//! Why a ticket is refused.

use std::time::Duration;

use lambda_lock::{Error, ErrorKind, Locks, Ticket};
use lambda_lock_tests::World;

use crate::{CLOCK_SKEW, LEASE, acquired, assert_contains, host, ms, number_of, passed_on, ticket, with};

/// The errors of all requests of a ticket. A refused ticket changes nothing.
async fn errors(world: &World, locks: &Locks, ticket: &Ticket) -> [Error; 3] {
    let row = world.row("job").await;
    let errors = [
        locks.resume(ticket).await.unwrap_err(),
        locks.renew_ticket(ticket, LEASE).await.unwrap_err(),
        locks.release_ticket(ticket).await.unwrap_err(),
    ];
    assert_eq!(world.row("job").await, row);
    errors
}

/// The names of the predicates that are true.
fn predicates(error: &Error) -> Vec<&'static str> {
    [
        ("held", error.is_held()),
        ("lost", error.is_lost()),
        ("foreign", error.kind() == ErrorKind::TicketForeign),
        ("ended", error.kind() == ErrorKind::TicketEnded),
        ("released", error.kind() == ErrorKind::TicketReleased),
        ("used", error.kind() == ErrorKind::TicketUsed),
        ("unknown", error.kind() == ErrorKind::TicketUnknown),
        ("invalid", error.kind() == ErrorKind::Invalid),
        ("malformed", error.kind() == ErrorKind::MalformedRow),
    ]
    .into_iter()
    .filter_map(|(name, is_true)| is_true.then_some(name))
    .collect()
}

#[tokio::test]
async fn a_ticket_of_another_table_prefix_or_sort_key_sends_nothing() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let other = world.host().build();
    let named = |table: &str| Locks::builder(other.client(), table);
    for (locks, parts) in [
        (named("other"), ["`other`", &world.table, "use that table"]),
        (named("arn:aws:dynamodb:eu-west-1:123456789012:table/other"), ["table/other", &world.table, "use that table"]),
        (named(&world.table).key_prefix("app#"), ["key prefix is ``", "not `app#`", "`job`"]),
        (named(&world.table).sort_key("SK", "LOCK"), ["sort key is none", "not `LOCK`", "`job`"]),
    ] {
        for error in errors(&world, &locks.build().unwrap(), &ticket).await {
            assert_eq!(predicates(&error), ["foreign"]);
            assert_contains(&error, &parts);
        }
    }
    assert_eq!(other.requests(), 0);
    // The same table by its ARN.
    let arn = format!("arn:aws:dynamodb:eu-west-1:123456789012:table/{}", world.table);
    world.default_locks().resume(&with(&ticket, "table", arn)).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_foreign_ticket_makes_an_error_of_one_short_line() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let forged = format!("\n2026-11-23 ERROR forged\u{2028}\u{202e}{}", "x".repeat(100_000));
    let (other, locks) = host(&world);
    for field in ["table", "key_prefix", "sort_key", "key"] {
        let ticket = with(&ticket, field, forged.clone());
        for error in errors(&world, &locks, &ticket).await {
            assert_contains(&error, &[r"\n2026-11-23 ERROR forged\u{2028}\u{202e}xxx"]);
            for text in [error.to_string(), format!("{error:?}")] {
                assert!(!text.contains(['\n', '\u{2028}', '\u{202e}']), "{text:?}");
                assert!(text.len() < 1500, "{} bytes", text.len());
            }
        }
        let text = format!("{ticket:?}");
        assert!(!text.contains(['\n', '\u{2028}', '\u{202e}']) && text.len() < 1500, "{text}");
    }
    assert_eq!(other.requests(), 0);
}

#[tokio::test]
async fn a_ticket_keeps_prefix_and_sort_key() {
    let world = World::new().await;
    let locks = world.locks(&world.host().build()).key_prefix("app#").build().unwrap();
    let ticket = passed_on(&locks.acquire("job").await.unwrap().into_ticket().unwrap());
    assert_eq!((ticket.key_prefix(), ticket.key()), ("app#", "job"));
    assert_eq!(world.default_locks().resume(&ticket).await.unwrap_err().kind(), ErrorKind::TicketForeign);
    let locks = world.locks(&world.host().build()).key_prefix("app#").build().unwrap();
    locks.resume(&ticket).await.unwrap().release().await.unwrap();
    assert!(world.row("app#job").await.is_some() && world.row("job").await.is_none());
}

#[tokio::test]
async fn a_ticket_with_an_invalid_key_or_lease_sends_nothing() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let (other, locks) = host(&world);
    for key in [String::new(), "k".repeat(2049)] {
        for error in errors(&world, &locks, &with(&ticket, "key", key)).await {
            assert_eq!(predicates(&error), ["invalid"]);
        }
    }
    for lease in [Duration::ZERO, Duration::from_hours(366 * 24) + ms(1)] {
        assert_eq!(locks.renew_ticket(&ticket, lease).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(other.requests(), 0);
}

#[tokio::test]
async fn a_ticket_whose_lease_has_ended_says_so() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let (other, locks) = host(&world);
    other.advance_clock(LEASE);
    // Others still see the key as held, for the skew.
    let error = locks.resume(&ticket).await.unwrap_err();
    assert_eq!(predicates(&error), ["lost", "ended"]);
    assert_contains(&error, &["`job`", &world.table, "lease has ended", "acquire the key again"]);
    other.advance_clock(CLOCK_SKEW);
    let error = locks.renew_ticket(&ticket, LEASE).await.unwrap_err();
    assert_eq!(predicates(&error), ["lost", "ended"]);
    // The key has no other holder.
    locks.release_ticket(&ticket).await.unwrap();
}

#[tokio::test]
async fn a_ticket_works_once() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let copy = passed_on(&ticket);
    let (other, locks) = host(&world);
    let lock = locks.resume(&ticket).await.unwrap();
    for ticket in [&ticket, &copy] {
        for error in errors(&world, &world.default_locks(), ticket).await {
            assert_eq!(predicates(&error), ["used"]);
            assert_contains(&error, &["`job`", &world.table, "was used before"]);
        }
    }
    assert!(lock.is_valid());
    lock.renew(LEASE).await.unwrap();
    lock.release().await.unwrap();
    assert_eq!(other.requests(), 3);
}

#[tokio::test]
async fn a_released_ticket_says_so() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let locks = world.default_locks();
    locks.release_ticket(&ticket).await.unwrap();
    for error in [locks.resume(&ticket).await.unwrap_err(), locks.renew_ticket(&ticket, LEASE).await.unwrap_err()] {
        assert_eq!(predicates(&error), ["lost", "released"]);
        assert_contains(&error, &["`job`", &world.table, "was released"]);
    }
}

#[tokio::test]
async fn a_lock_that_was_released_gives_a_ticket_that_is_refused() {
    let world = World::new().await;
    let lock = acquired(&world).await;
    lock.release().await.unwrap();
    assert_eq!(
        world.default_locks().resume(&lock.into_ticket().unwrap()).await.unwrap_err().kind(),
        ErrorKind::TicketReleased
    );
}

#[tokio::test]
async fn a_ticket_of_a_key_that_was_taken_names_the_holder() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let (other, locks) = host(&world);
    other.advance_clock(LEASE + CLOCK_SKEW);
    let next = locks.acquire("job").holder("somebody").await.unwrap();
    for error in errors(&world, &locks, &ticket).await {
        assert_eq!(predicates(&error), ["lost"]);
        assert_eq!(error.holder().unwrap().owner(), Some(next.owner()));
        assert_contains(&error, &["`job`", &world.table, "lost to somebody"]);
    }
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_ticket_of_a_key_that_was_released_by_force_names_the_operator() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let locks = world.locks(&world.host().build()).holder("operator").build().unwrap();
    let holder = locks.get("job").await.unwrap().unwrap();
    assert!(locks.force_release("job", &holder).await.unwrap());
    for error in errors(&world, &locks, &ticket).await {
        assert_eq!(predicates(&error), ["lost"]);
        assert_eq!(error.holder().unwrap().name(), Some("operator"));
    }
}

#[tokio::test]
async fn a_ticket_with_another_number_matches_no_acquisition() {
    let world = World::new().await;
    let (real, locks) = (ticket(&world).await, world.default_locks());
    let number = number_of(&real);
    for number in [number - 1, number + 1] {
        let forged = with(&real, "number", number);
        assert_eq!(locks.resume(&forged).await.unwrap_err().kind(), ErrorKind::TicketUnknown);
        assert_eq!(locks.renew_ticket(&forged, LEASE).await.unwrap_err().kind(), ErrorKind::TicketUnknown);
    }
    locks.resume(&real).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_ticket_cannot_hold_a_key_for_longer_than_an_acquire() {
    let world = World::new().await;
    let (real, locks) = (ticket(&world).await, world.default_locks());
    locks.release_ticket(&with(&real, "hold_until", 253_402_300_799_999_u64)).await.unwrap();
    let later = world.host().later(Duration::from_hours(25)).build();
    assert!(world.locks(&later).build().unwrap().try_acquire("job").await.unwrap().is_some());
}

#[tokio::test]
async fn a_forged_ticket_matches_no_acquisition() {
    let world = World::new().await;
    let real = ticket(&world).await;
    let locks = world.default_locks();
    let owner = "0".repeat(32);
    let forged = [with(&real, "owner", owner.clone()), with(&with(&real, "owner", owner), "fence", real.fence() + 9)];
    for forged in forged {
        for error in errors(&world, &locks, &forged).await {
            assert_eq!(predicates(&error), ["unknown"]);
            assert_contains(&error, &["`job`", &world.table, "forged", "row was deleted"]);
        }
    }
    for error in errors(&world, &locks, &with(&real, "key", "other")).await {
        assert_eq!(predicates(&error), ["unknown"]);
    }
    assert!(world.row("other").await.is_none());
    locks.resume(&real).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_ticket_without_its_row_is_unknown_or_has_ended() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    world.delete_row("job").await;
    let (other, locks) = host(&world);
    for error in errors(&world, &locks, &ticket).await {
        assert_eq!(predicates(&error), ["unknown"]);
    }
    other.advance_clock(LEASE);
    for error in errors(&world, &locks, &ticket).await {
        assert_eq!(predicates(&error), ["lost", "ended"]);
    }
}

#[tokio::test]
async fn a_ticket_of_a_key_that_became_a_semaphore_is_unknown() {
    let world = World::new().await;
    let (ticket, locks) = (ticket(&world).await, world.default_locks());
    world.delete_row("job").await;
    let permit = locks.semaphore("job", 1).acquire().await.unwrap();
    for error in errors(&world, &locks, &ticket).await {
        assert_eq!(predicates(&error), ["unknown"]);
    }
    permit.release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_with_another_number_is_unknown_even_if_the_lease_is_long_enough() {
    let world = World::new().await;
    let (_, locks) = host(&world);
    for lock in [acquired(&world).await, locks.semaphore("bank", 1).acquire().lease(LEASE).await.unwrap()] {
        let ticket = lock.into_ticket().unwrap();
        let forged = with(&ticket, "number", number_of(&ticket) + 1);
        assert_eq!(locks.renew_ticket(&forged, LEASE / 2).await.unwrap_err().kind(), ErrorKind::TicketUnknown);
    }
}
