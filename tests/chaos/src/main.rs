//! Real processes under chaos: the release build on DynamoDB Local, wrong clocks, a bad network, SIGKILL and SIGSTOP. What
//! the processes believed is checked afterwards, and an algorithm that is not ours checks what the table has answered.
//!
//! ```sh
//! .ci/run chaos        # the planted mistakes, then a round without one
//! just chaos 1000000   # rounds up to so many acquisitions, and a report
//! ```

mod arena;
mod checker;
mod clocks;
mod event;
// The foreign checker of the histories. What it needs changes no feature of what the worker is built with.
#[path = "../../src/linear_history/judge.rs"]
#[expect(unreachable_pub, reason = "the histories use it from other crates")]
mod judge;
mod place;
mod plants;
mod process;
mod proxy;
// The parser of the histories. The worker is built without their dependencies, as users build it.
#[path = "../../src/request.rs"]
#[expect(dead_code, unreachable_pub, reason = "the histories use more of it")]
mod request;
mod rounds;
mod table;
mod trace;
mod worker;

use clap::Parser;

/// Processes with wrong clocks on a bad network, killed and stopped, and a checker of what they believed.
#[derive(Debug, Parser)]
enum Command {
    /// Plays rounds, and checks them.
    Run(rounds::Settings),
    /// Is one of the processes.
    #[command(hide = true)]
    Worker(worker::Settings),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    match Command::parse() {
        Command::Run(settings) => Box::pin(rounds::run(settings)).await,
        Command::Worker(settings) => {
            Box::pin(worker::run(settings)).await;
            std::process::ExitCode::SUCCESS
        }
    }
}
