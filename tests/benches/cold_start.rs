//! The time that `LockLayer` adds to a cold start, and to an environment of 64 invocations at a time. With the argument
//! `concurrent`, only the second. With the argument `builds`, a cold start of the layer in three builds, beside the bare SDK
//! as people build it: with the randomness that aws-lc collects from the CPU's jitter, without it as in the templates, and
//! with ring. With the argument `instructions`, how many instructions a cold start takes without TLS, which valgrind counts.
//!
//! Compares two functions of `tests/cold-start`: one locks with two hand-written updates, the other with the layer. They
//! are built as users build them, and start in turns as processes. The benchmark itself serves the Runtime API, and a
//! DynamoDB with prepared answers, on loopback.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use lambda_lock_tests::median;
use lambda_lock_tests::runtime_api::Lambda;
use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, version};

/// The names of the binaries: the bare SDK, and the layer.
const SIDES: [&str; 2] = ["cold-start-bare", "cold-start-locked"];
/// The argument that makes a function warm up.
const WARM_UP: &str = "warm-up";
const FIGURES: [(&str, &str); 5] =
    [("init", "ms"), ("first invocation", "ms"), ("CPU", "ms"), ("peak memory", "MiB"), ("page faults", "")];
/// The part of the path for which DynamoDB takes its time.
const CONCURRENT: &str = "concurrent";
/// The argument that compares builds.
const BUILDS: &str = "builds";
/// The argument that counts instructions.
const INSTRUCTIONS: &str = "instructions";
/// That time.
const LATENCY: Duration = Duration::from_millis(5);
/// How many invocations an environment runs at a time, and how many it gets in all.
const AT_A_TIME: usize = 64;
const INVOCATIONS: usize = 6_400;
/// The share of a CPU that a function with 256 MB gets. A function with 1,769 MB gets one CPU.
const SMALL: f64 = 256.0 / 1_769.0;

fn main() {
    // `cargo test` runs benchmarks with `--test`: then two pairs are enough.
    let pairs = if env::args().any(|argument| argument == "--test") { 2 } else { 100 };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    if env::args().any(|argument| argument == BUILDS) {
        return runtime.block_on(print_builds(pairs));
    }
    let programs = build("", None, "");
    if env::args().any(|argument| argument == INSTRUCTIONS) {
        return runtime.block_on(print_instructions(&programs));
    }
    runtime.block_on(print_concurrent(&programs, pairs.min(20)));
    if env::args().any(|argument| argument == CONCURRENT) {
        return;
    }
    let sizes = programs.each_ref().map(|program| mebibytes(fs::metadata(program).unwrap().len()));
    println!("size, stripped: {:.2} and {:.2} MiB, ratio {:.3}\n", sizes[0], sizes[1], sizes[1] / sizes[0]);
    print_head(pairs);
    let share = CpuShare::new();
    runtime.block_on(async {
        let [plain, tls] = [DynamoDb::start(false).await, DynamoDb::start(true).await];
        for (name, dynamodb, warm_up, share) in [
            ("HTTP", &plain, false, None),
            ("HTTP, warm-up", &plain, true, None),
            ("TLS", &tls, false, None),
            ("TLS, warm-up", &tls, true, None),
            ("TLS, 256 MB", &tls, false, Some(&share)),
            ("TLS, warm-up, 256 MB", &tls, true, Some(&share)),
        ] {
            let share = match share {
                None => None,
                Some(Ok(share)) => Some(share),
                Some(Err(why)) => {
                    println!("{name:<34}skipped: {why}");
                    continue;
                }
            };
            print_row(name, &programs, &Setting { dynamodb, warm_up, share }, pairs).await;
        }
    });
}

/// Prints what the cold starts of three builds cost, each beside the bare SDK as people build it.
async fn print_builds(pairs: usize) {
    let builds = [
        ("with jitter", build("cold-start-jitter", Some(("AWS_LC_SYS_NO_JITTER_ENTROPY", "0")), "")),
        ("without jitter", build("", None, "")),
        ("ring", build("cold-start-ring", None, "ring")),
    ];
    let bare = builds[0].1[0].clone();
    print_head(pairs);
    let (dynamodb, share) = (DynamoDb::start(true).await, CpuShare::new().unwrap());
    for (size, share) in [("one CPU", None), ("256 MB", Some(&share))] {
        for (name, [_, locked]) in &builds {
            let setting = Setting { dynamodb: &dynamodb, warm_up: false, share };
            print_row(&format!("TLS, {size}, {name}"), &[bare.clone(), locked.clone()], &setting, pairs).await;
        }
    }
}

/// Builds the functions in the release profile, with only the features that a user enables, in a part of the target folder.
fn build(part: &str, variable: Option<(&str, &str)>, features: &str) -> [PathBuf; 2] {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--package", "lambda-lock-cold-start", "--features", features]);
    // `target/…/deps/cold_start-…`
    let here = env::current_exe().unwrap();
    let target = here.ancestors().nth(3).unwrap().join(part);
    cargo.arg("--target-dir").arg(&target).envs(variable);
    assert!(cargo.status().unwrap().success());
    SIDES.map(|side| target.join("release").join(side))
}

fn print_head(pairs: usize) {
    println!("\ncold starts, in turns, {pairs} each: medians, and the medians of the pairs' ratios");
    println!("{:<34}{}", "", FIGURES.map(|(name, unit)| format!("{:^30}", format!("{name} {unit}"))).concat());
    println!("{:<34}{}", "", format!("{:>10}{:>10}{:>7}   ", "bare", "layer", "ratio").repeat(FIGURES.len()));
}

/// The conditions under which the functions of a row start.
struct Setting<'a> {
    dynamodb: &'a DynamoDb,
    warm_up: bool,
    share: Option<&'a CpuShare>,
}

async fn print_row(name: &str, programs: &[PathBuf; 2], setting: &Setting<'_>, pairs: usize) {
    // By figure and side.
    let mut measured = [(); FIGURES.len()].map(|()| [(); 2].map(|()| Vec::new()));
    for pair in 0..pairs {
        // The side that goes first alternates too.
        for side in [pair % 2, 1 - pair % 2] {
            let figures = cold_start(&programs[side], SIDES[side], setting).await;
            for (measured, figure) in measured.iter_mut().zip(figures) {
                measured[side].push(figure);
            }
        }
    }
    print!("{name:<34}");
    for [bare, layer] in measured {
        let ratio = median(layer.iter().zip(&bare).map(|(layer, bare)| layer / bare).collect());
        print!("{:>10.2}{:>10.2}{ratio:>7.3}   ", median(bare), median(layer));
    }
    println!();
}

/// Prints what the invocations of an environment cost that runs many at a time, as on Managed Instances.
async fn print_concurrent(programs: &[PathBuf; 2], pairs: usize) {
    println!(
        "\n{AT_A_TIME} invocations at a time, {INVOCATIONS} in all, in turns, {pairs} times each: medians, and the"
    );
    println!("medians of the pairs' ratios\n{:<34}{:>10}{:>10}{:>7}", "", "bare", "layer", "ratio");
    let dynamodb = DynamoDb::start(false).await;
    let mut measured = [(); 3].map(|()| [(); 2].map(|()| Vec::new()));
    for pair in 0..pairs {
        for side in [pair % 2, 1 - pair % 2] {
            let figures = concurrent(&programs[side], SIDES[side], &dynamodb).await;
            for (measured, figure) in measured.iter_mut().zip(figures) {
                measured[side].push(figure);
            }
        }
    }
    for (name, [bare, layer]) in ["time, s", "CPU, µs for an invocation", "peak memory, MiB"].iter().zip(measured) {
        let ratio = median(layer.iter().zip(&bare).map(|(layer, bare)| layer / bare).collect());
        println!("{name:<34}{:>10.2}{:>10.2}{ratio:>7.3}", median(bare), median(layer));
    }
}

/// One process that runs many invocations at a time, with one client.
async fn concurrent(program: &Path, side: &str, dynamodb: &DynamoDb) -> [f64; 3] {
    let mut lambda = Lambda::start().await;
    let mut command = lambda.environment(program);
    dynamodb.at_home(&mut command, &format!("{side}/{CONCURRENT}"));
    let function = command.env("AWS_LAMBDA_MAX_CONCURRENCY", AT_A_TIME.to_string()).spawn().unwrap();
    let id = function.id().unwrap();
    lambda.asked().await;
    let (start, cpu) = (clock(), cpu_time(id));
    for invocation in 0..INVOCATIONS {
        lambda.send(&invocation.to_string(), json!({}));
    }
    for _ in 0..INVOCATIONS {
        lambda.next_outcome().await.1.answer();
    }
    let (time, cpu) = (start.elapsed().as_secs_f64(), cpu_time(id).saturating_sub(cpu));
    #[expect(clippy::cast_precision_loss, reason = "the number is small")]
    [time, cpu.as_secs_f64() * 1e6 / INVOCATIONS as f64, peak_memory(id)]
}

/// Prints how many instructions a cold start takes, without a warm-up.
async fn print_instructions(programs: &[PathBuf; 2]) {
    let dynamodb = DynamoDb::start(false).await;
    let bare = instructions(&programs[0], SIDES[0], &dynamodb).await;
    let layer = instructions(&programs[1], SIDES[1], &dynamodb).await;
    println!("instructions, in millions: {bare:.2} and {layer:.2}, ratio {:.3}", layer / bare);
}

/// Counts the instructions of one process, from its start to the end of its first invocation, in millions.
async fn instructions(program: &Path, side: &str, dynamodb: &DynamoDb) -> f64 {
    let mut lambda = Lambda::start().await;
    let mut command = lambda.environment("valgrind");
    dynamodb.at_home(&mut command, side);
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program).stderr(Stdio::piped());
    let function = command.spawn().expect("valgrind");
    lambda.asked().await;
    lambda.invoke("first", json!({})).await.answer();
    kill(Pid::from_raw(function.id().unwrap().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let report = String::from_utf8(function.wait_with_output().await.unwrap().stderr).unwrap();
    let collected = report.lines().find_map(|line| line.split_once("Collected : "));
    let (_, collected) = collected.unwrap_or_else(|| panic!("valgrind does not say how many it counted: {report}"));
    collected.trim().parse::<f64>().unwrap() / 1e6
}

/// Returns the CPU time of a process.
fn cpu_time(pid: u32) -> Duration {
    let pid = Pid::from_raw(pid.try_into().unwrap());
    Duration::from(clock_gettime(clock_getcpuclockid(pid).unwrap()).unwrap())
}

/// One process, from its start to the end of its first invocation.
async fn cold_start(program: &Path, side: &str, setting: &Setting<'_>) -> [f64; FIGURES.len()] {
    let mut lambda = Lambda::start().await;
    let mut command = lambda.environment(program);
    if setting.warm_up {
        setting.dynamodb.at_home(&mut command, &format!("{side}/{WARM_UP}"));
        command.arg(WARM_UP);
    } else {
        setting.dynamodb.at_home(&mut command, side);
    }
    let start = clock();
    let function = command.spawn().unwrap();
    let id = function.id().unwrap();
    if let Some(share) = setting.share {
        share.add(id);
    }
    lambda.asked().await;
    let init = start.elapsed();
    if let Some(share) = setting.share {
        share.limit(SMALL);
    }
    let start = clock();
    let answer = lambda.invoke("first", json!({})).await.answer();
    let first = start.elapsed();
    assert!(answer.as_u64().is_some(), "{answer}");
    let cpu = cpu_time(id);
    let (memory, faults) = (peak_memory(id), page_faults(id));
    if let Some(share) = setting.share {
        share.lift();
    }
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    [milliseconds(init), milliseconds(first), milliseconds(cpu), memory, faults]
}

/// Returns the peak memory of a process, in MiB.
fn peak_memory(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

/// Returns how often a process needed a page that it had not used yet.
fn page_faults(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name of the program may have spaces; eight fields follow it.
    let fields = stat.rsplit_once(") ").unwrap().1;
    fields.split(' ').nth(7).unwrap().parse().unwrap()
}

/// Returns the real time, which this benchmark measures.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn clock() -> Instant {
    Instant::now()
}

#[expect(clippy::cast_precision_loss, reason = "the sizes are small")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A DynamoDB with prepared answers, so that the benchmark measures the client.
struct DynamoDb {
    endpoint: String,
    /// The certificates that the functions trust.
    trusted: Option<PathBuf>,
    _folder: TempDir,
    _server: JoinSet<()>,
}

impl DynamoDb {
    async fn start(over_tls: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if over_tls { "https" } else { "http" };
        let endpoint = format!("{scheme}://localhost:{}", listener.local_addr().unwrap().port());
        let folder = TempDir::new().unwrap();
        let (acceptor, trusted) = over_tls.then(|| authority(folder.path())).unzip();
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(converse(stream, acceptor.clone()));
            }
        });
        Self { endpoint, trusted, _folder: folder, _server: server }
    }

    /// Sets the variables that Lambda and the template set. The path selects the answers.
    fn at_home(&self, command: &mut Command, path: &str) {
        command.env("AWS_ENDPOINT_URL", format!("{}/{path}", self.endpoint));
        command.env("LOCK_TABLE_NAME", "locks").env("AWS_REGION", "us-east-1");
        let names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];
        command.envs(names.map(|name| (name, "AKIAIOSFODNN7EXAMPLE")));
        if let Some(trusted) = &self.trusted {
            command.env("SSL_CERT_FILE", trusted);
        }
    }
}

async fn converse(stream: TcpStream, acceptor: Option<TlsAcceptor>) {
    stream.set_nodelay(true).unwrap();
    let served = AtomicUsize::new(0);
    let service = service_fn(|request| answer(request, served.fetch_add(1, Ordering::Relaxed)));
    // The benchmark kills the function, which breaks the connection.
    let _it_has_gone = match acceptor {
        None => http1::Builder::new().serve_connection(TokioIo::new(stream), service).await,
        Some(acceptor) => match acceptor.accept(stream).await {
            Ok(stream) => http1::Builder::new().serve_connection(TokioIo::new(stream), service).await,
            Err(error) => panic!("no TLS: {error}"),
        },
    };
}

/// The answer to a warm-up.
const REFUSED: &str = r#"{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
    "message":"The conditional request failed"}"#;
/// The row before the update, which the layer requests.
const BEFORE: &str = r#"{"Attributes":{"id":{"S":"function"},"status":{"S":"INPROGRESS"},"holder":{"S":"function 1 stream"},
    "owner":{"S":"0123456789abcdef0123456789abcdef"},"released":{"S":"0123456789abcdef0123456789abcdef"},
    "fence":{"N":"1790000000000000"},"acquired_at":{"N":"1790000000000"},"expiration":{"N":"1790086431"},
    "in_progress_expiration":{"N":"1790000031000"}}}"#;
/// The updated attributes, which the other function requests.
const SET: &str = r#"{"Attributes":{"owner":{"S":"first"},"acquired_at":{"N":"1790000000000"},"fence":{"N":"17"},
    "lease_end":{"N":"1790000031000"},"expiration":{"N":"1790086431"}}}"#;

/// Chooses the answer by the number of the request on its connection. A search in the request would take longer for a
/// longer request.
async fn answer(request: Request<Incoming>, number: usize) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path();
    let (bare, warm_up, concurrent) = (path.contains(SIDES[0]), path.contains(WARM_UP), path.contains(CONCURRENT));
    let _not_looked_at = request.into_body().collect().await.unwrap();
    if concurrent {
        // All invocations are under way at the same time.
        sleep(LATENCY).await;
    }
    let (status, text) = match number.checked_sub(warm_up.into()) {
        None => (400, REFUSED),
        // The number says nothing where invocations share the connections. Releases ignore the attributes.
        _ if concurrent => (200, if bare { SET } else { BEFORE }),
        Some(0) if bare => (200, SET),
        Some(0) => (200, BEFORE),
        Some(_) => (200, "{}"),
    };
    let response = Response::builder().status(status).header("content-type", "application/x-amz-json-1.0");
    Ok(response.body(Full::from(text)).unwrap())
}

/// Creates a certificate for this host, and the file of trusted certificates. The file also has all certificates that this
/// machine trusts, because reading them is a part of a cold start.
fn authority(folder: &Path) -> (TlsAcceptor, PathBuf) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = authority.self_signed(&key).unwrap();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();

    let trusted = folder.join("trusted.pem");
    let others = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];
    let others = others.iter().find_map(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    fs::write(&trusted, others + &certificate.pem()).unwrap();

    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), trusted)
}

/// A control group that limits a function to a share of a CPU, as Lambda does after the init phase.
struct CpuShare {
    folder: PathBuf,
    is_first_version: bool,
}

/// Lambda's period, as far as is known.
const PERIOD_MICROS: u32 = 20_000;

impl CpuShare {
    fn new() -> Result<Self, String> {
        for (root, is_first_version) in [("/sys/fs/cgroup/cpu", true), ("/sys/fs/cgroup", false)] {
            let folder = Path::new(root).join(format!("lambda-lock-cold-start-{}", std::process::id()));
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let share = Self { folder, is_first_version };
            if share.write(None).is_ok() {
                return Ok(share);
            }
        }
        Err("no control group can limit the CPU here; try again as root".to_owned())
    }

    fn add(&self, pid: u32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn limit(&self, share: f64) {
        self.write(Some(share)).unwrap();
    }

    fn lift(&self) {
        self.write(None).unwrap();
    }

    fn write(&self, share: Option<f64>) -> std::io::Result<()> {
        let quota = share.map(|share| format!("{:.0}", share * f64::from(PERIOD_MICROS)));
        if self.is_first_version {
            fs::write(self.folder.join("cpu.cfs_period_us"), PERIOD_MICROS.to_string())?;
            fs::write(self.folder.join("cpu.cfs_quota_us"), quota.as_deref().unwrap_or("-1"))
        } else {
            let quota = quota.as_deref().unwrap_or("max");
            fs::write(self.folder.join("cpu.max"), format!("{quota} {PERIOD_MICROS}"))
        }
    }
}

impl Drop for CpuShare {
    fn drop(&mut self) {
        let _it_may_be_in_use = fs::remove_dir(&self.folder);
    }
}
