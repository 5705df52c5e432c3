//! `release`: by fence and by force.

use std::fs;

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
    process.outcome().expect_code(76).expect_sentence(&["was released by somebody@", "code 3"]);
    let again = place.run(["release", "job", "--fence", &fence.to_string()]).expect_code(0);
    assert!(again.stdout.contains("already free"));
}

#[test]
fn a_release_by_force_needs_a_confirmation() {
    let place = Place::new();
    let _holder = place.holding("job", &[]);
    place.run(["release", "job", "--force"]).expect_code(2).expect_sentence(&["--yes", "--fence"]);
    assert_eq!(place.json("job")["state"], "held");
    place.run(["release", "job", "--force", "--yes"]).expect_code(0);
    assert_eq!(place.json("job")["state"], "free");
    assert!(place.run(["release", "job", "--force", "--yes"]).expect_code(0).stdout.contains("already free"));
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
