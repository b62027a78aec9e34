//! Packets that belong to no flow, and packets lost before the meter, by reason.

use port::DropReason;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Wrap};
use wire::Reason;

use super::Picture;
use super::theme::BOLD;

pub fn draw(picture: &Picture, frame: &mut Frame<'_>, area: Rect) {
    let mut lines = vec![Line::styled("packets", BOLD)];
    let mut add = |count: u64, words: String| {
        if count != 0 {
            lines.push(Line::from(format!("{count:>12}  {words}")));
        }
    };
    let total = picture.account.rx_total();
    add(picture.packets, "metered".into());
    for reason in DropReason::ALL {
        let words = format!("dropped by the port: {}", reason.name().replace('_', " "));
        add(total.dropped[reason as usize], words);
    }
    for reason in Reason::ALL {
        let words = match reason {
            Reason::Complete => "in no flow: not IP".to_owned(),
            reason => format!("in no flow: {}", reason.name().replace('_', " ")),
        };
        add(picture.refused[reason as usize], words);
    }
    add(picture.unsampled, "skipped by sampling".into());
    lines.push(Line::styled("flows", BOLD));
    let mut add = |count: u64, words: &str| {
        if count != 0 {
            lines.push(Line::from(format!("{count:>12}  {words}")));
        }
    };
    add(
        picture.evicted,
        "ended early: the table was full (--table-size)",
    );
    add(
        picture.undigested,
        "missing from the lists of applications and talkers: too many flows ended",
    );
    let text = Paragraph::new(lines).wrap(Wrap { trim: false });
    frame.render_widget(text, area);
}
