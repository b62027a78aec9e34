//! The meaning of colours: red for losses, yellow for resources that run low, cyan and green for
//! the two directions, grey for flows that have ended. Without colours (`NO_COLOR`, no-color.org)
//! bold and dim replace them.

use ratatui::style::{Color, Modifier, Style};

/// Styles by meaning.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// Lost packets.
    pub lost: Style,
    /// A resource that runs low.
    pub warning: Style,
    /// From the initiator to the responder.
    pub forward: Style,
    /// From the responder to the initiator.
    pub reverse: Style,
    /// An ended flow.
    pub ended: Style,
    /// Bars and the graph.
    pub bar: Style,
}

/// Headings and the most important values.
pub const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
/// Hints.
pub const DIM: Style = Style::new().add_modifier(Modifier::DIM);
/// The title, the current page, the selected flow.
pub const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

impl Default for Theme {
    /// The theme without colours.
    fn default() -> Theme {
        Theme {
            lost: BOLD,
            warning: BOLD,
            forward: Style::new(),
            reverse: Style::new(),
            ended: DIM,
            bar: Style::new(),
        }
    }
}

impl Theme {
    /// The theme with colours that every terminal has.
    pub fn colours() -> Theme {
        Theme {
            lost: BOLD.fg(Color::Red),
            warning: Style::new().fg(Color::Yellow),
            forward: Style::new().fg(Color::Cyan),
            reverse: Style::new().fg(Color::Green),
            ended: Style::new().fg(Color::DarkGray),
            bar: Style::new().fg(Color::Blue),
        }
    }

    /// The theme for the environment: no colours if `NO_COLOR` is set.
    pub fn from_environment() -> Theme {
        match std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) {
            true => Theme::colours(),
            false => Theme::default(),
        }
    }
}
