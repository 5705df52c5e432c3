//! Ratios to the bare SDK. The two sides take turns in one run, so that load on the machine slows both.

pub(crate) mod canned;

use std::alloc::System;
use std::time::Instant;

use lambda_lock_tests::median;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Returns the real time, which the benchmarks measure.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn clock() -> Instant {
    Instant::now()
}

pub(crate) fn print_header() {
    println!("\n{:<44}{:>10}{:>10}{:>8}{:>14}{:>8}", "", "ours", "bare SDK", "ratio", "allocations", "ratio");
}

/// Prints one line: medians of time, and the median of the pairs' ratios.
#[expect(clippy::cast_precision_loss, reason = "the counts are small")]
pub(crate) async fn compare(name: &str, ours: impl AsyncFn(), bare: impl AsyncFn(), pairs: usize) {
    let (mut our_times, mut bare_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        // The side that goes first alternates too.
        let (our_time, bare_time) = if pair % 2 == 0 {
            let our_time = time(&ours).await;
            (our_time, time(&bare).await)
        } else {
            let bare_time = time(&bare).await;
            (time(&ours).await, bare_time)
        };
        our_times.push(our_time);
        bare_times.push(bare_time);
        ratios.push(our_time / bare_time);
    }
    let (our_allocations, bare_allocations) = (allocations(&ours).await as f64, allocations(&bare).await as f64);
    println!(
        "{name:<44}{:>7.1} µs{:>7.1} µs{:>8.3}{:>14}{:>8.3}",
        median(our_times) * 1e6,
        median(bare_times) * 1e6,
        median(ratios),
        format!("{our_allocations}/{bare_allocations}"),
        our_allocations / bare_allocations
    );
}

async fn time(work: &impl AsyncFn()) -> f64 {
    let start = clock();
    work().await;
    start.elapsed().as_secs_f64()
}

/// Returns the number of allocations: the median of some runs, because a map or a buffer grows occasionally.
async fn allocations(work: &impl AsyncFn()) -> usize {
    let mut counts = Vec::new();
    for _ in 0..21 {
        let measured = Region::new(ALLOCATOR);
        work().await;
        let change = measured.change();
        counts.push(change.allocations + change.reallocations);
    }
    counts.sort_unstable();
    counts[counts.len() / 2]
}
