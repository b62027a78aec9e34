//! Scan results as a SQLite database: the tables `answers`, `banners` and `runs`.
//!
//! While it is written, the database has a write-ahead log (`scan.db-wal`), and the process locks
//! it exclusively, so that no shared memory file is needed: both files are open before privileges
//! are dropped. A commit is one transaction. After a kill the log has what the database has not;
//! every reader of SQLite finds it. At the end the log is merged into the database.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::scan::grab::Banner;
use ::scan::report::{Ending, Found, TableFile, TableFormat, TableOptions};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql, params};
use sys::create::CreateOptions;
use wire::Timestamp;

use super::row::{self, BANNER_COLUMN, Cell, Row};

pub(super) static FORMAT: TableFormat = TableFormat {
    word: "sqlite",
    letter: 'S',
    extension: "db",
    about: "a SQLite database",
    is_continued: true,
    open: |options| Ok(Box::new(Results::open(options)?)),
};

/// Marks a database as one of scan results: `bwsc`.
const APPLICATION_ID: i32 = 0x6277_7363;
/// The tables `answers` and `banners` are those of the format `sql`.
const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS answers (time TEXT, address TEXT, protocol TEXT, port INTEGER, \
state TEXT, reason TEXT, ttl INTEGER, sender TEXT, rtt_ms REAL, mac TEXT, vendor TEXT, \
UNIQUE (address, protocol, port, state));
CREATE TABLE IF NOT EXISTS banners (time TEXT, address TEXT, protocol TEXT, port INTEGER, \
application TEXT, fields TEXT, title TEXT, start BLOB, bytes INTEGER, ending TEXT, \
UNIQUE (address, protocol, port, application, start));
CREATE TABLE IF NOT EXISTS runs (start TEXT, version TEXT, arguments TEXT, seed TEXT, \
sent INTEGER, received INTEGER, lost INTEGER, complete INTEGER, error TEXT);
";
const ANSWER: &str = "INSERT OR IGNORE INTO answers VALUES (?,?,?,?,?,?,?,?,?,?,?)";
const BANNER: &str = "INSERT OR IGNORE INTO banners VALUES (?,?,?,?,?,?,?,?,?,?)";
const TOTALS: &str = "UPDATE runs SET sent = ?2, received = ?3, lost = ?4, complete = ?5, \
error = ?6 WHERE rowid = ?1";

/// A database.
struct Results {
    db: Connection,
    path: PathBuf,
    identity: (u64, u64),
    /// The row of this run.
    run: i64,
    /// Whether rows were added since the last commit.
    has_new: bool,
}

/// The write-ahead log of a database.
fn log_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push("-wal");
    name.into()
}

/// Refuses to overwrite a database into which another scan writes.
fn refuse_in_use(path: &Path) -> io::Result<()> {
    let is_file = path
        .symlink_metadata()
        .is_ok_and(|data| data.is_file() && data.len() > 0);
    if !is_file {
        return Ok(());
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let locked = Connection::open_with_flags(path, flags).and_then(|db| {
        db.busy_timeout(Duration::ZERO)?;
        db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        db.execute_batch("BEGIN EXCLUSIVE; ROLLBACK")
    });
    match locked.map_err(failed) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(error),
        // Any other file is overwritten.
        _ => Ok(()),
    }
}

/// Converts an error of SQLite.
fn failed(error: rusqlite::Error) -> io::Error {
    use io::ErrorKind;
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => ErrorKind::InvalidInput,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => ErrorKind::ResourceBusy,
        Some(ErrorCode::DiskFull) => ErrorKind::StorageFull,
        Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => ErrorKind::PermissionDenied,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl Results {
    fn open(options: &TableOptions<'_>) -> io::Result<Self> {
        let making = CreateOptions {
            keep: options.keep,
            ..CreateOptions::BY_UMASK
        };
        // SQLite follows links and reuses files of others: so both are made here. The log of a
        // database that is continued has its last rows.
        let make = |path: &Path| match options.append {
            true => making.open(path).map(|made| made.file),
            false => making.create(path),
        };
        if !options.append {
            refuse_in_use(options.path)?;
        }
        // Closed before SQLite locks it: to close any descriptor of a file unlocks it.
        let data = make(options.path)?.metadata()?;
        if !data.is_file() {
            let why = "databases are regular files";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        make(&log_of(options.path))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(options.path, flags).map_err(failed)?;
        let mut opened = Self {
            db,
            path: options.path.to_owned(),
            identity: (data.dev(), data.ino()),
            run: 0,
            has_new: false,
        };
        opened
            .begin(options, data.len() == 0)
            .map_err(|error| match error {
                Wrong::Kind => {
                    let why = "it is not a database of scan results";
                    io::Error::new(io::ErrorKind::InvalidInput, why)
                }
                Wrong::Sqlite(error) => failed(error),
            })?;
        Ok(opened)
    }

    fn begin(&mut self, options: &TableOptions<'_>, is_new: bool) -> Result<(), Wrong> {
        let db = &self.db;
        db.busy_timeout(Duration::ZERO)?;
        db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        let id: i32 = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
        if !is_new && id != APPLICATION_ID {
            return Err(Wrong::Kind);
        }
        db.pragma_update(None, "temp_store", "MEMORY")?;
        db.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        db.pragma_update(None, "synchronous", "NORMAL")?;
        db.execute_batch("BEGIN")?;
        db.pragma_update(None, "application_id", APPLICATION_ID)?;
        db.execute_batch(SCHEMA)?;
        let run = options.run;
        let start = format!("{:.6}", run.start);
        db.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, 0, 0, 0, 0, NULL)",
            params![start, run.version, run.arguments, run.seed.to_string()],
        )?;
        self.run = db.last_insert_rowid();
        db.execute_batch("COMMIT; BEGIN")?;
        Ok(())
    }

    fn insert(&mut self, statement: &str, cells: impl Iterator<Item = Cell>) -> io::Result<()> {
        self.has_new = true;
        let mut statement = self.db.prepare_cached(statement).map_err(failed)?;
        let values = rusqlite::params_from_iter(cells);
        statement.execute(values).map(drop).map_err(failed)
    }

    fn write(&mut self, ending: &Ending<'_>) -> rusqlite::Result<()> {
        let totals = ending.totals;
        let ended = ending.result;
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let error = ended.and_then(|ended| ended.error.map(str::to_owned));
        let is_complete = ended.is_some_and(|ended| ended.is_complete && error.is_none());
        let (sent, received) = (number(totals.sent), number(totals.received));
        let lost = number(totals.lost);
        self.db.prepare_cached(TOTALS)?.execute(params![
            self.run,
            sent,
            received,
            lost,
            is_complete,
            error
        ])?;
        self.db.execute_batch("COMMIT; BEGIN")
    }

    /// Merges the log into the database. Without a log, it can be read where nothing can be
    /// written. The header changes with its journal in memory: the directory may not be writable
    /// any more. Then the log stays, and SQLite takes one without bytes for none.
    fn end(&self) -> rusqlite::Result<()> {
        self.db.execute_batch("COMMIT")?;
        let merge = "PRAGMA wal_checkpoint(TRUNCATE)";
        self.db.query_row(merge, [], |_| Ok(()))?;
        let mode = ("journal_mode", "MEMORY");
        let changed = self
            .db
            .pragma_update_and_check(None, mode.0, mode.1, |_| Ok(()));
        changed.map(drop)
    }
}

/// Why a database cannot be used.
enum Wrong {
    /// It is another program's.
    Kind,
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Wrong {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl TableFile for Results {
    fn answer(&mut self, found: &Found) -> io::Result<()> {
        // Without the type of the row.
        let cells = row::answer(found).into_iter();
        self.insert(ANSWER, cells.take(BANNER_COLUMN).skip(1))
    }

    fn banner(&mut self, banner: &Banner, time: Timestamp) -> io::Result<()> {
        let row: Row = row::banner(banner, time);
        let (ends, own) = row.split_at(BANNER_COLUMN);
        let cells = ends[1..5].iter().chain(own).cloned();
        self.insert(BANNER, cells)
    }

    fn commit(&mut self, ending: &Ending<'_>) -> io::Result<()> {
        if !std::mem::take(&mut self.has_new) && ending.result.is_none() {
            return Ok(());
        }
        self.write(ending).map_err(failed)
    }

    fn close(&mut self) -> io::Result<()> {
        self.end().map_err(failed)
    }

    fn len(&self) -> u64 {
        let len = |path: &Path| path.metadata().map_or(0, |data| data.len());
        len(&self.path) + len(&log_of(&self.path))
    }

    fn identity(&self) -> (u64, u64) {
        self.identity
    }
}

impl ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Cell::Null => ToSqlOutput::Owned(Value::Null),
            Cell::Number(number) => ToSqlOutput::Owned(Value::Integer(*number)),
            Cell::Time(time) => ToSqlOutput::Owned(Value::Text(format!("{time:.6}"))),
            Cell::Real(real) => ToSqlOutput::Owned(Value::Real(*real)),
            Cell::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Cell::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}
