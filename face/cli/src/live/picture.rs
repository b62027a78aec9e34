//! What the view shows, and how it is laid out: from 80 by 24 up in full, smaller with the middle
//! left out.

use std::borrow::Cow;
use std::time::Duration;

use flow::top::{Order, Total};
use port::{DropReason, PortAccount, QueueAccount};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Sparkline, Table};

use crate::cmd::flows::{duration, ends, protocol_name};
use crate::report::{bytes, si};
use wire::Reason;

/// All that is shown.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    pub name: String,
    pub facts: String,
    pub memory_len: u64,
    pub elapsed: Duration,
    pub order: Order,
    pub held: bool,
    pub pps: f64,
    pub bps: f64,
    pub new_per_s: f64,
    pub packets: u64,
    pub wire_bytes: u64,
    pub live: u64,
    pub capacity: u64,
    pub evicted: u64,
    /// Packets in no flow, by reason.
    pub refused: [u64; Reason::COUNT],
    /// Packets that sampling left out.
    pub unsampled: u64,
    /// Ended flows that are in no list: there were too many at once.
    pub undigested: u64,
    /// What is shown in the middle.
    pub shown: Shown,
    /// The first row shown.
    pub first: usize,
    /// Only rows with this in them.
    pub filter: String,
    /// It is being typed.
    pub is_typing: bool,
    /// Names stand in the place of destinations, where they are known.
    pub has_names: bool,
    /// Nobody can press keys.
    pub is_once: bool,
    pub applications: Vec<Entry>,
    pub talkers: Vec<Entry>,
    /// Autonomous systems, countries, makers of cards.
    pub networks: Vec<Entry>,
    /// Packets a second, one value a second.
    pub history: Vec<u64>,
    pub rows: Vec<Row>,
    pub account: PortAccount,
    /// The last thing that happened to the device.
    pub event: String,
}

/// What is shown in the middle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// The largest flows.
    #[default]
    Flows,
    /// Sums by application.
    Applications,
    /// Sums by address.
    Talkers,
    /// Where packets went that are in no flow.
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

    /// What comes after it; networks where there are any.
    pub fn next(self, has_networks: bool) -> Shown {
        let count = Shown::ALL.len() - usize::from(!has_networks);
        Shown::ALL[(self as usize + 1) % count].0
    }
}

/// A sum over flows.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    pub name: String,
    pub remark: String,
    pub records: u64,
    pub packets: u64,
    /// Of a talker sent and received; else all in the first.
    pub bytes: [u64; 2],
}

impl Entry {
    /// Adds to it.
    pub fn add(&mut self, records: u64, packets: u64, bytes: [u64; 2]) {
        self.records += records;
        self.packets += packets;
        self.bytes[0] += bytes[0];
        self.bytes[1] += bytes[1];
    }
}

/// A flow, in words.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Of the application, where it was recognised.
    pub protocol: String,
    /// What the application calls it: the name of a server, of a question.
    pub name: String,
    pub source: String,
    pub destination: String,
    pub packets: u64,
    pub bytes: u64,
    pub rate_bps: Option<f64>,
    pub duration_ns: u64,
}

impl Row {
    /// A flow with its rate and application, where they are known.
    pub fn of(
        total: &Total,
        rate_bps: Option<f64>,
        application: Option<&(Cow<'static, str>, String)>,
    ) -> Row {
        let (source, destination) = ends(total);
        let (protocol, name) = match application {
            Some((protocol, name)) => (protocol.to_string(), name.clone()),
            None => (protocol_name(total.key.protocol()), String::new()),
        };
        Row {
            protocol,
            name,
            source,
            destination,
            packets: total.packets.iter().sum(),
            bytes: total.bytes.iter().sum(),
            rate_bps,
            duration_ns: total.end_ns.saturating_sub(total.start_ns),
        }
    }
}

/// Columns that the view takes without names.
const NAMES_FROM: u16 = 90;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

impl Picture {
    /// Shows something else.
    pub fn show(&mut self, shown: Shown) {
        (self.shown, self.first) = (shown, 0);
    }

    /// How many rows there are to scroll through.
    pub fn row_count(&self) -> usize {
        match self.shown {
            Shown::Flows => self.rows.len(),
            Shown::Applications => self.applications.len(),
            Shown::Talkers => self.talkers.len(),
            Shown::Losses => 0,
            Shown::Networks => self.networks.len(),
        }
    }

    /// Whether a row passes the filter.
    fn takes(&self, words: &[&str]) -> bool {
        let wanted = self.filter.to_lowercase();
        wanted.is_empty()
            || words
                .iter()
                .any(|word| word.to_lowercase().contains(&wanted))
    }

    /// Draws it all.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let queue_lines = self.account.rx.len().min(8) as u16 + 1;
        let spark_lines = if area.height >= 24 { 3 } else { 0 };
        let [title, rates, spark, flows, account, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(2),
            Constraint::Length(spark_lines),
            Constraint::Min(3),
            Constraint::Length(queue_lines + u16::from(self.account.rx.len() > 1)),
            Constraint::Length(1),
        ])
        .areas(area);
        self.draw_title(frame, title);
        self.draw_rates(frame, rates);
        if spark_lines != 0 {
            let skip = self.history.len().saturating_sub(spark.width.into());
            frame.render_widget(Sparkline::default().data(&self.history[skip..]), spark);
        }
        match self.shown {
            Shown::Flows => self.draw_flows(frame, flows),
            Shown::Applications => self.draw_entries(frame, flows, &self.applications),
            Shown::Talkers => self.draw_entries(frame, flows, &self.talkers),
            Shown::Losses => self.draw_losses(frame, flows),
            Shown::Networks => self.draw_entries(frame, flows, &self.networks),
        }
        self.draw_account(frame, account);
        self.draw_keys(frame, keys);
    }

    fn draw_title(&self, frame: &mut Frame<'_>, area: Rect) {
        let left = Line::from(vec![
            Span::styled(format!(" barewire flows {} ", self.name), BOLD),
            Span::raw(self.facts.as_str()),
        ]);
        let seconds = self.elapsed.as_secs();
        let clock = format!(
            " {}:{:02}:{:02} ",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        );
        let [left_area, right_area] =
            Layout::horizontal([Constraint::Min(0), Constraint::Length(clock.len() as u16)])
                .areas(area);
        frame.render_widget(Paragraph::new(left).style(REVERSED), left_area);
        frame.render_widget(Paragraph::new(clock).style(REVERSED), right_area);
    }

    fn draw_rates(&self, frame: &mut Frame<'_>, area: Rect) {
        let lost = self.account.rx_total().lost();
        let first = Line::from(vec![
            Span::styled(format!(" {:>12}", si(self.pps.round(), "pps")), BOLD),
            Span::styled(format!("  {:>13}", si(self.bps.round(), "bit/s")), BOLD),
            Span::raw(format!(
                "   {} packets, {}",
                self.packets,
                bytes(self.wire_bytes)
            )),
            Span::styled(
                format!("   {lost} lost"),
                if lost == 0 { Style::new() } else { BOLD },
            ),
        ]);
        let percent = self.live * 100 / self.capacity.max(1);
        let mut second = format!(
            " {} flows live ({percent} % of the table), {} new",
            self.live,
            si(self.new_per_s.round(), "/s"),
        );
        if self.evicted != 0 {
            second += &format!(", {} ended for room", self.evicted);
        }
        let refused: u64 = self.refused.iter().sum();
        if refused != 0 {
            second += &format!(", {refused} packets in none");
        }
        // What never changes may be cut off.
        second += &format!(", {} of memory", bytes(self.memory_len));
        frame.render_widget(Paragraph::new(vec![first, Line::from(second)]), area);
    }

    fn draw_flows(&self, frame: &mut Frame<'_>, area: Rect) {
        let mark = |order| if self.order == order { "▾" } else { "" };
        let head = [
            "proto".to_owned(),
            "source".to_owned(),
            "destination".to_owned(),
            "name".to_owned(),
            format!("packets{}", mark(Order::Packets)),
            format!("bytes{}", mark(Order::Bytes)),
            "rate".to_owned(),
            format!("time{}", mark(Order::Duration)),
        ];
        // A wide terminal has room for names, if there are any.
        let has_names = self.rows.iter().any(|row| !row.name.is_empty());
        let name_width = match has_names {
            true => area.width.saturating_sub(NAMES_FROM).min(40),
            false => 0,
        };
        // What is left for the two ends, half each.
        let fixed = 5 + 8 + 10 + 13 + 8 + 7 + name_width;
        let end_width = usize::from(area.width.saturating_sub(fixed) / 2);
        let rows = self
            .rows
            .iter()
            .filter(|row| self.takes(&[&row.protocol, &row.source, &row.destination, &row.name]));
        let rows = rows.skip(self.first).map(|row| {
            let destination = match self.has_names && !row.name.is_empty() {
                true => &row.name,
                false => &row.destination,
            };
            TableRow::new([
                Cell::from(row.protocol.as_str()),
                Cell::from(shorten(&row.source, end_width)),
                Cell::from(shorten(destination, end_width)),
                Cell::from(shorten(&row.name, name_width.into())),
                right(row.packets.to_string()),
                right(bytes(row.bytes)),
                right(
                    row.rate_bps
                        .map_or(String::new(), |bps| si(bps.round(), "bit/s")),
                ),
                right(duration(row.duration_ns)),
            ])
        });
        let widths = [
            Constraint::Length(5),
            Constraint::Length(end_width as u16),
            Constraint::Length(end_width as u16),
            Constraint::Length(name_width),
            Constraint::Length(8),
            Constraint::Length(10),
            Constraint::Length(13),
            Constraint::Length(8),
        ];
        let head = head.into_iter().enumerate().map(|(at, text)| {
            if at < 4 {
                Cell::from(text)
            } else {
                right(text)
            }
        });
        let table = Table::new(rows, widths)
            .header(TableRow::new(head).style(BOLD))
            .column_spacing(1);
        frame.render_widget(table, area);
    }

    /// A list of sums, with bars by the share of the largest.
    fn draw_entries(&self, frame: &mut Frame<'_>, area: Rect, entries: &[Entry]) {
        let has_ways = self.shown == Shown::Talkers;
        let mark = |order| if self.order == order { "▾" } else { "" };
        let bytes_mark = if self.order == Order::Packets {
            ""
        } else {
            "▾"
        };
        let size = |entry: &Entry| entry.bytes.iter().sum::<u64>();
        let all: u64 = entries.iter().map(size).sum();
        let most = entries.iter().map(size).max().unwrap_or(0).max(1);
        let head = match has_ways {
            true => ["address", "", "flows", "packets", "sent", "received", ""],
            false if self.shown == Shown::Networks => {
                ["origin", "", "flows", "packets", "bytes", "share", ""]
            }
            false => ["application", "", "flows", "packets", "bytes", "share", ""],
        };
        let head = head.into_iter().enumerate().map(|(at, text)| match at {
            0 | 1 | 6 => Cell::from(text),
            3 => right(format!("{text}{}", mark(Order::Packets))),
            4 => right(format!("{text}{bytes_mark}")),
            _ => right(text.to_owned()),
        });
        let name_width = match has_ways {
            true => area.width.saturating_sub(44).min(39),
            false if self.shown == Shown::Networks => area.width.saturating_sub(54).min(48),
            false => 16,
        };
        let remark_width = if has_ways { 0 } else { 10 };
        let fixed = name_width + remark_width + 8 + 10 + 10 + 10 + 6;
        let bar_width = area.width.saturating_sub(fixed);
        let shown = entries
            .iter()
            .filter(|entry| self.takes(&[&entry.name, &entry.remark]));
        let rows = shown
            .skip(self.first)
            .take(area.height.into())
            .map(|entry| {
                let last = match has_ways {
                    true => bytes(entry.bytes[1]),
                    false => format!("{:.1} %", size(entry) as f64 * 100.0 / all.max(1) as f64),
                };
                let bar = size(entry) as u128 * u128::from(bar_width) / u128::from(most);
                TableRow::new([
                    Cell::from(shorten(&entry.name, name_width.into())),
                    Cell::from(if has_ways { "" } else { &entry.remark }),
                    right(entry.records.to_string()),
                    right(entry.packets.to_string()),
                    right(bytes(entry.bytes[0])),
                    right(last),
                    // Who it is says more than a bar.
                    Cell::from(match has_ways && !entry.remark.is_empty() {
                        true => shorten(&entry.remark, bar_width.into()),
                        false => "▇".repeat(bar as usize),
                    }),
                ])
            });
        let widths = [name_width, remark_width, 8, 10, 10, 10, bar_width];
        let table = Table::new(rows, widths.map(Constraint::Length))
            .header(TableRow::new(head).style(BOLD))
            .column_spacing(1);
        frame.render_widget(table, area);
    }

    /// Where packets went that are in no flow, and why some never came here.
    fn draw_losses(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut lines = vec![Line::styled("packets", BOLD)];
        let mut add = |count: u64, words: String| {
            if count != 0 {
                lines.push(Line::from(format!("{count:>14}  {words}")));
            }
        };
        let total = self.account.rx_total();
        add(self.packets, "metered".into());
        for reason in DropReason::ALL {
            let words = format!("dropped by the port: {}", reason.name().replace('_', " "));
            add(total.dropped[reason as usize], words);
        }
        for reason in Reason::ALL {
            let words = match reason {
                Reason::Complete => "in no flow: not IP".to_owned(),
                reason => format!("in no flow: {}", reason.name().replace('_', " ")),
            };
            add(self.refused[reason as usize], words);
        }
        add(self.unsampled, "left out by sampling".into());
        lines.push(Line::styled("flows", BOLD));
        let mut add = |count: u64, words: &str| {
            if count != 0 {
                lines.push(Line::from(format!("{count:>14}  {words}")));
            }
        };
        add(
            self.evicted,
            "ended early: the table was full (--table-size)",
        );
        add(
            self.undigested,
            "ended too fast to be in the lists of applications and talkers",
        );
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn draw_account(&self, frame: &mut Frame<'_>, area: Rect) {
        let head = format!(
            "{:>5} {:>12} {:>12} {:>11} {:>10} {:>9}  account",
            "queue", "seen", "delivered", "to host", "filtered", "lost"
        );
        let mut lines = vec![Line::styled(head, BOLD)];
        for queue in self.account.rx.iter().take(8) {
            lines.push(Line::from(account_line(
                &queue.queue_index.to_string(),
                queue,
            )));
        }
        if self.account.rx.len() > 1 {
            lines.push(Line::from(account_line("all", &self.account.rx_total())));
        }
        frame.render_widget(Paragraph::new(lines), area);
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
        let mut spans = Vec::new();
        if self.held {
            spans.push(Span::styled(" HELD", BOLD));
        }
        if !self.filter.is_empty() {
            spans.push(Span::styled(format!(" filter: {}", self.filter), BOLD));
        }
        if !self.event.is_empty() {
            spans.push(Span::styled(format!(" {}", self.event), BOLD));
        }
        let has_networks = !self.networks.is_empty();
        for (shown, name) in Shown::ALL {
            if shown == Shown::Networks && !has_networks {
                continue;
            }
            let style = if shown == self.shown { REVERSED } else { DIM };
            spans.push(Span::raw(" "));
            spans.push(Span::styled(
                format!("{} {name}", shown as usize + 1),
                style,
            ));
        }
        let hold = if self.held { "go on" } else { "hold" };
        spans.push(Span::styled(
            match has_networks {
                // 80 columns are not more.
                true => format!("  b p d  / filter  space {hold}  q"),
                false => format!("  b p d  / filter  n names  space {hold}  q"),
            },
            DIM,
        ));
        let line = Line::from(spans);
        frame.render_widget(Paragraph::new(line), area);
    }
}

fn right<'a>(text: String) -> Cell<'a> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

/// The counters are read one after the other while packets come, so a difference that is not there
/// at the end is only a moment's.
fn account_line(name: &str, queue: &QueueAccount) -> String {
    let account = match queue.imbalance() {
        0 => "adds up".to_owned(),
        moving => format!("{moving:+} just now"),
    };
    format!(
        "{name:>5} {:>12} {:>12} {:>11} {:>10} {:>9}  {account}",
        queue.seen,
        queue.delivered,
        queue.passed,
        queue.dropped[DropReason::Filter as usize],
        queue.lost()
    )
}

/// At most `width` characters, with the middle left out: both ends of an address tell more than its
/// middle.
fn shorten(text: &str, width: usize) -> String {
    let len = text.chars().count();
    if len <= width {
        return text.to_owned();
    }
    let tail = width.saturating_sub(1) * 2 / 3;
    let head = width.saturating_sub(1) - tail;
    let first: String = text.chars().take(head).collect();
    let last: String = text.chars().skip(len - tail).collect();
    format!("{first}…{last}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn text(picture: &Picture, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| picture.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        (0..height)
            .map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect())
            .collect()
    }

    fn picture(queues: usize) -> Picture {
        let queue = QueueAccount {
            seen: 1_000_000,
            delivered: 999_990,
            ..QueueAccount::default()
        };
        let mut account = PortAccount {
            rx: vec![queue; queues],
            ..PortAccount::default()
        };
        account.rx[0].dropped[DropReason::RingFull as usize] = 10;
        Picture {
            name: "eth0".into(),
            elapsed: Duration::from_secs(3723),
            pps: 1_234_567.0,
            bps: 987_654_321.0,
            live: 500,
            capacity: 1000,
            history: (0..300).collect(),
            rows: vec![
                Row {
                    protocol: "tls".into(),
                    name: "www.example.org".into(),
                    source: "[2001:db8:1234:5678:9abc:def0:1234:5678]:54321".into(),
                    destination: "10.0.0.1:443".into(),
                    packets: 12_345_678,
                    bytes: 1 << 40,
                    rate_bps: Some(1.5e9),
                    duration_ns: 3_600_000_000_000,
                };
                40
            ],
            account,
            ..Picture::default()
        }
    }

    #[test]
    fn names_are_shown_where_there_is_room() {
        let shows = |width| {
            let lines = text(&picture(1), width, 24);
            lines.iter().any(|line| line.contains("www.example.org"))
        };
        assert!(shows(130) && !shows(80));
    }

    #[test]
    fn all_of_it_fits_80_by_24() {
        let lines = text(&picture(2), 80, 24);
        assert!(lines[0].contains("barewire flows eth0") && lines[0].contains("1:02:03"));
        assert!(lines[1].contains("1.23 Mpps") && lines[1].contains("987.65 Mbit/s"));
        assert!(lines[1].contains("10 lost"));
        assert!(lines[2].contains("500 flows live (50 % of the table)"));
        let head = lines
            .iter()
            .position(|l| l.contains("destination"))
            .unwrap();
        assert!(lines[head].contains("bytes▾"));
        let row = &lines[head + 1];
        assert!(
            row.contains('…') && row.contains(":54321") && row.contains("10.0.0.1:443"),
            "{row}"
        );
        assert!(row.contains("12345678") && row.contains("1.0 TiB"), "{row}");
        assert!(
            row.contains("1.50 Gbit/s") && row.contains("1:00:00"),
            "{row}"
        );
        assert!(lines.iter().any(|l| l.contains("adds up")));
        assert!(lines.iter().any(|l| l.contains("+10 just now")));
        assert!(lines[23].contains("space hold") && lines[23].contains("/ filter"));
        assert!(lines[23].contains("2 apps") && lines[23].contains("hold  q"));
    }

    #[test]
    fn lists_and_losses_fit_80_by_24() {
        let mut picture = picture(1);
        picture.applications = vec![Entry {
            name: "tls".into(),
            remark: "recognised".into(),
            records: 12,
            packets: 3_000_000,
            bytes: [1 << 30, 0],
        }];
        picture.talkers = vec![Entry {
            name: "2001:db8:1234:5678:9abc:def0:1234:5678".into(),
            bytes: [1 << 20, 1 << 30],
            ..Entry::default()
        }];
        picture.refused[Reason::Complete as usize] = 7;
        picture.evicted = 3;
        for (shown, words) in [
            (
                Shown::Applications,
                &["application", "tls", "recognised", "100.0 %", "1.0 GiB"][..],
            ),
            (
                Shown::Talkers,
                &["received", "9abc:def0:1234:5678", "1.0 MiB", "1.0 GiB"],
            ),
            (
                Shown::Losses,
                &["ring full", "7  in no flow: not IP", "3  ended early"],
            ),
        ] {
            picture.show(shown);
            let text = text(&picture, 80, 24).join("\n");
            for word in words {
                assert!(text.contains(word), "{word} in\n{text}");
            }
        }
        assert_eq!(picture.shown.next(false), Shown::Flows);
        assert_eq!(picture.shown.next(true), Shown::Networks);
        // Their page is told of only where there is something in it.
        assert!(!text(&picture, 80, 24).join("\n").contains("5 networks"));
        picture.networks = vec![Entry {
            name: "AS64500 Example".into(),
            remark: "network".into(),
            bytes: [1 << 30, 0],
            ..Entry::default()
        }];
        picture.talkers[0].remark = "DE AS64500 Example".into();
        picture.show(Shown::Networks);
        let narrow = text(&picture, 80, 24).join("\n");
        for word in ["5 networks", "AS64500 Example", "100.0 %", "space", " q"] {
            assert!(narrow.contains(word), "{word} in\n{narrow}");
        }
        picture.show(Shown::Talkers);
        assert!(
            text(&picture, 120, 24)
                .join("\n")
                .contains("DE AS64500 Example")
        );
    }

    #[test]
    fn rows_are_filtered_scrolled_and_named() {
        let mut picture = picture(1);
        picture.rows.truncate(2);
        picture.rows[1].destination = "192.0.2.7:53".into();
        let shows = |picture: &Picture, words: &str| {
            let lines = text(picture, 80, 24);
            lines.iter().any(|line| line.contains(words))
        };
        assert!(shows(&picture, "10.0.0.1:443") && shows(&picture, "192.0.2.7"));
        picture.filter = "10.0.0.1".into();
        assert!(shows(&picture, "10.0.0.1:443") && !shows(&picture, "192.0.2.7"));
        picture.filter = "EXAMPLE.org".into();
        assert!(shows(&picture, "192.0.2.7") && shows(&picture, "filter: EXAMPLE.org"));
        picture.filter.clear();
        picture.first = 1;
        assert!(!shows(&picture, "10.0.0.1:443") && shows(&picture, "192.0.2.7"));
        picture.has_names = true;
        assert!(shows(&picture, "mple.org") && !shows(&picture, "192.0.2.7"));
        (picture.is_typing, picture.filter) = (true, "te".into());
        assert!(shows(&picture, "filter: te▏"));
    }

    #[test]
    fn no_size_breaks_it() {
        for width in [1, 5, 20, 79, 80, 81, 200] {
            for height in [1, 2, 5, 10, 24, 100] {
                for queues in [1, 3, 20] {
                    let mut picture = picture(queues);
                    picture.talkers = vec![Entry::default(); 40];
                    for (shown, _) in Shown::ALL {
                        picture.show(shown);
                        text(&picture, width, height);
                    }
                }
            }
        }
        text(&Picture::default(), 80, 24);
    }

    #[test]
    fn long_ends_keep_both_ends() {
        assert_eq!(shorten("10.0.0.1:80", 20), "10.0.0.1:80");
        assert_eq!(shorten("abcdefghij", 7), "ab…ghij");
        assert_eq!(shorten("abcdefghij", 1), "…");
        assert_eq!(shorten("abcdefghij", 0), "…");
    }
}
