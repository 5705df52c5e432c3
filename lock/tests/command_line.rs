//! The program `lambda-lock`, as a shell would run it: real processes, in real time. They meet in a file of the embedded
//! engine, or at `LOCK_TEST_ENDPOINT`.
#![allow(clippy::disallowed_methods, reason = "processes cannot be paused like tokio's time")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::DynamoDb;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::signal::unix::{self, SignalKind};

/// Nothing here may take longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);
const PROGRAM: &str = env!("CARGO_BIN_EXE_lambda-lock");

/// A table of its own, and a folder for what commands write.
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

    /// A program that ignores SIGCHLD and then becomes the program that its arguments name. A shell cannot do this: it
    /// needs the signal itself.
    fn ignoring_children(&self) -> String {
        const SOURCE: &str = "#include <signal.h>\n#include <unistd.h>\n
            int main(int count, char **words) { signal(SIGCHLD, SIG_IGN); return execvp(words[1], words + 1); }";
        let (source, program) = (self.file("ignoring.c"), self.file("ignoring"));
        fs::write(&source, SOURCE).unwrap();
        // Rust links with it too.
        assert!(Command::new("cc").args(["-o", &program, &source]).status().unwrap().success());
        program
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// The program, its environment and where its table is.
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

    /// `run --key` … `-- sh -c` …
    fn shell(&self, key: &str, options: &[&str], script: &str) -> Command {
        self.command([&["run", "--key", key][..], options, &["--", "sh", "-c", script]].concat())
    }

    /// A process that holds `key` for long, and its first line.
    fn holding(&self, key: &str, options: &[&str]) -> Process {
        let process = Process::start(self.shell(key, options, "echo $LOCK_FENCE; sleep 100; echo done"));
        assert!(process.line().parse::<u64>().is_ok());
        process
    }

    fn json(&self, key: &str) -> Value {
        serde_json::from_str(&self.run(["get", key, "--json"]).expect_code(0).stdout).unwrap()
    }

    fn fence(&self, key: &str) -> u64 {
        self.json(key)["fence"].as_u64().unwrap()
    }

    /// Puts a row into the table, past the program.
    fn put(&self, row: &[(&str, AttributeValue)]) {
        let client = if let Some(endpoint) = &self.endpoint {
            let config = aws_sdk_dynamodb::Config::builder().behavior_version(BehaviorVersion::latest());
            let config = config.region(Region::new("us-east-1")).endpoint_url(endpoint);
            let credentials = Credentials::new("local", "local", None, None, "test");
            Client::from_conf(config.credentials_provider(credentials).build())
        } else {
            DynamoDb::open(self.file("locks.sqlite")).unwrap().client()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let item = row.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        runtime.block_on(client.put_item().table_name(&self.table).set_item(Some(item)).send()).unwrap();
    }
}

/// A program with nothing of the caller's environment but the path.
fn bare(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", "/nonexistent");
    command.env("AWS_EC2_METADATA_DISABLED", "true").env("USER", "somebody");
    command
}

/// A name that moves the cursor, begins a line, turns the direction of what follows, and has what nobody sees.
const DECEPTIVE: &str = concat!(
    "me\u{1b}[2J\n\u{9b}\u{7f}\u{202e}\u{2066}\u{ad}\u{34f}\u{61c}\u{115f}\u{17b4}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}",
    "\u{200f}\u{2028}\u{2029}\u{2060}\u{2064}\u{206f}\u{3164}\u{feff}\u{ffa0}\u{fff9}\u{1d173}\u{1bca0}\u{fe0f}\u{e0041}end"
);

/// The text, where all of that is replaced.
fn made_visible(text: &str) -> String {
    text.chars().map(|c| if DECEPTIVE.contains(c) && !c.is_ascii_graphic() { '\u{fffd}' } else { c }).collect()
}

/// `run` at a server, with these options.
fn at_a_server(endpoint: &str, options: &[&str]) -> Command {
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "locks", "--endpoint-url", endpoint]).args(options);
    command.envs(credentials());
    command
}

fn credentials() -> [(&'static str, &'static str); 3] {
    [("AWS_REGION", "us-east-1"), ("AWS_ACCESS_KEY_ID", "local"), ("AWS_SECRET_ACCESS_KEY", "local")]
}

/// Whoever started the tests may ignore signals, as a shell does for what it runs in the background. That is inherited; a
/// handler is not.
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

    /// Until neither it nor any of its children has standard output any more; what else they wrote there.
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

    /// One sentence on standard error, beside what the command itself says there, with these parts.
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

/// A server that answers the requests with these bodies, the last one again and again, with a status of 0 not at all, and
/// with one of 1 after `SLOWLY`: its address.
fn server(answers: &'static [(u16, &'static str)]) -> String {
    recording_server(answers).0
}

/// The same, with the requests.
fn recording_server(answers: &'static [(u16, &'static str)]) -> (String, Receiver<String>) {
    let (received, requests) = mpsc::channel();
    let mut unanswered = Vec::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let mut answers = answers.iter();
        let mut answer = answers.next().unwrap();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = BufReader::new(stream.try_clone().unwrap());
            let mut length = 0;
            let (mut line, mut lines) = (String::new(), String::new());
            while request.read_line(&mut line).unwrap_or(0) > 2 {
                lines.push_str(&line);
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            request.read_exact(&mut body).unwrap();
            let _nobody_asked = received.send(lines + &String::from_utf8(body).unwrap());
            let (mut status, text) = *answer;
            if status == 1 {
                thread::sleep(SLOWLY);
                status = 200;
            }
            let start = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", text.len());
            if status == 0 {
                unanswered.push(stream);
            } else {
                let _it_may_have_gone = stream.write_all(format!("{start}{text}").as_bytes());
            }
            answer = answers.next().unwrap_or(answer);
        }
    });
    (address, requests)
}

/// Within the second after which the client asks again.
const SLOWLY: Duration = Duration::from_millis(700);

const DENIED: (u16, &str) = (
    400,
    r#"{"__type":"com.amazon.coral.service#AccessDeniedException","Message":"User: arn:aws:iam::123456789012:user/x is not authorized to perform: dynamodb:UpdateItem on resource: arn:aws:dynamodb:us-east-1:123456789012:table/locks"}"#,
);

// behaviours 20, 78
#[test]
fn the_command_finds_fence_key_and_table_in_its_environment_and_its_code_is_the_exit_code() {
    let place = Place::new();
    let fences = [(); 2].map(|()| {
        let script = "echo $LOCK_FENCE; echo $LOCK_KEY $LOCK_TABLE_NAME; exit 7";
        let outcome = Process::start(place.shell("job", &[], script)).outcome().expect_code(7);
        let (fence, rest) = outcome.stdout.split_once('\n').unwrap();
        assert_eq!((rest, outcome.stderr.as_str()), (format!("job {}\n", place.table).as_str(), ""));
        fence.parse::<u64>().unwrap()
    });
    assert_eq!(fences[1], fences[0] + 1);
    assert_eq!(place.json("job")["state"], "free");
}

/// The first request that the program sends as this user, whom the environment does not name.
fn request_of(user: Option<u32>) -> Option<String> {
    let (endpoint, requests) = recording_server(&[DENIED]);
    let mut command = at_a_server(&endpoint, &["--", "true"]);
    command.env_remove("USER");
    if let Some(user) = user {
        command.uid(user);
    }
    // Another user may not be allowed to read it.
    command.stdin(Stdio::null()).stderr(Stdio::null()).status().ok()?;
    Some(requests.recv_timeout(PATIENCE).unwrap())
}

#[test]
fn a_user_whom_the_environment_does_not_name_is_looked_up() {
    let name = Command::new("id").arg("-un").output().unwrap();
    if !name.status.success() {
        eprintln!("skipped, because the user who runs the tests has no name");
        return;
    }
    let name = String::from_utf8(name.stdout).unwrap();
    let request = request_of(None).unwrap();
    assert!(request.contains(&format!("\"{}@", name.trim())), "{request}");
}

#[test]
fn a_user_without_a_name_is_a_number() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped, because only root can run a program as a user without a name");
        return;
    }
    let nameless = 2_000_123_456;
    match request_of(Some(nameless)) {
        Some(request) => assert!(request.contains(&format!("\"uid {nameless}@")), "{request}"),
        None => eprintln!("skipped, because another user cannot run the program here"),
    }
}

// behaviours 51, 77
#[test]
fn a_key_that_is_held_ends_it_with_75_and_says_by_whom_and_until_when() {
    let place = Place::new();
    let holder = place.holding("job", &[]);
    let marker = place.file("marker");
    let name = format!("somebody@{} {} sh", rustix::system::uname().nodename().to_str().unwrap(), holder.child.id());
    let until = place.json("job")["until"].as_str().unwrap().to_owned();
    place
        .run(["run", "--key", "job", "--", "touch", &marker])
        .expect_code(75)
        .expect_sentence(&["`job`", &name, &until]);
    assert!(!fs::exists(marker).unwrap());
    // Nor after a wait that was too short.
    let started = Instant::now();
    place.run(["run", "--key", "job", "--wait", "300ms", "--", "true"]).expect_code(75).expect_sentence(&["attempts"]);
    assert!(started.elapsed() >= Duration::from_millis(300));
}

// behaviour 50
#[test]
fn processes_that_wait_for_the_lock_take_turns() {
    let place = Place::new();
    let counter = place.file("counter");
    fs::write(&counter, "0").unwrap();
    let script = format!("n=$(cat {counter}); sleep 0.05; echo $((n + 1)) >{counter}");
    let contenders =
        [(); 6].map(|()| Process::start(place.shell("job", &["--wait", "25s", "--lease", "20s"], &script)));
    for contender in contenders {
        contender.outcome().expect_code(0);
    }
    assert_eq!(fs::read_to_string(counter).unwrap().trim(), "6");
}

// behaviour 58
#[test]
fn a_key_stays_held_for_as_long_as_was_asked_though_the_command_ends_earlier() {
    let place = Place::new();
    place.run(["run", "--key", "job", "--hold-at-least", "2s", "--", "true"]).expect_code(0);
    let held = place.json("job");
    assert_eq!(held["state"], "held");
    place.run(["run", "--key", "job", "--", "true"]).expect_code(75);
    place.run(["run", "--key", "job", "--wait", "10s", "--", "true"]).expect_code(0);
    assert!(place.json("job")["acquired_at"].as_str() >= held["until"].as_str());
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let place = Place::new();
    let script =
        "for s in INT HUP QUIT USR1 USR2; do trap \"echo $s\" $s; done; trap 'echo TERM; exit 9' TERM; echo ready
        while :; do sleep 0.02; done";
    let process = Process::start(place.shell("job", &[], script));
    assert_eq!(process.line(), "ready");
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::TERM, "TERM"),
    ] {
        process.signal(signal);
        assert_eq!(process.line(), name);
    }
    process.outcome().expect_code(9);
    assert_eq!(place.json("job")["state"], "free");
}

#[test]
fn a_signal_that_the_caller_ignored_stays_ignored() {
    let place = Place::new();
    let mut command = bare("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", PROGRAM]);
    place.at_home(&mut command);
    command.args(["run", "--key", "job", "--", "sh", "-c", "echo ready; sleep 0.5; echo survived"]);
    let process = Process::start(command);
    assert_eq!(process.line(), "ready");
    process.signal(Signal::HUP);
    assert_eq!(process.line(), "survived");
    process.outcome().expect_code(0);
}

// behaviours 58, 78
#[test]
fn a_command_is_waited_for_also_if_the_caller_ignores_the_end_of_its_children() {
    let place = Place::new();
    let ignoring = place.ignoring_children();
    for (enabled, state) in [("true", "held"), ("false", "free")] {
        let mut command = bare(&ignoring);
        command.arg(PROGRAM).env("LOCK_ENABLED", enabled);
        place.at_home(&mut command);
        command.args(["run", "--key", enabled, "--hold-at-least", "100s", "--"]);
        command.args(["sh", "-c", "if test -e /proc/self/status; then exec grep SigIgn /proc/self/status; fi"]);
        let outcome = Process::start(command).outcome().expect_code(0);
        // The command, too, can wait for its children.
        let ignored = outcome.stdout.trim().strip_prefix("SigIgn:").unwrap_or("0").trim();
        assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & (1 << (Signal::CHILD.as_raw() - 1)), 0, "{outcome:?}");
        assert_eq!(place.json(enabled)["state"], state);
    }
}

// behaviours 20, 29
#[test]
fn a_command_that_died_of_a_signal_gives_128_and_its_number() {
    let place = Place::new();
    Process::start(place.shell("job", &[], "kill -KILL $$")).outcome().expect_code(128 + 9);
    assert_eq!(place.json("job")["state"], "free");
}

// behaviour 35
#[test]
fn a_signal_ends_the_wait_for_the_lock() {
    const HELD: (u16, &str) = (
        400,
        r#"{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException","message":"The conditional request failed","Item":{"id":{"S":"job"},"status":{"S":"INPROGRESS"},"in_progress_expiration":{"N":"4102444800000"},"expiration":{"N":"4102444800"},"fence":{"N":"17"}}}"#,
    );
    let (endpoint, requests) = recording_server(&[HELD]);
    let mut command = at_a_server(&endpoint, &["--wait", "1h"]);
    command.args(["--", "echo", "ran"]);
    let waiting = Process::start(command);
    // The second attempt: it waits.
    for _ in 0..2 {
        requests.recv_timeout(PATIENCE).unwrap();
    }
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.outcome().expect_code(128 + 15).stdout, "");
}

// behaviour 35
#[test]
fn a_signal_that_comes_before_the_answer_gives_up_the_lock_that_may_have_been_taken() {
    let (endpoint, requests) = recording_server(&[(0, ""), (200, "{}")]);
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "locks", "--endpoint-url", &endpoint, "--", "echo", "ran"]);
    command.envs(credentials());
    let process = Process::start(command);
    assert!(requests.recv_timeout(PATIENCE).unwrap().contains("#lease_end = :lease_end"));
    process.signal(Signal::TERM);
    assert!(requests.recv_timeout(PATIENCE).unwrap().contains("#released = :owner"));
    assert_eq!(process.outcome().expect_code(128 + 15).stdout, "");
}

// behaviour 35
#[test]
fn it_does_not_end_before_its_release_is_answered() {
    let (endpoint, requests) = recording_server(&[(0, ""), (1, "{}")]);
    let mut command = at_a_server(&endpoint, &[]);
    command.args(["--", "echo", "ran"]);
    let process = Process::start(command);
    requests.recv_timeout(PATIENCE).unwrap();
    process.signal(Signal::TERM);
    assert!(requests.recv_timeout(PATIENCE).unwrap().contains("#released = :owner"));
    let asked = Instant::now();
    process.outcome().expect_code(128 + 15);
    assert!(asked.elapsed() + Duration::from_millis(200) >= SLOWLY, "{:?}", asked.elapsed());
}

// behaviour 35
#[test]
fn an_acquire_that_is_never_answered_is_released_before_it_ends() {
    const SILENCE: (u16, &str) = (0, "");
    let (endpoint, requests) = recording_server(&[SILENCE, SILENCE, SILENCE, SILENCE, SILENCE, SILENCE, (1, "{}")]);
    let mut command = at_a_server(&endpoint, &[]);
    command.args(["--", "echo", "ran"]);
    let process = Process::start(command);
    // The attempts of the client.
    for _ in 0..6 {
        assert!(requests.recv_timeout(PATIENCE).unwrap().contains("#fence = if_not_exists(#fence, :now_micros)"));
    }
    assert!(requests.recv_timeout(PATIENCE).unwrap().contains("#released = :owner"));
    let asked = Instant::now();
    process.outcome().expect_code(69).expect_sentence(&["no answer"]).expect_stdout("");
    assert!(asked.elapsed() + Duration::from_millis(200) >= SLOWLY, "{:?}", asked.elapsed());
}

/// What moves the command to a group of its own.
fn movers() -> impl Iterator<Item = &'static [&'static str]> {
    [&["timeout", "100"][..], &["setsid"]].into_iter().filter(|mover| {
        let is_there = Command::new(mover[0]).arg("--version").output().is_ok();
        if !is_there {
            eprintln!("skipped, because there is no {}", mover[0]);
        }
        is_there
    })
}

// behaviour 80
#[test]
fn a_command_that_moves_to_another_group_is_killed_with_its_children_when_the_lease_ends() {
    for mover in movers() {
        let place = Place::new();
        let script = ["sh", "-c", "trap '' TERM; echo on; sleep 100 & sleep 100"];
        let arguments = [&["run", "--key", "job", "--lease", "5s", "--"], mover, &script].concat();
        let process = Process::start(place.command(arguments));
        assert_eq!(process.line(), "on");
        process.silence();
        process.outcome().expect_code(76).expect_sentence(&["lease of 5s ended before the command"]);
    }
}

#[test]
fn a_command_that_moves_to_another_group_gets_its_signals() {
    for mover in movers() {
        let place = Place::new();
        let script = ["sh", "-c", "trap 'echo told; exit 9' TERM; echo on; while :; do sleep 0.02; done"];
        let process = Process::start(place.command([&["run", "--key", "job", "--"], mover, &script].concat()));
        assert_eq!(process.line(), "on");
        process.signal(Signal::TERM);
        assert_eq!(process.line(), "told");
    }
}

#[test]
fn a_command_that_moves_to_another_group_ends_with_its_children_when_it_is_killed() {
    for mover in movers() {
        let place = Place::new();
        let script = ["sh", "-c", "echo on; sleep 100 & sleep 100"];
        let mut process = Process::start(place.command([&["run", "--key", "job", "--"], mover, &script].concat()));
        assert_eq!(process.line(), "on");
        process.child.kill().unwrap();
        process.silence();
    }
}

#[test]
fn a_command_of_another_user_cannot_be_ended_and_that_is_told_once() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped, because only root can make a program that runs as another user");
        return;
    }
    let place = Place::new();
    let nobody = 65_534;
    let all = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(place.folder.path(), all(0o777)).unwrap();
    // As sudo is: it gives up the user that called it. Not copied in this process: another thread's child could have the
    // file open for writing yet when it is to be run.
    let sudo = place.file("sudo");
    let install = Command::new("sh").args(["-c", "install -m 4755 \"$(command -v setpriv)\" \"$0\"", &sudo]).output();
    let as_root = ["--reuid", "0", "--"];
    let user = install
        .unwrap()
        .status
        .success()
        .then(|| Command::new(&sudo).args(as_root).args(["id", "-ru"]).uid(nobody).output().unwrap().stdout);
    if user.as_deref() != Some(b"0\n") || Command::new(PROGRAM).arg("--version").uid(nobody).output().is_err() {
        eprintln!("skipped, because programs do not run as another user here");
        return;
    }
    let mut command = place.command(["run", "--key", "job", "--lease", "3s", "--", &sudo]);
    command.args(as_root).args(["sleep", "6"]).uid(nobody);
    let outcome = Process::start(command).outcome().expect_code(76);
    assert_eq!(outcome.stderr.matches("runs as another user").count(), 1, "{outcome:?}");
    assert!(outcome.stderr.contains("code 0"), "{outcome:?}");
}

// behaviour 58
#[test]
fn a_key_does_not_stay_held_after_a_command_that_failed() {
    let place = Place::new();
    for (code, lease, command) in [
        (3, "100s", &["sh", "-c", "exit 3"][..]),
        (128 + 9, "100s", &["sh", "-c", "kill -KILL $$"]),
        (127, "100s", &["/nonexistent/x"]),
        (126, "100s", &["/etc/passwd"]),
        (76, "1s", &["sleep", "100"]),
    ] {
        let options = ["run", "--key", "job", "--hold-at-least", "200s", "--lease", lease, "--"];
        place.run([&options, command].concat()).expect_code(code);
        assert_eq!(place.json("job")["state"], "free", "{command:?}");
    }
}

// behaviours 57, 80
#[test]
fn when_the_lease_is_about_to_end_the_command_is_told_and_can_clean_up() {
    let place = Place::new();
    let script = "trap 'echo clean; exit 0' TERM; while :; do sleep 0.02; done";
    let outcome = Process::start(place.shell("job", &["--lease", "8s"], script)).outcome();
    assert_eq!(outcome.stdout, "clean\n");
    outcome.expect_code(76).expect_sentence(&["lease of 8s", "`job`", "--renew"]);
    assert_eq!(place.json("job")["state"], "free");
}

// behaviour 80
#[test]
fn when_the_lease_ends_the_command_and_its_children_are_killed() {
    let place = Place::new();
    let started = Instant::now();
    // They ignore SIGTERM. The child has standard output too, so its end is seen there.
    let process =
        Process::start(place.shell("job", &["--lease", "5s"], "trap '' TERM; sleep 100 & echo $!; sleep 100"));
    process.line().parse::<u32>().unwrap();
    process.silence();
    assert!((Duration::from_secs(5)..Duration::from_secs(20)).contains(&started.elapsed()));
    process.outcome().expect_code(76).expect_sentence(&["signal 9"]);
}

#[test]
fn with_renewals_the_command_may_take_longer_than_the_lease() {
    let place = Place::new();
    let process = Process::start(place.shell("job", &["--lease", "5s", "--renew"], "echo on; sleep 7; echo done"));
    assert_eq!(process.line(), "on");
    thread::sleep(Duration::from_millis(5500));
    place.run(["run", "--key", "job", "--", "true"]).expect_code(75);
    let outcome = process.outcome().expect_code(0);
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("done\n", ""));
}

// behaviour 29
#[test]
fn a_release_that_fails_is_told_and_does_not_replace_the_commands_code() {
    let acquired = (200, r#"{"Attributes":{"fence":{"N":"17"}}}"#);
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "locks", "--endpoint-url"]).envs(credentials());
    command.arg(server(Box::leak(Box::new([acquired, DENIED])))).args(["--", "sh", "-c", "exit 7"]);
    let outcome = Process::start(command).outcome().expect_code(7);
    outcome.expect_sentence(&["stays held until its lease ends", "dynamodb:UpdateItem"]);
}

// behaviour 24
#[test]
fn a_renewal_that_fails_is_told_and_the_command_is_ended_with_the_lease() {
    let acquired = (200, r#"{"Attributes":{"fence":{"N":"17"}}}"#);
    let endpoint = server(Box::leak(Box::new([acquired, DENIED])));
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "locks", "--endpoint-url", &endpoint, "--lease", "5s", "--renew"]);
    command.args(["--", "sh", "-c", "echo $LOCK_FENCE; sleep 100"]).envs(credentials());
    let outcome = Process::start(command).outcome().expect_code(76);
    // The answer is the row as it was before.
    assert_eq!(outcome.stdout, "18\n");
    assert!(outcome.stderr.contains("the renewal failed"), "{outcome:?}");
    assert!(outcome.stderr.contains("dynamodb:UpdateItem"), "{outcome:?}");
}

#[test]
fn a_renewal_that_finds_the_lock_lost_ends_the_command() {
    let place = Place::new();
    let process = place.holding("job", &["--lease", "3s", "--renew"]);
    place.run(["release", "job", "--fence", &place.fence("job").to_string()]).expect_code(0);
    let outcome = process.outcome().expect_code(76).expect_sentence(&["released by somebody@", "was ended"]);
    assert_eq!(outcome.stdout, "");
}

#[test]
fn a_command_has_no_time_to_clean_up_once_someone_else_may_have_the_key() {
    let place = Place::new();
    let script = "trap 'echo told; sleep 1; echo late' TERM; echo on; while :; do sleep 0.02; done";
    let process = Process::start(place.shell("job", &["--lease", "15s", "--renew"], script));
    assert_eq!(process.line(), "on");
    place.run(["release", "job", "--force", "--yes"]).expect_code(0);
    process.outcome().expect_code(76).expect_sentence(&["signal 9"]).expect_stdout("told\n");
}

// behaviours 42, 56
#[test]
fn when_it_is_killed_the_command_ends_at_once_and_the_key_is_free_when_the_lease_has_ended_and_not_before() {
    let place = Place::new();
    let mut process =
        Process::start(place.shell("job", &["--lease", "6s"], "sleep 100 & echo $!; sleep 100; echo done"));
    process.line();
    let held = place.json("job");
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    assert_eq!(process.silence(), [""; 0]);
    assert_eq!(place.json("job")["state"], "held");
    place.run(["run", "--key", "job", "--wait", "20s", "--", "true"]).expect_code(0);
    assert!(place.json("job")["acquired_at"].as_str() >= held["until"].as_str());
}

/// The process that guards the command.
#[cfg(target_os = "linux")]
fn guard_of(process: &Process) -> Pid {
    let is_guard = |pid: &&str| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().contains("__guard");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", process.child.id())).unwrap();
    Pid::from_raw(children.split_whitespace().find(is_guard).unwrap().parse().unwrap()).unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn when_all_processes_of_it_are_killed_at_once_the_command_ends_too() {
    let place = Place::new();
    let mut process = Process::start(place.shell("job", &[], "echo on; exec sleep 100"));
    assert_eq!(process.line(), "on");
    kill_process(guard_of(&process), Signal::KILL).unwrap();
    process.child.kill().unwrap();
    process.silence();
}

#[cfg(target_os = "linux")]
#[test]
fn when_its_guard_is_killed_the_command_is_ended() {
    let place = Place::new();
    let process =
        Process::start(place.shell("job", &[], "trap 'echo told; exit 5' TERM; echo on; while :; do sleep 0.02; done"));
    assert_eq!(process.line(), "on");
    kill_process(guard_of(&process), Signal::KILL).unwrap();
    process.outcome().expect_code(74).expect_sentence(&["guards", "code 5"]).expect_stdout("told\n");
    assert_eq!(place.json("job")["state"], "free");
}

#[test]
fn when_it_is_stopped_the_command_does_not_outlive_the_lease() {
    // Also one that stops its group, as the terminal does when it is read in the background.
    for script in ["echo on; sleep 100", "echo on; kill -TTIN 0; sleep 100"] {
        let place = Place::new();
        let process = Process::start(place.shell("job", &["--lease", "5s", "--renew"], script));
        assert_eq!(process.line(), "on");
        process.signal(Signal::STOP);
        // The program itself still has its standard output, so a look at the command's process tells.
        let until = Instant::now() + PATIENCE;
        let children = format!("/proc/{0}/task/{0}/children", process.child.id());
        if fs::exists(&children).unwrap() {
            let alive =
                |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
            let started = fs::read_to_string(&children).unwrap();
            assert_eq!(started.split_whitespace().filter(|pid| alive(pid)).count(), 2, "the guard and the command");
            while started.split_whitespace().any(alive) {
                assert!(Instant::now() < until, "the command runs without a lock");
                thread::sleep(Duration::from_millis(20));
            }
        }
        process.signal(Signal::CONT);
        assert_eq!(process.outcome().expect_code(76).stdout, "");
    }
}

#[test]
fn a_lease_is_not_renewed_while_the_command_is_stopped() {
    let place = Place::new();
    let process =
        Process::start(place.shell("job", &["--lease", "6s", "--renew"], "echo on; kill -STOP $$; sleep 100"));
    assert_eq!(process.line(), "on");
    let outcome = process.outcome().expect_code(76);
    assert_eq!(outcome.stderr.matches("not renewed while the command is stopped").count(), 1, "{outcome:?}");
}

#[test]
fn a_command_that_cannot_be_run_gives_126_and_one_that_is_not_found_127_and_the_key_is_free() {
    let place = Place::new();
    place
        .run(["run", "--key", "job", "--", "/nonexistent/x"])
        .expect_code(127)
        .expect_sentence(&["`/nonexistent/x`", "PATH"]);
    place.run(["run", "--key", "job", "--", "/etc/passwd"]).expect_code(126).expect_sentence(&["`/etc/passwd`"]);
    assert_eq!(place.json("job")["state"], "free");
}

// behaviour 22
#[test]
fn switched_off_it_runs_the_command_without_a_lock_and_warns_once() {
    let place = Place::new();
    let _holder = place.holding("job", &[]);
    let mut command = place.shell("job", &[], "echo fence $LOCK_FENCE; exit 4");
    let outcome = Process::start({
        command.env("LOCK_ENABLED", "false");
        command
    });
    let outcome = outcome.outcome().expect_code(4).expect_sentence(&["LOCK_ENABLED", "without a lock"]);
    assert_eq!(outcome.stdout, "fence 0\n");
}

// behaviours 37, 47
#[test]
fn a_wrong_variable_is_named_with_its_value_and_the_way_out() {
    let place = Place::new();
    for (name, value, way_out) in [
        ("LOCK_ENABLED", "yes", "`true`"),
        ("LOCK_LEASE", "soon", "30s"),
        ("LOCK_LEASE", "25h", "1day"),
        ("LOCK_CLOCK_SKEW", "6m", "5m"),
        ("LOCK_TABLE_NAME", "a b", "3 to 255"),
    ] {
        let mut command = place.command(["run", "--key", "job", "--", "true"]);
        command.env(name, value);
        let outcome = Process::start(command).outcome().expect_code(78).expect_sentence(&[value, way_out]);
        assert!(name == "LOCK_TABLE_NAME" || outcome.stderr.contains(name), "{outcome:?}");
    }
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--", "true"]).env("LOCK_TABLE_NAME", "");
    Process::start(command).outcome().expect_code(78).expect_sentence(&["--table", "LOCK_TABLE_NAME"]);
}

// behaviour 47
#[test]
fn a_wrong_argument_gives_2_and_names_value_and_bound() {
    let place = Place::new();
    for (arguments, parts) in [
        (&["run", "--key", "job", "--lease", "25h", "--", "true"][..], ["25h", "1day"]),
        (&["run", "--key", "job", "--lease", "0s", "--", "true"], ["0s", "1ms"]),
        (&["run", "--key", "job", "--wait", "soon", "--", "true"], ["soon", "30s"]),
        (&["run", "--key", "", "--", "true"], ["--key", "--help"]),
        (&["run", "--key", "job"], ["COMMAND", "--help"]),
        (&["create-table", "--provisioned", "0,5"], ["0,5", "from 1"]),
        (&["create-table", "--tag", "billing"], ["billing", "name=value"]),
        (&["list", "--limit", "0"], ["0", "1.."]),
        (&["release", "job"], ["--fence", "--force"]),
    ] {
        let outcome = place.run(arguments).expect_code(2);
        assert!(parts.iter().all(|part| outcome.stderr.contains(part)), "{outcome:?}");
    }
}

// behaviour 25
#[test]
fn keys_are_listed_with_their_states_and_without_what_holders_left() {
    let place = Place::new();
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let number = |number: u64| AttributeValue::N(number.to_string());
    place.run(["run", "--key", "free", "--", "true"]).expect_code(0);
    place.holding("expired", &["--lease", "500ms"]);
    let _holder = place.holding("held", &["--holder", DECEPTIVE]);
    let soon = 4_102_444_800;
    let completed = [("id", text("completed")), ("status", text("COMPLETED")), ("expiration", number(soon))];
    place.put(&[&completed[..], &[("data", text("\"secret\""))]].concat());
    place.put(&[("id", text("malformed")), ("status", text("INPROGRESS")), ("in_progress_expiration", text("secret"))]);
    let until = Instant::now() + PATIENCE;
    while place.json("expired")["state"] == "held" {
        assert!(Instant::now() < until);
    }

    let rows = ["completed", "expired", "free", "held", "malformed"];
    let table = place.run(["list"]).expect_code(0);
    let first_words: Vec<Vec<_>> = table.stdout.lines().map(|line| line.split_whitespace().take(2).collect()).collect();
    let states = rows.map(|name| vec![name, name]);
    assert_eq!(first_words[0], ["KEY", "STATE"]);
    assert_eq!(&first_words[1..], states);
    assert!(table.stdout.contains(&made_visible(DECEPTIVE)), "{table:?}");

    let lines = place.run(["list", "--json"]).expect_code(0);
    let objects: Vec<Value> = lines.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.iter().map(|object| object["state"].as_str().unwrap()).collect::<Vec<_>>(), rows);
    let held = &objects[3];
    assert_eq!((held["holder"].as_str(), &held["fence"]), (Some(DECEPTIVE), &place.json("held")["fence"]));
    assert!(lines.stdout.contains(r"me\u001b[2J\n\u009b\u007f\u202e\u2066"), "{lines:?}");
    // Beyond 16 bits JSON has two escapes for a character.
    assert!(lines.stdout.contains(r"\ufe0f\udb40\udc41"), "{lines:?}");
    assert_eq!(made_visible(&lines.stdout).replace('\u{fffd}', "\n"), lines.stdout);
    assert!((0.0..=30.1).contains(&held["remaining_seconds"].as_f64().unwrap()));
    assert!(objects[4]["error"].as_str().unwrap().contains("not a lock row"));
    assert!(!table.stdout.contains("secret") && !lines.stdout.contains("secret"));

    let only_held = place.run(["list", "--held", "--json"]).expect_code(0);
    assert_eq!((only_held.stdout.lines().count(), only_held.stderr.as_str()), (1, ""));
    let limited =
        place.run(["list", "--limit", "4", "--json"]).expect_code(0).expect_sentence(&["more than 4", "--limit"]);
    assert_eq!(limited.stdout.lines().count(), 4);
    assert_eq!(place.run(["list", "--limit", "5"]).expect_code(0).stderr, "");
}

#[test]
fn what_others_wrote_does_not_steer_the_terminal_from_the_log_either() {
    let place = Place::new();
    let _holder = place.holding("job", &["--holder", DECEPTIVE]);
    let mut command = place.command(["run", "--key", "job", "--", "true"]);
    command.env("RUST_LOG", "lambda_lock=trace");
    let log = Process::start(command).outcome().expect_code(75).stderr;
    let mut of_the_lock = log.lines().filter(|line| line.contains(" lambda_lock::"));
    assert!(of_the_lock.any(|line| line.contains(&made_visible(DECEPTIVE))), "{log}");
    assert_eq!(log, log.lines().map(|line| made_visible(line) + "\n").collect::<String>());
}

#[test]
fn a_page_that_is_throttled_is_asked_for_again() {
    const THROTTLED: (u16, &str) = (
        400,
        r#"{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException","message":"too many"}"#,
    );
    const PAGE: (u16, &str) = (
        200,
        r#"{"Items":[{"id":{"S":"job"},"status":{"S":"INPROGRESS"},"in_progress_expiration":{"N":"1"}}],"Count":1,"ScannedCount":1}"#,
    );
    for (answers, code) in [(&[THROTTLED, THROTTLED, THROTTLED, THROTTLED, PAGE][..], 0), (&[THROTTLED], 69)] {
        let mut command = bare(PROGRAM);
        command.args(["list", "--table", "locks", "--endpoint-url", &server(answers)]).envs(credentials());
        let outcome = Process::start(command).outcome().expect_code(code);
        assert_eq!(outcome.stdout.lines().any(|line| line.starts_with("job ")), code == 0, "{outcome:?}");
    }
}

// behaviour 26
#[test]
fn keys_of_another_prefix_are_not_listed() {
    let place = Place::new();
    for prefix in ["one#", "other#"] {
        place.run(["run", "--key-prefix", prefix, "--key", prefix.trim_end_matches('#'), "--", "true"]).expect_code(0);
    }
    let mut command = place.command(["list", "--json"]);
    command.env("LOCK_KEY_PREFIX", "one#");
    let lines = Process::start(command).outcome().expect_code(0).stdout;
    assert_eq!(serde_json::from_str::<Value>(lines.trim()).unwrap()["key"], "one");
}

// behaviours 25, 41
#[test]
fn a_key_that_nobody_has_held_is_free() {
    let place = Place::new();
    assert_eq!(place.json("job"), serde_json::json!({ "key": "job", "state": "free" }));
    let table = place.run(["get", "job"]).expect_code(0).stdout;
    assert_eq!(table.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>(), ["job", "free"]);
}

// behaviours 44, 49
#[test]
fn a_key_is_released_by_its_fence_and_its_holder_learns_of_it() {
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
fn a_key_is_released_by_force_only_after_a_yes() {
    let place = Place::new();
    let _holder = place.holding("job", &[]);
    place.run(["release", "job", "--force"]).expect_code(2).expect_sentence(&["--yes", "--fence"]);
    assert_eq!(place.json("job")["state"], "held");
    place.run(["release", "job", "--force", "--yes"]).expect_code(0);
    assert_eq!(place.json("job")["state"], "free");
    assert!(place.run(["release", "other", "--force", "--yes"]).expect_code(0).stdout.contains("already free"));
}

#[test]
fn watching_shows_the_keys_again_and_again_until_it_is_interrupted() {
    let place = Place::new();
    for keys in [&["job"][..], &[]] {
        let _holder = place.holding("job", &["--wait", "10s"]);
        let process = Process::start(place.command([&["watch", "--interval", "200ms"], keys].concat()));
        let mut times = Vec::new();
        for _ in 0..2 {
            times.push(process.line());
            assert!(process.line().starts_with("KEY "));
            assert!(process.line().starts_with("job  held "));
            assert_eq!(process.line(), "");
        }
        assert!(times.iter().all(|time| time.starts_with("20") && time.ends_with('Z')), "{times:?}");
        process.signal(Signal::INT);
        assert_eq!(process.outcome().expect_code(0).stderr, "");
        place.run(["release", "job", "--force", "--yes"]).expect_code(0);
    }
}

/// The program at a terminal, with what is typed there.
fn at_a_terminal(place: &Place, arguments: &[&str]) -> Option<(Process, ChildStdin)> {
    at_a_terminal_with(place, arguments, "")
}

fn at_a_terminal_with(place: &Place, arguments: &[&str], redirection: &str) -> Option<(Process, ChildStdin)> {
    let script = Command::new("script").arg("--version").output();
    if !script.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("util-linux")) {
        eprintln!("skipped, because there is no script(1) of util-linux, which makes a terminal");
        return None;
    }
    let command = place.command(arguments);
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let quoted: Vec<_> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let mut terminal = bare("script");
    terminal.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    terminal
        .args(["--quiet", "--return", "--command", &format!("exec {} {redirection}", quoted.join(" ")), "/dev/null"])
        .stdin(Stdio::piped());
    let mut process = Process::with_input(terminal);
    let input = process.child.stdin.take().unwrap();
    Some((process, input))
}

#[test]
fn at_a_terminal_the_command_can_read_from_it_and_is_interrupted_once() {
    let place = Place::new();
    let script = "trap \"echo interrupted\" INT; echo ready; until read line; do :; done; echo got $line; exit 3";
    let arguments = ["run", "--key", "job", "--", "sh", "-c", script];
    let Some((process, mut input)) = at_a_terminal(&place, &arguments) else { return };
    let line = || process.line().trim().replace("^C", "");
    assert_eq!(line(), "ready");
    // It is reading when the interruption comes, so that two would be told apart.
    thread::sleep(Duration::from_millis(300));
    input.write_all(b"\x03").unwrap();
    assert_eq!(line(), "interrupted");
    // Time for a second one, which there shall not be.
    thread::sleep(Duration::from_millis(300));
    input.write_all(b"hello\n").unwrap();
    assert_eq!(line(), "hello", "the terminal's echo");
    assert_eq!(line(), "got hello");
    let outcome = process.outcome().expect_code(3);
    assert!(!outcome.stdout.contains("interrupted"), "{outcome:?}");
}

#[test]
fn at_a_terminal_a_command_that_moves_to_another_group_is_interrupted_too() {
    for mover in movers() {
        let place = Place::new();
        let script = ["sh", "-c", "trap \"echo interrupted; exit 3\" INT; echo on; while :; do sleep 0.02; done"];
        let arguments = [&["run", "--key", "job", "--"], mover, &script].concat();
        let Some((process, mut input)) = at_a_terminal(&place, &arguments) else { return };
        assert_eq!(process.line().trim(), "on");
        input.write_all(b"\x03").unwrap();
        assert_eq!(process.line().trim().replace("^C", ""), "interrupted");
    }
}

#[test]
fn at_a_terminal_too_the_command_is_killed_when_the_lease_ends() {
    let place = Place::new();
    let script = "trap \"\" TERM; echo on; exec sleep 100";
    let arguments = ["run", "--key", "job", "--lease", "5s", "--", "sh", "-c", script];
    let Some((process, _input)) = at_a_terminal(&place, &arguments) else { return };
    assert_eq!(process.line().trim(), "on");
    let outcome = process.outcome().expect_code(76);
    assert!(outcome.stdout.contains("signal 9"), "{outcome:?}");
}

#[test]
fn a_command_that_asks_at_the_terminal_in_the_background_is_ended_with_the_lease() {
    let place = Place::new();
    let script = "echo on; read line </dev/tty; echo never";
    let arguments = ["run", "--key", "job", "--lease", "6s", "--renew", "--", "sh", "-c", script];
    let Some((process, _input)) = at_a_terminal_with(&place, &arguments, "</dev/null") else { return };
    assert_eq!(process.line().trim(), "on");
    let outcome = process.outcome().expect_code(76);
    assert!(outcome.stdout.contains("while the command is stopped"), "{outcome:?}");
    assert!(!outcome.stdout.contains("never"), "{outcome:?}");
}

#[test]
fn at_a_terminal_it_asks_before_it_releases_by_force() {
    let place = Place::new();
    let _holder = place.holding("job", &[]);
    for (answer, code, state) in [("n\n", 75, "held"), ("\n", 75, "held"), ("y\n", 0, "free")] {
        let Some((process, mut input)) = at_a_terminal(&place, &["release", "job", "--force"]) else { return };
        assert!(process.line().contains("is held by somebody@"));
        input.write_all(answer.as_bytes()).unwrap();
        process.outcome().expect_code(code);
        assert_eq!(place.json("job")["state"], state);
    }
}

#[test]
fn a_reader_that_has_gone_ends_it_quietly() {
    let place = Place::new();
    let mut command = place.command(["list"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
}

// behaviour 45
#[test]
fn a_table_can_be_created_twice() {
    let place = Place::new();
    for arguments in [&["create-table", "--tag", "team=billing"][..], &["create-table", "--provisioned", "1,1"]] {
        let outcome = place.run([&["--table", &format!("{}-new", place.table)], arguments].concat()).expect_code(0);
        assert!(outcome.stdout.contains("is ready"), "{outcome:?}");
    }
}

// behaviour 39
#[test]
fn a_check_passes_on_a_table_as_it_was_created_and_fails_on_one_with_other_keys() {
    let place = Place::new();
    place.run(["run", "--key", "job", "--", "true"]).expect_code(0);
    let healthy = place.run(["check"]).expect_code(0);
    assert!(healthy.stdout.contains("passed") && !healthy.stdout.contains("failed"), "{healthy:?}");
    let broken = place.run(["check", "--partition-key", "other"]).expect_code(78).expect_sentence(&[&place.table]);
    assert!(broken.stdout.contains("failed"), "{broken:?}");
}

#[test]
fn a_missing_table_gives_78_and_the_way_out() {
    const MISSING: (u16, &str) = (
        400,
        r#"{"__type":"com.amazonaws.dynamodb.v20120810#ResourceNotFoundException","message":"Requested resource not found"}"#,
    );
    let endpoint = std::env::var("LOCK_TEST_ENDPOINT").unwrap_or_else(|_| server(&[MISSING]));
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "nowhere", "--", "true"]).envs(credentials());
    command.env("AWS_ENDPOINT_URL", endpoint);
    Process::start(command).outcome().expect_code(78).expect_sentence(&["`nowhere`", "lambda-lock create-table"]);
}

#[test]
fn denied_access_gives_78_and_names_the_action() {
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "locks", "--endpoint-url", &server(&[DENIED]), "--", "true"]);
    let outcome = Process::start({
        command.envs(credentials());
        command
    });
    outcome
        .outcome()
        .expect_code(78)
        .expect_sentence(&["not authorized to perform: dynamodb:UpdateItem", "table/locks"]);
}

#[test]
fn without_a_network_it_gives_69_in_bounded_time() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "locks", "--", "true"]).envs(credentials());
    command.env("AWS_ENDPOINT_URL", format!("http://{closed}"));
    let started = Instant::now();
    Process::start(command).outcome().expect_code(69).expect_sentence(&["no answer", "`locks`", "refused"]);
    assert!(started.elapsed() < Duration::from_secs(15));
}

// behaviour 37
#[test]
fn what_has_to_be_set_is_named() {
    let without = |missing: &str, endpoint: &str| {
        let mut command = bare(PROGRAM);
        command.args(["get", "job", "--table", "locks"]).env("AWS_ENDPOINT_URL", endpoint);
        command.envs(credentials().into_iter().filter(|(name, _)| *name != missing));
        Process::start(command).outcome().expect_code(78)
    };
    without("AWS_REGION", "http://127.0.0.1:1").expect_sentence(&["no region", "--region", "AWS_REGION"]);
    without("AWS_ACCESS_KEY_ID", "http://127.0.0.1:1").expect_sentence(&["credentials"]);
    for endpoint in ["localhost:8000", "ftp://localhost", "nonsense"] {
        without("", endpoint).expect_sentence(&["AWS_ENDPOINT_URL", endpoint, "http://localhost:8000"]);
    }
}

#[test]
fn a_profile_that_is_named_goes_before_the_credentials_in_the_environment() {
    let place = Place::new();
    let config = place.file("config");
    fs::write(&config, "[profile other]\naws_access_key_id = OTHER\naws_secret_access_key = other\n").unwrap();
    let (endpoint, requests) = recording_server(&[DENIED]);
    let get = |profile| {
        let mut command = bare(PROGRAM);
        command.args(["get", "job", "--table", "locks", "--profile", profile, "--endpoint-url", &endpoint]);
        command.envs(credentials()).env("AWS_CONFIG_FILE", &config);
        Process::start(command).outcome().expect_code(78)
    };
    get("other").expect_sentence(&["access denied"]);
    assert!(requests.recv_timeout(PATIENCE).unwrap().contains("Credential=OTHER/"));
    get("nobody").expect_sentence(&["`nobody`", "credentials", "~/.aws/config"]);
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = Process::start({
            let mut command = bare(PROGRAM);
            command.args(["completions", shell]);
            command
        });
        let script = script.outcome().expect_code(0).stdout;
        for name in ["run", "list", "create-table", "hold-at-least"] {
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
}

#[test]
fn the_manual_page_has_all_sections_and_no_mistakes() {
    let place = Place::new();
    let mut command = bare(PROGRAM);
    command.arg("man");
    let page = Process::start(command).outcome().expect_code(0).stdout;
    for part in [".SH COMMANDS", ".SS create-table", ".SH \"EXIT STATUS\"", ".SH ENVIRONMENT", ".SH EXAMPLES"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let file = place.file("lambda-lock.1");
    fs::write(&file, &page).unwrap();
    for linter in [&["mandoc", "-T", "lint", "-W", "error"][..], &["man", "--warnings", "-l", "-Tutf8"]] {
        let Ok(output) = Command::new(linter[0]).args(&linter[1..]).arg(&file).stdin(Stdio::null()).output() else {
            eprintln!("skipped, because there is no {}", linter[0]);
            continue;
        };
        let found = [output.stderr, if linter[0] == "mandoc" { output.stdout } else { Vec::new() }].concat();
        assert_eq!(String::from_utf8(found).unwrap(), "", "{}", linter[0]);
    }
}

/// The program with a clock that is two minutes ahead, if there is something to set it with.
fn ahead(place: &Place, arguments: &[&str]) -> Option<Command> {
    if Command::new("faketime").arg("--version").output().is_err() {
        assert!(std::env::var_os("LOCK_TEST_FAKETIME").is_none(), "faketime is not installed");
        eprintln!("skipped, because faketime is not installed");
        return None;
    }
    let mut command = bare("faketime");
    command.args(["-f", "+120s", PROGRAM]).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    place.at_home(&mut command);
    command.args(arguments);
    Some(command)
}

#[test]
fn a_wrong_clock_takes_nobodys_key_as_long_as_it_is_within_the_skew() {
    let place = Place::new();
    let Some(mut wary) = ahead(&place, &["run", "--key", "wary", "--", "true"]) else { return };
    let _holder = place.holding("wary", &["--clock-skew", "3m"]);
    wary.env("LOCK_CLOCK_SKEW", "3m");
    Process::start(wary).outcome().expect_code(75);
    // The clock is wrong indeed: beyond the skew, it is too late for the key.
    let _holder = place.holding("bold", &[]);
    let bold = ahead(&place, &["run", "--key", "bold", "--", "true"]).unwrap();
    Process::start(bold).outcome().expect_code(0);
}

// behaviour 39
#[test]
fn a_check_sees_a_wrong_clock() {
    let place = Place::new();
    let Some(check) = ahead(&place, &["check"]) else { return };
    if place.endpoint.is_none() {
        // The embedded engine has the clock of the process.
        eprintln!("skipped, because it needs a DynamoDB with a clock of its own: set LOCK_TEST_ENDPOINT");
        return;
    }
    let outcome = Process::start(check).outcome().expect_code(78);
    assert!(outcome.stdout.lines().any(|line| line.starts_with("failed  clock")), "{outcome:?}");
}
