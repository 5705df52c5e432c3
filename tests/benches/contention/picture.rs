//! A picture of who waits and who holds the key when: an SVG.

use std::fmt::Write as _;
use std::time::Duration;

use crate::scene::{Contended, Fault, Hold, Scene, Shares, Way};

const WAITERS: u32 = 16;
const APART: Duration = Duration::from_millis(10);
/// Pixels.
const ROW: f64 = 14.0;
const LEFT: f64 = 50.0;
const WIDTH: f64 = 860.0;
const PANEL: f64 = ROW * 16.0 + 70.0;

/// Draws a run of each, below each other and to the same scale.
pub(crate) fn draw<const RUNS: usize>(runs: [(&str, Contended, Way); RUNS]) -> String {
    let scene = Scene {
        contended: Contended::Key,
        waiters: WAITERS,
        hold: Hold::Steady(Duration::from_millis(20)),
        apart: APART,
        is_known: true,
        fault: Fault::None,
    };
    let runs = runs.map(|(name, contended, way)| (name, Scene { contended, ..scene }.play(way, 1)));
    let end = runs.iter().map(|(_, shares)| shares.total).max().unwrap_or_default();
    let scale = (WIDTH - LEFT - 20.0) / end.as_secs_f64();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        PANEL * f64::from(u8::try_from(RUNS).unwrap())
    );
    for (number, (name, shares)) in (0_u8..).zip(&runs) {
        panel(&mut svg, PANEL * f64::from(number), name, shares, scale);
    }
    svg + "</svg>\n"
}

fn panel(svg: &mut String, top: f64, name: &str, shares: &Shares, scale: f64) {
    let x = |time: Duration| LEFT + time.as_secs_f64() * scale;
    let bottom = top + 40.0 + ROW * f64::from(WAITERS);
    let _infallible = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.0}\" font-size=\"14\">{name}: {} ms, {:.1} requests for each acquisition</text>",
        top + 24.0,
        shares.total.as_millis(),
        shares.requests_each(),
    );
    for (waiter, from, to) in &shares.turns {
        let (y, arrival) = (top + 40.0 + ROW * f64::from(*waiter), APART * *waiter);
        let mut bar = |from: Duration, to: Duration, height: f64, fill: &str| {
            let _infallible = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height}\" fill=\"{fill}\"/>",
                x(from),
                y + (ROW - height) / 2.0,
                x(to) - x(from),
            );
        };
        bar(arrival, *from, 2.0, "#b8c4d0");
        bar(*from, *to, ROW - 4.0, "#1f6feb");
    }
    let mut tick = Duration::ZERO;
    while tick <= shares.total {
        let _infallible = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#555\">{} ms</text>",
            x(tick),
            bottom + 16.0,
            tick.as_millis(),
        );
        tick += Duration::from_millis(200);
    }
    let _infallible = writeln!(
        svg,
        "<text x=\"4\" y=\"{:.0}\" fill=\"#555\">first</text><text x=\"4\" y=\"{:.0}\" fill=\"#555\">last</text>",
        top + 51.0,
        bottom - 3.0,
    );
}
