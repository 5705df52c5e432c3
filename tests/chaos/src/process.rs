//! A slot for a process, which is killed and started again, stopped and continued, and whose clock is wrong.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::checker::Process;
use crate::clocks;
use crate::event;
use crate::worker;

/// How long a process may take to its end, on a machine that has much else to do.
const LONGEST: Duration = Duration::from_mins(1);

/// What all processes of a round have in common.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) program: PathBuf,
    /// The library of faketime.
    pub(crate) preload: String,
    pub(crate) folder: PathBuf,
    pub(crate) table: String,
    pub(crate) clock_skew: String,
    pub(crate) access_key: String,
}

#[derive(Debug)]
pub(crate) struct Slot {
    settings: worker::Settings,
    endpoint: String,
    common: Common,
    child: Child,
    starts: u64,
    is_stopped: bool,
    /// The processes that have ended.
    ended: Vec<Process>,
}

impl Slot {
    /// Starts the first process. `settings.name` is that of the slot.
    pub(crate) fn start(settings: worker::Settings, endpoint: &str, common: &Common) -> Self {
        let endpoint = endpoint.to_owned();
        let child = spawn(&settings, 0, &endpoint, common);
        Self { settings, endpoint, common: common.clone(), child, starts: 1, is_stopped: false, ended: Vec::new() }
    }

    /// Sets the clock this much ahead from now on.
    pub(crate) fn set_clock(&self, millis: i64) {
        set_clock(&self.common.folder, &self.settings.name, millis);
    }

    /// Kills the process and starts the next one.
    pub(crate) async fn kill(&mut self) {
        let number = self.child.id();
        self.child.kill().await.unwrap();
        forget_clock_of(number);
        self.note_end(None);
        self.child = spawn(&self.settings, self.starts, &self.endpoint, &self.common);
        self.starts += 1;
        self.is_stopped = false;
    }

    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
        self.signal(Signal::STOP);
    }

    pub(crate) fn go_on(&mut self) {
        if self.is_stopped {
            self.is_stopped = false;
            self.signal(Signal::CONT);
        }
    }

    /// Waits for the end, and returns all processes of the slot.
    pub(crate) async fn finish(mut self) -> Vec<Process> {
        self.go_on();
        let number = self.child.id();
        let failure = if let Ok(status) = timeout(LONGEST, self.child.wait()).await {
            status.ok().filter(|status| !status.success()).map(|status| self.failure(status))
        } else {
            self.child.kill().await.unwrap();
            Some("it does not end".to_owned())
        };
        forget_clock_of(number);
        self.note_end(failure);
        self.ended
    }

    fn failure(&self, status: ExitStatus) -> String {
        let path = self.common.folder.join(format!("{}.stderr", name(&self.settings, self.starts - 1)));
        format!("{status}: {}", fs::read_to_string(path).unwrap_or_default())
    }

    fn note_end(&mut self, failure: Option<String>) {
        let name = name(&self.settings, self.starts - 1);
        let path = self.common.folder.join(format!("{name}.jsonl"));
        let events = if path.exists() { event::read(&path) } else { Vec::new() };
        self.ended.push(Process { name, ended: clocks::now(), failure, events });
    }

    /// A process that has ended gets none.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).unwrap())) {
            let _it_may_have_ended = kill_process(pid, signal);
        }
    }
}

fn name(settings: &worker::Settings, start: u64) -> String {
    format!("{}-{start}", settings.name)
}

fn clock(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.clock"))
}

/// Replaces the file that faketime reads.
pub(crate) fn set_clock(folder: &Path, name: &str, millis: i64) {
    let (file, new) = (clock(folder, name), folder.join(format!("{name}.clock.new")));
    let sign = if millis < 0 { '-' } else { '+' };
    fs::write(&new, format!("{sign}{}.{:03}", millis.abs() / 1000, millis.abs() % 1000)).unwrap();
    fs::rename(new, file).unwrap();
}

/// Removes what faketime shares under the number of a process, which one that was killed leaves: no later process of that
/// number could have a wrong clock.
fn forget_clock_of(number: Option<u32>) {
    for name in ["faketime_shm_", "sem.faketime_sem_"] {
        let _unless_it_is_gone = number.map(|number| fs::remove_file(format!("/dev/shm/{name}{number}")));
    }
}

fn spawn(settings: &worker::Settings, start: u64, endpoint: &str, common: &Common) -> Child {
    let name = name(settings, start);
    let mut command = Command::new(&common.program);
    command.env_clear().kill_on_drop(true).stdin(Stdio::null());
    command.stderr(File::create(common.folder.join(format!("{name}.stderr"))).unwrap());
    command.arg("worker").args(["--name", &name]).arg("--folder").arg(&common.folder).args([
        "--kind",
        &settings.kind.to_string(),
        "--seed",
        &settings.seed.wrapping_add(start).to_string(),
        "--effects",
        &settings.effects,
        "--tasks",
        &settings.tasks.to_string(),
        "--overruns",
        &settings.overruns.to_string(),
        "--renewals",
        &settings.renewals.to_string(),
        "--until",
        &settings.until.to_string(),
    ]);
    command.envs([
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", &common.access_key),
        ("AWS_SECRET_ACCESS_KEY", "local"),
        ("LOCK_TABLE_NAME", &common.table),
        ("LOCK_CLOCK_SKEW", &common.clock_skew),
    ]);
    let clock = clock(&common.folder, &settings.name);
    if clock.exists() {
        command.env("LD_PRELOAD", &common.preload).env("FAKETIME_TIMESTAMP_FILE", clock);
        // The monotonic clock of a machine whose wall clock is wrong is right.
        command.envs([("FAKETIME_DONT_FAKE_MONOTONIC", "1"), ("FAKETIME_CACHE_DURATION", "1")]);
    }
    command.spawn().unwrap()
}
