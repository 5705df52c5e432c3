//! A local AWS, and the SAM CLI that deploys to it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use std::{env, thread};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::config::Credentials;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::{REGION, loop_until};

pub(crate) fn credentials() -> Credentials {
    Credentials::new("test", "test", None, None, "tests")
}

pub(crate) struct LocalAws {
    pub(crate) endpoint: String,
    pub(crate) directory: TempDir,
    pub(crate) server: Child,
}

impl LocalAws {
    pub(crate) async fn start() -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let endpoint = format!("http://127.0.0.1:{port}");
        let directory = TempDir::new().unwrap();
        let log = File::create(directory.path().join("ministack.log")).unwrap();
        let server = aws_command("ministack", &endpoint, directory.path())
            .env("BIND_HOST", "127.0.0.1")
            .env("GATEWAY_PORT", port.to_string())
            // Enforces the policies of the functions' roles, without their conditions on keys. The role of a state
            // machine is not enforced.
            .env("AUTH", "true")
            // Disables a second listener on another port.
            .env("IOT_MTLS_ENABLED", "0")
            // A state machine waits a twentieth of the time between its attempts.
            .env("SFN_WAIT_SCALE", "0.05")
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let local = Self { endpoint, directory, server };
        loop_until(Duration::from_secs(30), async || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()).await;
        local
    }

    /// The configuration of clients in this process.
    pub(crate) async fn config(&self) -> SdkConfig {
        aws_config::defaults(BehaviorVersion::latest())
            .endpoint_url(&self.endpoint)
            .region(Region::new(REGION))
            .credentials_provider(credentials())
            .load()
            .await
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        aws_command(program, &self.endpoint, self.directory.path())
    }

    /// Deploys the build.
    pub(crate) async fn deploy(&self, name: &str, parameters: &[&str]) {
        self.run(
            self.command("sam")
                .args(["deploy", "--template-file", "build/template.yaml", "--stack-name", name, "--resolve-s3"])
                .args(["--capabilities", "CAPABILITY_IAM", "--parameter-overrides", &architecture()])
                .args(parameters),
        )
        .await;
    }

    /// Removes the composite alarms and the alarms on queries from the build, which this AWS does not deploy.
    pub(crate) fn remove_alarms_that_do_not_deploy(&self) {
        let file = self.directory.path().join("build/template.yaml");
        let template = fs::read_to_string(&file).unwrap();
        // The name of each resource is indented by two spaces.
        let (mut kept, mut resource) = (String::new(), String::new());
        for line in template.lines().chain(["end"]) {
            if line.starts_with(|first: char| first != ' ') || (line.starts_with("  ") && !line.starts_with("   ")) {
                let is_on_query =
                    resource.contains("    Type: AWS::CloudWatch::Alarm\n") && resource.contains("      Metrics:\n");
                if !is_on_query && !resource.contains("    Type: AWS::CloudWatch::CompositeAlarm\n") {
                    kept.push_str(&resource);
                }
                resource.clear();
            }
            resource = resource + line + "\n";
        }
        fs::write(&file, kept).unwrap();
    }

    pub(crate) async fn run(&self, command: &mut Command) {
        let output = timeout(Duration::from_hours(1), command.output()).await.unwrap().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{command:?}\n{stdout}\n{stderr}");
    }
}

impl Drop for LocalAws {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.directory.path().join("ministack.log")).unwrap_or_default());
        }
        // The functions' processes end when they cannot reach it.
        drop(self.server.start_kill());
    }
}

/// A command that reaches only this AWS, and leaves its files in `directory`.
fn aws_command(program: &str, endpoint: &str, directory: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"AWS_")) {
        command.env_remove(name);
    }
    command
        .current_dir(directory)
        .env("TMPDIR", directory)
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_DEFAULT_REGION", REGION)
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .env("SAM_CLI_TELEMETRY", "0")
        .stdin(Stdio::null());
    command
}

/// The parameter for the architecture of this machine, which runs the functions.
pub(crate) fn architecture() -> String {
    let architecture = if env::consts::ARCH == "aarch64" { "arm64" } else { env::consts::ARCH };
    format!("Architecture={architecture}")
}
