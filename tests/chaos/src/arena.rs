//! A round: two tables, a proxy, and processes that are killed, stopped and set to other times while they work.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use tokio::time::sleep;

use crate::checker::{Counts, History, PROBE};
use crate::clocks;
use crate::place::Place;
use crate::plants::Plant;
use crate::process::{Common, Slot, set_clock};
use crate::proxy::{Fault, Proxy};
use crate::table;
use crate::trace::Passed;
use crate::worker::{self, Kind, LONGEST_LEASE};

pub(crate) const CLOCK_SKEW: Duration = Duration::from_millis(400);
/// The most that a clock is ahead or behind, in milliseconds: two of them differ by less than the skew.
const MOST_AHEAD: i64 = 195;

/// Where rounds are played.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) place: Place,
    /// The start of the names of all tables.
    pub(crate) prefix: String,
    pub(crate) program: PathBuf,
    pub(crate) preload: String,
    pub(crate) folder: PathBuf,
}

/// How hard a round is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hardship {
    /// How many holds of a hundred outlast their lease.
    pub(crate) overruns: u8,
    /// How many holds of a hundred are renewed.
    pub(crate) renewals: u8,
    /// How many requests of a thousand have a fault.
    pub(crate) faults: u32,
}

/// What a round has.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) length: Duration,
    /// How many processes there are of each kind, and how many operations each has in progress.
    pub(crate) crew: Vec<(Kind, u64, u64)>,
    pub(crate) hardship: Hardship,
    pub(crate) plant: Option<&'static Plant>,
}

/// A round leaves these.
#[derive(Debug)]
pub(crate) struct Played {
    /// For our own checker.
    pub(crate) history: History,
    /// For the foreign one.
    pub(crate) trace: Vec<Passed>,
    pub(crate) counts: Counts,
}

pub(crate) async fn play(plan: &Plan, site: &Site) -> Played {
    let folder = site.folder.join(&plan.name);
    fs::create_dir_all(folder.join("executions")).unwrap();
    let client = site.place.client();
    let table = |what| format!("{}{what}-{}", site.prefix, plan.name);
    let (locks, effects) = (table("locks"), table("effects"));
    table::create(&client, &locks).await;
    table::create(&client, &effects).await;
    let proxy = Proxy::start(&site.place, plan.seed, plan.hardship.faults, plan.plant).await;
    let common = Common {
        program: site.program.clone(),
        preload: site.preload.clone(),
        folder: folder.clone(),
        table: locks.clone(),
        clock_skew: format!("{}ms", CLOCK_SKEW.as_millis()),
        access_key: site.place.access_key.clone(),
    };
    let mut random = Rng::with_seed(plan.seed);
    let end = clocks::now() + clocks::nanos(plan.length);
    let settings = |kind, name, seed, tasks| worker::Settings {
        kind,
        name,
        seed,
        folder: folder.clone(),
        effects: effects.clone(),
        tasks,
        overruns: plan.hardship.overruns,
        renewals: plan.hardship.renewals,
        until: end,
    };

    let through = proxy.url();
    let mut slots = Vec::new();
    for (kind, processes, tasks) in &plan.crew {
        for number in 0..*processes {
            let name = format!("{kind}{number}");
            set_clock(&folder, &name, draw_clock(&mut random));
            slots.push(Slot::start(settings(*kind, name, random.u64(..), *tasks), &through, &common));
        }
    }
    let mut counts = disturb(&mut slots, &proxy, &mut random, end).await;
    let mut processes: Vec<_> = join_all(slots.into_iter().map(Slot::finish)).await.into_iter().flatten().collect();
    proxy.settle().await;
    // Now every lease has ended, by every clock.
    sleep(LONGEST_LEASE + 2 * CLOCK_SKEW + Duration::from_millis(50)).await;

    let rows = table::scan(&client, &locks).await.into_iter();
    let unfinished = rows.filter(|row| row.status.as_deref() == Some("INPROGRESS")).map(|row| row.id);
    let unfinished: Vec<_> = unfinished.filter(|id| id.starts_with("record-") || id.starts_with("queue#")).collect();
    counts.add("runs that the probe finished", unfinished.len().try_into().unwrap());
    fs::write(folder.join("unfinished.json"), serde_json::to_vec(&unfinished).unwrap()).unwrap();
    let probe = worker::Settings { overruns: 0, ..settings(Kind::Probe, PROBE.to_owned(), 0, 1) };
    let good = Proxy::start(&site.place, plan.seed, 0, None).await;
    processes.extend(Slot::start(probe, &good.url(), &common).finish().await);
    let mut rows = table::scan(&client, &locks).await;
    rows.extend(table::scan(&client, &effects).await);
    table::delete(&client, &locks).await;
    table::delete(&client, &effects).await;

    counts.add("requests", proxy.counts().requests.load(Ordering::Relaxed));
    for fault in Fault::ALL {
        counts.add(fault.name(), proxy.counts().faults[fault as usize].load(Ordering::Relaxed));
    }
    let history = History { processes, rows, clock_skew: clocks::nanos(CLOCK_SKEW) };
    Played { history, trace: proxy.trace().take(), counts }
}

/// Kills, stops and sets clocks until the end.
async fn disturb(slots: &mut [Slot], proxy: &Proxy, random: &mut Rng, end: u64) -> Counts {
    let mut counts = Counts::default();
    let mut stopped: Vec<(u64, usize)> = Vec::new();
    let mut next = clocks::now() + 500_000_000;
    while clocks::now() < end {
        sleep(Duration::from_millis(10)).await;
        let now = clocks::now();
        stopped.retain(|(until, slot)| {
            let is_over = *until <= now;
            if is_over {
                slots[*slot].go_on();
            }
            !is_over
        });
        if now < next {
            continue;
        }
        next = now + random.u64(20..=250) * 1_000_000;
        let slot = random.usize(0..slots.len());
        match random.u8(0..20) {
            0..6 => {
                stopped.retain(|(_, other)| *other != slot);
                slots[slot].kill().await;
                counts.add("SIGKILL", 1);
            }
            6..13 if stopped.iter().all(|(_, other)| *other != slot) => {
                slots[slot].stop();
                stopped.push((now + random.u64(20..=1500) * 1_000_000, slot));
                counts.add("SIGSTOP", 1);
            }
            13..19 => {
                slots[slot].set_clock(draw_clock(random));
                counts.add("clock steps", 1);
            }
            19 => {
                proxy.fail(Duration::from_millis(random.u64(20..=200)));
                counts.add("outages", 1);
            }
            _ => {}
        }
    }
    counts
}

/// Half of the clocks are as wrong as they may be.
fn draw_clock(random: &mut Rng) -> i64 {
    match random.u8(0..4) {
        0 => -MOST_AHEAD,
        1 => MOST_AHEAD,
        _ => random.i64(-MOST_AHEAD..=MOST_AHEAD),
    }
}
