//! Rounds, one after the other, and the report: first with planted mistakes, all of which our checker and the foreign one must
//! find, then without.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use futures_util::{StreamExt as _, stream};
use tokio::task::spawn_blocking;

use crate::arena::{Hardship, Plan, Played, Site, play};
use crate::checker::{Broken, Counts, History, Violation, seconds};
use crate::clocks;
use crate::judge::{Judged, judge};
use crate::place::Place;
use crate::plants::Plant;
use crate::trace::{Passed, seen};
use crate::worker::Kind;

#[derive(Args, Clone, Debug)]
pub(crate) struct Settings {
    /// The DynamoDB, without a path. Without it, that of the AWS account in the environment.
    #[arg(long, required_unless_present = "tables")]
    endpoint: Option<String>,
    /// The start of the names of all tables. Tables with such names are deleted.
    #[arg(long, default_value = "chaos-", value_parser = NonEmptyStringValueParser::new())]
    tables: String,
    /// What the processes and the network intend. What happens depends on the machine, too.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long a round is, in seconds.
    #[arg(long, default_value_t = 40)]
    length: u64,
    /// Goes on until so many acquisitions. Two rounds at least: an easy one, and a hard one.
    #[arg(long, default_value_t = 0)]
    acquisitions: u64,
    /// Begins with the planted mistakes.
    #[arg(long)]
    plants: bool,
    /// Plays only the planted mistakes whose name contains this.
    #[arg(long)]
    plant: Option<String>,
    /// The folder of the processes' files. What is in it is deleted first.
    #[arg(long, default_value = "target/chaos")]
    folder: PathBuf,
    /// Keeps the files of all rounds.
    #[arg(long)]
    keep: bool,
    /// Writes the report here, after each round.
    #[arg(long)]
    report: Option<PathBuf>,
}

/// How many planted mistakes are played at a time.
const AT_A_TIME: usize = 4;
/// How often a planted mistake is played until it is found.
const ATTEMPTS: u64 = 4;
/// Most operations succeed at once.
const EASY: Hardship = Hardship { overruns: 3, renewals: 12, faults: 30 };
/// As in a round with a planted mistake.
const HARD: Hardship = Hardship { overruns: 20, renewals: 50, faults: 150 };

pub(crate) async fn run(settings: Settings) -> ExitCode {
    let started = clocks::now();
    if settings.folder.exists() {
        fs::remove_dir_all(&settings.folder).unwrap();
    }
    fs::create_dir_all(&settings.folder).unwrap();
    let place = match &settings.endpoint {
        Some(endpoint) => Place::at(endpoint),
        None => Place::in_aws().await,
    };
    let site = Site {
        place,
        prefix: settings.tables.clone(),
        program: std::env::current_exe().unwrap(),
        preload: preload(),
        folder: settings.folder.canonicalize().unwrap(),
    };
    let (mut report, mut is_right) = (Vec::new(), true);
    if settings.plants || settings.plant.is_some() {
        let named = |plant: &&Plant| settings.plant.as_ref().is_none_or(|name| plant.name.contains(name));
        let plants = Plant::ALL.iter().filter(named).enumerate();
        let found = stream::iter(plants).map(|(number, plant)| find(plant, number, settings.seed, &site));
        let found: Vec<_> = found.buffer_unordered(AT_A_TIME).collect().await;
        let all = found.iter().filter(|(found, _)| *found).count();
        is_right &= all == found.len();
        report.push(format!(
            "{all} of {} planted mistakes were found by both checkers in {} s:",
            found.len(),
            since(started)
        ));
        report.push(String::new());
        report.extend(found.into_iter().map(|(_, line)| format!("- {line}")));
        report.push(String::new());
    }
    if settings.plant.is_none() {
        is_right &= without_mistakes(&settings, &site, &mut report).await == 0;
    }
    println!("\n{}\n\n{} s in total", report.join("\n"), since(started));
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The seconds since a time.
fn since(time: u64) -> u64 {
    (clocks::now() - time) / 1_000_000_000
}

/// Lets the foreign checker look for an order, while the rounds of other planted mistakes go on.
async fn judged(trace: Vec<Passed>) -> Judged {
    spawn_blocking(|| judge(&seen(trace))).await.unwrap()
}

/// Plays a planted mistake until both checkers have found it.
async fn find(plant: &'static Plant, number: usize, seed: u64, site: &Site) -> (bool, String) {
    let (mut ours, mut others, mut is_foreign) = (None, String::new(), false);
    for attempt in 0..ATTEMPTS {
        let plan = Plan {
            name: format!("plant-{number}-{attempt}"),
            seed: seed + attempt * 100 + u64::try_from(number).unwrap(),
            length: Duration::from_secs(6 + 4 * attempt),
            crew: vec![(plant.kind, 4, 3)],
            hardship: Hardship { faults: plant.faults, ..HARD },
            plant: Some(plant),
        };
        let Played { history, trace, .. } = play(&plan, site).await;
        let violations = history.check();
        is_foreign |= judged(trace).await.violation.is_some();
        if let Some(violation) = violations.iter().find(|violation| plant.breaks.contains(&violation.broken)) {
            ours.get_or_insert_with(|| format!("{} violations, such as: {}", violations.len(), violation.text));
        }
        others = format!("{}: {}", plan.name, summary(&violations));
        if ours.is_some() && is_foreign {
            break;
        }
    }
    let is_found = ours.is_some() && is_foreign;
    let ours = ours.unwrap_or_else(|| format!("NOT FOUND ({others})"));
    let foreign = if is_foreign { "The foreign checker finds it, too" } else { "NOT FOUND by the foreign checker" };
    let line = format!("{}: {ours}. {foreign}.", plant.name);
    println!("{}{line}", if is_found { "found: " } else { "" });
    (is_found, line)
}

/// The foreign checker says this about all rounds.
#[derive(Debug, Default)]
struct Foreign {
    requests: usize,
    left_out: BTreeMap<&'static str, usize>,
    violations: usize,
    /// In nanoseconds.
    took: u64,
}

impl Foreign {
    fn add(&mut self, judged: Judged, took: u64) {
        self.requests += judged.requests;
        for (why, count) in judged.left_out {
            *self.left_out.entry(why).or_default() += count;
        }
        self.violations += usize::from(judged.violation.is_some());
        self.took += took;
    }

    fn report(&self) -> Vec<String> {
        let seconds = self.took / 1_000_000_000;
        let line = |(what, count): (&str, usize)| format!("| {what} | {count} |");
        let lines = ["", "| foreign checker | count |", "| --- | ---: |"].map(str::to_owned).into_iter();
        let lines = lines.chain([line(("requests that have an order", self.requests))]);
        let lines =
            lines.chain(self.left_out.iter().map(|(why, count)| line((&format!("requests left out: {why}"), *count))));
        lines.chain([line(("rounds without an order", self.violations)), format!("| seconds | {seconds} |")]).collect()
    }
}

/// Plays rounds without a mistake, adds them to the report, and returns how many violations there were.
async fn without_mistakes(settings: &Settings, site: &Site, report: &mut Vec<String>) -> usize {
    let (mut counts, mut violations, started) = (Counts::default(), Vec::new(), clocks::now());
    let mut foreign = Foreign::default();
    let before = report.len();
    for round in 1.. {
        let plan = Plan {
            name: format!("round-{round}"),
            seed: settings.seed + (round - 1) * 1_000_003,
            length: Duration::from_secs(settings.length),
            crew: vec![
                (Kind::Locks, 3, 4),
                (Kind::Sets, 2, 4),
                (Kind::Permits, 2, 5),
                (Kind::Identities, 3, 3),
                (Kind::Records, 3, 3),
                (Kind::Queue, 2, 3),
                (Kind::Rates, 2, 3),
                (Kind::Rebuilds, 2, 4),
            ],
            hardship: if round % 4 == 2 { HARD } else { EASY },
            plant: None,
        };
        let Played { history, trace, counts: of_round } = play(&plan, site).await;
        let before_it = clocks::now();
        let judged = judged(trace).await;
        let took = clocks::now() - before_it;
        of_round.0.iter().for_each(|(name, count)| counts.add(name, *count));
        history.counts().0.iter().for_each(|(name, count)| counts.add(name, *count));
        let found = history.check();
        found.iter().take(5).for_each(|violation| print(&history, violation));
        let acquisitions = counts.get("acquisitions");
        println!("round {round}, seed {}: {acquisitions} acquisitions so far, {}", plan.seed, summary(&found));
        if let Some(why) = &judged.violation {
            println!("VIOLATION for the foreign checker: {why}");
        }
        if found.is_empty() && judged.violation.is_none() && !settings.keep {
            // They are large. Those of a violation stay.
            fs::remove_dir_all(site.folder.join(&plan.name)).unwrap();
        }
        violations.extend(found);
        foreign.add(judged, took);

        let (length, seed) = (settings.length, settings.seed);
        report.truncate(before);
        report.push(format!(
            "{round} rounds of {length} s without a mistake, from seed {seed}, took {} s.",
            since(started)
        ));
        report.extend(["", "| | count |", "| --- | ---: |"].map(str::to_owned));
        report.extend(counts.0.iter().map(|(name, count)| format!("| {name} | {count} |")));
        report.extend(["", "| guarantee | violations |", "| --- | ---: |"].map(str::to_owned));
        let of = |broken| violations.iter().filter(|violation| violation.broken == broken).count();
        report.extend(Broken::ALL.map(|broken| format!("| {broken} | {} |", of(broken))));
        report.extend(foreign.report());
        // After each round: who has seen enough ends the program.
        if let Some(path) = &settings.report {
            fs::write(path, report.join("\n") + "\n").unwrap();
        }
        if round >= 2 && acquisitions >= settings.acquisitions {
            break;
        }
    }
    if foreign.left_out.values().sum::<usize>() > foreign.requests / 3 {
        println!("The foreign checker has left out more than a quarter of the requests.");
        return violations.len() + foreign.violations + 1;
    }
    violations.len() + foreign.violations
}

fn print(history: &History, violation: &Violation) {
    println!("VIOLATION at {}: {}: {}", seconds(violation.at), violation.broken, violation.text);
    history.around(violation).iter().for_each(|line| println!("    {line}"));
}

fn summary(violations: &[Violation]) -> String {
    let counts = Broken::ALL.iter().map(|broken| (broken, violations.iter().filter(|v| v.broken == *broken).count()));
    let counts: Vec<_> = counts.filter(|(_, n)| *n > 0).map(|(broken, n)| format!("{n} of \"{broken}\"")).collect();
    if counts.is_empty() { "no violation".to_owned() } else { format!("violations: {}", counts.join(", ")) }
}

/// The library that `faketime` loads into a process.
fn preload() -> String {
    let answer = Command::new("faketime").args(["-m", "-f", "+0s", "printenv", "LD_PRELOAD"]).output();
    let answer = answer.expect("faketime is installed");
    String::from_utf8(answer.stdout).unwrap().trim().to_owned()
}
