//! A single flow: all fields of its record, decoded fields, and its traffic over time.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::theme::{BOLD, DIM};
use super::{Picture, graph};

/// The opened flow.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// Both endpoints.
    pub title: String,
    /// Why it is no longer updated, if so.
    pub remark: &'static str,
    /// Names and values as in the JSON record.
    pub fields: Vec<(String, String)>,
    /// Bits per second of both directions, one value per second.
    pub history: Vec<u64>,
}

/// Minimum number of lines for the graph.
const GRAPH_FROM: u16 = 8;
/// Width of the column of field names.
const NAME_WIDTH: usize = 22;

pub fn draw(picture: &Picture, opened: &Opened, frame: &mut Frame<'_>, area: Rect) {
    let graph_height = match area.height >= GRAPH_FROM {
        true => graph::HEIGHT,
        false => 0,
    };
    let [title, bars, fields] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(graph_height),
        Constraint::Min(0),
    ])
    .areas(area);
    let heading = Line::from(vec![
        Span::styled(format!(" {}", opened.title), BOLD),
        Span::styled(format!("  {}", opened.remark), DIM),
    ]);
    frame.render_widget(Paragraph::new(heading), title);
    if graph_height != 0 {
        graph::draw(&opened.history, picture.theme.bar, frame, bars);
    }
    let lines = opened
        .fields
        .iter()
        .skip(picture.first)
        .map(|(name, value)| {
            Line::from(vec![
                Span::styled(format!(" {name:NAME_WIDTH$} "), DIM),
                Span::raw(value.as_str()),
            ])
        });
    // A long value continues in the next line, so that nothing is cut.
    let text = Paragraph::new(lines.collect::<Vec<_>>()).wrap(Wrap { trim: false });
    frame.render_widget(text, fields);
}
