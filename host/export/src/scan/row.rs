//! Answers and banners as rows of a table.

use ::scan::grab::Banner;
use ::scan::report::{Found, service, title};
use wire::Timestamp;

/// The value of a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Null,
    Number(i64),
    Time(Timestamp),
    Real(f64),
    Text(String),
    Bytes(Vec<u8>),
}

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Unsigned, of 8, 16 or 64 bits.
    Number(i8),
    Time,
    Real,
    Text,
    Bytes,
}

/// A column.
pub(super) struct Column {
    pub name: &'static str,
    pub kind: Kind,
    /// Whether every row has a value.
    pub is_required: bool,
}

const fn required(name: &'static str, kind: Kind) -> Column {
    Column {
        name,
        kind,
        is_required: true,
    }
}

const fn optional(name: &'static str, kind: Kind) -> Column {
    Column {
        name,
        kind,
        is_required: false,
    }
}

/// Number of columns.
pub(super) const COLUMN_COUNT: usize = 18;

/// The columns of a file of answers and banners.
pub(super) const COLUMNS: [Column; COLUMN_COUNT] = [
    // `answer` or `banner`.
    required("type", Kind::Text),
    required("time", Kind::Time),
    required("address", Kind::Text),
    required("protocol", Kind::Text),
    required("port", Kind::Number(16)),
    // Of answers.
    optional("state", Kind::Text),
    optional("reason", Kind::Text),
    optional("ttl", Kind::Number(8)),
    optional("sender", Kind::Text),
    optional("rtt_ms", Kind::Real),
    optional("mac", Kind::Text),
    optional("vendor", Kind::Text),
    // Of banners.
    optional("application", Kind::Text),
    optional("fields", Kind::Text),
    optional("title", Kind::Text),
    optional("start", Kind::Bytes),
    optional("bytes", Kind::Number(64)),
    optional("ending", Kind::Text),
];

/// Index of the first column that only banners have.
pub(super) const BANNER_COLUMN: usize = 12;

/// A row.
pub(super) type Row = [Cell; COLUMN_COUNT];

impl Cell {
    fn text(value: impl Into<String>) -> Self {
        Self::Text(value.into())
    }

    fn of<T>(value: Option<T>, make: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::Null, make)
    }

    /// Bytes in memory, about.
    fn len(&self) -> usize {
        let heap = match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Null | Self::Number(_) | Self::Time(_) | Self::Real(_) => 0,
        };
        size_of::<Self>() + heap
    }
}

/// Bytes of a row in memory, about.
pub(super) fn len(row: &Row) -> usize {
    row.iter().map(Cell::len).sum()
}

/// The row of an answer.
pub(super) fn answer(found: &Found) -> Row {
    let answer = &found.answer;
    let target = &answer.target;
    [
        Cell::text("answer"),
        Cell::Time(found.time),
        Cell::text(target.addr.to_string()),
        Cell::text(target.protocol().word()),
        Cell::Number(target.port.into()),
        Cell::text(answer.state.word()),
        Cell::text(answer.evidence.word()),
        Cell::Number(answer.ttl.into()),
        Cell::text(answer.from.to_string()),
        Cell::of(found.rtt, |rtt| Cell::Real(rtt.as_secs_f64() * 1e3)),
        Cell::of(found.mac(), |mac| Cell::text(mac.to_string())),
        Cell::of(found.vendor.as_deref(), Cell::text),
        Cell::Null,
        Cell::Null,
        Cell::Null,
        Cell::Null,
        Cell::Null,
        Cell::Null,
    ]
}

/// The row of a banner. Text has no NUL, which SQLite's shell would end it at.
pub(super) fn banner(banner: &Banner, time: Timestamp) -> Row {
    let target = &banner.target;
    let mut fields = Vec::new();
    let has_fields = banner.json(&mut fields);
    let fields = has_fields.then(|| String::from_utf8_lossy(&fields).into_owned());
    [
        Cell::text("banner"),
        Cell::Time(time),
        Cell::text(target.addr.to_string()),
        Cell::text(target.protocol().word()),
        Cell::Number(target.port.into()),
        Cell::Null,
        Cell::Null,
        Cell::Null,
        Cell::Null,
        Cell::Null,
        Cell::Null,
        Cell::Null,
        Cell::text(service(banner).replace('\0', "")),
        Cell::of(fields, Cell::Text),
        Cell::of(title(banner), Cell::Text),
        Cell::Bytes(banner.start.clone()),
        Cell::Number(banner.byte_count as i64),
        Cell::text(banner.ending.word()),
    ]
}
