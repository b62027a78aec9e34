//! The layouts of files that are merged, by their first line: JSON lines, the JSON array of masscan
//! (`-oJ`), and CSV (`-oC`). Their rows become those of `--json`, with the fields that they have.

use serde_json::{Map, Value, json};
use wire::Timestamp;
use wire::time::NS_PER_S;

/// A row of `--json`.
pub(super) type Row = Map<String, Value>;

/// First cells of the heading of CSV.
const HEADING: &[u8] = b"type,time,address,protocol,port,state,";
/// Columns of CSV that are numbers.
const NUMBERS: [&str; 3] = ["port", "ttl", "rtt_ms"];

/// How the rows of a file are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One object per line, as `--json` prints them.
    Lines,
    /// An array, each object on a line of its own.
    Array,
    /// Cells, with these columns.
    Table(Vec<String>),
}

impl Layout {
    /// The layout of a file that begins with this line.
    pub(super) fn of(line: &[u8]) -> Self {
        match line.trim_ascii_start() {
            [b'[', ..] => Self::Array,
            start if start.starts_with(HEADING) => {
                let cells = cells(start.trim_ascii_end()).unwrap_or_default();
                Self::Table(cells)
            }
            _ => Self::Lines,
        }
    }

    /// Whether a file of this layout ends with totals.
    pub(super) fn has_totals(&self) -> bool {
        *self == Self::Lines
    }

    /// Whether a line is the beginning of a row that a killed scan, or a full disk, left at the end
    /// of a file.
    pub(super) fn is_cut(&self, line: &[u8]) -> bool {
        let parse = || serde_json::from_slice::<Row>(line);
        match (line.last(), self) {
            (Some(b'\n'), _) => false,
            (_, Self::Table(_)) => true,
            _ => line.starts_with(b"{") && parse().is_err_and(|error| error.is_eof()),
        }
    }

    /// The rows of a line, none for one that has none; `None` if it is not a line of this layout.
    pub(super) fn rows(&self, line: &[u8]) -> Option<Vec<Row>> {
        match self {
            Self::Lines => Some(vec![serde_json::from_slice(line).ok()?]),
            Self::Array => {
                let is_between = |byte: &u8| byte.is_ascii_whitespace() || b"[],".contains(byte);
                let start = line.iter().position(|byte| !is_between(byte));
                let Some(start) = start else {
                    return Some(Vec::new());
                };
                let end = line.iter().rposition(|byte| !is_between(byte))?;
                of_host(&serde_json::from_slice(line.get(start..=end)?).ok()?)
            }
            Self::Table(_) if line.starts_with(HEADING) => Some(Vec::new()),
            Self::Table(columns) => {
                let cells = cells(line.trim_ascii_end())?;
                (cells.len() == columns.len()).then(|| vec![of_cells(columns, cells)])
            }
        }
    }
}

/// The rows of a host in masscan's format: one for each of its ports.
fn of_host(host: &Row) -> Option<Vec<Row>> {
    let address = host.get("ip")?.as_str()?;
    let seconds: u64 = match host.get("timestamp")? {
        Value::String(text) => text.parse().ok()?,
        value => value.as_u64()?,
    };
    let time = Timestamp(seconds.checked_mul(NS_PER_S)?);
    let row = |port: &Value| {
        let port = port.as_object()?;
        let mut row = Row::new();
        row.insert("time".into(), format!("{time:.6}").into());
        row.insert("address".into(), address.into());
        row.insert("protocol".into(), port.get("proto")?.clone());
        row.insert("port".into(), port.get("port")?.clone());
        let Some(service) = port.get("service") else {
            row.insert("type".into(), "answer".into());
            for (name, word) in [("state", "status"), ("reason", "reason"), ("ttl", "ttl")] {
                row.insert(name.into(), port.get(word)?.clone());
            }
            return Some(row);
        };
        banner(
            &mut row,
            service.get("name")?.as_str()?,
            service.get("banner")?.as_str()?,
        );
        Some(row)
    };
    host.get("ports")?.as_array()?.iter().map(row).collect()
}

/// Adds the fields of a banner.
fn banner(row: &mut Row, name: &str, start: &str) {
    let application = match name {
        "" => json!({}),
        name => json!({ "protocol": name }),
    };
    row.insert("type".into(), "banner".into());
    row.insert("application".into(), application);
    row.insert("start".into(), start.into());
}

/// The row of a line of cells. Empty ones are left out.
fn of_cells(columns: &[String], cells: Vec<String>) -> Row {
    let mut row = Row::new();
    let mut named = Vec::new();
    for (column, cell) in columns.iter().zip(cells) {
        match column.as_str() {
            "application" | "banner" => named.push(cell),
            _ if cell.is_empty() => {}
            name if NUMBERS.contains(&name) => {
                let number = serde_json::from_str::<serde_json::Number>(&cell);
                row.insert(name.into(), number.map_or(cell.into(), Value::Number));
            }
            name => {
                row.insert(name.into(), cell.into());
            }
        }
    }
    if row.get("type").is_some_and(|kind| kind == "banner") {
        row.remove("state");
        let mut named = named.iter().map(String::as_str);
        let (name, start) = (named.next(), named.next());
        banner(
            &mut row,
            name.unwrap_or_default(),
            start.unwrap_or_default(),
        );
    }
    row
}

/// The cells of a line (RFC 4180); cells of these files have no line breaks. `None` if quotes do
/// not match, or for text that is not UTF-8.
fn cells(line: &[u8]) -> Option<Vec<String>> {
    let mut letters = std::str::from_utf8(line).ok()?.chars().peekable();
    let mut cells = vec![String::new()];
    let mut is_quoted = false;
    while let Some(letter) = letters.next() {
        let cell = cells.last_mut()?;
        match letter {
            '"' if is_quoted && letters.next_if_eq(&'"').is_some() => cell.push('"'),
            '"' if is_quoted => {
                is_quoted = false;
                if letters.peek().is_some_and(|next| *next != ',') {
                    return None;
                }
            }
            '"' if cell.is_empty() => is_quoted = true,
            ',' if !is_quoted => cells.push(String::new()),
            letter => cell.push(letter),
        }
    }
    (!is_quoted).then_some(cells)
}
