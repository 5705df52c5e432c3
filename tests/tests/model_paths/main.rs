//! The model and the code are one: paths through the model (`tests/model`) are walked on the real client and the embedded
//! engine, and both are compared after each step.
//!
//! A path is a run of the model: what the clients decide, what the network does to each request, when a late request
//! arrives, and what TTL deletes. The real clients do the same with the crate's own functions ([`client`]), behind a network
//! in which the path decides about each request ([`gate`]). After each step, the rows must be equal, attribute by
//! attribute, and so must be what each client knows: whether it waits, holds the key, until when, with which fence, and what
//! its function returned ([`path`]). All steps of a tick happen at the same nanosecond, which also tests `<` against `<=`.
//!
//! A tick is 5 minutes: the largest skew, and how late a request can arrive. A process that waits longer than its time
//! limits stands still meanwhile, as Lambda freezes it: the SDK and the crate take an answer that is there when the process
//! goes on. [`path::Reason`] has the steps that no real client can take.
//!
//! A tick of a semaphore is 5 seconds. A release removes the tombstones of permits that are a minute old, which the model
//! keeps, so a path is shorter than a minute. The row of a semaphore stays for a day after a request, and in the model for
//! the longest lease, which is 2 ticks. Nothing but TTL reads when it expires, so TTL deletes it when the model says.
//!
//! A waiter in turn chooses itself when to ask, and sleeps for 5 seconds at most: in each tick, it is ready to ask. It takes a
//! place after each refusal, and asks with its own place. So a path has no waiter that asks without its place, or with that
//! of another one, which the model has as well.
//!
//! Reservations have no paths. A waiter computes from the times of holds when to reserve its keys, and for how long, which is
//! no number of ticks.
//!
//! `LOCK_PATHS=1000000` compares that many random steps, and all paths that are one step longer. `LOCK_SEED=42` walks one
//! random path for each protocol and prints it.

mod client;
mod gate;
mod lab;
mod path;
mod rows;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, iter};

use lambda_lock_model::walk::{Situation, Step};
use lambda_lock_model::{self as model, Bounds, Subject};
use lambda_lock_tests::history::Mutation;
use lambda_lock_tests::{idempotency_history, on_all_cores, semaphore_history, several_history};
use tokio::runtime::Builder;

use lab::Lab;
use path::{Path, Reason};

const SUBJECTS: [Subject; 6] = [
    Subject::Lock,
    Subject::Record,
    Subject::RejectingRecord,
    Subject::Several,
    Subject::Semaphore,
    Subject::SemaphoreInTurn,
];

/// How many random steps are compared by default.
const STEPS: u64 = 4500;

/// How many random paths share an engine.
const PATHS: u64 = 20;

/// The longest random path.
const LONGEST: usize = 40;

/// What was compared.
#[derive(Debug, Default)]
struct Count {
    paths: u64,
    steps: u64,
    /// The steps from which the random ones were chosen.
    offered: u64,
    skipped: BTreeMap<Reason, u64>,
}

impl Count {
    fn sum(counts: Vec<Self>) -> Self {
        let mut sum = Self::default();
        for Self { paths, steps, offered, skipped } in counts {
            sum.paths += paths;
            sum.steps += steps;
            sum.offered += offered;
            for (reason, count) in skipped {
                *sum.skipped.entry(reason).or_default() += count;
            }
        }
        sum
    }

    /// Returns the steps that a real client can take.
    fn possible(&mut self, path: &Path<'_>) -> Vec<Step> {
        let mut steps = path.steps();
        self.offered += steps.len() as u64;
        steps.retain(|step| match path.obstacle(step) {
            Some(reason) => {
                *self.skipped.entry(reason).or_default() += 1;
                false
            }
            None => true,
        });
        steps
    }
}

/// A path that ended, with its log, or with the difference after it.
type Walked = Result<String, String>;

async fn walk_random(lab: &mut Lab, subject: Subject, seed: u64, count: &mut Count) -> Walked {
    let mut random = fastrand::Rng::with_seed(seed);
    let (ticks, faults) = (random.u8(4..=9), random.u8(0..=4));
    let bounds = Bounds { ticks, lateness: 1, attempts: 2, faults, renewals: 3 };
    let mut first = Situation::first(subject, bounds, None);
    let mut path = Path::begin(lab, subject, first.swap_remove(random.usize(..first.len())));
    count.paths += 1;
    for _ in 0..LONGEST {
        let steps = count.possible(&path);
        let Some(step) = random.choice(&steps) else { break };
        count.steps += 1;
        if let Err(difference) = path.take(step).await {
            path.end().await;
            return Err(format!("{difference}\nLOCK_SEED={seed} walks this path again"));
        }
    }
    Ok(path.end().await)
}

/// Runs this in virtual time.
fn in_virtual_time<T>(run: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(run)
}

/// Walks random paths, until one differs.
fn walk(subject: Subject, seeds: impl Iterator<Item = u64>) -> Result<Count, String> {
    in_virtual_time(async {
        let (mut lab, mut count) = (Lab::new(subject, None).await, Count::default());
        for seed in seeds {
            walk_random(&mut lab, subject, seed, &mut count).await?;
        }
        Ok(count)
    })
}

fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is `{value}`, not a number")))
}

#[test]
fn random_paths_are_the_same_in_the_model_and_in_the_code() {
    if let Some(seed) = variable("LOCK_SEED") {
        for subject in SUBJECTS {
            let log = in_virtual_time(async {
                walk_random(&mut Lab::new(subject, None).await, subject, seed, &mut Count::default()).await
            });
            println!("{}", log.unwrap_or_else(|difference| panic!("{difference}")));
        }
        return;
    }
    let enough = variable("LOCK_PATHS").unwrap_or(STEPS);
    for subject in SUBJECTS {
        let (steps, most) = (AtomicU64::new(0), enough / SUBJECTS.len() as u64);
        // The last engines are not begun.
        let counts = on_all_cores(0..most, |engine| {
            if steps.load(Ordering::Relaxed) >= most {
                return Ok(Count::default());
            }
            let counted = walk(subject, engine * PATHS..(engine + 1) * PATHS);
            // A difference ends the search.
            steps.fetch_add(counted.as_ref().map_or(most, |count| count.steps), Ordering::Relaxed);
            counted
        });
        let counts: Result<_, String> = counts.into_iter().collect();
        let count = Count::sum(counts.unwrap_or_else(|difference| panic!("{difference}")));
        println!("{subject:?}: {count:?}");
        assert!(count.steps >= most, "{subject:?}: {} steps, not {most}", count.steps);
        // Otherwise, the paths say little about the model.
        let skipped: u64 = count.skipped.values().sum();
        assert!(skipped * 20 < count.offered, "{subject:?}: too many steps are skipped: {count:?}");
    }
}

/// Paths on which the model and the code once differed.
const FOUND: [(Subject, u64); 2] = [(Subject::Several, 4344), (Subject::SemaphoreInTurn, 747)];

#[test]
fn paths_that_once_differed_are_the_same() {
    for (subject, seed) in FOUND {
        walk(subject, iter::once(seed)).unwrap_or_else(|difference| panic!("{difference}"));
    }
}

/// All paths of a length, from all situations in which a path begins.
fn all_paths(subject: Subject, bounds: Bounds, length: usize) -> Vec<(usize, Vec<Step>)> {
    fn extend(at: &Situation, length: usize, path: &mut Vec<Step>, paths: &mut Vec<Vec<Step>>) {
        let steps = if path.len() < length { at.steps() } else { Vec::new() };
        if steps.is_empty() {
            paths.push(path.clone());
        }
        for step in steps {
            path.push(step);
            extend(&at.after(&step), length, path, paths);
            path.pop();
        }
    }
    let mut all = Vec::new();
    for (number, first) in Situation::first(subject, bounds, None).iter().enumerate() {
        let mut paths = Vec::new();
        extend(first, length, &mut Vec::new(), &mut paths);
        all.extend(paths.into_iter().map(|path| (number, path)));
    }
    all
}

#[test]
fn all_short_paths_are_the_same_in_the_model_and_in_the_code() {
    let bounds = Bounds { ticks: 2, lateness: 1, attempts: 2, faults: 1, renewals: 1 };
    let more = usize::from(variable("LOCK_PATHS").is_some());
    for (subject, length) in SUBJECTS.into_iter().zip([3, 3, 2, 2, 2, 2]) {
        let paths = all_paths(subject, bounds, length + more);
        let engines = paths.len().div_ceil(100);
        let counts = on_all_cores(0..engines as u64, |engine| {
            in_virtual_time(async {
                let (mut lab, mut count) = (Lab::new(subject, None).await, Count::default());
                for (number, steps) in paths.iter().skip(usize::try_from(engine).unwrap()).step_by(engines) {
                    let first = Situation::first(subject, bounds, None).swap_remove(*number);
                    let mut path = Path::begin(&mut lab, subject, first);
                    count.paths += 1;
                    for step in steps {
                        if let Some(reason) = path.obstacle(step) {
                            *count.skipped.entry(reason).or_default() += 1;
                            break;
                        }
                        count.steps += 1;
                        path.take(step).await?;
                    }
                    path.end().await;
                }
                Ok(count)
            })
        });
        let counts: Result<_, String> = counts.into_iter().collect();
        println!("{subject:?}: {:?}", Count::sum(counts.unwrap_or_else(|difference| panic!("{difference}"))));
    }
}

/// How many paths look for a mistake of the network.
const PATHS_FOR_A_MISTAKE: usize = 20;

/// How many paths need each guard of the model.
const PATHS_TO_A_MISTAKE: usize = 4;

/// Returns a random path at whose end the model with this mistake differs from the model without.
fn path_to_a_mistake(subject: Subject, mistake: model::Mutation, seed: u64) -> Option<(Situation, Vec<Step>)> {
    let bounds = Bounds { ticks: 8, lateness: 1, attempts: 2, faults: 3, renewals: 3 };
    let mut random = fastrand::Rng::with_seed(seed);
    let first = |mutation| Situation::first(subject, bounds, mutation);
    let number = random.usize(..first(None).len());
    let (mut right, mut wrong) = (first(None).swap_remove(number), first(Some(mistake)).swap_remove(number));
    let mut path = Vec::new();
    while right.looks_like(&wrong) {
        let possible = wrong.steps();
        let steps: Vec<_> = right.steps().into_iter().filter(|step| possible.contains(step)).collect();
        let step = *random.choice(&steps).filter(|_| path.len() < LONGEST)?;
        (right, wrong) = (right.after(&step), wrong.after(&step));
        path.push(step);
    }
    Some((first(None).swap_remove(number), path))
}

/// Walks so many paths to a mistake of the model, on hosts whose network makes the mistake or not. Returns the first
/// difference from the model without the mistake.
async fn difference(
    subject: Subject,
    mistake: model::Mutation,
    mutation: Option<Mutation>,
    many: usize,
) -> Option<String> {
    let mut lab = Lab::new(subject, mutation).await;
    let paths = (0..).filter_map(|seed| path_to_a_mistake(subject, mistake, seed)).take(many);
    for (first, steps) in paths {
        let mut path = Path::begin(&mut lab, subject, first);
        for step in steps {
            if path.obstacle(&step).is_some() {
                break;
            }
            if let Err(difference) = path.take(&step).await {
                path.end().await;
                return Some(difference);
            }
        }
        path.end().await;
    }
    None
}

/// The mistakes of the model that no host makes, and why.
const NOT_OF_HOSTS: [(Subject, model::Mutation, &str); 1] = [(
    Subject::SemaphoreInTurn,
    model::Mutation::CourtesyWithoutEnd,
    "the mistake of this name in the histories is about the end of a lock's lease",
)];

/// The mistakes of the model, with those of the hosts that are the same.
fn mistakes() -> Vec<(Subject, model::Mutation, Option<Mutation>)> {
    let mut mistakes = Vec::new();
    for subject in SUBJECTS {
        let of_hosts = match subject {
            Subject::Lock => &Mutation::LOCK[..],
            Subject::Several => &several_history::MUTATIONS[..],
            Subject::Semaphore | Subject::SemaphoreInTurn => &semaphore_history::MUTATIONS[..],
            _ => &idempotency_history::MUTATIONS[..],
        };
        for (mistake, _) in subject.mutations() {
            let mutation = of_hosts.iter().find(|mutation| mutation.name == mistake.name()).copied();
            let is_expected = NOT_OF_HOSTS.iter().any(|(of, other, _)| (of, other) == (&subject, mistake));
            assert_eq!(mutation.is_none(), is_expected, "{subject:?}: {mistake:?}");
            mistakes.push((subject, *mistake, mutation));
        }
    }
    mistakes
}

#[test]
fn each_mistake_of_the_model_is_a_difference_in_the_code() {
    let mistakes = mistakes();
    let missed = on_all_cores(0..mistakes.len() as u64, |number| {
        let (subject, mistake, mutation) = mistakes[usize::try_from(number).unwrap()];
        let mutation = Some(mutation?);
        let found = in_virtual_time(difference(subject, mistake, mutation, PATHS_FOR_A_MISTAKE));
        let line = found.as_ref().and_then(|found| found.lines().last());
        println!("{subject:?}: {}: {}", mistake.name(), line.unwrap_or("no difference"));
        found.is_none().then_some((subject, mistake))
    });
    let missed: Vec<_> = missed.into_iter().flatten().collect();
    assert!(missed.is_empty(), "no difference: {missed:#?}");
}

/// A guard that is missing in `row/` differs here: these paths need it.
#[test]
fn the_paths_to_each_mistake_of_the_model_are_the_same_in_the_code() {
    let mistakes = mistakes();
    let found = on_all_cores(0..mistakes.len() as u64, |number| {
        let (subject, mistake, _) = mistakes[usize::try_from(number).unwrap()];
        let found = in_virtual_time(difference(subject, mistake, None, PATHS_TO_A_MISTAKE))?;
        println!("{subject:?}: {}: {}", mistake.name(), found.lines().last().unwrap_or_default());
        Some(found)
    });
    if let Some(difference) = found.into_iter().flatten().next() {
        panic!("{difference}");
    }
}
