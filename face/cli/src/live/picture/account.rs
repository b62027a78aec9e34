//! The loss account: one line for all queues, or one line each.

use port::{DropReason, QueueAccount};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::Picture;
use super::theme::BOLD;
use crate::short::{fit, number};

/// Columns after the queue index, the most important first: heading and width.
const COLUMNS: [(&str, usize); 6] = [
    ("seen", 12),
    ("lost", 10),
    ("delivered", 12),
    ("account", 14),
    ("to host", 11),
    ("filtered", 10),
];

/// Number of lines on a screen of this height.
pub fn height(picture: &Picture, screen: u16) -> u16 {
    let queues = picture.account.rx.len() as u16;
    match picture.by_queue {
        false => 1,
        true => (queues + 1 + u16::from(queues > 1)).min(screen / 2).max(1),
    }
}

pub fn draw(picture: &Picture, frame: &mut Frame<'_>, area: Rect) {
    if picture.by_queue {
        let lines = by_queue(picture, area);
        return frame.render_widget(Paragraph::new(lines), area);
    }
    let total = picture.account.rx_total();
    let plain = Style::new();
    let name = match picture.account.rx.len() {
        1 => " account".to_owned(),
        count => format!(" {count} queues"),
    };
    let filtered = total.dropped[DropReason::Filter as usize];
    let parts = vec![
        (format!("{name}: {} seen", total.seen), plain),
        (
            format!("{} lost", total.lost()),
            lost_style(picture, &total),
        ),
        (balance(&total), plain),
        (format!("{} delivered", total.delivered), plain),
        (format!("{} to host", total.passed), plain),
        (format!("{filtered} filtered"), plain),
    ];
    let line = fit(parts, ", ", area.width);
    frame.render_widget(Paragraph::new(line), area);
}

fn lost_style(picture: &Picture, queue: &QueueAccount) -> Style {
    match queue.lost() {
        0 => Style::new(),
        _ => picture.theme.lost,
    }
}

/// Indices in [`COLUMNS`] of the columns that fit completely.
fn columns(width: u16) -> Vec<usize> {
    let mut room = usize::from(width).saturating_sub(5);
    let places = (0..COLUMNS.len()).filter(|&at| {
        let (_, width) = COLUMNS[at];
        let fits = width < room;
        room -= if fits { width + 1 } else { 0 };
        fits
    });
    places.collect()
}

fn by_queue(picture: &Picture, area: Rect) -> Vec<Line<'static>> {
    let queues = &picture.account.rx;
    let columns = columns(area.width);
    let mut head = format!("{:>5}", "queue");
    for &at in &columns {
        let (name, width) = COLUMNS[at];
        head += &format!(" {name:>width$}");
    }
    let row = |name: &str, queue: &QueueAccount| {
        let mut text = format!("{name:>5}");
        for &at in &columns {
            let (_, width) = COLUMNS[at];
            let cell = match at {
                0 => number(queue.seen, width),
                1 => number(queue.lost(), width),
                2 => number(queue.delivered, width),
                3 => balance(queue),
                4 => number(queue.passed, width),
                _ => number(queue.dropped[DropReason::Filter as usize], width),
            };
            text += &format!(" {cell:>width$}");
        }
        Line::styled(text, lost_style(picture, queue))
    };
    let mut lines = vec![Line::styled(head, BOLD)];
    if queues.len() > 1 {
        lines.push(row("all", &picture.account.rx_total()));
    }
    let room = usize::from(area.height);
    let mut shown: Vec<&QueueAccount> = queues.iter().collect();
    let hides = lines.len() + queues.len() > room && room > 2;
    if hides {
        // Queues with losses come first if there are more queues than lines.
        shown.sort_by_key(|queue| std::cmp::Reverse(queue.lost()));
        shown.truncate(room - 3);
    }
    for queue in &shown {
        lines.push(row(&queue.queue_index.to_string(), queue));
    }
    if hides {
        let hidden = queues.len() - shown.len();
        lines.push(Line::from(format!(
            "      and {hidden} queues that lost no more"
        )));
    }
    lines
}

/// The counters are read one after another while packets arrive, so a difference that is gone at
/// the end was temporary.
fn balance(queue: &QueueAccount) -> String {
    match queue.imbalance() {
        0 => "adds up".to_owned(),
        moving => format!("{moving:+} just now"),
    }
}
