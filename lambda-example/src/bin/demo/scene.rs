//! A scene of the tour, and how it is shown in 80 columns.

use std::sync::OnceLock;

use anstream::println;
use anstyle::{AnsiColor, Effects, Style};
use comfy_table::{ContentArrangement, Table, presets};
use futures_util::future::LocalBoxFuture;
use lambda_runtime::Error;

use super::Cloud;

const WIDTH: u16 = 80;
pub(crate) const BOLD: Style = Style::new().effects(Effects::BOLD);
const CORRECT: Style = AnsiColor::Green.on_default().effects(Effects::BOLD);
const WRONG: Style = AnsiColor::Red.on_default().effects(Effects::BOLD);

pub(crate) struct Scene {
    /// The argument that plays it alone.
    pub name: &'static str,
    pub title: &'static str,
    /// The events of the scene.
    pub world: &'static str,
    /// The outcome that is correct.
    pub should: &'static str,
    /// The page of the guides that explains it.
    pub guide: &'static str,
    /// Plays it, prints what happened, and says why that is correct. An error says what is not.
    pub play: for<'a> fn(&'a Cloud) -> LocalBoxFuture<'a, Result<String, Error>>,
}

impl Scene {
    /// Shows the scene, and returns whether it ended as it should.
    pub(crate) async fn play(&self, number: usize, of: usize, cloud: &Cloud) -> bool {
        let Self { name, title, world, should, guide, play } = self;
        println!("\n{BOLD}{number} of {of}. {title}{BOLD:#} ({name})\n");
        caption(BOLD, "happens", world);
        caption(BOLD, "should", should);
        caption(BOLD, "happened", "");
        let verdict = play(cloud).await;
        match &verdict {
            Ok(why) => caption(CORRECT, "correct", why),
            Err(why) => caption(WRONG, "WRONG", &why.to_string()),
        }
        caption(BOLD, "guide", &format!("lock/docs/{guide}.md"));
        verdict.is_ok()
    }
}

/// Prints a text beside what it is, in as many lines as it needs.
fn caption(style: Style, what: &str, text: &str) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.add_row([&format!("{what:8}"), text]);
    println!("{}", table.trim_fmt().replacen(what, &format!("{style}{what}{style:#}"), 1));
}

/// Prints a sentence below a table.
pub(crate) fn note(sentence: &str) {
    caption(BOLD, "", sentence);
}

pub(crate) fn table<const COLUMNS: usize>(header: [&str; COLUMNS]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(WIDTH).set_header(header);
    table
}

/// The clock at the start of the tour, in microseconds, as fences count it.
static START: OnceLock<u64> = OnceLock::new();

/// Lets fences be counted from now on.
pub(crate) fn count_fences_from(epoch_us: u64) {
    START.get_or_init(|| epoch_us);
}

/// A fence, counted from the start of the tour, so that a reader sees at a glance which of two is larger.
pub(crate) fn short(fence: u64) -> String {
    let count = fence.saturating_sub(START.get().copied().unwrap_or_default()).to_string();
    let groups: Vec<_> = count.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Fails the scene unless `holds`.
pub(crate) fn expect(holds: bool, otherwise: impl Into<Error>) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}
