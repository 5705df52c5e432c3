//! A picture of who waits and who holds the key when: an SVG in the style of the guides' pictures, which `.ci/draw` draws.

use std::fmt::Write as _;
use std::time::Duration;

use lambda_lock::Wait;

use crate::scene::{Contended, Fault, Hold, REQUEST, Scene, Shares};

const STYLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../lock/docs/pictures/style.css"));
const WAITERS: u32 = 24;
const HOLD: Duration = Duration::from_millis(20);
const APART: Duration = Duration::from_millis(10);
/// Pixels.
const WIDTH: f64 = 440.0;
const LEFT: f64 = 16.0;
const RIGHT: f64 = WIDTH - LEFT;
const ROW: f64 = 7.0;
const TOP: f64 = 112.0;
const PANEL: f64 = 86.0 + ROW * WAITERS as f64;

/// Draws a run of each way, below each other and to the same scale.
pub(crate) fn draw(ways: [(&str, Wait); 2]) -> String {
    let scene = Scene {
        contended: Contended::Key,
        waiters: WAITERS,
        hold: Hold::Steady(HOLD),
        apart: APART,
        is_known: true,
        fault: Fault::None,
    };
    let runs = ways.map(|(name, wait)| (name, scene.play(wait, 1)));
    let end = runs.iter().map(|(_, shares)| shares.total).max().unwrap_or_default();
    let mut picture = Picture { svg: String::new(), scale: (RIGHT - LEFT) / end.as_secs_f64() };
    picture.text(LEFT, 28.0, "head", &format!("{WAITERS} invocations want one key"));
    let facts = format!(
        "They come {} ms apart. Each holds the key for {} ms.",
        APART.as_millis(),
        (HOLD + REQUEST).as_millis()
    );
    picture.text(LEFT, 48.0, "small", &facts);
    for (x, class, meaning) in
        [(16.0, "waits", "waits"), (110.0, "held", "holds the key"), (262.0, "free", "nobody holds it")]
    {
        picture.rect(x, 64.0, 20.0, 12.0, class);
        picture.text(x + 28.0, 75.0, "small", meaning);
    }
    for (top, (name, shares)) in [TOP, TOP + PANEL].into_iter().zip(&runs) {
        picture.panel(top, name, shares);
    }
    let height = TOP + 2.0 * PANEL - 8.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <title>Backoff and waiting in turn</title>\n\
         <desc>Measured: with backoff, the key is often free although invocations wait, and they get it in any order. In \
         turn, it goes from one to the next in the order of arrival.</desc>\n\
         <style>\n{STYLE}.waits {{ fill: #818b98 }}\n.tick {{ text-anchor: middle }}\n</style>\n\
         <rect x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"8\" class=\"paper\"/>\n{}</svg>\n",
        WIDTH - 1.0,
        height - 1.0,
        picture.svg
    )
}

struct Picture {
    svg: String,
    /// Pixels for a second.
    scale: f64,
}

impl Picture {
    fn panel(&mut self, top: f64, name: &str, shares: &Shares) {
        self.text(LEFT, top, "head", name);
        let figures = format!(
            "{} ms in all, {:.1} requests each, longest wait {} ms",
            shares.total.as_millis(),
            shares.requests_each(),
            shares.longest_wait.as_millis()
        );
        self.text(LEFT, top + 19.0, "small", &figures);
        // One row for the key, and below it one for each invocation.
        self.rect(LEFT, top + 28.0, shares.total.as_secs_f64() * self.scale, 12.0, "free");
        for (waiter, from, to) in &shares.turns {
            let y = top + 46.0 + ROW * f64::from(*waiter);
            self.stretch(APART * *waiter, *from, y + 2.0, 1.5, "waits");
            self.stretch(*from, *to, y, ROW - 1.5, "held");
            self.stretch(*from, *to, top + 28.0, 12.0, "held");
        }
        let bottom = top + 46.0 + ROW * f64::from(WAITERS);
        let mut tick = Duration::ZERO;
        while tick <= shares.total {
            let words = if tick.is_zero() { "0".to_owned() } else { format!("{} ms", tick.as_millis()) };
            self.text(LEFT + tick.as_secs_f64() * self.scale, bottom + 16.0, "small tick", &words);
            tick += Duration::from_millis(200);
        }
    }

    fn stretch(&mut self, from: Duration, to: Duration, y: f64, height: f64, class: &str) {
        self.rect(
            LEFT + from.as_secs_f64() * self.scale,
            y,
            to.saturating_sub(from).as_secs_f64() * self.scale,
            height,
            class,
        );
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        let _infallible = writeln!(
            self.svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\" class=\"{class}\"/>"
        );
    }

    fn text(&mut self, x: f64, y: f64, class: &str, words: &str) {
        let _infallible = writeln!(self.svg, "<text x=\"{x:.1}\" y=\"{y:.0}\" class=\"{class}\">{words}</text>");
    }
}
