//! The table of flows. From 80 columns up a flow takes one line, below that two: source over
//! destination, each with what it sent. A column that does not fit is omitted; numbers, IPv4
//! addresses and ports are never truncated.

use flow::top::Order;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::theme::{BOLD, DIM, REVERSED};
use super::{Picture, Row};
use crate::short::{IPV4_WIDTH, number, short, span, words};

/// Minimum number of terminal columns for one line per flow.
const ONE_LINE_FROM: u16 = 80;
/// Maximum width of names.
const NAME_MAX: u16 = 40;
/// Minimum width of the name column.
const NAME_MIN: u16 = 12;
/// Width of the longest IPv6 address with a port.
const IPV6_WIDTH: u16 = 47;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Protocol,
    Source,
    Destination,
    Name,
    Forward,
    Reverse,
    Packets,
    Bytes,
    Time,
}

/// Widths at which nothing of the flows' addresses and names is shortened.
#[derive(Clone, Copy, Debug, Default)]
struct Needed {
    source: u16,
    destination: u16,
    name: u16,
}

impl Needed {
    fn of(picture: &Picture) -> Self {
        let mut needed = Self::default();
        let widen = |width: &mut u16, text: &str| {
            let count = text.chars().count().min(usize::from(u16::MAX));
            *width = (*width).max(count as u16);
        };
        for row in &picture.rows {
            widen(&mut needed.source, &row.source.whole());
            widen(&mut needed.destination, &whole_destination(row));
            widen(&mut needed.name, &row.name);
        }
        needed
    }
}

/// Divides `room` among `wanted`: whoever wants little gets all of it, the rest is shared equally.
fn divide(mut room: u16, wanted: [u16; 3]) -> [u16; 3] {
    let mut order = [0, 1, 2];
    order.sort_by_key(|&at| wanted[at]);
    let mut given = [0; 3];
    for (left, at) in (1..=3).rev().zip(order) {
        given[at] = wanted[at].min(room / left);
        room -= given[at];
    }
    given
}

/// Columns in order, with their widths, for one line per flow.
fn columns(width: u16, needed: Needed) -> Vec<(Column, u16)> {
    use Column::{Bytes, Destination, Forward, Name, Packets, Protocol, Reverse, Source, Time};
    let (mut protocol, end) = (6, IPV4_WIDTH);
    // Includes the space before each but the first.
    let mut room = width.saturating_sub(protocol + 2 * (end + 1) + 9 + 8);
    let mut take = |wanted: u16| {
        let taken = if wanted <= room { wanted } else { 0 };
        room -= taken;
        taken
    };
    let [bytes, time, packets] = [take(7), take(6), take(9)];
    protocol += take(4);
    let more = |end: u16| end.min(IPV6_WIDTH).saturating_sub(IPV4_WIDTH);
    let ends = [more(needed.source), more(needed.destination)];
    let name = match needed.name {
        0 => 0,
        name => name.clamp(NAME_MIN, NAME_MAX) + 1,
    };
    let [source, destination, name] = match divide(room, [ends[0], ends[1], name]) {
        // Too narrow for names: the addresses have it all.
        [_, _, name] if name <= NAME_MIN => divide(room, [ends[0], ends[1], 0]),
        shares => shares,
    };
    let all = [
        (Protocol, protocol),
        (Source, end + source),
        (Destination, end + destination),
        (Name, name.saturating_sub(1)),
        (Forward, 8),
        (Reverse, 7),
        (Packets, packets.saturating_sub(1)),
        (Bytes, bytes.saturating_sub(1)),
        (Time, time.saturating_sub(1)),
    ];
    all.into_iter().filter(|(_, width)| *width != 0).collect()
}

pub fn draw(picture: &Picture, frame: &mut Frame<'_>, area: Rect) {
    let rows: Vec<&Row> = picture.shown_rows().collect();
    if rows.is_empty() {
        let line = match picture.filter.is_empty() {
            true => " no flows yet".to_owned(),
            false => format!(" no flow with {:?} in it", picture.filter),
        };
        // Below the heading.
        let below = Rect {
            y: area.y + 1,
            height: area.height.saturating_sub(1),
            ..area
        };
        frame.render_widget(Paragraph::new(Line::styled(line, DIM)), below);
    }
    let is_wide = area.width >= ONE_LINE_FROM;
    let lines = if is_wide { 1 } else { 2 };
    let visible = usize::from(area.height.saturating_sub(1) / lines).max(1);
    let selected = picture.selected_index();
    // The selected flow is always visible.
    let first = selected.map_or(0, |at| (at + 1).saturating_sub(visible));
    let shown = rows.into_iter().enumerate().skip(first).take(visible);
    let (head, widths, cells) = match is_wide {
        true => wide(picture, area.width),
        false => narrow(picture, area.width),
    };
    let rows = shown.map(|(at, row)| {
        let style = match row.is_ended {
            true => picture.theme.ended,
            false => Style::new(),
        };
        let style = match selected == Some(at) {
            true => style.patch(REVERSED),
            false => style,
        };
        TableRow::new(cells(row)).height(lines).style(style)
    });
    let table = Table::new(rows, widths.into_iter().map(Constraint::Length))
        .header(TableRow::new(head).style(BOLD))
        .column_spacing(1);
    frame.render_widget(table, area);
}

type Cells<'a> = Box<dyn Fn(&Row) -> Vec<Cell<'static>> + 'a>;

/// Headings, widths, and the cells of a row.
type Layout<'a> = (Vec<Cell<'static>>, Vec<u16>, Cells<'a>);

fn mark(picture: &Picture, order: Order) -> &'static str {
    if picture.order == order { "▾" } else { "" }
}

/// Layout with one line per flow.
fn wide(picture: &Picture, width: u16) -> Layout<'_> {
    let columns = columns(width, Needed::of(picture));
    let head = columns.iter().map(|(column, _)| match column {
        Column::Protocol => Cell::from("proto"),
        Column::Source => Cell::from("source"),
        Column::Destination => Cell::from("destination"),
        Column::Name => Cell::from("name"),
        Column::Forward => right(format!("bit/s{} →", mark(picture, Order::Rate))),
        Column::Reverse => right("← bit/s".into()),
        Column::Packets => right(format!("packets{}", mark(picture, Order::Packets))),
        Column::Bytes => right(format!("bytes{}", mark(picture, Order::Bytes))),
        Column::Time => right(format!("time{}", mark(picture, Order::Duration))),
    });
    let (head, widths) = (head.collect(), columns.iter().map(|(_, w)| *w).collect());
    let cells = move |row: &Row| {
        let cells = columns.iter().map(|(column, width)| {
            let width = usize::from(*width);
            match column {
                Column::Protocol => Cell::from(words(&row.protocol, width)),
                Column::Source => Cell::from(row.source.fitted(width)),
                Column::Destination => Cell::from(destination(picture, row, width)),
                Column::Name => Cell::from(words(&row.name, width)),
                Column::Forward => rate(row, 0, picture),
                Column::Reverse => rate(row, 1, picture),
                Column::Packets => right(number(row.packets.iter().sum(), width)),
                Column::Bytes => right(short(row.bytes.iter().sum())),
                Column::Time => right(span(row.duration_ns)),
            }
        });
        cells.collect()
    };
    (head, widths, Box::new(cells))
}

/// Layout with two lines per flow.
fn narrow(picture: &Picture, width: u16) -> Layout<'_> {
    // Each column includes the space before it; one that does not fit is omitted.
    let mut room = width.saturating_sub(IPV4_WIDTH);
    let mut take = |wanted: u16| {
        let taken = if wanted <= room { wanted } else { 0 };
        room -= taken;
        taken.saturating_sub(1)
    };
    let [rate_width, protocol, size] = [take(7), take(6), take(6)];
    let end = IPV4_WIDTH + room.min(IPV6_WIDTH - IPV4_WIDTH);
    let by_packets = picture.order == Order::Packets;
    let first = match picture.order == Order::Duration {
        true => "time▾",
        false => "proto",
    };
    let last = match picture.order {
        Order::Packets => "pkts▾",
        Order::Bytes => "size▾",
        _ => "bytes",
    };
    let all = [
        (Cell::from(first), protocol),
        (Cell::from("source, destination"), end),
        (
            right(format!("bit/s{}", mark(picture, Order::Rate))),
            rate_width,
        ),
        (right(last.into()), size),
    ];
    let present = all.iter().map(|(_, width)| *width != 0);
    let present: Vec<bool> = present.collect();
    let (head, widths) = all.into_iter().filter(|(_, width)| *width != 0).unzip();
    let cells = move |row: &Row| {
        let end = usize::from(end);
        let two = |lines: [String; 2]| lines.map(Line::from).to_vec();
        let numbers = |lines: [String; 2]| {
            let lines = lines.map(|line| Line::from(line).alignment(Alignment::Right));
            Cell::from(Text::from(lines.to_vec()))
        };
        let size = if by_packets { row.packets } else { row.bytes };
        let ends = [row.source.fitted(end), destination(picture, row, end)];
        let rates = row
            .rate_bps
            .map_or_else(Default::default, |rate| rate.map(short));
        let [forward, reverse] = rates;
        let rates = Text::from(vec![
            Line::styled(forward, direction(row, 0, picture)).alignment(Alignment::Right),
            Line::styled(reverse, direction(row, 1, picture)).alignment(Alignment::Right),
        ]);
        let first = [words(&row.protocol, 5), span(row.duration_ns)];
        let cells = [
            Cell::from(Text::from(two(first))),
            Cell::from(Text::from(two(ends))),
            Cell::from(rates),
            numbers(size.map(short)),
        ];
        let cells = cells.into_iter().zip(&present);
        cells.filter(|(_, is)| **is).map(|(cell, _)| cell).collect()
    };
    (head, widths, Box::new(cells))
}

/// The destination: by name if requested and known, followed by the type of ICMP messages if it
/// fits.
fn destination(picture: &Picture, row: &Row, width: usize) -> String {
    if picture.has_names && !row.name.is_empty() {
        return words(&row.name, width);
    }
    let whole = whole_destination(row);
    match whole.chars().count() <= width {
        true => whole,
        false => row.destination.fitted(width),
    }
}

/// The destination's address and the type of ICMP messages.
fn whole_destination(row: &Row) -> String {
    let text = row.destination.whole();
    match row.remark.is_empty() {
        true => text,
        false => format!("{text} {}", row.remark),
    }
}

fn direction(row: &Row, way: usize, picture: &Picture) -> Style {
    match (row.is_ended, way) {
        (true, _) => Style::new(),
        (false, 0) => picture.theme.forward,
        (false, _) => picture.theme.reverse,
    }
}

fn rate(row: &Row, way: usize, picture: &Picture) -> Cell<'static> {
    let text = row.rate_bps.map_or(String::new(), |rate| short(rate[way]));
    right(text).style(direction(row, way, picture))
}

pub fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At any width the columns fit, and addresses are wide enough for IPv4 with a port.
    #[test]
    fn columns_fit_and_keep_both_endpoints() {
        for width in ONE_LINE_FROM..400 {
            for [source, destination, name] in [
                [0, 0, 0],
                [7, 21, 300],
                [47, 21, 0],
                [23, 47, 11],
                [47, 47, 45],
            ] {
                let needed = Needed {
                    source,
                    destination,
                    name,
                };
                let columns = columns(width, needed);
                let taken: u16 = columns.iter().map(|(_, width)| width + 1).sum();
                assert!(taken <= width + 1, "{width}: {columns:?}");
                for end in [Column::Source, Column::Destination] {
                    let found = columns.iter().find(|(column, _)| *column == end).unwrap();
                    assert!(found.1 >= IPV4_WIDTH);
                }
                assert!(columns.iter().any(|(column, _)| *column == Column::Time));
                // Nothing is shortened while there is room to spare.
                if taken < width {
                    let has = |wanted: Column, width: u16| {
                        let mut found = columns.iter().filter(|(column, _)| *column == wanted);
                        found.all(|(_, is)| *is >= width)
                    };
                    assert!(has(Column::Source, source), "{width}: {columns:?}");
                    assert!(
                        has(Column::Destination, destination),
                        "{width}: {columns:?}"
                    );
                    assert!(
                        has(Column::Name, name.min(NAME_MAX)),
                        "{width}: {columns:?}"
                    );
                }
            }
        }
    }
}
