//! The real Powertools for AWS Lambda: runs the scripts in `tests/interop` as processes on the table of a [`World`].
//!
//! These variables say where it is installed. `tests/interop` pins its packages, and `.ci/run` installs them.
//!
//! | variable | |
//! | --- | --- |
//! | `LOCK_TEST_ENDPOINT` | a DynamoDB outside this process, which both can reach |
//! | `LOCK_TEST_PYTHON` | a Python with the packages of `requirements.txt` |
//! | `LOCK_TEST_NODE_MODULES` | the folder that has the packages of `package-lock.json` in its `node_modules`; `node`, 20 or later, is on the `PATH` |

use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use lambda_lock::idempotency::RecordFormat;
use serde_json::Value;
use tokio::process::Command;

use crate::World;

/// Powertools in both languages.
#[derive(Clone, Debug)]
pub struct Powertools {
    endpoint: String,
    python: PathBuf,
    node_modules: PathBuf,
}

/// One of its languages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Powertools for Python.
    Python,
    /// Powertools for TypeScript.
    TypeScript,
}

impl Language {
    /// All languages with a [`RecordFormat`].
    pub const ALL: [Self; 2] = [Self::Python, Self::TypeScript];

    /// Its format.
    #[must_use]
    pub fn format(self) -> RecordFormat {
        match self {
            Self::Python => RecordFormat::PowertoolsPython,
            Self::TypeScript => RecordFormat::PowertoolsTypeScript,
        }
    }
}

impl Powertools {
    /// Finds the installation.
    ///
    /// # Errors
    ///
    /// Names the variables that are not set.
    pub fn find() -> Result<Self, String> {
        let [endpoint, python, node_modules] = ["LOCK_TEST_ENDPOINT", "LOCK_TEST_PYTHON", "LOCK_TEST_NODE_MODULES"]
            .map(|name| env::var(name).map_err(|_| name));
        match (endpoint, python, node_modules) {
            (Ok(endpoint), Ok(python), Ok(node_modules)) => {
                Ok(Self { endpoint, python: python.into(), node_modules: node_modules.into() })
            }
            (endpoint, python, node_modules) => {
                let missing: Vec<_> = [endpoint, python, node_modules].into_iter().filter_map(Result::err).collect();
                Err(format!("Powertools needs a DynamoDB outside this process, and its packages: set {missing:?}"))
            }
        }
    }

    /// The endpoint of the DynamoDB.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the command that runs a script in this language. The name has no extension.
    #[must_use]
    pub fn script(&self, language: Language, name: &str, world: &World) -> Command {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
        let mut command = match language {
            Language::Python => {
                let mut command = Command::new(&self.python);
                command.arg(folder.join(name).with_extension("py"));
                command
            }
            Language::TypeScript => {
                // Node looks for packages beside a script file, but in the working directory for a script on the
                // command line.
                let script = std::fs::read_to_string(folder.join(name).with_extension("mjs")).unwrap();
                let mut command = Command::new("node");
                command.current_dir(&self.node_modules).args(["--input-type=module", "--eval", &script, "--"]);
                command
            }
        };
        command.env_clear().envs(env::var_os("PATH").map(|path| ("PATH", path))).kill_on_drop(true).envs([
            ("AWS_ENDPOINT_URL", self.endpoint.as_str()),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "local"),
            ("AWS_SECRET_ACCESS_KEY", "local"),
            ("LOCK_TABLE_NAME", &world.table),
            // Node warns about requirements of later versions.
            ("NODE_NO_WARNINGS", "1"),
        ]);
        command
    }

    /// Places these orders with the function `orders`, one after the other, and returns its answers.
    pub async fn place(&self, language: Language, world: &World, options: &[&str], orders: &[Value]) -> Vec<Value> {
        let mut script = self.script(language, "orders", world);
        script.args(options).args(orders.iter().map(Value::to_string)).stdin(Stdio::null());
        let output = script.output().await.unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{language:?}: {orders:?}\n{stdout}\n{stderr}");
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}
