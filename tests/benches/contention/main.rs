//! Waiters of one key, or for a permit of a semaphore: how fast and with how many requests they share it, and in which order.
//!
//! Compares waiters that take turns (the default), plain backoff, and a hand-written lock that polls with the bare SDK. Runs
//! in virtual time: the same seeds give the same table on every machine. With `LOCK_TEST_ENDPOINT`, runs on the DynamoDB
//! there in real time, with 5 ms added to each request. The multiples then count the time of a request without contention.
//!
//! Exits with 1 if a target is missed in virtual time. `--test` makes few runs. A name, such as `32` or `± 20`, selects lines
//! of the first table; `sets`, `rates` and `dead` select the table of sets, of rates and of a dead permit. `--svg` draws who
//! holds the key when, into the guides.

mod picture;
mod rates;
mod scene;
mod sets;

use std::env;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use lambda_lock::{Backoff, Jitter, Wait};
use lambda_lock_tests::{median, on_all_cores};

use scene::{Contended, Fault, Hold, Scene, Shares, Way, is_virtual, request_time};

const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lock/docs/pictures/contention.svg");
const MS: fn(u64) -> Duration = Duration::from_millis;

/// A line of the table, with its targets: the total as a multiple of rounds × (hold + 2 requests), and the requests of each
/// acquisition with its release.
struct Line {
    name: &'static str,
    scene: Scene,
    targets: (f64, f64),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    let trial = arguments.iter().any(|argument| argument == "--test");
    let is_virtual = is_virtual();
    let runs = match (trial, is_virtual) {
        (true, _) => 1,
        (false, true) => 21,
        (false, false) => 5,
    };
    if arguments.iter().any(|argument| argument == "--svg") {
        let picture = picture::draw([("Backoff, 20 to 200 ms", plain()), ("In turn, the default", turns())]);
        fs::write(PICTURE, picture).unwrap();
        return ExitCode::SUCCESS;
    }
    println!("A request without contention takes {:.1} ms.", request_time().as_secs_f64() * 1e3);
    let mut targets = Targets { missed: 0, count: !trial && is_virtual };
    let wanted = arguments.iter().skip(1).find(|argument| !argument.starts_with("--")).map_or("", String::as_str);
    let lines: Vec<_> = lines().into_iter().filter(|line| line.name.contains(wanted)).collect();
    print_table(&lines, runs, &mut targets);
    if wanted.is_empty() || wanted == "sets" {
        print_sets(if trial { 1 } else { runs.min(11) }, &mut targets);
    }
    if wanted.is_empty() || wanted == "rates" {
        print_rates(&mut targets);
    }
    if wanted.is_empty() {
        // In real time, each run takes a minute.
        print_two(if is_virtual { runs * 3 } else { 1 }, &mut targets);
        print_order(if trial { 1 } else { runs.max(100) }, is_virtual, &mut targets);
        print_faults(&lines, runs / 4 + 1, &mut targets);
        print_dead_holder(runs, &mut targets);
    }
    if wanted.is_empty() || wanted == "dead" {
        print_dead_permit(runs * 5, &mut targets);
    }
    if targets.missed > 0 {
        println!("\n{} targets missed", targets.missed);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Counts the targets that were missed.
struct Targets {
    missed: u32,
    count: bool,
}

impl Targets {
    /// Returns the target as a text.
    fn compare(&mut self, value: f64, limit: f64) -> String {
        let is_missed = value > limit;
        self.missed += u32::from(is_missed && self.count);
        format!("≤ {limit:.2}{}", if is_missed { " missed" } else { "" })
    }
}

fn lines() -> [Line; 10] {
    let (at_once, of_4) = (Scene::at_once, |waiters, hold| Scene::permits(4, waiters, hold));
    [
        Line { name: "32, 20 ms steady", scene: at_once(32, Hold::Steady(MS(20))), targets: (1.15, 6.5) },
        Line { name: "32, 20 ms ± 20 %", scene: at_once(32, Hold::About(MS(20))), targets: (1.2, 8.0) },
        Line { name: "32, 20 ms exponential", scene: at_once(32, Hold::Exponential(MS(20))), targets: (1.2, 8.5) },
        Line { name: "100, 20 ms steady", scene: at_once(100, Hold::Steady(MS(20))), targets: (1.15, 7.5) },
        Line { name: "8, 200 ms ± 20 %", scene: at_once(8, Hold::About(MS(200))), targets: (1.15, 6.8) },
        Line { name: "4 permits: 32, 20 ms", scene: of_4(32, Hold::Steady(MS(20))), targets: (1.25, 6.0) },
        Line { name: "4 permits: 100, 20 ms", scene: of_4(100, Hold::Steady(MS(20))), targets: (1.25, 7.0) },
        Line { name: "4 permits: 8, 200 ms ±", scene: of_4(8, Hold::About(MS(200))), targets: (1.2, 6.0) },
        Line { name: "two keys: 32, 20 ms", scene: Scene::sets(32, Hold::Steady(MS(20))), targets: (1.35, 7.0) },
        Line { name: "two keys: 8, 200 ms ±", scene: Scene::sets(8, Hold::About(MS(200))), targets: (1.2, 7.0) },
    ]
}

fn turns() -> Way {
    Way::Lock(Wait::in_turn())
}

fn plain() -> Way {
    Way::Lock(Wait::backoff(Backoff::new().base(MS(20)).cap(MS(200))))
}

fn print_table(lines: &[Line], runs: u64, targets: &mut Targets) {
    println!(
        "\n{:<24}{:<18}{:>9}{:>8}{:>18}{:>10}{:>18}{:>9}{:>16}",
        "waiters, hold", "way", "total", "ratio", "target", "requests", "target", "longest", "target"
    );
    for &Line { name, scene, targets: (total, requests) } in lines {
        let plain = measure(scene, plain(), runs);
        let polling = (scene.contended == Contended::Key).then(|| measure(scene, Way::Polling, runs.min(5)));
        let default = measure(scene, Way::Lock(Wait::backoff(Backoff::new().jitter(Jitter::Full))), runs.min(11));
        let turns_runs = match scene.hold {
            // Some holds are many times as long as the mean, so the median of few runs depends on their seeds.
            Hold::Exponential(_) if is_virtual() => runs * 8,
            _ => runs,
        };
        let turns = measure(scene, turns(), turns_runs);
        let longest = if name == "32, 20 ms steady" { targets.compare(turns.longest, 1.1) } else { String::new() };
        print_line(
            name,
            "in turn",
            &turns,
            &targets.compare(turns.ratio, total),
            &targets.compare(turns.requests, requests),
            &longest,
        );
        print_line("", "backoff 20–200 ms", &plain, "", "", "");
        print_line("", "backoff default", &default, "", "", "");
        if let Some(polling) = polling {
            print_line("", "bare SDK, 50 ms", &polling, "", "", "");
        }
    }
}

fn print_line(name: &str, way: &str, figures: &Figures, total: &str, requests: &str, longest: &str) {
    println!(
        "{name:<24}{way:<18}{:>6.0} ms{:>8.2}{total:>18}{:>10.1}{requests:>18}{:>9.2}{longest:>16}",
        figures.total, figures.ratio, figures.requests, figures.longest
    );
}

/// Two waiters with long holds that are known.
fn print_two(runs: u64, targets: &mut Targets) {
    let scene = Scene { is_known: true, ..Scene::at_once(2, Hold::About(MS(2000))) };
    println!(
        "\n{:<24}{:<18}{:>18}{:>18}{:>10}{:>18}",
        "waiters, hold", "way", "handover gap", "target", "requests", "target"
    );
    for (name, way) in [("in turn", turns()), ("backoff 20–200 ms", plain()), ("bare SDK, 50 ms", Way::Polling)] {
        let figures = measure(scene, way, runs);
        let (gap, requests) = if name == "in turn" {
            (targets.compare(figures.gap, 100.0), targets.compare(figures.requests, 4.0))
        } else {
            Default::default()
        };
        println!(
            "{:<24}{name:<18}{:>15.1} ms{gap:>18}{:>10.1}{requests:>18}",
            "2, 2 s ± 20 %", figures.gap, figures.requests
        );
    }
}

/// Sets of keys beside waiters for one of them, and beside other sets.
fn print_sets(runs: u64, targets: &mut Targets) {
    println!(
        "\n{:<24}{:>10}{:>20}{:>18}{:>12}{:>18}",
        "ten sets, 200 ms ± 20 %", "served", "longest wait", "target", "idle", "target"
    );
    let backoff = Wait::backoff(Backoff::new().base(MS(20)).cap(MS(200)));
    for (name, wait) in [("in turn", Wait::in_turn()), ("backoff 20–200 ms", backoff)] {
        let runs = if name == "in turn" { runs } else { 1 };
        let beside = play(runs, |seed| sets::beside_waiters(wait, Hold::About(MS(200)), seed));
        let served = beside.iter().map(|run| run.served).min().unwrap_or_default();
        let longest = beside.iter().map(|run| run.longest_wait.as_secs_f64()).fold(0.0, f64::max);
        let idle = median(beside.iter().map(|run| run.idle).collect());
        let (wait_target, idle_target) = if name == "in turn" {
            (targets.compare(longest, 10.0), targets.compare(idle, 0.2))
        } else {
            Default::default()
        };
        println!("{name:<24}{served:>10}{longest:>18.1} s{wait_target:>18}{idle:>12.2}{idle_target:>18}");
    }
    println!("\n{:<24}{:>20}{:>18}{:>12}", "six sets in a circle", "slowest / mean", "target", "mean");
    for (name, way) in [("in turn", turns()), ("backoff 20–200 ms", plain())] {
        let runs = play(runs, |seed| sets::circle(way, Hold::About(MS(300)), seed));
        let slowest = runs.iter().map(|(slowest, _)| *slowest).fold(1.0, f64::min);
        let mean = median(runs.iter().map(|(_, mean)| *mean).collect());
        let target = if name == "in turn" {
            targets.compare(1.0 - slowest, 0.5).replace("≤ 0.50", "≥ 0.50")
        } else {
            String::new()
        };
        println!("{name:<24}{slowest:>20.2}{target:>18}{mean:>12.0}");
    }
}

/// Callers of a rate, at once. The ideal is the time of the last call.
fn print_rates(targets: &mut Targets) {
    println!(
        "\n{:<24}{:>9}{:>8}{:>18}{:>10}{:>18}{:>10}",
        "callers, rate", "total", "ratio", "target", "requests", "target", "in order"
    );
    for (callers, calls) in [(32, 10), (100, 100)] {
        let rates::Called { total, requests, in_order } = rates::at_once(callers, calls, 7);
        targets.missed += u32::from(targets.count && !in_order);
        let ratio = total.as_secs_f64() * f64::from(calls) / f64::from(callers - 1);
        let (total_target, requests_target) = (targets.compare(ratio, 1.02), targets.compare(requests, 1.0));
        println!(
            "{:<24}{:>7.2} s{ratio:>8.3}{total_target:>18}{requests:>10.2}{requests_target:>18}{in_order:>10}",
            format!("{callers}, {calls} a second"),
            total.as_secs_f64(),
        );
    }
}

/// 32 waiters that arrive one after the other.
fn print_order(runs: u64, is_virtual: bool, targets: &mut Targets) {
    let key = Scene { apart: MS(10), ..Scene::at_once(32, Hold::Steady(MS(20))) };
    let permits = Scene { apart: MS(10), is_known: true, ..Scene::permits(4, 32, Hold::Steady(MS(80))) };
    println!("\nruns of {runs} in which each of 32 waiters, 10 ms apart, is served at most two places from its own");
    for (name, scene, way) in
        [("in turn", key, turns()), ("4 permits, in turn", permits, turns()), ("backoff 20–200 ms", key, plain())]
    {
        let runs = if is_virtual { runs } else { runs.min(20) };
        let displacements = play(runs, |seed| scene.play(way, seed).displacement());
        let in_order = displacements.into_iter().filter(|displacement| *displacement <= 2).count();
        #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
        let share = 100.0 * in_order as f64 / runs as f64;
        let target = if name.ends_with("in turn") {
            targets.compare(100.0 - share, 5.0).replace("≤ 5.00", "≥ 95")
        } else {
            String::new()
        };
        println!("{name:<24}{share:>5.0} in 100{target:>18}");
    }
}

/// The same table with faults. A stall is a time in which the key is free and somebody waits for it.
fn print_faults(lines: &[Line], runs: u64, targets: &mut Targets) {
    println!(
        "\n{:<24}{:<24}{:>8}{:>10}{:>9}{:>12}{:>18}",
        "waiters, hold", "fault", "ratio", "requests", "longest", "worst stall", "target"
    );
    for &Line { name, scene, .. } in lines {
        for (fault_name, fault) in [
            ("1 in 8 killed", Fault::Killed),
            ("clocks off by 50 ms", Fault::Clocks(MS(50))),
            ("clocks off by 500 ms", Fault::Clocks(MS(500))),
            ("1 answer in 50 lost", Fault::AnswersLost),
            ("newcomers", Fault::Newcomers),
        ] {
            let figures = measure(Scene { fault, ..scene }, turns(), runs);
            let limit = (scene.hold.mean() + 2 * request_time() + MS(5000)).as_secs_f64() * 1e3;
            let target = targets.compare(figures.stall, limit);
            println!(
                "{name:<24}{fault_name:<24}{:>8.2}{:>10.1}{:>9.2}{:>9.0} ms{target:>18}",
                figures.ratio, figures.requests, figures.longest, figures.stall
            );
        }
    }
}

/// A holder that died, with a lease of 2 s, and one waiter.
fn print_dead_holder(runs: u64, targets: &mut Targets) {
    println!("\n{:<24}{:>18}{:>18}{:>10}{:>18}", "dead holder", "after lease + skew", "target", "requests", "target");
    let (permits, keys) = (Contended::Permits(4), Contended::Keys(&["first", "second"]));
    for (name, contended, way, known) in [
        ("in turn", Contended::Key, turns(), false),
        ("in turn, hold known", Contended::Key, turns(), true),
        ("4 permits, in turn", permits, turns(), false),
        ("4 permits, hold known", permits, turns(), true),
        ("two keys, in turn", keys, turns(), false),
        ("two keys, hold known", keys, turns(), true),
        ("backoff default", Contended::Key, Way::Lock(Wait::backoff(Backoff::new().jitter(Jitter::Full))), false),
        ("bare SDK, 50 ms", Contended::Key, Way::Polling, false),
    ] {
        let deaths = play(runs, |seed| scene::die(contended, way, known, seed));
        let late = deaths.iter().map(|(late, _)| late.as_secs_f64() * 1e3).fold(0.0, f64::max);
        #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
        let requests = deaths.iter().map(|(_, requests)| *requests as f64).fold(0.0, f64::max);
        let (time, count) = match (name, contended) {
            ("in turn", _) => (targets.compare(late, 50.0), targets.compare(requests, 5.0)),
            (_, Contended::Permits(_) | Contended::Keys(_)) if !known => {
                (targets.compare(late, 50.0), targets.compare(requests, 6.0))
            }
            _ => Default::default(),
        };
        println!("{name:<24}{late:>15.1} ms{time:>18}{requests:>10.0}{count:>18}");
    }
}

/// Twelve waiters for three permits, one of which a holder has that died. Each waiter holds its permit for 0.4 s. Medians of
/// the runs: the total as a multiple of the ideal with three permits, how many requests the waiter sent that sent most, and
/// how many a waiter sent on average.
fn print_dead_permit(runs: u64, targets: &mut Targets) {
    println!(
        "\n{:<24}{:>8}{:>14}{:>18}{:>10}{:>18}",
        "three permits", "ratio", "most requests", "target", "mean", "target"
    );
    for (name, fault, target) in [
        ("all are alive", Fault::None, 6.5),
        ("one is dead for 1.5 s", Fault::DeadPermit(MS(500)), 7.0),
        ("one is dead", Fault::DeadPermit(Duration::from_mins(1)), 7.5),
    ] {
        let scene = Scene { fault, ..Scene::permits(3, 12, Hold::Steady(MS(400))) };
        let shares = play(runs, |seed| scene.play(turns(), seed));
        let ideal = |shares: &Shares| scene.ideal(shares.served, request_time()).as_secs_f64();
        let ratio = median(shares.iter().map(|shares| shares.total.as_secs_f64() / ideal(shares)).collect());
        #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
        let most = median(shares.iter().map(|shares| shares.most_requests as f64).collect());
        let mean = median(shares.iter().map(Shares::requests_each).collect());
        let (most_target, mean_target) = (targets.compare(most, 11.0), targets.compare(mean, target));
        println!("{name:<24}{ratio:>8.2}{most:>14.0}{most_target:>18}{mean:>10.1}{mean_target:>18}");
    }
}

/// The medians of some runs; the mean of the gaps, and the longest stall.
struct Figures {
    total: f64,
    ratio: f64,
    requests: f64,
    longest: f64,
    gap: f64,
    stall: f64,
}

/// Returns the results of the runs. Only runs in virtual time run at the same time.
fn play<T: Send>(runs: u64, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    if is_virtual() { on_all_cores(0..runs, run) } else { (0..runs).map(run).collect() }
}

fn measure(scene: Scene, way: Way, runs: u64) -> Figures {
    let shares = play(runs, |seed| scene.play(way, seed));
    let median = |figure: &dyn Fn(&Shares) -> f64| median(shares.iter().map(figure).collect());
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let ideal = |shares: &Shares| ms(scene.ideal(shares.served, request_time()));
    #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
    Figures {
        total: median(&|shares| ms(shares.total)),
        ratio: median(&|shares| ms(shares.total) / ideal(shares)),
        requests: median(&Shares::requests_each),
        longest: median(&|shares| ms(shares.longest_wait) / ideal(shares)),
        gap: ms(shares.iter().map(|shares| shares.mean_gap).sum()) / runs as f64,
        stall: shares.iter().map(|shares| ms(shares.stall)).fold(0.0, f64::max),
    }
}
