//! Arguments of any kind: the program explains what is wrong with them, and does not panic.
//!
//! Each run tries the same cases, which follow from `LOCK_FUZZ_SEED`, and more of them for `LOCK_FUZZ_SECONDS`. The seed of a
//! failed case is added to `arguments.txt`, which is tried first from then on.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use aws_smithy_async::time::{SystemTimeSource, TimeSource as _};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, FileFailurePersistence, RngSeed, TestRunner};

use crate::{Place, Process};

/// All but `watch`, which has no end.
const COMMANDS: [&str; 13] = [
    "run",
    "acquire",
    "renew",
    "list",
    "get",
    "release",
    "create-table",
    "check",
    "delete-expired",
    "completions",
    "man",
    "help",
    "",
];

const OPTIONS: [&str; 36] = [
    "--table",
    "--region",
    "--endpoint-url",
    "--profile",
    "--key-prefix",
    "--clock-skew",
    "--partition-key",
    "--sort-key",
    "--embedded",
    "--key",
    "--key",
    "--key",
    "--lease",
    "--wait",
    "--at-most",
    "--min-hold",
    "--renew",
    "--holder",
    "--identity",
    "--fence",
    "--force",
    "--yes",
    "--held",
    "--starting-with",
    "--kind",
    "--older-than",
    "--oldest-first",
    "--limit",
    "--json",
    "--tag",
    "--provisioned",
    "--help",
    "-h",
    "--version",
    "--no-such-option",
    "-",
];

fn any_value() -> impl Strategy<Value = OsString> + Clone {
    let texts = [
        "job",
        "",
        " ",
        "a b",
        "0",
        "1",
        "-1",
        "100",
        "101",
        "18446744073709551615",
        "18446744073709551616",
        "1ms",
        "30s",
        "1day",
        "367days",
        "18446744073709551615y",
        "9999999999999999999999s",
        "1.5h",
        "soon",
        "a=b",
        "=",
        "5,5",
        "9223372036854775807,1",
        "bash",
        "lock",
        "locks",
        "é🔒\n\u{202e}",
        "\u{1b}[31m",
    ];
    prop_oneof![
        8 => select(texts.to_vec()).prop_map(OsString::from),
        1 => vec(1..=255_u8, 1..6).prop_map(OsString::from_vec),
        1 => (1000..5000_usize).prop_map(|length| OsString::from("k".repeat(length))),
    ]
}

fn any_arguments() -> impl Strategy<Value = Vec<OsString>> {
    let option = (select(OPTIONS.to_vec()), proptest::option::weighted(0.8, any_value()), any::<bool>());
    let option = option.prop_map(|(name, value, is_one)| match value {
        Some(value) if is_one => {
            let mut both = OsString::from(format!("{name}="));
            both.push(value);
            vec![both]
        }
        Some(value) => vec![name.into(), value],
        None => vec![name.into()],
    });
    let word = prop_oneof![4 => option, 1 => any_value().prop_map(|value| vec![value])];
    let programs =
        select(vec!["true", "false", "", "no-such-program", "/", "\n"]).prop_map(|name| vec!["--".into(), name.into()]);
    let command = proptest::option::of(programs).prop_map(Option::unwrap_or_default);
    (vec(word.clone(), 0..2), select(COMMANDS.to_vec()), vec(word, 0..4), command).prop_map(
        |(before, action, after, command)| {
            let words = before.into_iter().flatten().chain([action.into()]);
            words.chain(after.into_iter().flatten()).chain(command).collect()
        },
    )
}

#[test]
fn arguments_of_any_kind_end_with_an_exit_code_of_the_manual_and_one_sentence() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/arguments.txt");
    let number = |name| std::env::var(name).map_or(0, |number| number.parse().unwrap());
    let clock = SystemTimeSource::new();
    let until = clock.now() + Duration::from_secs(number("LOCK_FUZZ_SECONDS"));
    for seed in number("LOCK_FUZZ_SEED").. {
        let config = Config {
            cases: 25,
            rng_seed: RngSeed::Fixed(seed),
            failure_persistence: Some(Box::new(FileFailurePersistence::Direct(seeds))),
            max_shrink_iters: 100,
            ..Config::default()
        };
        let search = TestRunner::new(config).run(&any_arguments(), |arguments| {
            try_with(&arguments);
            Ok(())
        });
        if let Err(found) = search {
            panic!("{found}");
        }
        if clock.now() >= until {
            break;
        }
    }
}

fn try_with(arguments: &[OsString]) {
    let place = Place::new();
    let mut command = place.command(arguments);
    // `--embedded` makes a file.
    command.current_dir(place.folder.path());
    let outcome = Process::start(command).outcome();
    // `false` ends with 1.
    let codes = [0, 1, 2, 66, 69, 74, 75, 76, 78, 126, 127];
    assert!(outcome.code.is_some_and(|code| codes.contains(&code)), "{outcome:?}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    match outcome.code {
        Some(0 | 1) => {}
        // `release --force` without a terminal names the option that it needs instead.
        Some(2) if outcome.stderr.contains("--force asks for confirmation") => {
            assert!(outcome.stderr.contains("add --yes"), "{outcome:?}");
        }
        Some(2) => assert!(outcome.stderr.contains("--help"), "{outcome:?}"),
        _ => {
            let outcome = outcome.expect_sentence(&[]);
            assert!(!outcome.stderr.trim_end().contains(|c: char| c.is_control() && c != '\n'), "{outcome:?}");
        }
    }
}
