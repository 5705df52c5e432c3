//! The program `lambda-lock`, as a shell runs it: real processes in real time. They share a file of the embedded
//! engine, or the DynamoDB at `LOCK_TEST_ENDPOINT`.
#![allow(clippy::disallowed_methods, reason = "processes cannot be paused like tokio's time")]

mod arguments;
mod clock;
mod deployments;
mod environment;
mod errors;
mod function;
mod groups;
#[cfg(target_os = "linux")]
mod guard;
mod keep;
mod lease;
mod list;
mod manual;
mod rate;
mod release;
mod run;
mod server;
mod signals;
mod table;
mod terminal;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use std::{fs, thread};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::DynamoDb;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::signal::unix::{self, SignalKind};

/// A timeout that no test reaches, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);
const PROGRAM: &str = env!("CARGO_BIN_EXE_lambda-lock");

/// A table, and a folder for the files of commands.
struct Place {
    folder: TempDir,
    endpoint: Option<String>,
    table: String,
}

impl Place {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let table = format!("command-line-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let endpoint = std::env::var("LOCK_TEST_ENDPOINT").ok();
        let place = Self { folder: TempDir::new().unwrap(), endpoint, table };
        if place.endpoint.is_some() {
            place.run(["create-table"]).expect_code(0);
        }
        place
    }

    /// Compiles a program that ignores SIGCHLD and then becomes the program in its arguments. A shell cannot do this,
    /// because it needs the signal.
    fn ignoring_children(&self) -> String {
        const SOURCE: &str = "#include <signal.h>\n#include <unistd.h>\n
            int main(int count, char **words) { signal(SIGCHLD, SIG_IGN); return execvp(words[1], words + 1); }";
        let (source, program) = (self.file("ignoring.c"), self.file("ignoring"));
        fs::write(&source, SOURCE).unwrap();
        // Rust uses this linker too.
        assert!(Command::new("cc").args(["-o", &program, &source]).status().unwrap().success());
        program
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// The program with its environment and its table.
    fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = bare(PROGRAM);
        self.at_home(&mut command);
        command.args(arguments);
        command
    }

    fn at_home(&self, command: &mut Command) {
        command.env("LOCK_TABLE_NAME", &self.table).env("LOCK_CLOCK_SKEW", "100ms");
        match &self.endpoint {
            Some(endpoint) => {
                command.env("AWS_ENDPOINT_URL", endpoint).envs(credentials());
            }
            None => {
                command.args(["--embedded", &self.file("locks.sqlite")]);
            }
        }
    }

    fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Outcome {
        Process::start(self.command(arguments)).outcome()
    }

    /// The command `run --key` … `-- sh -c` …
    fn shell(&self, key: &str, options: &[&str], script: &str) -> Command {
        self.command([&["run", "--key", key][..], options, &["--", "sh", "-c", script]].concat())
    }

    /// Starts a process that holds `key`, and waits until it does.
    fn holding(&self, key: &str, options: &[&str]) -> Process {
        let process = Process::start(self.shell(key, options, "echo $LOCK_FENCE; sleep 100; echo done"));
        assert!(process.line().parse::<u64>().is_ok());
        process
    }

    fn json(&self, key: &str) -> Value {
        serde_json::from_str(&self.run(["get", key, "--json"]).expect_code(0).stdout).unwrap()
    }

    fn client(&self) -> Client {
        if let Some(endpoint) = &self.endpoint {
            let config = aws_sdk_dynamodb::Config::builder().behavior_version(BehaviorVersion::latest());
            let config = config.region(Region::new("us-east-1")).endpoint_url(endpoint);
            let credentials = Credentials::new("local", "local", None, None, "test");
            Client::from_conf(config.credentials_provider(credentials).build())
        } else {
            DynamoDb::open(self.file("locks.sqlite")).unwrap().client()
        }
    }

    /// Writes a row into the table, without the program.
    fn put(&self, row: &[(&str, AttributeValue)]) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let item = row.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        runtime.block_on(self.client().put_item().table_name(&self.table).set_item(Some(item)).send()).unwrap();
    }

    /// Reads a row of the table, without the program.
    fn row(&self, key: &str) -> HashMap<String, AttributeValue> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let read = self.client().get_item().table_name(&self.table).consistent_read(true);
        runtime.block_on(read.key("id", AttributeValue::S(key.to_owned())).send()).unwrap().item.unwrap()
    }
}

/// A program that inherits only the path.
fn bare(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", "/nonexistent");
    command.env("AWS_EC2_METADATA_DISABLED", "true").env("USER", "somebody");
    command
}

fn credentials() -> [(&'static str, &'static str); 3] {
    [("AWS_REGION", "us-east-1"), ("AWS_ACCESS_KEY_ID", "local"), ("AWS_SECRET_ACCESS_KEY", "local")]
}

/// Installs handlers for signals that the caller of the tests ignores, as a shell does for background jobs. Children
/// inherit an ignored signal, but no handler.
fn heed_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or("0").trim();
        let ignored = u64::from_str_radix(ignored, 16).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2] {
            if ignored & (1 << (signal.as_raw() - 1)) != 0 {
                drop(unix::signal(SignalKind::from_raw(signal.as_raw())).unwrap());
            }
        }
    });
}

/// A process, killed when it goes out of scope.
struct Process {
    child: Child,
    lines: Receiver<String>,
    stderr: Receiver<String>,
}

impl Process {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null());
        Self::with_input(command)
    }

    fn with_input(mut command: Command) -> Self {
        heed_signals();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (line, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
        let (all, stderr) = mpsc::channel();
        let mut from = child.stderr.take().unwrap();
        thread::spawn(move || {
            let mut text = String::new();
            let _what_came = from.read_to_string(&mut text);
            all.send(text)
        });
        Self { child, lines, stderr }
    }

    /// The next line on its standard output.
    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("another line in time")
    }

    /// Waits until the process and its children have closed standard output, and returns their remaining lines.
    fn silence(&self) -> Vec<String> {
        let until = Instant::now() + PATIENCE;
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => lines.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => return lines,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("a process still runs: {lines:?}"),
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn outcome(mut self) -> Outcome {
        let until = Instant::now() + PATIENCE;
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            assert!(Instant::now() < until, "a process did not end in time");
            thread::sleep(Duration::from_millis(5));
        };
        let lines = self.silence();
        let stdout = lines.iter().flat_map(|line| [line, "\n"]).collect();
        Outcome { code, stdout, stderr: self.stderr.recv_timeout(PATIENCE).unwrap() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _it_may_have_ended = self.child.wait();
    }
}

#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Outcome {
    #[track_caller]
    fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    #[track_caller]
    fn expect_stdout(self, stdout: &str) -> Self {
        assert_eq!(self.stdout, stdout, "{self:?}");
        self
    }

    /// Asserts that the program wrote one sentence to standard error, with these parts.
    #[track_caller]
    fn expect_sentence(self, parts: &[&str]) -> Self {
        let sentences: Vec<_> = self.stderr.lines().filter(|line| line.starts_with("lambda-lock: ")).collect();
        let [sentence] = sentences[..] else { panic!("not one sentence: {self:?}") };
        for part in parts {
            assert!(sentence.contains(part), "`{part}` is not in {self:?}");
        }
        self
    }
}

/// Runs a test's cases at the same time, because they mostly wait.
fn at_once<C: Send, const N: usize>(cases: [C; N], run: impl Fn(C) + Sync) {
    let run = &run;
    thread::scope(|scope| cases.into_iter().for_each(|case| drop(scope.spawn(move || run(case)))));
}

/// Programs of Linux that move the command to another process group.
const MOVERS: [&[&str]; 2] = [&["timeout", "100"], &["setsid"]];
