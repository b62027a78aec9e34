//! Sums by application, by address and by network: one line each, with bars relative to the
//! largest.

use flow::top::Order;
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, Wrap};

use super::flows::right;
use super::theme::{BOLD, DIM};
use super::{Entry, Picture, Shown};
use crate::short::{End, short, words};

/// Width of the longest IPv4 address.
const IPV4_WIDTH: u16 = 15;
/// Minimum width of a bar.
const BAR_MIN: u16 = 6;

/// What the page of networks shows, and how to enable it.
const NETWORKS_HELP: [&str; 8] = [
    " This page sums up traffic by autonomous system, country and card vendor.",
    " It needs files that are not part of barewire:",
    "",
    "   --asn FILE          networks: GeoLite2-ASN.mmdb, or a list (iptoasn.com)",
    "   --geo FILE          countries: GeoLite2-City.mmdb, or a list (iptoasn.com)",
    "   --mac-vendors FILE  card vendors, with --key mac: oui.csv (ieee.org)",
    "",
    " More: docs/enrichment.md",
];

/// Column widths; 0 omits the column.
struct Widths {
    name: u16,
    remark: u16,
    records: u16,
    packets: u16,
    size: u16,
    last: u16,
    bar: u16,
}

impl Widths {
    /// The names of each list are never cut below its width.
    fn new(shown: Shown, width: u16) -> Widths {
        let (least, most, remark) = match shown {
            Shown::Talkers => (IPV4_WIDTH, 39, 0),
            Shown::Networks => (12, 48, 9),
            _ => (12, 16, 11),
        };
        let mut widths = Widths {
            name: least,
            remark: 0,
            records: 0,
            packets: 0,
            size: 7,
            last: 9,
            bar: 0,
        };
        // Includes the space before each but the first.
        let mut room = width.saturating_sub(least + 7 + 9);
        let mut take = |wanted: u16, least: u16| {
            let taken = if room >= least { wanted.min(room) } else { 0 };
            room -= taken;
            taken
        };
        widths.records = take(7, 7);
        widths.packets = take(9, 9);
        widths.remark = take(remark, remark);
        widths.name += take(most - least, 1);
        widths.bar = take(u16::MAX, BAR_MIN + 1);
        widths
    }
}

pub fn draw(picture: &Picture, entries: &[Entry], frame: &mut Frame<'_>, area: Rect) {
    if picture.shown == Shown::Networks && !picture.has_origins {
        let lines = NETWORKS_HELP.map(Line::from).to_vec();
        let text = Paragraph::new(lines).wrap(Wrap { trim: false });
        return frame.render_widget(text, area);
    }
    let shown: Vec<&Entry> = entries
        .iter()
        .filter(|entry| picture.takes(&[&entry.name, &entry.remark]))
        .collect();
    if shown.is_empty() {
        let line = Line::styled(" nothing yet", DIM);
        return frame.render_widget(Paragraph::new(line), area);
    }
    let has_ways = picture.shown == Shown::Talkers;
    let widths = Widths::new(picture.shown, area.width);
    let size = |entry: &Entry| entry.bytes.iter().sum::<u64>();
    let all: u64 = entries.iter().map(size).sum();
    let most = entries.iter().map(size).max().unwrap_or(0).max(1);
    let rows = shown
        .iter()
        .skip(picture.first)
        .take(area.height.into())
        .map(|entry| {
            let last = match has_ways {
                true => short(entry.bytes[1]),
                false => format!("{:.1} %", size(entry) as f64 * 100.0 / all.max(1) as f64),
            };
            let bar_width = widths.bar.saturating_sub(1);
            let bar = size(entry) as u128 * u128::from(bar_width) / u128::from(most);
            // A name is more informative than a bar.
            let bar = match has_ways && !entry.remark.is_empty() {
                true => Cell::from(words(&entry.remark, bar_width.into())),
                false => Cell::from("▇".repeat(bar as usize)).style(picture.theme.bar),
            };
            let name = match entry.addr {
                Some(addr) => End { addr, port: None }.fitted(widths.name.into()),
                None => words(&entry.name, widths.name.into()),
            };
            [
                Cell::from(name),
                Cell::from(entry.remark.clone()),
                right(short(entry.records)),
                right(short(entry.packets)),
                right(short(entry.bytes[0])),
                right(last),
                bar,
            ]
        });
    let head = heading(picture, has_ways);
    let present = [
        widths.name,
        widths.remark.saturating_sub(1),
        widths.records.saturating_sub(1),
        widths.packets.saturating_sub(1),
        widths.size - 1,
        widths.last - 1,
        widths.bar.saturating_sub(1),
    ];
    let only = |cells: [Cell<'static>; 7]| {
        let cells = cells.into_iter().zip(present);
        TableRow::new(cells.filter(|(_, width)| *width != 0).map(|(cell, _)| cell))
    };
    let constraints = present.into_iter().filter(|width| *width != 0);
    let table = Table::new(rows.map(only), constraints.map(Constraint::Length))
        .header(only(head).style(BOLD))
        .column_spacing(1);
    frame.render_widget(table, area);
}

fn heading(picture: &Picture, has_ways: bool) -> [Cell<'static>; 7] {
    let by_packets = picture.order == Order::Packets;
    let (packets_mark, bytes_mark) = if by_packets { ("▾", "") } else { ("", "▾") };
    let (name, size, last) = match picture.shown {
        Shown::Talkers => ("address", "sent", "received"),
        Shown::Networks => ("network", "bytes", "share"),
        _ => ("application", "bytes", "share"),
    };
    // Talkers are sorted by the sum of both directions.
    let bytes_mark = if has_ways { "" } else { bytes_mark };
    [
        Cell::from(name),
        Cell::from(""),
        right("flows".into()),
        right(format!("packets{packets_mark}")),
        right(format!("{size}{bytes_mark}")),
        right(last.into()),
        Cell::from(""),
    ]
}
