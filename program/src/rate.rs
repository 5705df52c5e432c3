//! The command `rate`: lets a call pass, or says when it may.

use crate::arguments::{Rate, TableOptions};
use crate::connect::{Connection, connect, is_enabled};
use crate::failure::Failure;
use crate::identity;
use crate::output::say;

pub(crate) async fn pass(options: &TableOptions, rate: Rate) -> Result<(), Failure> {
    if !is_enabled()? {
        say("LOCK_ENABLED is `false`: the call passes without a rate");
        return Ok(());
    }
    let Connection { locks, .. } = connect(options, identity::user()).await?;
    let pace = locks.rate(&rate.key, rate.calls, rate.period).burst(rate.burst);
    Ok(pace.pass_within(rate.wait.unwrap_or_default()).await?)
}
