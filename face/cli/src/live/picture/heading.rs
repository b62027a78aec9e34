//! The first three lines: port and time, rates, fill level of the table.

use probe::text::{bytes, si};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::Picture;
use super::theme::{BOLD, REVERSED};
use crate::short::{fit, short, words};

/// Number of lines.
pub const HEIGHT: u16 = 3;

/// Fill level of the table at which a warning is shown.
const NEARLY_FULL_PERCENT: u64 = 90;

pub fn draw(picture: &Picture, frame: &mut Frame<'_>, area: Rect) {
    let lines = vec![
        title(picture, area.width),
        rates(picture, area.width),
        table(picture, area.width),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

fn title(picture: &Picture, width: u16) -> Line<'static> {
    let seconds = picture.elapsed.as_secs();
    let clock = format!(
        "{}:{:02}:{:02} ",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    );
    let room = usize::from(width).saturating_sub(clock.len() + 1);
    let mut left = words(&format!(" barewire flows {}", picture.name), room);
    if !picture.facts.is_empty() {
        let with_facts = format!("{left}   {}", picture.facts);
        if with_facts.chars().count() <= room {
            left = with_facts;
        }
    }
    Line::styled(format!("{left:room$} {clock}"), REVERSED)
}

fn rates(picture: &Picture, width: u16) -> Line<'static> {
    let lost = picture.account.rx_total().lost();
    let (lost, style) = match lost {
        0 => ("none lost".to_owned(), Style::new()),
        lost => (format!("{} lost", short(lost)), picture.theme.lost),
    };
    let since = format!(
        "since the start {} packets, {}",
        short(picture.packets),
        bytes(picture.wire_bytes)
    );
    let parts = vec![
        (format!(" {}", si(picture.pps.round(), "pps")), BOLD),
        (si(picture.bps.round(), "bit/s"), BOLD),
        (lost, style),
        (since, Style::new()),
    ];
    fit(parts, "   ", width)
}

fn table(picture: &Picture, width: u16) -> Line<'static> {
    let plain = Style::new();
    let percent = picture.live * 100 / picture.capacity.max(1);
    let flows = if picture.live == 1 { "flow" } else { "flows" };
    let full = match percent >= NEARLY_FULL_PERCENT {
        true => picture.theme.warning,
        false => plain,
    };
    let mut parts = vec![
        (format!(" {} {flows} live", short(picture.live)), plain),
        (
            format!("{} new/s", short(picture.new_per_s.round() as u64)),
            plain,
        ),
    ];
    if picture.evicted != 0 {
        let words = format!("{} ended early (table full)", short(picture.evicted));
        parts.push((words, picture.theme.lost));
    }
    parts.push((format!("table {percent} % full"), full));
    let refused: u64 = picture.refused.iter().sum();
    if refused != 0 {
        parts.push((format!("{} packets in no flow", short(refused)), plain));
    }
    let memory = format!("uses at most {}", bytes(picture.memory_len));
    parts.push((memory, plain));
    fit(parts, ", ", width)
}
