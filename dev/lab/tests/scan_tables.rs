//! Parquet and SQLite files of `barewire scan`, read back by DuckDB, Arrow and SQLite: whole,
//! killed, resumed, without privileges, rotated.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use lab::oracle::python::python;
use lab::process::{Process, barewire};
use lab::{Finished, Pair, Veth, require, skip};

use crate::export::Folder;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);
/// 64 hosts behind the right end, which its kernel answers for.
const HOSTS: &str = "198.18.4.0/26";

fn scene() -> Pair {
    let pair = Veth::new().ipv6().create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    pair
}

fn spawn(pair: &Pair, args: &[&str]) -> Process {
    let args = [&["scan", "--wait", "1"], args].concat();
    pair.left.ns.spawn(barewire().unwrap(), args).unwrap()
}

fn scan(pair: &Pair, args: &[&str]) -> Finished {
    spawn(pair, args).wait(LIMIT).unwrap().checked().unwrap()
}

/// Prints address, protocol, port and state of each answer, and address, application, first bytes
/// of each banner; of a Parquet file as DuckDB reads it, which must be what Arrow reads.
const READER: &str = r##"
import sys, sqlite3
for path in sys.argv[1:]:
    if path.endswith(".db"):
        db = sqlite3.connect(path)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        answers = "SELECT address, protocol, port, state FROM answers"
        banners = "SELECT address, application, hex(start) FROM banners"
    else:
        import duckdb, pyarrow.parquet
        db = duckdb.connect()
        table = pyarrow.parquet.read_table(path)
        count = db.execute("SELECT count(*) FROM read_parquet(?)", [path]).fetchone()[0]
        assert count == table.num_rows, (count, table.num_rows)
        names = {"type": "string", "time": "timestamp[us, tz=UTC]", "address": "string",
                 "port": "uint16", "ttl": "uint8", "rtt_ms": "double", "start": "binary",
                 "bytes": "uint64"}
        for name, kind in names.items():
            assert str(table.schema.field(name).type) == kind, table.schema
        db.execute(f"CREATE VIEW t AS SELECT * FROM read_parquet('{path}')")
        answers = "SELECT address, protocol, port, state FROM t WHERE type = 'answer'"
        banners = "SELECT address, application, hex(start) FROM t WHERE type = 'banner'"
    for row in db.execute(answers).fetchall() + db.execute(banners).fetchall():
        print(*row)
"##;

fn read(paths: &[&str]) -> Vec<String> {
    let python = python(&["duckdb", "pyarrow", "sqlite3"]).unwrap();
    let mut command = Command::new(python);
    let output = command.args(["-c", READER]).args(paths).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{paths:?}: {error}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The rows, each once.
fn set(rows: Vec<String>) -> BTreeSet<String> {
    let (count, set) = (rows.len(), BTreeSet::from_iter(rows));
    assert_eq!(set.len(), count, "{set:?}");
    set
}

/// Address, protocol, port and state of a line for a terminal.
fn shown(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (port, protocol) = words[1].split_once('/').unwrap();
    format!("{} {protocol} {port} {}", words[0], words[2])
}

/// The files of a series of Parquet files.
fn series(folder: &Folder, extension: &str) -> Vec<String> {
    let mut files = vec![folder.file(&format!("scan.{extension}"))];
    for number in 2.. {
        let next = folder.file(&format!("scan.{number}.{extension}"));
        if !Path::new(&next).exists() {
            return files;
        }
        files.push(next);
    }
    files
}

#[test]
fn parquet_and_sqlite_have_the_rows_of_the_scan() {
    require!(
        skip::lab(),
        python(&["duckdb", "pyarrow", "sqlite3"]),
        skip::program("sqlite3", "sqlite3")
    );
    let pair = scene();
    let folder = Folder::new("tables");
    let listen = || std::net::TcpListener::bind((pair.right.ipv4, 22));
    let listener = pair.right.ns.run(listen).unwrap().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut stream, b"SSH-2.0-of ' this \"test\r\n");
        }
    });
    let (db, parquet) = (folder.file("scan.db"), folder.file("scan.parquet"));
    let target = pair.right.ipv4.to_string();
    let files = ["-oS", &db, "-oK", &parquet, "--rate", "5000"];
    let args = [&[HOSTS, &target, "-p", "22,81", "--banners"], &files[..]].concat();
    let printed = scan(&pair, &args).stdout;
    let (banners, answers): (Vec<&str>, Vec<&str>) =
        printed.lines().partition(|line| line.contains(" banner "));
    assert_eq!((banners.len(), answers.len()), (1, 130), "{printed}");
    let mut expected: BTreeSet<String> = answers.into_iter().map(shown).collect();
    let start = "5353482D322E302D6F66202720746869732022746573740D0A";
    expected.insert(format!("{target} ssh {start}"));
    for path in [&db, &parquet] {
        assert_eq!(set(read(&[path])), expected, "{path}");
    }
    assert!(!Path::new(&folder.file("scan.db-wal")).exists());
    // The program that users have.
    let sql = "SELECT complete, (SELECT count(*) FROM answers WHERE state = 'closed') FROM runs";
    let output = Command::new("sqlite3").args([&db, sql]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1|129\n");
    // Once more, into the same files: the rows are the same ones.
    scan(&pair, &[&args[..], &["--append-output"]].concat());
    assert_eq!(set(read(&[&db])), expected);
    assert_eq!(set(read(&[&parquet])), expected);
    assert_eq!(set(read(&[&folder.file("scan.2.parquet")])), expected);
    let mut fresh = spawn(&pair, &args);
    let refused = fresh.wait(LIMIT).unwrap();
    assert!(!refused.success(), "an earlier series");
    assert!(
        refused.stderr.contains("earlier series"),
        "{}",
        refused.stderr
    );
    let mut printing = spawn(&pair, &[&target, "-p", "81", "-oK", "-"]);
    let refused = printing.wait(LIMIT).unwrap();
    assert!(
        refused.stderr.contains("cannot be printed"),
        "{}",
        refused.stderr
    );
}

/// A scan is killed three times and resumed. Both files are valid each time, and keep their rows.
#[test]
fn tables_of_a_killed_scan_are_valid_and_keep_their_rows() {
    require!(skip::lab(), python(&["duckdb", "pyarrow", "sqlite3"]));
    let pair = scene();
    let folder = Folder::new("killed-tables");
    let state = folder.file("state");
    let (db, parquet) = (folder.file("scan.db"), folder.file("scan.parquet"));
    let base = [
        HOSTS, "-p", "81,82", "--state", &state, "-oS", &db, "-oK", &parquet,
    ];
    let all = || {
        let files = series(&folder, "parquet");
        let paths: Vec<&str> = files.iter().map(String::as_str).collect();
        let parquet: BTreeSet<String> = read(&paths).into_iter().collect();
        [set(read(&[&db])), parquet]
    };
    let mut kept = [BTreeSet::new(), BTreeSet::new()];
    for round in 0..3 {
        let ndjson = folder.file(&format!("{round}.ndjson"));
        let mut process = spawn(
            &pair,
            &[&base[..], &["--rate", "10", "-oD", &ndjson]].concat(),
        );
        let since = Instant::now();
        let rows = || std::fs::read_to_string(&ndjson).map_or(0, |text| text.lines().count());
        // Rows that one file has are in all of them.
        while rows() < 12 {
            assert!(process.running().unwrap() && since.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(20));
        }
        process.kill().unwrap();
        let now = all();
        for (now, kept) in now.iter().zip(&kept) {
            assert!(now.is_superset(kept) && now.len() >= 11, "{kept:?} {now:?}");
        }
        kept = now;
    }
    let args = [&base[..], &["--rate", "5000"]].concat();
    spawn(&pair, &args).wait(LIMIT).unwrap().checked().unwrap();
    for (now, kept) in all().iter().zip(&kept) {
        assert_eq!(now.len(), 128);
        assert!(now.is_superset(kept));
    }
    assert_eq!(series(&folder, "parquet").len(), 4, "one for each run");
}

/// After the files are open, neither root nor the directory is needed.
#[test]
fn a_user_that_may_not_write_the_directory_completes_both_files() {
    require!(skip::lab(), python(&["duckdb", "pyarrow", "sqlite3"]));
    let pair = scene();
    let folder = Folder::new("user-tables");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (db, parquet) = (folder.file("scan.db"), folder.file("scan.parquet"));
    let args = [HOSTS, "-p", "81", "--rate", "50", "--user", "nobody"];
    scan(&pair, &[&args[..], &["-oS", &db, "-oK", &parquet]].concat());
    for path in [&db, &parquet] {
        assert_eq!(set(read(&[path])).len(), 64, "{path}");
    }
    let log = std::fs::metadata(folder.file("scan.db-wal"));
    assert_eq!(log.map_or(0, |data| data.len()), 0, "merged");
}

/// At least three files by age, each complete, which together have each row once.
#[test]
fn files_are_rotated_by_time() {
    require!(skip::lab(), python(&["duckdb", "pyarrow", "sqlite3"]));
    let pair = scene();
    let folder = Folder::new("rotated");
    let of = |extension: &str| folder.file(&format!("scan.{extension}"));
    let (json, db, parquet) = (of("json"), of("db"), of("parquet"));
    let args = [
        HOSTS, "-p", "81,82", "--rate", "30", "--rotate", "500ms", "-oJ", &json, "-oS", &db, "-oK",
        &parquet,
    ];
    let printed = scan(&pair, &args).stdout;
    let expected: BTreeSet<String> = printed.lines().map(shown).collect();
    assert_eq!(expected.len(), 128);
    // The scan takes four seconds: how many files these are depends on the machine.
    for extension in ["db", "parquet"] {
        let files = series(&folder, extension);
        assert!(files.len() >= 2, "{files:?}");
        let paths: Vec<&str> = files.iter().map(String::as_str).collect();
        assert_eq!(set(read(&paths)), expected, "{extension}");
    }
    let files = series(&folder, "json");
    assert!(files.len() >= 2, "{files:?}");
    let mut count = 0;
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap();
        let hosts: Vec<serde_json::Value> = serde_json::from_str(&text).expect(path);
        count += hosts.len();
    }
    assert_eq!(count, 128);
}
