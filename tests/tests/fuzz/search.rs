//! The search for a case that breaks a property.

use std::env;
use std::fmt::Debug;
use std::time::Duration;

use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, FileFailurePersistence, RngSeed, TestError, TestRunner};

/// Tries the kept cases of this name and others, which follow from `LOCK_FUZZ_SEED`: each run tries the same, and more of
/// them for `LOCK_FUZZ_SECONDS`. Panics with the smallest case that fails.
pub(crate) fn for_all<S: Strategy<Value: Debug>>(name: &str, cases: u32, strategy: &S, test: impl Fn(S::Value)) {
    let seeds = format!("{}/tests/fuzz/seeds/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let seeds: &'static str = seeds.leak();
    let first = env::var("LOCK_FUZZ_SEED").map_or(0, |seed| seed.parse().unwrap());
    let batch = |number: u64| {
        let config = Config {
            cases,
            rng_seed: RngSeed::Fixed(first + number),
            failure_persistence: Some(Box::new(FileFailurePersistence::Direct(seeds))),
            max_shrink_iters: 400,
            ..Config::default()
        };
        let found = TestRunner::new(config).run(strategy, |case| {
            test(case);
            Ok(())
        });
        match found {
            Ok(()) => {}
            Err(TestError::Fail(why, case)) => panic!("{name} fails: {why}\nfor {case:?}"),
            Err(other) => panic!("{name}: {other}"),
        }
    };
    let Ok(seconds) = env::var("LOCK_FUZZ_SECONDS") else {
        batch(0);
        return;
    };
    let (clock, limit) = (SystemTimeSource::new(), Duration::from_secs(seconds.parse().unwrap()));
    let (began, mut batches) = (clock.now(), 0);
    while clock.now().duration_since(began).unwrap_or_default() < limit {
        batch(batches);
        batches += 1;
    }
    println!("{name}: {} cases", batches * u64::from(cases));
}
