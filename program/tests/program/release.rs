//! `release` and `complete`: by fence and by force.

use std::fs;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::{Place, Process};

#[test]
fn a_key_is_released_by_its_fence_and_lost_for_its_holder() {
    let place = Place::new();
    let end = place.file("end");
    let script = format!("echo $LOCK_FENCE; while ! [ -e {end} ]; do sleep 0.02; done; exit 3");
    let process = Process::start(place.shell("job", &[], &script));
    let fence: u64 = process.line().parse().unwrap();
    let wrong = place.run(["release", "job", "--fence", &(fence - 1).to_string()]).expect_code(75);
    wrong.expect_sentence(&[&format!("with fence {fence},"), &format!("not with fence {}", fence - 1)]);
    assert_eq!(place.json("job")["state"], "held");
    let released = place.run(["release", "job", "--fence", &fence.to_string()]).expect_code(0);
    assert!(released.stdout.starts_with("released: key `job`, which was held by somebody@"), "{released:?}");
    let row = place.json("job");
    assert_eq!(row["state"], "free");
    assert!(row["holder"].as_str().unwrap().starts_with("released by somebody@"));
    fs::write(end, "").unwrap();
    process
        .outcome()
        .expect_code(76)
        .expect_sentence(&["was lost, because an operator ended it (released by somebody@", "code 3"]);
    let again = place.run(["release", "job", "--fence", &fence.to_string()]).expect_code(0);
    assert!(again.stdout.contains("already free"));
}

/// Leaves the record of a run that died, as `OnUnfinished::Reject` refuses it, with fence 17.
fn leave_unfinished(place: &Place, key: &str) {
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let number = |number: u64| AttributeValue::N(number.to_string());
    // Creates the table.
    place.run(["run", "--key", "free", "--", "true"]).expect_code(0);
    place.put(&[
        ("id", text(key)),
        ("status", text("INPROGRESS")),
        ("owner", text(&"0f".repeat(16))),
        ("holder", text("pay $LATEST/7f")),
        ("fence", number(17)),
        ("acquired_at", number(1_700_000_000_000)),
        ("in_progress_expiration", number(1_700_000_030_000)),
        // Until 2100.
        ("expiration", number(4_102_444_800)),
    ]);
}

#[test]
fn an_unfinished_run_is_listed_and_released_by_its_fence() {
    let place = Place::new();
    leave_unfinished(&place, "pay#7");
    let listed = place.run(["list", "--held"]).expect_code(0).stdout;
    let words: Vec<_> =
        listed.lines().skip(1).map(|line| line.split_whitespace().take(2).collect::<Vec<_>>()).collect();
    assert_eq!(words, [["pay#7", "expired"]], "{listed}");
    let wrong = place.run(["release", "pay#7", "--fence", "16"]).expect_code(75);
    wrong.expect_sentence(&["left unfinished by pay $LATEST/7f", "with fence 17, not with fence 16"]);
    let released = place.run(["release", "pay#7", "--fence", "17"]).expect_code(0);
    assert!(released.stdout.starts_with("released: key `pay#7`, which was left unfinished by pay"), "{released:?}");
    let row = place.row("pay#7");
    assert_eq!(row["released"], row["fence"]);
    assert_eq!(place.json("pay#7")["state"], "free");
    assert!(place.run(["release", "pay#7", "--fence", "17"]).expect_code(0).stdout.contains("already free"));
}

#[test]
fn an_unfinished_run_whose_work_was_done_is_completed() {
    let place = Place::new();
    leave_unfinished(&place, "pay#7");
    let complete = |fence: &str, options: &[&str]| {
        place.run([&["complete", "pay#7", "--fence", fence, "--window", "1day"][..], options].concat())
    };
    complete("17", &["--result", "{"]).expect_code(2);
    complete("16", &[]).expect_code(75).expect_sentence(&["with fence 17, not with fence 16"]);
    assert_eq!(place.json("pay#7")["state"], "expired");
    let done = complete("17", &["--result", "{\"receipt\": 12345678901234567890123}"]).expect_code(0);
    assert!(done.stdout.starts_with("completed: key `pay#7`"), "{done:?}");
    let row = place.row("pay#7");
    assert_eq!(row["data"], AttributeValue::S("{\"receipt\": 12345678901234567890123}".to_owned()));
    assert_eq!(place.json("pay#7")["state"], "completed");
    complete("17", &[]).expect_code(78).expect_sentence(&["completed run"]);
    place.run(["release", "pay#7", "--fence", "17"]).expect_code(78).expect_sentence(&["completed run"]);
}

#[test]
fn one_permit_or_all_permits_of_a_semaphore_are_released() {
    let place = Place::new();
    let _holders = [(); 3].map(|()| place.holding("bank", &["--at-most", "3"]));
    let fences: Vec<_> =
        place.json("bank")["permits"].as_array().unwrap().iter().map(|one| one["fence"].clone()).collect();
    let released = place.run(["release", "bank", "--fence", &fences[1].to_string()]).expect_code(0);
    assert!(released.stdout.contains(&format!("with fence {}", fences[1])), "{released:?}");
    assert_eq!(place.json("bank")["permits"].as_array().unwrap().len(), 2);
    let wrong = place.run(["release", "bank", "--fence", &fences[1].to_string()]).expect_code(75);
    wrong.expect_sentence(&["the first lease ends at", &format!("not with fence {}", fences[1])]);
    place.run(["release", "bank", "--force", "--yes"]).expect_code(0);
    assert_eq!(place.json("bank")["state"], "free");
}
