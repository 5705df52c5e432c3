//! Waiters of one key, of two keys, or for a permit of a semaphore: how fast and with how many requests they share it.
//!
//! Compares waiters that take turns (the default) with plain backoff. Runs in virtual time, in which a request takes 5 ms:
//! the same seeds give the same table on every machine.
//!
//! Exits with 1 if a target is missed. `--test` makes few runs and counts no target. A name, such as `32` or `± 20`,
//! selects lines of the first table; `dead` selects the table of a dead permit. `--svg` draws who holds the key when, into
//! the guides.

mod picture;
mod scene;

use std::env;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use lambda_lock::{Backoff, Jitter, Wait};
use lambda_lock_tests::{median, on_all_cores};

use scene::{Fault, Hold, REQUEST, Scene, Shares};

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
    let runs = if trial { 1 } else { 21 };
    if arguments.iter().any(|argument| argument == "--svg") {
        let picture = picture::draw([("Backoff, 20 to 200 ms", plain()), ("In turn, the default", Wait::in_turn())]);
        fs::write(PICTURE, picture).unwrap();
        return ExitCode::SUCCESS;
    }
    let mut targets = Targets { missed: 0, count: !trial };
    let wanted = arguments.iter().skip(1).find(|argument| !argument.starts_with("--")).map_or("", String::as_str);
    let lines: Vec<_> = lines().into_iter().filter(|line| line.name.contains(wanted)).collect();
    print_table(&lines, runs, &mut targets);
    if wanted.is_empty() {
        print_faults(&lines, runs / 4 + 1, &mut targets);
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

fn lines() -> [Line; 11] {
    let (at_once, of_4) = (Scene::at_once, |waiters, hold| Scene::permits(4, waiters, hold));
    [
        Line { name: "32, 20 ms steady", scene: at_once(32, Hold::Steady(MS(20))), targets: (1.15, 6.5) },
        Line { name: "32, 20 ms ± 20 %", scene: at_once(32, Hold::About(MS(20))), targets: (1.2, 8.0) },
        Line { name: "32, 20 ms exponential", scene: at_once(32, Hold::Exponential(MS(20))), targets: (1.2, 8.5) },
        Line { name: "100, 20 ms steady", scene: at_once(100, Hold::Steady(MS(20))), targets: (1.15, 7.5) },
        Line { name: "8, 200 ms ± 20 %", scene: at_once(8, Hold::About(MS(200))), targets: (1.15, 6.8) },
        Line {
            name: "2, 2 s ± 20 %",
            scene: Scene { is_known: true, ..at_once(2, Hold::About(MS(2000))) },
            targets: (1.1, 4.0),
        },
        Line { name: "4 permits: 32, 20 ms", scene: of_4(32, Hold::Steady(MS(20))), targets: (1.25, 6.0) },
        Line { name: "4 permits: 100, 20 ms", scene: of_4(100, Hold::Steady(MS(20))), targets: (1.25, 7.0) },
        Line { name: "4 permits: 8, 200 ms ±", scene: of_4(8, Hold::About(MS(200))), targets: (1.2, 6.0) },
        Line { name: "two keys: 32, 20 ms", scene: Scene::sets(32, Hold::Steady(MS(20))), targets: (1.35, 7.0) },
        Line { name: "two keys: 8, 200 ms ±", scene: Scene::sets(8, Hold::About(MS(200))), targets: (1.2, 7.0) },
    ]
}

fn plain() -> Wait {
    Wait::backoff(Backoff::new().base(MS(20)).cap(MS(200)))
}

fn print_table(lines: &[Line], runs: u64, targets: &mut Targets) {
    println!(
        "\n{:<24}{:<18}{:>9}{:>8}{:>18}{:>10}{:>18}{:>9}{:>16}",
        "waiters, hold", "way", "total", "ratio", "target", "requests", "target", "longest", "target"
    );
    for &Line { name, scene, targets: (total, requests) } in lines {
        let plain = measure(scene, plain(), runs);
        let default = measure(scene, Wait::backoff(Backoff::new().jitter(Jitter::Full)), runs.min(11));
        let turns_runs = match scene.hold {
            // Some holds are many times as long as the mean, so the median of few runs depends on their seeds.
            Hold::Exponential(_) => runs * 8,
            _ => runs,
        };
        let turns = measure(scene, Wait::in_turn(), turns_runs);
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
    }
}

fn print_line(name: &str, way: &str, figures: &Figures, total: &str, requests: &str, longest: &str) {
    println!(
        "{name:<24}{way:<18}{:>6.0} ms{:>8.2}{total:>18}{:>10.1}{requests:>18}{:>9.2}{longest:>16}",
        figures.total, figures.ratio, figures.requests, figures.longest
    );
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
            let figures = measure(Scene { fault, ..scene }, Wait::in_turn(), runs);
            let limit = (scene.hold.mean() + 2 * REQUEST + MS(5000)).as_secs_f64() * 1e3;
            let target = targets.compare(figures.stall, limit);
            println!(
                "{name:<24}{fault_name:<24}{:>8.2}{:>10.1}{:>9.2}{:>9.0} ms{target:>18}",
                figures.ratio, figures.requests, figures.longest, figures.stall
            );
        }
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
        let shares = on_all_cores(0..runs, |seed| scene.play(Wait::in_turn(), seed));
        let ideal = |shares: &Shares| scene.ideal(shares.served).as_secs_f64();
        let ratio = median(shares.iter().map(|shares| shares.total.as_secs_f64() / ideal(shares)).collect());
        #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
        let most = median(shares.iter().map(|shares| shares.most_requests as f64).collect());
        let mean = median(shares.iter().map(Shares::requests_each).collect());
        let (most_target, mean_target) = (targets.compare(most, 11.0), targets.compare(mean, target));
        println!("{name:<24}{ratio:>8.2}{most:>14.0}{most_target:>18}{mean:>10.1}{mean_target:>18}");
    }
}

/// The medians of some runs, and the longest stall.
struct Figures {
    total: f64,
    ratio: f64,
    requests: f64,
    longest: f64,
    stall: f64,
}

fn measure(scene: Scene, wait: Wait, runs: u64) -> Figures {
    let shares = on_all_cores(0..runs, |seed| scene.play(wait, seed));
    let median = |figure: &dyn Fn(&Shares) -> f64| median(shares.iter().map(figure).collect());
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let ideal = |shares: &Shares| ms(scene.ideal(shares.served));
    Figures {
        total: median(&|shares| ms(shares.total)),
        ratio: median(&|shares| ms(shares.total) / ideal(shares)),
        requests: median(&Shares::requests_each),
        longest: median(&|shares| ms(shares.longest_wait) / ideal(shares)),
        stall: shares.iter().map(|shares| ms(shares.stall)).fold(0.0, f64::max),
    }
}
