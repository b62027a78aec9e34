//! What the view shows, and how it is laid out: from 80 by 24 up in full, smaller with the middle
//! left out.

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
    pub refused: u64,
    /// Packets a second, one value a second.
    pub history: Vec<u64>,
    pub rows: Vec<Row>,
    pub account: PortAccount,
    /// The last thing that happened to the device.
    pub event: String,
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
        application: Option<&(&'static str, String)>,
    ) -> Row {
        let (source, destination) = ends(total);
        let (protocol, name) = match application {
            Some((protocol, name)) => ((*protocol).to_owned(), name.clone()),
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
        self.draw_flows(frame, flows);
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
            " {} flows live ({percent} % of the table), {} new, {} of memory",
            self.live,
            si(self.new_per_s.round(), "/s"),
            bytes(self.memory_len)
        );
        if self.evicted != 0 {
            second += &format!(", {} ended for room", self.evicted);
        }
        if self.refused != 0 {
            second += &format!(", {} packets not IP", self.refused);
        }
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
        let rows = self.rows.iter().map(|row| {
            TableRow::new([
                Cell::from(row.protocol.as_str()),
                Cell::from(shorten(&row.source, end_width)),
                Cell::from(shorten(&row.destination, end_width)),
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
        let hold = if self.held { "go on" } else { "hold" };
        let keys = format!(" q end   b bytes   p packets   d duration   space {hold}");
        let line = Line::from(vec![
            Span::styled(keys, DIM),
            Span::styled(if self.held { "   HELD" } else { "" }, BOLD),
            Span::raw(if self.event.is_empty() {
                String::new()
            } else {
                format!("   {}", self.event)
            }),
        ]);
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
        assert!(lines[23].contains("q end"));
    }

    #[test]
    fn no_size_breaks_it() {
        for width in [1, 5, 20, 79, 80, 81, 200] {
            for height in [1, 2, 5, 10, 24, 100] {
                for queues in [1, 3, 20] {
                    text(&picture(queues), width, height);
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
