//! Files are valid after each commit, and have each row once.

use std::fs;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use ::parquet::file::reader::{FileReader as _, SerializedFileReader};
use ::parquet::record::RowAccessor as _;
use ::scan::grab::{Banner, Ending as GrabEnding};
use ::scan::report::{AskedRate, Ended, Ending, Run, TableFile, TableOptions, Totals};
use ::scan::{Answer, Evidence, Found, Probe, ProbeTarget, State};
use rusqlite::Connection;
use wire::Timestamp;

use super::*;

/// A directory that is removed.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("barewire-export-scan-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run() -> Run {
    Run {
        version: "1".into(),
        arguments: "scan".into(),
        start: Timestamp(0),
        seed: u64::MAX,
        rate: AskedRate {
            max: 100.0,
            min: None,
            unit: "pps",
        },
        block: 1,
        fingerprint: 0xabc,
        target_count: 1,
        services: Vec::new(),
    }
}

fn found(number: u32) -> Found {
    let addr = Ipv4Addr::from(number).into();
    let probe = Probe::Syn;
    Found {
        answer: Answer {
            target: ProbeTarget {
                addr,
                probe,
                port: 80,
            },
            state: State::Closed,
            evidence: Evidence::Reset,
            ttl: 64,
            from: addr,
            payload: (0, 0),
            sent_us: None,
        },
        time: Timestamp(1_700_000_000_123_456_789),
        rtt: None,
        payload: Box::default(),
        vendor: None,
    }
}

fn banner(number: u32) -> Banner {
    Banner::new(
        found(number).answer.target,
        &[0, 0xff, b'\''],
        GrabEnding::Closed,
    )
}

fn open(format: &TableFormat, path: &PathBuf, append: bool) -> std::io::Result<Box<dyn TableFile>> {
    (format.open)(&TableOptions {
        path,
        run: &run(),
        append,
        keep: &[],
    })
}

fn commit(file: &mut dyn TableFile, is_over: bool) {
    let totals = Totals {
        sent: 7,
        ..Totals::default()
    };
    let ended = Ended {
        seconds: 1.0,
        sending_seconds: 1.0,
        is_complete: true,
        error: None,
    };
    file.commit(&Ending {
        totals: &totals,
        now: Timestamp(0),
        result: is_over.then_some(ended),
    })
    .unwrap();
}

/// Addresses of the rows of a Parquet file, and whether its run is complete.
fn read_parquet(path: &PathBuf) -> (Vec<String>, bool) {
    let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
    let metadata = reader.metadata().file_metadata();
    let rows = reader.get_row_iter(None).unwrap();
    let rows: Vec<String> = rows
        .map(|row| row.unwrap().get_string(2).unwrap().clone())
        .collect();
    assert_eq!(metadata.num_rows(), rows.len() as i64);
    let about = metadata.key_value_metadata().unwrap();
    let complete = about.iter().find(|pair| pair.key == "barewire.complete");
    (rows, complete.unwrap().value.as_deref() == Some("true"))
}

#[test]
fn a_parquet_file_is_valid_after_each_commit() {
    let folder = Folder::new("parquet");
    let path = folder.0.join("scan.parquet");
    let mut file = open(&parquet::FORMAT, &path, false).unwrap();
    commit(&mut *file, false);
    assert_eq!(read_parquet(&path), (Vec::new(), false));
    // Several full row groups, and commits in between.
    let mut expected = Vec::new();
    for number in 0..40_000u32 {
        file.answer(&found(number)).unwrap();
        expected.push(Ipv4Addr::from(number).to_string());
        if number % 7_001 == 0 {
            commit(&mut *file, false);
            assert_eq!(read_parquet(&path), (expected.clone(), false));
            assert_eq!(file.len(), fs::metadata(&path).unwrap().len());
        }
    }
    file.banner(&banner(1), Timestamp(0)).unwrap();
    expected.push("0.0.0.1".into());
    commit(&mut *file, true);
    file.close().unwrap();
    drop(file);
    assert_eq!(read_parquet(&path), (expected, true));
}

/// Numbers of answers, banners, runs and complete runs.
fn read_sqlite(path: &PathBuf) -> [i64; 4] {
    let db = Connection::open(path).unwrap();
    let count = |from: &str| {
        let sql = format!("SELECT count(*) FROM {from}");
        db.query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    [
        count("answers"),
        count("banners"),
        count("runs"),
        count("runs WHERE complete"),
    ]
}

#[test]
fn a_database_is_continued_and_has_each_answer_once() {
    let folder = Folder::new("sqlite");
    let path = folder.0.join("scan.db");
    for round in 0..3u32 {
        let mut file = open(&sqlite::FORMAT, &path, round != 0).unwrap();
        for number in 0..100 {
            // Half of them are those of the round before.
            file.answer(&found(round * 50 + number)).unwrap();
            file.banner(&banner(number), Timestamp(0)).unwrap();
        }
        commit(&mut *file, false);
        // Another program cannot change it in the meantime.
        let busy = open(&sqlite::FORMAT, &path, true).err().unwrap();
        assert_eq!(busy.kind(), ErrorKind::ResourceBusy, "{busy}");
        if round != 1 {
            commit(&mut *file, true);
            file.close().unwrap();
        }
        drop(file);
        let complete = i64::from(round.div_ceil(2)) + i64::from(round != 1);
        let complete = complete.min(i64::from(round + 1));
        let answers = 100 + 50 * i64::from(round);
        let expected = [answers, 100, i64::from(round) + 1, complete];
        assert_eq!(read_sqlite(&path), expected, "{round}");
        assert!(!folder.0.join("scan.db-wal").exists());
    }
    let db = Connection::open(&path).unwrap();
    let row = "SELECT answers.time, sender, hex(banner), sent, seed FROM answers, runs, \
               (SELECT start AS banner FROM banners) WHERE address = '0.0.0.9' LIMIT 1";
    let text = |index| move |row: &rusqlite::Row<'_>| row.get::<_, String>(index);
    let read = |index| db.query_row(row, [], text(index)).unwrap();
    assert_eq!(read(0), "2023-11-14T22:13:20.123456Z");
    assert_eq!(read(1), "0.0.0.9");
    assert_eq!(read(2), "00FF27");
    assert_eq!(read(4), u64::MAX.to_string());
    let sent: i64 = db.query_row(row, [], |row| row.get(3)).unwrap();
    assert_eq!(sent, 7);
}

#[test]
fn other_files_are_not_continued_as_databases() {
    let folder = Folder::new("foreign");
    let path = folder.0.join("other.db");
    fs::write(
        &path,
        "text of someone, longer than the header of a database: ".repeat(9),
    )
    .unwrap();
    let error = open(&sqlite::FORMAT, &path, true).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    fs::remove_file(&path).unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE t (a)").unwrap();
    drop(other);
    let error = open(&sqlite::FORMAT, &path, true).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let kept = Connection::open(&path).unwrap();
    let sql = "SELECT count(*) FROM sqlite_master";
    let tables: i64 = kept.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 1);
}

#[test]
fn a_database_that_another_scan_writes_is_not_overwritten() {
    let folder = Folder::new("in-use");
    let path = folder.0.join("scan.db");
    let mut first = open(&sqlite::FORMAT, &path, false).unwrap();
    first.answer(&found(1)).unwrap();
    commit(&mut *first, false);
    for append in [false, true] {
        let error = open(&sqlite::FORMAT, &path, append).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
    }
    commit(&mut *first, true);
    first.close().unwrap();
    drop(first);
    let db = Connection::open(&path).unwrap();
    let count = db.query_row("SELECT count(*) FROM answers", [], |row| row.get(0));
    assert_eq!(count, Ok(1));
    drop(db);
    // Afterwards it is.
    open(&sqlite::FORMAT, &path, false).unwrap();
}
