//! The rules that every kind of lock keeps: one suite, which each kind gets by one line.
//!
//! A rule is a function over [`Subject`](subject::Subject). A kind gets the groups of rules about what it can do.

mod answers;
mod clocks;
mod dropped;
mod identity;
mod late;
mod lease;
mod names;
mod other_kinds;
mod prevented;
mod regions;
mod subject;
mod turns;

use std::time::Duration;

use lambda_lock::embedded::Host;
use lambda_lock::{Backoff, Error, ErrorKind, Jitter, Locks, Wait};
use lambda_lock_tests::invocation::millis;
use lambda_lock_tests::{Row, World};
use subject::Subject;

/// Longer than any of these tests.
const LEASE: Duration = Duration::from_mins(5);
/// The defaults.
const CLOCK_SKEW: Duration = Duration::from_secs(1);
const RETENTION: Duration = Duration::from_hours(24);
/// When every clock shows that the lease has ended.
const AFTER_THE_LEASE: Duration = LEASE.saturating_add(CLOCK_SKEW).saturating_add(Duration::from_millis(100));

/// A test of each of these rules for a subject.
macro_rules! tests {
    ($subject:ident: $($file:ident::$rule:ident)*) => {
        $(
            #[tokio::test]
            async fn $rule() {
                crate::$file::$rule::<crate::subject::$subject>().await;
            }
        )*
    };
}

/// The rules by what a kind can do: all kinds keep the first group.
macro_rules! rules {
    (every_kind, $subject:ident) => {
        tests! { $subject:
            answers::an_acquire_whose_answer_was_lost_succeeds
            answers::a_renewal_whose_answer_was_lost_succeeds
            answers::a_renewal_after_an_unanswered_renewal_succeeds
            answers::a_release_whose_answer_was_lost_succeeds
            answers::a_refusal_without_its_row_names_the_cause
            answers::an_acquire_that_was_not_answered_frees_the_key
            late::a_late_duplicate_of_an_acquire_takes_nothing
            late::a_late_attempt_of_an_unanswered_acquire_takes_nothing
            late::a_late_attempt_of_a_refused_acquire_takes_nothing
            late::a_refusal_with_every_attempt_answered_sends_nothing_more
            late::a_withdrawal_is_dated_after_each_request_in_which_its_process_was_frozen
            late::a_grant_whose_process_was_frozen_beyond_its_lease_is_freed
            late::a_late_request_of_an_acquire_changes_nothing_after_its_release
            late::a_late_request_of_an_acquire_changes_nothing_after_its_withdrawal
            late::a_late_request_of_an_acquire_changes_nothing_after_it_was_freed_by_others
            late::a_late_duplicate_of_a_renewal_changes_nothing
            late::a_late_duplicate_of_a_release_frees_nothing
            late::a_late_attempt_takes_nothing_after_a_withdrawal_by_a_clock_set_back
            late::a_withdrawal_by_a_clock_that_was_hours_ahead_blocks_nobody
            prevented::a_prevented_renewal_is_repeated
            prevented::a_prevented_release_is_repeated
            dropped::an_acquire_that_is_dropped_at_any_await_leaves_the_key_free
            dropped::an_acquire_without_an_answer_that_is_dropped_at_any_await_leaves_the_key_free
            dropped::a_lock_whose_renewal_is_dropped_at_any_await_can_be_released
            lease::a_lease_beyond_its_bounds_is_refused
            lease::a_renewal_beyond_its_bounds_is_refused
            lease::the_longest_lease_is_granted
            lease::a_row_stays_for_the_retention_after_its_lease
            lease::a_lock_is_lost_after_its_lease
            lease::a_release_without_its_row_is_lost
            lease::an_expired_lock_that_nobody_took_can_be_released
            lease::a_renewal_keeps_others_out_for_longer
            clocks::others_wait_until_the_lease_and_the_skew_are_over
            clocks::each_acquisition_has_a_larger_fence
            clocks::a_free_key_refuses_an_acquire_at_most_once_after_it_was_freed_by_others
            clocks::after_a_clock_an_hour_ahead_an_acquire_needs_two_attempts
            clocks::an_acquire_by_a_clock_ahead_leaves_the_key_to_its_holder
            clocks::an_acquire_by_a_wrong_clock_leaves_a_free_key_free
            other_kinds::a_row_of_another_kind_is_refused
            other_kinds::a_withdrawal_leaves_a_row_of_another_kind_as_it_is
            names::a_refusal_names_the_key_of_the_row
            names::a_loss_names_the_key_of_the_row
        }
    };
    (repeated_releases, $subject:ident) => {
        tests! { $subject:
            answers::a_release_that_was_not_answered_is_repeated_after_the_next_acquire
            late::a_late_attempt_of_an_unanswered_release_changes_nothing
            lease::a_released_lock_cannot_be_renewed
        }
    };
    (drops, $subject:ident) => {
        tests! { $subject:
            dropped::a_release_that_is_dropped_at_any_await_frees_the_key_with_the_lock
            dropped::a_lock_that_is_dropped_frees_the_key
        }
    };
    (turns, $subject:ident) => {
        tests! { $subject:
            answers::an_acquire_without_any_answer_succeeds_at_the_next_attempt
            late::after_a_late_grant_a_forced_release_loses_the_lock
            late::a_release_by_force_frees_no_later_acquisition
            late::a_late_attempt_of_an_acquire_freed_by_force_takes_nothing_minutes_later
            late::an_acquire_that_was_freed_by_force_between_two_attempts_has_the_key
            late::a_release_after_an_attempt_by_a_clock_that_was_hours_ahead_blocks_nobody
            late::a_late_attempt_of_an_acquire_that_has_succeeded_takes_nothing_after_a_holder
            clocks::a_renewal_by_a_wrong_clock_loses_the_lock
            turns::a_waiter_takes_a_place_until_it_is_served
            turns::plain_backoff_takes_no_place
            turns::a_newcomer_that_waits_leaves_a_free_key_to_the_queue_for_a_moment
            turns::an_acquire_that_does_not_wait_takes_a_free_key_at_once
            turns::a_wait_does_not_end_without_a_key_that_is_free
            turns::lying_hints_cost_time_only
            turns::a_place_that_nobody_fills_is_passed_over
            turns::a_place_whose_answer_was_lost_does_not_stop_its_waiter
            turns::a_waiter_whose_place_was_passed_does_not_set_the_queue_back
            turns::a_waiter_whose_row_is_deleted_is_served
            turns::waiters_are_served_in_the_order_of_their_arrival
            turns::a_mistake_in_the_queue_costs_each_waiter_at_most_a_longest_delay
        }
    };
    (hold_times, $subject:ident) => {
        tests! { $subject:
            answers::an_acquire_whose_answer_was_lost_knows_the_hold_time_of_the_row
        }
    };
    (regions, $subject:ident) => {
        tests! { $subject:
            regions::a_key_that_is_held_in_one_region_is_refused_in_others
            regions::writes_that_conflict_with_another_region_are_repeated
        }
    };
    (identities, $subject:ident) => {
        tests! { $subject:
            identity::a_later_acquire_of_the_identity_takes_over
            identity::a_takeover_of_a_row_that_was_deleted_meanwhile_acquires
            identity::another_identity_is_refused
            identity::an_identity_acquires_again_after_its_release_and_after_its_lease
            identity::a_takeover_that_is_never_answered_keeps_the_lock
            identity::a_takeover_whose_answer_was_lost_succeeds
            identity::a_takeover_of_what_the_identity_has_not_is_lost
            identity::a_takeover_from_another_fence_takes_two_requests
            identity::an_acquire_by_an_earlier_clock_takes_over
            identity::an_acquire_by_an_earlier_clock_has_what_its_identity_has_released
            identity::a_late_acquire_of_the_earlier_holder_takes_nothing_back
            identity::late_requests_of_the_earlier_holder_change_nothing_after_a_takeover
            identity::a_late_attempt_of_a_dead_acquire_takes_nothing_over
            identity::a_late_takeover_that_was_withdrawn_takes_nothing
            identity::a_release_of_what_the_identity_has_taken_over_meanwhile_frees_it
            identity::a_late_acquire_that_was_withdrawn_takes_nothing_after_others
            identity::a_release_after_a_takeover_is_lost_whatever_was_answered
            identity::an_identity_frees_what_it_has_without_a_nonce
            identity::an_identity_frees_what_a_clock_an_hour_ahead_has_acquired
            identity::a_release_of_what_was_freed_for_the_identity_is_lost
            identity::a_loss_by_a_release_for_the_identity_names_no_holder
            identity::a_release_for_an_identity_that_is_not_answered_is_not_repeated
            identity::an_acquire_whose_unanswered_grant_was_freed_begins_anew
            identity::an_acquire_whose_unanswered_grant_was_freed_is_refused_by_the_next_holder
            identity::a_late_acquire_whose_grant_was_freed_takes_nothing_after_a_holder
            identity::a_late_acquire_whose_grant_was_freed_takes_nothing_after_its_wait
            identity::a_late_acquire_takes_nothing_after_a_withdrawal_by_a_clock_set_back
            identity::a_late_acquire_that_was_freed_by_force_takes_nothing_after_the_next
            identity::a_takeover_that_can_have_no_larger_fence_is_malformed
            identity::a_late_release_for_an_identity_frees_no_later_acquisition
        }
    };
    (traces_of_identities, $subject:ident) => {
        tests! { $subject:
            identity::a_release_after_a_takeover_and_its_release_is_lost_whatever_was_answered
            identity::a_release_after_a_takeover_and_its_lease_is_lost_whatever_was_answered
        }
    };
}

/// The tests of each kind: the rules of all kinds, and those of what it can do.
macro_rules! suite {
    ($($kind:ident: $subject:ident, $($group:ident)*;)*) => {
        $(
            mod $kind {
                rules! { every_kind, $subject }
                $(rules! { $group, $subject })*
            }
        )*
    };
}

suite! {
    key: Key, repeated_releases drops turns hold_times regions identities traces_of_identities;
    // A set needs transactions, which no table has across Regions. A transaction that was applied returns no rows, also when the
    // SDK repeats it, so that a set knows only the hold times that a refusal has shown.
    several_keys: SeveralKeys, repeated_releases drops turns identities traces_of_identities;
    // Nothing of a permit that was released stays.
    permit: Permit, repeated_releases drops turns hold_times regions identities;
    // A run ends with its release. The key of a record is its identity. A result is for all who wait for it.
    record: Record, drops hold_times regions;
    key_of_an_identity: KeyOfIdentity, repeated_releases drops turns hold_times regions;
    several_keys_of_an_identity: SeveralKeysOfIdentity, repeated_releases drops turns;
    permit_of_an_identity: PermitOfIdentity, repeated_releases drops turns hold_times regions;
}

/// A new host with its locks.
fn host(world: &World) -> (Host, Locks) {
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    (host, locks)
}

/// Locks of a host whose clock is ahead.
fn ahead(world: &World, by: Duration) -> Locks {
    world.locks(&world.host().later(by).build()).build().unwrap()
}

async fn acquired<S: Subject>(locks: &Locks) -> S {
    S::acquire(locks, LEASE).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Asserts that this acquire was not answered, and waits for its withdrawal.
async fn assert_withdrawn<S: Subject>(locks: &Locks, answer: Result<S, Error>) {
    let Err(error) = answer else { panic!("it was granted") };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(S::KEYS.iter().all(|key| error.to_string().contains(&format!("`{key}`"))), "{error}");
    locks.flush(Duration::from_mins(1)).await.unwrap();
}

/// A wait with attempts at these pauses.
fn at_pauses(pause: Duration, budget: Duration) -> Wait {
    Wait::backoff(Backoff::new().base(pause).cap(pause).jitter(Jitter::None)).up_to(budget)
}

async fn rows<S: Subject>(world: &World) -> Vec<Option<Row>> {
    let mut rows = Vec::new();
    for key in S::KEYS {
        rows.push(world.row(key).await);
    }
    rows
}

/// Asserts that the rows show this lock until the end of its lease and the skew, and that another host is refused.
async fn assert_held_by<S: Subject>(world: &World, held: &S) {
    let until = millis(held.expires_at() + CLOCK_SKEW);
    for (key, fence) in S::KEYS.iter().zip(held.fences()) {
        let holder = world.default_locks().get(*key).await.unwrap().unwrap();
        assert!(holder.is_current(), "{key} is free");
        assert_eq!((holder.fence(), millis(holder.until())), (Some(fence), until), "{key}");
    }
    assert_refused::<S>(&world.default_locks()).await;
}

async fn assert_refused<S: Subject>(locks: &Locks) {
    let Err(error) = S::acquire(locks, LEASE).await else { panic!("it was granted") };
    assert!(error.is_held() || error.kind() == ErrorKind::InProgress, "{error}");
}

/// Asserts that an observer sees the keys free, and that another host can acquire them.
async fn assert_free<S: Subject>(world: &World) {
    for key in S::KEYS {
        assert!(!is_held(&world.default_locks(), key).await, "{key} is held");
    }
    acquired::<S>(&world.default_locks()).await.release().await.unwrap();
}

async fn is_held(locks: &Locks, key: &str) -> bool {
    locks.get(key).await.unwrap().is_some_and(|holder| holder.is_current())
}
