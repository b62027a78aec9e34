//! Traffic over time: a bar per second, with scale and peak.

use probe::text::si;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Sparkline};

use crate::short::short;

/// Number of lines.
pub const HEIGHT: u16 = 3;
/// Width of the labels.
const LABEL_WIDTH: u16 = 12;

/// Draws values in bit/s that are `step_s` seconds apart, the newest at the right. The scale is the
/// next 1, 2 or 5 times a power of ten.
pub fn draw(history: &[u64], bar: Style, frame: &mut Frame<'_>, area: Rect) {
    let [labels, bars] =
        Layout::horizontal([Constraint::Length(LABEL_WIDTH), Constraint::Min(0)]).areas(area);
    let skip = history.len().saturating_sub(bars.width.into());
    let shown = &history[skip..];
    let peak = shown.iter().copied().max().unwrap_or(0);
    let top = scale(peak);
    let age = match shown.len() {
        0 | 1 => String::new(),
        count => format!("last {count} s"),
    };
    let lines = [whole(top), format!("peak {}", short(peak)), age];
    let lines: Vec<Line<'_>> = lines
        .into_iter()
        .map(|text| Line::from(format!("{text}│")).alignment(Alignment::Right))
        .collect();
    frame.render_widget(Paragraph::new(lines), labels);
    // The newest value is at the right edge from the start.
    let empty = usize::from(bars.width) - shown.len();
    let mut data = vec![0; empty];
    data.extend_from_slice(shown);
    let graph = Sparkline::default().data(&data).max(top).style(bar);
    frame.render_widget(graph, bars);
}

/// The next 1, 2 or 5 times a power of ten, at least 1000.
fn scale(peak: u64) -> u64 {
    let mut power = 1000_u64;
    loop {
        for step in [1, 2, 5] {
            match power.checked_mul(step) {
                Some(top) if top >= peak => return top,
                Some(_) => {}
                None => return u64::MAX,
            }
        }
        match power.checked_mul(10) {
            Some(next) => power = next,
            None => return u64::MAX,
        }
    }
}

/// A scale without decimals.
fn whole(top: u64) -> String {
    si(top as f64, "bit/s").replace(".00", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_round_and_not_below_the_peak() {
        for (peak, top) in [
            (0, 1000),
            (1000, 1000),
            (1001, 2000),
            (2001, 5000),
            (987_654_321, 1_000_000_000),
            (u64::MAX, u64::MAX),
        ] {
            assert_eq!(scale(peak), top);
        }
        assert_eq!(whole(2000), "2 kbit/s");
        assert_eq!(whole(500_000_000), "500 Mbit/s");
    }
}
