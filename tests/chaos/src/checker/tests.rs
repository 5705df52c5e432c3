//! Each rule of the checker, on a history of a few lines that breaks it.

use super::{Broken, History, PROBE, Process, Row};
use crate::event::{Event, What};

const MS: u64 = 1_000_000;

fn asks(key: &str) -> What {
    What::Asks { keys: vec![key.to_owned()], permits: 1, lease: 500, waits: false }
}

fn has(key: &str, fence: u64) -> What {
    What::Has { keys: vec![key.to_owned()], fences: vec![fence] }
}

fn refused(by: &str, fence: Option<u64>) -> What {
    What::Refused { key: "a".to_owned(), by: Some(by.to_owned()), fence }
}

fn commits(result: &str) -> What {
    What::Commits { key: "a".to_owned(), result: result.to_owned() }
}

fn replied(result: &str) -> What {
    What::Replied { key: "a".to_owned(), result: result.to_owned() }
}

/// A process whose events have times in milliseconds, all of one operation.
fn process(name: &str, events: Vec<(u64, What)>) -> Process {
    let event = |(at, what)| Event { at: at * MS, ahead: 0, op: 0, what };
    Process {
        name: name.to_owned(),
        ended: 10_000 * MS,
        failure: None,
        events: events.into_iter().map(event).collect(),
    }
}

/// A hold of the key "a" from one time to another.
fn hold(name: &str, fence: u64, from: u64, to: u64) -> Process {
    process(name, vec![(from - 5, asks("a")), (from, has("a", fence)), (from, What::Valid), (to, What::Valid)])
}

/// The guarantees that did not hold.
fn found(processes: Vec<Process>, rows: Vec<Row>) -> Vec<Broken> {
    let violations = History { processes, rows, clock_skew: 100 * MS }.check();
    let mut broken: Vec<_> = violations.into_iter().map(|violation| violation.broken).collect();
    broken.sort();
    broken.dedup();
    broken
}

fn record(result: &str, commits: u64) -> Vec<Row> {
    let (id, data) = ("a".to_owned(), Some(format!("\"{result}\"")));
    let record = Row { id: id.clone(), status: Some("COMPLETED".to_owned()), data, ..Row::default() };
    vec![record, Row { id, commits: Some(commits), committed: Some(result.to_owned()), ..Row::default() }]
}

#[test]
fn holders_one_after_the_other_are_right() {
    assert_eq!(found(vec![hold("x", 1, 10, 20), hold("y", 2, 30, 40)], Vec::new()), []);
}

#[test]
fn two_holders_at_the_same_time_are_found() {
    assert_eq!(found(vec![hold("x", 1, 10, 35), hold("y", 2, 30, 40)], Vec::new()), [Broken::Alone]);
}

#[test]
fn a_holder_that_does_not_claim_to_be_valid_disturbs_no_one() {
    let stopped = process("x", vec![(5, asks("a")), (10, has("a", 1)), (10, What::Valid), (50, What::Invalid)]);
    assert_eq!(found(vec![stopped, hold("y", 2, 30, 40)], Vec::new()), []);
}

#[test]
fn a_takeover_disturbs_no_one_of_its_identity() {
    let of = |identity: &str, mut process: Process| {
        let claims = What::Claims { key: "a".to_owned(), identity: identity.to_owned() };
        process.events.insert(0, Event { what: claims, ..process.events[0].clone() });
        process
    };
    let hold = |identity, name, fence, from, to| of(identity, hold(name, fence, from, to));
    assert_eq!(found(vec![hold("i", "x", 1, 10, 35), hold("i", "y", 2, 30, 40)], Vec::new()), []);
    assert_eq!(found(vec![hold("i", "x", 1, 10, 35), hold("j", "y", 2, 30, 40)], Vec::new()), [Broken::Alone]);
    // One that is never answered, or frees the key, also ends the hold.
    let silent = of("i", process("y", vec![(20, asks("a"))]));
    assert_eq!(found(vec![hold("i", "x", 1, 10, 35), silent, hold("j", "z", 2, 30, 40)], Vec::new()), []);
    let frees = of("i", process("y", vec![(20, What::Freed)]));
    assert_eq!(found(vec![hold("i", "x", 1, 10, 35), frees, hold("j", "z", 2, 30, 40)], Vec::new()), []);
    let earlier = of("i", process("y", vec![(4, What::Freed)]));
    assert_eq!(found(vec![hold("i", "x", 1, 10, 35), earlier, hold("j", "z", 2, 30, 40)], Vec::new()), [Broken::Alone]);
}

#[test]
fn one_permit_too_many_is_found() {
    let permit = |name, fence| {
        let mut process = hold(name, fence, 10, 20);
        process.events[0].what = What::Asks { keys: vec!["a".to_owned()], permits: 2, lease: 500, waits: false };
        process
    };
    assert_eq!(found(vec![permit("x", 1), permit("y", 2)], Vec::new()), []);
    assert_eq!(found(vec![permit("x", 1), permit("y", 2), permit("z", 3)], Vec::new()), [Broken::Permits]);
}

#[test]
fn a_fence_that_repeats_or_is_smaller_than_one_before_is_found() {
    assert_eq!(found(vec![hold("x", 1, 10, 20), hold("y", 1, 30, 40)], Vec::new()), [Broken::Fences]);
    assert_eq!(found(vec![hold("x", 2, 10, 20), hold("y", 1, 30, 40)], Vec::new()), [Broken::Fences]);
    // Who had asked before the other had an answer may have been first.
    assert_eq!(
        found(vec![hold("x", 2, 10, 20), process("y", vec![(9, asks("a")), (30, has("a", 1))])], Vec::new()),
        []
    );
}

#[test]
fn a_lost_update_of_the_fenced_store_is_found() {
    let wrote = |fence, value| (fence, What::Wrote { key: "a".to_owned(), fence, value });
    let stored = |counted| vec![Row { id: "store of a".to_owned(), counted: Some(counted), ..Row::default() }];
    assert_eq!(found(vec![process("x", vec![wrote(1, 1), wrote(2, 2)])], stored(2)), []);
    assert_eq!(found(vec![process("x", vec![wrote(1, 1), wrote(2, 1)])], stored(1)), [Broken::Store]);
    assert_eq!(found(vec![process("x", vec![wrote(1, 1), wrote(2, 2)])], stored(1)), [Broken::Store]);
}

#[test]
fn two_effects_of_one_key_are_found() {
    let run = || process("x", vec![(10, commits("r")), (20, replied("r"))]);
    assert_eq!(found(vec![run()], record("r", 1)), []);
    assert_eq!(found(vec![run()], record("r", 2)), [Broken::Once]);
}

#[test]
fn different_replies_are_found() {
    let replies = |other| {
        vec![process("x", vec![(10, commits("r")), (20, replied("r"))]), process("y", vec![(30, replied(other))])]
    };
    assert_eq!(found(replies("r"), record("r", 1)), []);
    assert_eq!(found(replies("s"), record("r", 1)), [Broken::Replies]);
}

#[test]
fn a_confirmed_result_that_is_gone_is_found() {
    let run = || vec![process("x", vec![(10, commits("r")), (20, replied("r"))])];
    assert_eq!(found(run(), Vec::new()), [Broken::Kept]);
    assert_eq!(found(run(), record("s", 1)), [Broken::Kept]);
    let mut rows = record("r", 1);
    rows[0].status = Some("INPROGRESS".to_owned());
    assert_eq!(found(run(), rows), [Broken::Kept]);
}

#[test]
fn a_message_that_is_deleted_before_its_work_is_found() {
    let done =
        |at| vec![process("x", vec![(10, commits("r"))]), process("y", vec![(at, What::Done { key: "a".to_owned() })])];
    assert_eq!(found(done(20), record("r", 1)), []);
    assert_eq!(found(done(5), record("r", 1)), [Broken::Kept]);
    assert_eq!(found(done(20), Vec::new()), [Broken::Kept]);
}

/// Calls of a rate with one call each 100 ms: when each asked, when it passed, and how long it then had to wait.
fn calls<const N: usize>(calls: [(u64, u64, Option<u64>); N]) -> Vec<Process> {
    let call = |(asked, passed, wait): (u64, u64, Option<u64>)| {
        let calls = What::Calls { key: "a".to_owned(), interval: 100_000, tolerance: 0 };
        let wait = wait.map(|millis| millis * 1000);
        process("x", vec![(asked, calls), (passed, What::MayCall { wait })])
    };
    calls.map(call).into()
}

#[test]
fn calls_of_a_rate_that_have_a_time_each_are_right() {
    assert_eq!(found(calls([(10, 11, None), (105, 106, None), (110, 206, None)]), Vec::new()), []);
    // It was due long before it passed: its answer came late.
    assert_eq!(found(calls([(10, 205, None), (205, 206, None)]), Vec::new()), []);
    assert_eq!(found(calls([(10, 11, None), (12, 13, Some(100)), (14, 15, Some(200))]), Vec::new()), []);
}

#[test]
fn calls_of_a_rate_without_a_time_for_each_are_found() {
    assert_eq!(found(calls([(10, 11, None), (100, 101, None)]), Vec::new()), [Broken::Times]);
    assert_eq!(found(calls([(10, 110, None), (11, 120, None), (12, 130, None)]), Vec::new()), [Broken::Times]);
    assert_eq!(found(calls([(10, 11, None), (12, 13, Some(80))]), Vec::new()), [Broken::Times]);
    assert_eq!(found(calls([(10, 11, Some(100)), (12, 13, Some(100))]), Vec::new()), [Broken::Times]);
}

#[test]
fn calls_of_a_burst_may_come_at_once() {
    let burst = |tolerance| {
        let mut processes = calls([(10, 11, None), (12, 13, None), (14, 15, None)]);
        for process in &mut processes {
            process.events[0].what = What::Calls { key: "a".to_owned(), interval: 100_000, tolerance };
        }
        processes
    };
    assert_eq!(found(burst(200_000), Vec::new()), []);
    assert_eq!(found(burst(100_000), Vec::new()), [Broken::Times]);
}

#[test]
fn a_clock_that_is_ahead_lets_a_call_pass_earlier() {
    let ahead = |millis| {
        let mut processes = calls([(10, 11, None), (60, 61, None)]);
        processes[1].events[1].ahead = millis;
        processes
    };
    assert_eq!(found(ahead(50), Vec::new()), []);
    assert_eq!(found(ahead(40), Vec::new()), [Broken::Times]);
}

fn left(to: &str, fence: u64) -> [What; 2] {
    let (key, to) = ("a".to_owned(), to.to_owned());
    [What::Leaves { key: key.clone(), fence, to: to.clone() }, What::Left { key, fence, to }]
}

/// An invocation that leaves its work to a holder.
fn skipped(name: &str, at: u64, to: &str, fence: u64) -> Process {
    let [leaves, left] = left(to, fence);
    process(name, vec![(at - 2, asks("a")), (at - 1, leaves), (at, left)])
}

/// An invocation that runs, and what its release says.
fn run(name: &str, fence: u64, from: u64, to: u64, says: &[What]) -> Process {
    let mut events = vec![(from - 5, asks("a")), (from, has("a", fence)), (to, What::Releases)];
    events.extend(says.iter().map(|what| (to + 1, what.clone())));
    process(name, events)
}

/// The second process becomes a later operation of the first, which goes on with the same invocation.
fn goes_on(mut before: Process, after: Process) -> Process {
    let at = after.events[0].at - 1;
    before.events.push(Event { at, ahead: 0, op: 1, what: What::GoesOn { of: 0 } });
    before.events.extend(after.events.into_iter().map(|event| Event { op: 1, ..event }));
    before
}

const AGAIN: [What; 2] = [What::Released, What::RunsAgain];

#[test]
fn a_run_after_an_invocation_that_was_skipped_is_right() {
    let runs_again = goes_on(run("x", 1, 10, 20, &AGAIN), run("x", 2, 30, 40, &[What::Released]));
    assert_eq!(found(vec![runs_again, skipped("y", 15, "x.0", 1)], Vec::new()), []);
    // Another invocation has run meanwhile.
    let other = run("z", 2, 30, 40, &[What::Released]);
    assert_eq!(found(vec![run("x", 1, 10, 20, &[What::Released]), other, skipped("y", 15, "x.0", 1)], Vec::new()), []);
}

#[test]
fn a_run_that_is_missing_after_an_invocation_was_skipped_is_found() {
    let is_done = || run("x", 1, 10, 20, &[What::Released]);
    assert_eq!(found(vec![is_done(), skipped("y", 15, "x.0", 1)], Vec::new()), [Broken::Again]);
    // A retry that runs no more than that.
    let failed = || What::Failed { why: "unavailable".to_owned() };
    let retried = goes_on(process("x", vec![(5, asks("a")), (15, failed())]), skipped("x", 30, "w.0", 1));
    assert_eq!(found(vec![retried, skipped("y", 15, "x.0", 1)], Vec::new()), [Broken::Again]);
}

#[test]
fn a_holder_that_has_crashed_or_given_up_excuses_a_missing_run() {
    let ends = |says: &[What]| vec![run("x", 1, 10, 20, says), skipped("y", 15, "x.0", 1)];
    assert_eq!(found(ends(&[]), Vec::new()), []);
    assert_eq!(found(ends(&AGAIN), Vec::new()), []);
    assert_eq!(found(ends(&[What::Failed { why: "unavailable".to_owned() }]), Vec::new()), []);
    // It died before it knew that it has the key, and only another one saw that it has.
    let died = process("z", vec![(21, asks("a"))]);
    let saw = process("w", vec![(24, asks("a")), (25, left("z.0", 2)[0].clone())]);
    let is_done = run("x", 1, 10, 20, &[What::Released]);
    assert_eq!(found(vec![is_done, skipped("y", 15, "x.0", 1), died, saw], Vec::new()), []);
    // It leaves the further run to a later holder, who crashes.
    let passes_on = goes_on(run("x", 1, 10, 20, &AGAIN), skipped("x", 30, "z.0", 2));
    let crashed = process("z", vec![(25, asks("a"))]);
    assert_eq!(found(vec![passes_on, crashed, skipped("y", 15, "x.0", 1)], Vec::new()), []);
}

#[test]
fn a_further_run_for_nobody_is_found() {
    let again = || run("x", 1, 10, 20, &AGAIN);
    assert_eq!(found(vec![again()], Vec::new()), [Broken::Again]);
    assert_eq!(found(vec![again(), skipped("y", 15, "w.0", 2)], Vec::new()), [Broken::Again]);
    // Whoever asked may have been killed before the answer.
    let asked = process("y", vec![(14, asks("a")), (15, left("x.0", 1)[0].clone())]);
    assert_eq!(found(vec![again(), asked], Vec::new()), []);
}

#[test]
fn a_key_that_is_held_longer_than_its_lease_and_the_skew_is_found() {
    // The acquire ended at 10 ms, with a lease of 500 ms, and the skew counts twice.
    let refusal = |at| process("y", vec![(at, asks("a")), (at + 5, refused("x.0", Some(1)))]);
    assert_eq!(found(vec![hold("x", 1, 10, 20), refusal(710)], Vec::new()), []);
    assert_eq!(found(vec![hold("x", 1, 10, 20), refusal(711)], Vec::new()), [Broken::Blocked]);
}

#[test]
fn a_holder_that_died_during_its_acquire_is_known_by_its_name() {
    let died = || {
        let mut process = process("x", vec![(5, asks("a"))]);
        process.ended = 50 * MS;
        process
    };
    let refusal = |at| process("y", vec![(at, asks("a")), (at + 5, refused("x.0", Some(1)))]);
    assert_eq!(found(vec![died(), refusal(750)], Vec::new()), []);
    assert_eq!(found(vec![died(), refusal(751)], Vec::new()), [Broken::Blocked]);
}

#[test]
fn a_released_key_that_is_held_longer_than_the_skew_is_found() {
    let released_at = |at| {
        let mut process = hold("x", 1, 10, 20);
        let releases = [(at - 5, What::Releases), (at, What::Released)];
        process.events.extend(releases.map(|(at, what)| Event { at: at * MS, ahead: 0, op: 0, what }));
        process
    };
    let released = || released_at(30);
    let refusal = |at| process("y", vec![(at, asks("a")), (at + 5, refused("x.0", Some(1)))]);
    assert_eq!(found(vec![released(), refusal(130)], Vec::new()), []);
    assert_eq!(found(vec![released(), refusal(131)], Vec::new()), [Broken::Blocked]);
    // A release after the lease has ended moves the end.
    assert_eq!(found(vec![released_at(700), refusal(800)], Vec::new()), []);
    assert_eq!(found(vec![released_at(700), refusal(801)], Vec::new()), [Broken::Blocked]);
    // The acquire arrived again, and got another fence. Its lease ends when that of the released one would have.
    let again = |at| process("y", vec![(at, asks("a")), (at + 5, refused("x.0", Some(2)))]);
    assert_eq!(found(vec![released(), again(710)], Vec::new()), []);
    assert_eq!(found(vec![released(), again(711)], Vec::new()), [Broken::Blocked]);
}

#[test]
fn whatever_refuses_the_probe_is_found() {
    let refusal = process(PROBE, vec![(20, asks("a")), (25, refused("somebody", None))]);
    assert_eq!(found(vec![refusal], Vec::new()), [Broken::Blocked]);
    let failure = process(PROBE, vec![(20, asks("a")), (25, What::Failed { why: "in_progress".to_owned() })]);
    assert_eq!(found(vec![failure], Vec::new()), [Broken::Blocked]);
}

#[test]
fn an_operation_that_its_own_acquire_refuses_is_found() {
    let refusal = process("x", vec![(20, asks("a")), (25, refused("x.0", Some(1)))]);
    assert_eq!(found(vec![refusal], Vec::new()), [Broken::Itself]);
    // Its lease has ended meanwhile.
    let late = process("x", vec![(20, asks("a")), (521, refused("x.0", Some(1)))]);
    assert_eq!(found(vec![late], Vec::new()), []);
}

#[test]
fn an_error_that_no_fault_explains_is_found() {
    let failed = |why: &str| vec![process("x", vec![(5, asks("a")), (10, What::Failed { why: why.to_owned() })])];
    assert_eq!(found(failed("unavailable"), Vec::new()), []);
    assert_eq!(found(failed("malformed_row"), Vec::new()), [Broken::Errors]);
}

#[test]
fn right_clocks_are_found_because_faketime_does_nothing() {
    let processes = |ahead| {
        let mut processes: Vec<_> =
            (0..6).map(|number| hold("x", number + 1, 10 + number * 20, 15 + number * 20)).collect();
        processes[0].events[0].ahead = ahead;
        processes
    };
    assert_eq!(found(processes(40), Vec::new()), []);
    assert_eq!(found(processes(0), Vec::new()), [Broken::Clocks]);
}

#[test]
fn a_process_that_fails_and_a_clock_outside_of_the_skew_are_found() {
    let mut failed = hold("x", 1, 10, 20);
    failed.failure = Some("exit status: 101".to_owned());
    let mut ahead = hold("y", 2, 30, 40);
    ahead.events[0].ahead = 60;
    assert_eq!(found(vec![failed, ahead], Vec::new()), [Broken::Processes, Broken::Clocks]);
}
