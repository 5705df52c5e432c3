//! What waiters do in each situation, as tables. They show a change of a constant or a formula. Whether it is a good one, the
//! benchmark `contention` says. `INSTA_UPDATE=always` accepts the new tables.

use std::fmt::Write as _;

use insta::{Settings, assert_snapshot};

use super::*;
use crate::clock::{millis, monotonic};
use crate::holder::HolderKind;

/// When the situations begin, since the epoch. Holds can have begun before.
const START: Duration = Duration::from_hours(24);

/// A waiter, with the origin of its times.
struct Waiter {
    origin: Moment,
    turn: KeyTurn,
    round_trip: Duration,
}

impl Waiter {
    fn new(capacity: u32, round_trip: u64) -> Self {
        // A turn subtracts ages from the monotonic clock, which may have started a moment ago.
        let origin = Moment { wall: START, monotonic: monotonic() + START };
        Self { origin, turn: KeyTurn::new(capacity), round_trip: time(round_trip) }
    }

    /// The moment so many milliseconds after the start.
    fn at(&self, after: u64) -> Moment {
        let Moment { wall, monotonic } = self.origin;
        Moment { wall: wall + time(after), monotonic: monotonic + time(after) }
    }

    fn sees(&mut self, holder: &Holder, reserved_until: Option<u64>, after: u64) {
        self.turn.see(holder, reserved_until, self.at(after), self.round_trip);
    }

    /// Takes this place of the queue.
    fn with_place(mut self, place: u64) -> Self {
        self.turn.joined(place);
        self
    }

    fn does(&self, after: u64) -> String {
        let (turn, now) = (&self.turn, self.at(after));
        let Rank { leaves_to, place, has_reserved: _ } = turn.rank(true);
        let leaves_to = match leaves_to {
            LeavesTo::Nobody => "nobody".to_owned(),
            LeavesTo::Reservation => "reservation".to_owned(),
            LeavesTo::Queue { moment } => format!("queue for {}", shown(moment)),
            LeavesTo::Ahead { place, moment } => format!("those before {place} for {}", shown(moment)),
        };
        let [(action, earliest), (_, latest)] = [0.0, 1.0].map(|random| turn.next(now, true, random));
        let (without_place, _) = turn.next(now, false, 0.0);
        format!(
            "{action:?} {}-{} ({without_place:?} without a place), elsewhere {}, its turn {}, leaves to {leaves_to}, serves \
             {}, courtesy {}, ahead {}, {}{}",
            shown(earliest),
            shown(latest),
            shown(turn.delay_elsewhere(now)),
            turn.until_its_turn(now).map_or_else(|| "unknown".to_owned(), shown),
            place.map_or_else(|| "none".to_owned(), |place| place.to_string()),
            shown(turn.courtesy()),
            turn.ahead(),
            if turn.is_free() { "free" } else { "held" },
            if turn.has_waiters() { ", contended" } else { "" },
        )
    }
}

fn time(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// In milliseconds.
fn shown(time: Duration) -> String {
    format!("{:.1}", ms(time))
}

fn in_row(time: Duration) -> u64 {
    millis(START) + millis(time)
}

/// A key that is held since the start.
fn held(lease: u64) -> Holder {
    Holder {
        fence: Some(7),
        held_since: Some(millis(START)),
        current: true,
        released: false,
        ..Holder::released(HolderKind::Key, "owner".to_owned(), None, in_row(time(lease)))
    }
}

/// Adds the waiters from `head` to `tail`, who wait for an hour.
fn with_queue(holder: Holder, hold_time: Option<HoldTime>, head: u64, tail: u64) -> Holder {
    let until = in_row(Duration::from_hours(1));
    let queue = Queue { head, tail, until, hold_time, is_malformed: false };
    Holder { waiters: tail - head, queue, ..holder }
}

fn hold_time(mean: u64, deviation: Option<u64>) -> HoldTime {
    HoldTime { mean: time(mean), deviation: deviation.map(time) }
}

fn assert_table(name: &str, table: &str) {
    let mut settings = Settings::clone_current();
    settings.set_snapshot_path("predictions");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| assert_snapshot!(name, table));
}

/// What is known about the holds of a key.
const HOLD_TIMES: [Option<(u64, Option<u64>)>; 6] = [
    None,
    Some((100, None)),
    Some((20, Some(2))),
    Some((100, Some(10))),
    Some((100, Some(60))),
    Some((4000, Some(400))),
];

/// Ages of holds, with their leases.
const AGES: [(u64, u64); 11] = [
    (0, 60_000),
    (20, 3_000),
    (80, 60_000),
    (100, 60_000),
    (130, 60_000),
    (150, 3_000),
    (240, 60_000),
    (900, 3_000),
    (20_000, 900_000),
    (1_000_000, 9_000_000),
    (4_100, 4_000),
];

#[test]
fn waiters_of_a_key() {
    let mut table = String::new();
    for known in HOLD_TIMES {
        writeln!(table, "\nholds of {known:?} ms").unwrap();
        let known = known.map(|(mean, deviation)| hold_time(mean, deviation));
        for (ahead, behind, round_trip) in [(0, 0, 4), (0, 3, 4), (1, 0, 30), (2, 3, 8), (7, 0, 900)] {
            writeln!(table, "{ahead} ahead, {behind} behind, {round_trip} ms for a request").unwrap();
            for (age, lease) in AGES {
                let mut waiter = Waiter::new(1, round_trip).with_place(6 + ahead);
                waiter.sees(&with_queue(held(lease), known, 5, 6 + ahead + behind), None, age);
                writeln!(table, "age {age} of {lease}: {}", waiter.does(age)).unwrap();
            }
        }
    }
    assert_table("keys", &table);
}

#[test]
fn waiters_of_permits() {
    let permit = |fence: u64, since: u64, lease: u64| Holder {
        fence: Some(fence),
        held_since: Some(in_row(time(since))),
        kind: HolderKind::Permit,
        ..held(lease)
    };
    let permits = [
        ("two of three", vec![permit(1, 0, 60_000), permit(2, 70, 60_000)]),
        ("three", vec![permit(1, 0, 60_000), permit(2, 70, 60_000), permit(3, 140, 60_000)]),
        ("one is late", vec![permit(1, 0, 60_000), permit(2, 850, 60_000), permit(3, 890, 60_000)]),
        (
            "one is released",
            vec![Holder { released: true, ..permit(1, 0, 930) }, permit(2, 850, 60_000), permit(3, 890, 60_000)],
        ),
        ("one ends after a mean hold", vec![permit(1, 0, 1000), permit(2, 0, 60_000), permit(3, 890, 60_000)]),
        ("one ends soon", vec![permit(1, 0, 950), permit(2, 0, 60_000), permit(3, 0, 70_000)]),
        ("all are late", vec![permit(1, 0, 60_000), permit(2, 10, 50_000), permit(3, 20, 70_000)]),
    ];
    let mut table = String::new();
    for known in [None, Some((100, Some(10))), Some((100, Some(60)))] {
        writeln!(table, "\nholds of {known:?} ms").unwrap();
        for (name, permits) in &permits {
            for (ahead, age) in [(0, 200), (1, 200), (2, 900), (0, 900), (3, 900), (5, 900)] {
                let holder = Holder { kind: HolderKind::Semaphore, permits: permits.clone(), ..held(60_000) };
                let known = known.map(|(mean, deviation)| hold_time(mean, deviation));
                let mut waiter = Waiter::new(3, 8);
                waiter.sees(&with_queue(holder, known, 5, 7 + ahead), None, age);
                let waiter = waiter.with_place(6 + ahead);
                writeln!(table, "{name}, at {age}, {ahead} ahead: {}", waiter.does(age)).unwrap();
            }
        }
    }
    assert_table("permits", &table);
}

#[test]
fn waiters_that_have_seen_other_rows_before() {
    let known = Some(hold_time(100, Some(10)));
    let queued = |holder| with_queue(holder, known, 5, 7);
    let mut table = String::new();
    let mut row = |name: &str, waiter: &Waiter, after: u64| {
        writeln!(table, "{name}: {}", waiter.does(after)).unwrap();
    };
    let new = || Waiter::new(1, 8).with_place(6);
    row("nothing seen", &new(), 0);
    assert!(!new().turn.is_known());
    let mut waiter = Waiter::new(1, 8);
    waiter.sees(&with_queue(held(60_000), None, 5, 5), None, 10);
    row("a newcomer, holds unknown", &waiter, 10);
    waiter.sees(&with_queue(held(60_000), None, 5, 7), None, 10);
    row("a newcomer behind others, holds unknown", &waiter, 10);
    waiter.sees(&queued(held(60_000)), None, 10);
    row("a newcomer", &waiter, 10);
    assert!(waiter.turn.is_known() && !waiter.turn.has_place() && new().turn.has_place());
    assert_eq!((waiter.turn.hold_time(), waiter.turn.queue().tail), (known, 7));
    assert!(matches!(waiter.turn.rank(false).leaves_to, LeavesTo::Nobody));
    for place in [6, 7, 8] {
        waiter.turn.joined(place);
    }
    waiter.sees(&with_queue(held(60_000), known, 0, 2), None, 10);
    row("its row was deleted after three joins", &waiter, 10);
    let mut waiter = new();
    waiter.sees(&with_queue(held(60_000), known, 5, 5), None, 10);
    row("the places began anew", &waiter, 10);
    let mut waiter = new();
    waiter.sees(&with_queue(held(60_000), known, 6, 7), None, 10);
    row("its place was passed", &waiter, 10);
    let mut waiter = new();
    waiter.sees(
        &Holder { queue: Queue { is_malformed: true, ..queued(held(60_000)).queue }, ..queued(held(60_000)) },
        None,
        10,
    );
    row("the places are malformed", &waiter, 10);
    let mut waiter = new();
    waiter.sees(&queued(Holder { held_since: None, ..held(60_000) }), None, 10);
    row("no start of the hold", &waiter, 40);
    waiter.sees(&queued(Holder { held_since: None, ..held(60_000) }), None, 50);
    row("no start of the hold, seen twice", &waiter, 60);
    let ahead = Some(millis(START) - 5000);
    waiter.sees(&queued(Holder { fence: Some(8), held_since: ahead, ..held(60_000) }), None, 80);
    row("the next hold, by a clock that is behind", &waiter, 90);
    waiter.sees(&queued(Holder { fence: Some(9), held_since: Some(in_row(time(3000))), ..held(60_000) }), None, 120);
    row("another one, by a clock that is ahead", &waiter, 130);
    let mut waiter = new();
    waiter.round_trip = time(100);
    waiter.sees(&queued(held(60_000)), None, 10);
    waiter.round_trip = time(6);
    waiter.sees(&queued(held(60_000)), None, 20);
    waiter.round_trip = time(50);
    waiter.sees(&queued(held(60_000)), None, 30);
    row("the fastest round trip counts", &waiter, 40);
    assert_eq!(waiter.turn.excess(time(20)), time(14));
    for (until, name) in [(900, "reserved"), (5, "reserved until before its end")] {
        let mut waiter = new();
        waiter.sees(&queued(Holder { current: false, ..held(20) }), Some(in_row(time(until))), 30);
        row(name, &waiter, 40);
    }
    let mut waiter = new();
    waiter.sees(&queued(Holder { current: false, ..held(20) }), Some(in_row(time(20))), 30);
    row("reserved until its end, before a step of the clock", &waiter, 10);
    let mut waiter = new();
    waiter.sees(&queued(held(60_000)), Some(in_row(time(90_000))), 30);
    row("held and reserved", &waiter, 40);
    for place in [6, 7, 8] {
        for (end, after) in [(20, 30), (35, 30), (35, 40), (28, 34)] {
            let mut waiter = new().with_place(place);
            waiter.sees(&with_queue(Holder { current: end > 30, ..held(end) }, known, 5, 9), None, 30);
            row(&format!("place {place}, free since {end}, at {after}"), &waiter, after);
        }
    }
    let mut waiter = new();
    waiter.sees(&with_queue(Holder { current: false, ..held(20) }, known, 6, 7), None, 30);
    row("passed and free", &waiter, 30);
    assert_table("sights", &table);
}

#[test]
fn failed_joins_are_repeated_more_and_more_slowly() {
    let mut turn = KeyTurn::new(1);
    let delays: Vec<_> = (0..13).map(|_| millis(turn.join_failed(1.0))).collect();
    assert_eq!(delays, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000, 5000]);
    turn.joined(3);
    assert_eq!(millis(turn.join_failed(0.4)), 2);
}

#[test]
fn a_process_takes_along_what_the_turn_in_another_one_knew() {
    for (known, fence) in [(None, Some(7)), (Some(hold_time(9000, Some(700))), Some(7)), (None, None)] {
        let mut waiter = Waiter::new(1, 8).with_place(6);
        let holder = || with_queue(Holder { fence, ..held(60_000) }, known, 4, 8);
        waiter.sees(&holder(), None, 100);
        waiter.sees(&holder(), None, 8000);
        let (memory, queue) = (waiter.turn.memory(), holder().queue);
        let expected = Memory {
            place: Some(6),
            joins: 1,
            head: Some(4),
            tail: Some(8),
            tail_until: Some(queue.until),
            hold: known.map(|_| 9000),
            hold_deviation: known.map(|_| 700),
            fence,
            seen: Some(in_row(time(100))),
        };
        assert_eq!(memory, expected);
        let resumed = KeyTurn::remember(1, &memory, waiter.at(11_000));
        assert_eq!((resumed.memory(), resumed.queue(), resumed.ahead()), (expected, queue, 1));
    }
}
