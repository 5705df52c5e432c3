//! The operations on rows, apart from the acquire: requests and answers, without a network and without a clock.

use super::table::Table;
use super::write::{Answer, Write};
use crate::client::SdkAttempts;
use crate::clock::{Moment, Offset};
use crate::error::Error;

/// How often an operation looks again at a row that changed meanwhile.
pub(super) const TRIES: u32 = 3;

/// An operation under way. [`Table::run`] sends its requests; the model answers them itself.
pub(crate) trait Operation {
    type Output;

    /// Returns the request that the operation sends now.
    fn request<'b>(&'b self, table: &'b Table, now: Moment) -> Write<'b>;

    /// Takes note of the answer. Returns `None` if another request follows.
    fn on(&mut self, table: &Table, answer: Answer, now: Moment) -> Result<Option<Self::Output>, Error>;

    /// Takes note that this host's clock is wrong, by the time in the answer that comes next. Returns the output if the wrong
    /// clock ends the operation.
    fn on_wrong_clock(&mut self, _table: &Table, _offset: Offset) -> Option<Self::Output> {
        None
    }

    /// Returns the record of the SDK's attempts at the request.
    fn attempts(&self) -> SdkAttempts {
        SdkAttempts::leaving_prevented()
    }
}

impl Table {
    /// Sends the requests of an operation. Each is repeated while DynamoDB prevents it.
    pub(crate) async fn run<O: Operation>(
        &self,
        mut operation: O,
        clock: impl Fn() -> Moment,
    ) -> Result<O::Output, Error> {
        loop {
            let attempts = operation.attempts();
            let answer = self.write(operation.request(self, clock()), &attempts).await;
            let wrong_clock = attempts.wrong_clock(self.clock_skew);
            let output = match wrong_clock.and_then(|offset| operation.on_wrong_clock(self, offset)) {
                None => operation.on(self, answer?, clock())?,
                output => output,
            };
            if let Some(output) = output {
                return Ok(output);
            }
        }
    }
}
