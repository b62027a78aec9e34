//! Help on keys and the table; fits 40 columns and 20 lines.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::theme::{BOLD, DIM};

/// Keys and their functions; a line without a key is a remark.
const LINES: [(&str, &str); 17] = [
    ("1 2 3", "flows, applications, talkers"),
    ("4 5", "losses, networks"),
    ("Tab", "the next page"),
    ("r b p d", "sort: rate bytes packets time"),
    ("/", "filter rows; Esc clears it"),
    ("↑ ↓", "select a flow, or scroll"),
    ("Enter", "open the selected flow"),
    ("Esc", "back"),
    ("n", "names for destinations"),
    ("a", "the account by queue"),
    ("space", "pause"),
    ("Ctrl-Z", "suspend (fg resumes)"),
    ("Ctrl-L", "draw the screen again"),
    ("q", "quit, and print the totals"),
    ("", ""),
    ("→ ←", "sent by source, by destination"),
    ("grey", "ended; gone after 10 seconds"),
];

pub fn draw(frame: &mut Frame<'_>, area: Rect) {
    let lines = LINES.map(|(key, what)| {
        Line::from(vec![
            Span::styled(format!(" {key:8}"), BOLD),
            Span::raw(what),
        ])
    });
    let mut lines = lines.to_vec();
    if usize::from(area.height) > lines.len() {
        lines.push(Line::styled(" any key goes back", DIM));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_fits_40_columns() {
        for (key, what) in LINES {
            let width = 1 + key.chars().count().max(8) + what.chars().count();
            assert!(width <= 40, "{what}: {width}");
        }
    }
}
