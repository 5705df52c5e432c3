//! The search for a case that breaks a property.

use std::env;
use std::fmt::Debug;
use std::time::Duration;

use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, FileFailurePersistence, TestError, TestRunner};

/// Tries the kept cases of this name and new ones. Panics with the smallest case that fails.
pub(crate) fn for_all<S: Strategy<Value: Debug>>(name: &str, cases: u32, strategy: &S, test: impl Fn(S::Value)) {
    let seeds = format!("{}/tests/fuzz/seeds/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let seeds: &'static str = seeds.leak();
    let batch = || {
        let config = Config {
            cases,
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
        cases
    };
    let Ok(seconds) = env::var("LOCK_FUZZ_SECONDS") else {
        batch();
        return;
    };
    let (clock, limit) = (SystemTimeSource::new(), Duration::from_secs(seconds.parse().unwrap()));
    let (began, mut tried) = (clock.now(), 0);
    while clock.now().duration_since(began).unwrap_or_default() < limit {
        tried += batch();
    }
    println!("{name}: {tried} cases");
}
