//! The contents and the layout of the view; each part of the screen is a file.

mod account;
mod flows;
mod graph;
mod heading;
mod help;
mod lists;
mod losses;
mod opened;
mod theme;

use std::net::IpAddr;
use std::time::Duration;

use flow::FlowKey;
use flow::top::Order;
use port::PortAccount;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use wire::Reason;

pub use crate::short::End;
pub use opened::Opened;
pub use theme::Theme;

use theme::{BOLD, DIM, REVERSED};

/// Minimum number of terminal rows for the graph.
const GRAPH_FROM: u16 = 18;
/// Minimum number of columns for naming all pages in the last line.
const PAGES_FROM: u16 = 70;

/// Contents of the view.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    pub name: String,
    pub facts: String,
    pub memory_len: u64,
    pub elapsed: Duration,
    pub order: Order,
    pub theme: Theme,
    pub held: bool,
    pub pps: f64,
    pub bps: f64,
    pub new_per_s: f64,
    pub packets: u64,
    pub wire_bytes: u64,
    pub live: u64,
    pub capacity: u64,
    pub evicted: u64,
    /// Packets that belong to no flow, by reason.
    pub refused: [u64; Reason::COUNT],
    /// Packets left out by sampling.
    pub unsampled: u64,
    /// Ended flows missing from the lists: there were too many at once.
    pub undigested: u64,
    /// The current page.
    pub shown: Shown,
    /// The first visible line of a list, or of the fields of a flow.
    pub first: usize,
    /// Shows only rows that contain this.
    pub filter: String,
    /// Whether the filter is being typed.
    pub is_typing: bool,
    /// Whether names replace destinations, if known.
    pub has_names: bool,
    /// Whether this is a snapshot, without a keyboard.
    pub is_once: bool,
    /// Whether the help is shown.
    pub has_help: bool,
    /// Whether the account has a line per queue.
    pub by_queue: bool,
    /// Whether there are enrichment files.
    pub has_origins: bool,
    pub applications: Vec<Entry>,
    pub talkers: Vec<Entry>,
    /// Autonomous systems, countries, vendors of network cards.
    pub networks: Vec<Entry>,
    /// Bits per second, one value per second.
    pub history: Vec<u64>,
    pub rows: Vec<Row>,
    /// The selected flow, which Enter opens.
    pub selected: Option<FlowKey>,
    /// The flow that was opened.
    pub opened: Option<Opened>,
    pub account: PortAccount,
    /// The last event of the device.
    pub event: String,
}

/// A page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// The largest flows.
    #[default]
    Flows,
    /// Sums by application.
    Applications,
    /// Sums by address.
    Talkers,
    /// Packets that belong to no flow, by reason.
    Losses,
    /// Sums by network, country and vendor.
    Networks,
}

impl Shown {
    const ALL: [(Shown, &'static str); 5] = [
        (Shown::Flows, "flows"),
        (Shown::Applications, "apps"),
        (Shown::Talkers, "talkers"),
        (Shown::Losses, "losses"),
        (Shown::Networks, "networks"),
    ];

    /// The next page.
    pub fn next(self) -> Shown {
        Shown::ALL[(self as usize + 1) % Shown::ALL.len()].0
    }
}

/// A sum over flows.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    pub name: String,
    /// The address of a talker.
    pub addr: Option<IpAddr>,
    pub remark: String,
    pub records: u64,
    pub packets: u64,
    /// Bytes a talker sent and received; otherwise all in the first.
    pub bytes: [u64; 2],
}

impl Entry {
    /// Adds to the sum.
    pub fn add(&mut self, records: u64, packets: u64, bytes: [u64; 2]) {
        self.records += records;
        self.packets += packets;
        self.bytes[0] += bytes[0];
        self.bytes[1] += bytes[1];
    }
}

/// A flow.
#[derive(Clone, Debug)]
pub struct Row {
    pub key: FlowKey,
    /// The application, if it was identified.
    pub protocol: String,
    /// The name from the application: of a server, or of a query.
    pub name: String,
    /// The initiator.
    pub source: End,
    pub destination: End,
    /// The type of ICMP messages.
    pub remark: String,
    /// Packets from the source, and to it.
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
    /// Bits per second, if already known.
    pub rate_bps: Option<[u64; 2]>,
    pub duration_ns: u64,
    /// Whether it has just ended, and is about to be removed.
    pub is_ended: bool,
}

impl Picture {
    /// Switches to another page, at its start.
    pub fn show(&mut self, shown: Shown) {
        self.shown = shown;
        self.first = 0;
        self.opened = None;
        self.has_help = false;
    }

    /// Rows that match the filter.
    pub fn shown_rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| {
            let ends = [row.source.whole(), row.destination.whole()];
            self.takes(&[&row.protocol, &ends[0], &ends[1], &row.name])
        })
    }

    /// Index of the selected flow among those shown.
    fn selected_index(&self) -> Option<usize> {
        let selected = self.selected?;
        self.shown_rows().position(|row| row.key == selected)
    }

    /// Moves up or down by this many lines: selects another flow, or scrolls.
    pub fn go(&mut self, lines: isize) {
        let step =
            |at: usize, count: usize| at.saturating_add_signed(lines).min(count.saturating_sub(1));
        if self.shown == Shown::Flows && self.opened.is_none() {
            let count = self.shown_rows().count();
            // The first key selects the first flow.
            let at = self.selected_index().map_or(0, |at| step(at, count));
            let selected = self.shown_rows().nth(at).map(|row| row.key);
            self.selected = selected;
            return;
        }
        let count = match (&self.opened, self.shown) {
            (Some(opened), _) => opened.fields.len(),
            (None, Shown::Applications) => self.applications.len(),
            (None, Shown::Talkers) => self.talkers.len(),
            (None, Shown::Networks) => self.networks.len(),
            (None, _) => 0,
        };
        self.first = step(self.first, count);
    }

    /// Whether a row matches the filter.
    fn takes(&self, words: &[&str]) -> bool {
        let wanted = self.filter.to_lowercase();
        wanted.is_empty()
            || words
                .iter()
                .any(|word| word.to_lowercase().contains(&wanted))
    }

    /// Draws the screen.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let graph_height = match area.height >= GRAPH_FROM {
            true => graph::HEIGHT,
            false => 0,
        };
        let [heading, graph, middle, account, keys] = Layout::vertical([
            Constraint::Length(heading::HEIGHT),
            Constraint::Length(graph_height),
            Constraint::Min(3),
            Constraint::Length(account::height(self, area.height)),
            Constraint::Length(1),
        ])
        .areas(area);
        heading::draw(self, frame, heading);
        if self.has_help {
            // It needs the room of the graph as well.
            return help::draw(
                frame,
                area.intersection(Rect {
                    y: heading.bottom(),
                    height: area.height.saturating_sub(heading.height),
                    ..area
                }),
            );
        }
        if graph_height != 0 {
            graph::draw(&self.history, self.theme.bar, frame, graph);
        }
        match (&self.opened, self.shown) {
            (Some(opened), _) => opened::draw(self, opened, frame, middle),
            (None, Shown::Flows) => flows::draw(self, frame, middle),
            (None, Shown::Applications) => lists::draw(self, &self.applications, frame, middle),
            (None, Shown::Talkers) => lists::draw(self, &self.talkers, frame, middle),
            (None, Shown::Losses) => losses::draw(self, frame, middle),
            (None, Shown::Networks) => lists::draw(self, &self.networks, frame, middle),
        }
        account::draw(self, frame, account);
        self.draw_keys(frame, keys);
    }

    fn draw_keys(&self, frame: &mut Frame<'_>, area: Rect) {
        if self.is_once {
            return;
        }
        if self.is_typing {
            let line = Line::from(vec![
                Span::styled(format!(" filter: {}▏", self.filter), BOLD),
                Span::styled("  Enter keeps, Esc clears", DIM),
            ]);
            return frame.render_widget(Paragraph::new(line), area);
        }
        let mut parts: Vec<(String, Style)> = Vec::new();
        if self.held {
            parts.push((" PAUSED".into(), BOLD));
        }
        if !self.filter.is_empty() {
            parts.push((format!(" filter: {}", self.filter), BOLD));
        }
        parts.push((" ? help".into(), DIM));
        parts.push((" q quit".into(), DIM));
        if self.opened.is_some() {
            parts.push((" Esc back".into(), DIM));
        }
        if !self.event.is_empty() {
            parts.push((format!(" {}", self.event), self.theme.warning));
        }
        for (shown, name) in Shown::ALL {
            let is_shown = shown == self.shown;
            let number = shown as usize + 1;
            let text = match is_shown || area.width >= PAGES_FROM {
                true => format!(" {number} {name} "),
                false => format!(" {number} "),
            };
            parts.push((text, if is_shown { REVERSED } else { DIM }));
        }
        if self.shown == Shown::Flows && self.opened.is_none() {
            parts.push((" Enter opens a flow".into(), DIM));
        }
        let line = crate::short::fit(parts, "", area.width);
        frame.render_widget(Paragraph::new(line), area);
    }
}

#[cfg(test)]
mod tests;
