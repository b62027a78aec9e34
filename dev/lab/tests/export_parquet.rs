//! Parquet files read by Apache Arrow and DuckDB: totals equal, types as documented, only whole
//! files after a kill, a full disk accounted for; and `barewire flows query`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::export::{Folder, LIMIT, capture, captures, run};
use lab::oracle::python::python;
use lab::process::{Process, Signal, barewire};
use lab::{require, skip};
use serde_json::{Value, json};

/// Rows, packets and bytes per directory, by Arrow and by DuckDB.
const TOTALS: &str = "
import sys, json, duckdb, pyarrow.dataset as ds, pyarrow.compute as pc
for folder in sys.argv[1:]:
    table = ds.dataset(folder, format='parquet', partitioning='hive').to_table()
    total = lambda name: pc.sum(table[name]).as_py() or 0
    arrow = [table.num_rows, total('packets') + total('reverse_packets'),
             total('bytes') + total('reverse_bytes')]
    sql = '''SELECT count(*), sum(packets + reverse_packets)::BIGINT,
             sum(bytes + reverse_bytes)::BIGINT FROM read_parquet(?)'''
    duck = duckdb.connect().execute(sql, [folder + '/**/*.parquet']).fetchone()
    print(json.dumps({'arrow': arrow, 'duckdb': [int(x or 0) for x in duck]}))
";

/// Runs Python; returns a value per output line.
fn ask(script: &str, args: &[&str]) -> Vec<Value> {
    let python = python(&["duckdb", "pyarrow"]).unwrap();
    let mut command = Command::new(python);
    command.args(["-c", script]).args(args);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let lines = finished.stdout.lines();
    lines.map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// `barewire flows query` with these arguments: its standard output, standard error and exit code.
fn query(args: &[&str]) -> (String, String, Option<i32>) {
    let python = python(&["duckdb", "pyarrow"]).unwrap();
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "query"]).args(args);
    command.arg("--engine").arg(python);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    (
        finished.stdout.clone(),
        finished.stderr.clone(),
        finished.code(),
    )
}

/// A capture of this many flows of one packet, 10 ms apart, so that records end while it is read.
fn flood(path: &Path, count: u32) {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 101] {
        bytes.extend(word.to_le_bytes());
    }
    for n in 0..count {
        let mut packet = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0];
        // Distributed over addresses and ports, as in a scan.
        let mixed = n.wrapping_mul(2_654_435_761);
        packet.extend([10, 0]);
        packet.extend(((mixed >> 16) as u16).to_be_bytes());
        packet.extend([192, 0, 2, 1]);
        packet.extend((mixed as u16).to_be_bytes());
        packet.extend([0, 53, 0, 8, 0, 0]);
        let head = [1_700_000_000 + n / 100, n % 100 * 10_000, 28, 28];
        bytes.extend(head.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(packet);
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn parquet_totals_and_rows_equal_the_probes() {
    require!(python(&["duckdb", "pyarrow"]));
    let folder = Folder::new("parquet-totals");
    let (mut places, mut runs) = (Vec::new(), Vec::new());
    for (at, file) in captures(100).iter().enumerate() {
        let place = folder.0.join(at.to_string());
        let url = format!("parquet:{}", place.display());
        let run = run(file, &["--decode", "all", "--export", &url]);
        if run.flows.is_empty() {
            continue;
        }
        assert_eq!(run.export()["dropped"], json!({}), "{}", file.display());
        places.push(place.to_str().unwrap().to_owned());
        runs.push(run);
    }
    assert!(runs.len() > 3, "{}", runs.len());
    let args: Vec<&str> = places.iter().map(String::as_str).collect();
    for ((found, run), place) in ask(TOTALS, &args).iter().zip(&runs).zip(&places) {
        let totals = run.totals(|_| true);
        let expected = json!([run.flows.len(), totals.packets, totals.bytes]);
        assert_eq!(found["arrow"], expected, "{place}");
        assert_eq!(found["duckdb"], expected, "{place}");
    }
    // Row by row the JSON lines and the columns are equal.
    let sql = "SELECT src, dst, src_port, protocol, packets, bytes, ttl_min, tcp_flags, \
               end_reason, duration_ns, application->>'protocol' AS application \
               FROM flows ORDER BY ALL";
    for (place, run) in places.iter().zip(&runs) {
        let (stdout, stderr, code) = query(&[sql, place, "--json"]);
        assert_eq!(code, Some(0), "{stderr}");
        let mut rows: Vec<String> = stdout
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap().to_string())
            .collect();
        let mut ours: Vec<String> = run
            .flows
            .iter()
            .map(|flow| {
                let mut row = json!({"application": flow["application"]["protocol"]});
                for name in [
                    "src",
                    "dst",
                    "src_port",
                    "protocol",
                    "packets",
                    "bytes",
                    "ttl_min",
                    "tcp_flags",
                    "end_reason",
                    "duration_ns",
                ] {
                    row[name] = flow[name].clone();
                }
                row.to_string()
            })
            .collect();
        rows.sort();
        ours.sort();
        assert_eq!(rows, ours, "{place}");
    }
}

#[test]
fn types_are_as_documented() {
    require!(python(&["duckdb", "pyarrow"]));
    let folder = Folder::new("parquet-types");
    for (name, options, time) in [
        ("us", "", "timestamp[us, tz=UTC]"),
        ("ns", "?times=ns", "timestamp[ns, tz=UTC]"),
    ] {
        let place = folder.0.join(name);
        let url = format!("parquet:{}{options}", place.display());
        run(&capture(), &["--export", &url]);
        let script = "
import sys, json, pyarrow.dataset as ds
schema = ds.dataset(sys.argv[1], format='parquet', partitioning='hive').schema
print(json.dumps({field.name: str(field.type) for field in schema}))";
        let types = ask(script, &[place.to_str().unwrap()]).remove(0);
        for (column, expected) in [
            ("start_time", time),
            ("end_time", time),
            ("duration_ns", "uint64"),
            ("protocol", "uint8"),
            ("src", "string"),
            ("dst_address", "fixed_size_binary[16]"),
            ("src_port", "uint16"),
            ("interface", "uint32"),
            ("packets", "uint64"),
            ("reverse_ttl_min", "uint8"),
            ("reverse_tcp_flags", "uint16"),
            ("orphans", "bool"),
            ("end_reason", "string"),
            ("application", "string"),
            ("hour", "int32"),
        ] {
            assert_eq!(types[column], expected, "{column}");
        }
    }
}

#[test]
fn query_results_have_three_formats() {
    require!(python(&["duckdb", "pyarrow"]));
    let folder = Folder::new("parquet-query");
    let place = folder.path();
    let file = &capture();
    let run = run(file, &["--export", &format!("parquet:{place}")]);
    let count = run.flows.len();
    let sql = "SELECT count(*) AS n FROM flows;";
    let (table, _, code) = query(&[sql, place]);
    assert_eq!(code, Some(0));
    assert!(
        table.contains(&format!("{count} ")) && table.contains('│'),
        "{table}"
    );
    let (json, ..) = query(&[sql, place, "--json"]);
    assert_eq!(json.trim(), format!("{{\"n\":{count}}}"));
    let (csv, ..) = query(&[sql, place, "--csv"]);
    assert_eq!(csv, format!("n\n{count}\n"));
    // The directories are columns, and times are UTC.
    let sql = "SELECT bool_and(strftime(start_time, '%Y-%m-%d %H')
               = concat(date, ' ', lpad(hour::VARCHAR, 2, '0'))) AS same FROM flows -- all";
    let (json, stderr, _) = query(&[sql, place, "--json"]);
    assert_eq!(json.trim(), "{\"same\":true}", "{stderr}");
    let (_, stderr, code) = query(&["SELECT colour FROM flows", place]);
    assert_eq!(code, Some(1));
    assert!(
        stderr.contains("colour") && stderr.contains("hint: "),
        "{stderr}"
    );
    let (_, stderr, code) = query(&[sql, "/nonexistent"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("/nonexistent"), "{stderr}");
}

/// Without an engine the error has a hint on how to install one.
#[test]
fn a_missing_engine_is_reported() {
    let mut command = Command::new(barewire().unwrap());
    command
        .args(["flows", "query", "SELECT 1", "."])
        .env("PATH", "/nonexistent");
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(1));
    assert!(
        finished.stderr.contains("hint: run `pip install duckdb`"),
        "{}",
        finished.stderr
    );
}

/// Files below a directory that are visible to readers.
fn visible(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(visible(&path));
        } else if path.extension().is_some_and(|ending| ending == "parquet") {
            found.push(path);
        }
    }
    found
}

#[test]
fn after_a_kill_only_complete_files_are_visible() {
    require!(python(&["duckdb", "pyarrow"]));
    let folder = Folder::new("parquet-kill");
    let input = folder.0.join("input.pcap");
    flood(&input, 60_000);
    let place = folder.0.join("flows");
    let mut command = Command::new(barewire().unwrap());
    let url = format!("parquet:{}?rows=1000&size=1k", place.display());
    command.args(["flows", "--table-size", "64k", "--export", &url, "-"]);
    command.stdin(std::process::Stdio::piped());
    let mut process = Process::spawn_with_stdin(&mut command).unwrap();
    let mut stdin = process.take_stdin().unwrap();
    stdin.write_all(&std::fs::read(&input).unwrap()).unwrap();
    stdin.flush().unwrap();
    let until = Instant::now() + LIMIT;
    while visible(&place).len() < 5 {
        assert!(Instant::now() < until, "{:?}", process.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    process.signal(Signal::SIGKILL).unwrap();
    let finished = process.wait(LIMIT).unwrap();
    assert_eq!(
        finished.signal(),
        Some(Signal::SIGKILL),
        "{}",
        finished.stderr
    );
    let files = visible(&place).len() as u64;
    let found = ask(TOTALS, &[place.to_str().unwrap()]).remove(0);
    assert_eq!(found["arrow"], found["duckdb"]);
    // Each file is one whole row group.
    assert_eq!(found["arrow"][0], files * 1000, "{found}");
}

#[test]
fn a_full_disk_loses_exactly_the_reported_packets() {
    require!(skip::root(), python(&["duckdb", "pyarrow"]));
    let folder = Folder::new("parquet-full");
    let input = folder.0.join("input.pcap");
    flood(&input, 60_000);
    // A disk of 300 KiB in its own mount namespace; its contents are copied out.
    let disk = folder.0.join("disk");
    std::fs::create_dir_all(&disk).unwrap();
    let copy = folder.0.join("copy");
    for options in ["rows=3000&size=100k", "rows=3000"] {
        let _ = std::fs::remove_dir_all(&copy);
        let script = "mount -t tmpfs -o size=300k none \"$1\" || exit 99
            \"$2\" flows --json --table-size 64k --export \"parquet:$1/flows?$4\" \"$3\"; code=$?
            cp -r \"$1/flows\" \"$5\"; exit $code";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]);
        command.args([&disk, &barewire().unwrap(), &input]);
        command.arg(options).arg(&copy);
        let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        assert_eq!(finished.code(), Some(5), "{}", finished.stderr);
        let last = finished.stdout.lines().last().unwrap();
        let summary: Value = serde_json::from_str(last).unwrap();
        let export = &summary["exports"][0];
        let number = |value: &Value| value["flows"].as_u64().unwrap_or(0);
        let (exported, lost) = (
            number(&export["exported"]),
            number(&export["dropped"]["write_failed"]),
        );
        assert!(exported >= 3000 && lost >= 3000, "{options}: {export}");
        assert_eq!(exported + lost, number(&export["offered"]), "{export}");
        assert_eq!(export["imbalance"], 0);
        assert!(
            export["last_failure"]
                .as_str()
                .unwrap()
                .contains("No space"),
            "{export}"
        );
        let found = ask(TOTALS, &[copy.to_str().unwrap()]).remove(0);
        assert_eq!(found["arrow"][0], exported, "{options}: {found}");
        assert_eq!(found["duckdb"], found["arrow"]);
    }
}

#[test]
fn query_results_contain_no_formulas_and_no_control_characters() {
    require!(python(&["duckdb", "pyarrow"]));
    let folder = Folder::new("parquet-safe");
    let file = folder.0.join("in.pcap");
    flood(&file, 2);
    let place = folder.0.join("flows");
    let url = format!("parquet:{}", place.display());
    run(&file, &["--export", &url]);
    let place = place.to_str().unwrap();
    let sql = "SELECT '=1+1' AS a, -5 AS b, NULL AS c, '' AS d, 'x' || chr(155) || '31m' AS e, \
               src_port FROM flows WHERE src_port = 0";
    let answers = [
        (
            "--csv",
            "a,b,c,d,e,src_port\n'=1+1,-5,,\"\",\"x\\x9b31m\",0\n",
        ),
        (
            "--json",
            "{\"a\":\"=1+1\",\"b\":-5,\"c\":null,\"d\":\"\",\"e\":\"x\\u009b31m\",\
             \"src_port\":0}\n",
        ),
    ];
    for (form, expected) in answers {
        let (stdout, stderr, code) = query(&[sql, place, form]);
        assert_eq!((code, stdout.as_str()), (Some(0), expected), "{stderr}");
    }
    let (stdout, stderr, _) = query(&[sql, place]);
    assert!(stdout.contains("x\\u{9b}31m"), "{stdout}{stderr}");
    let (stdout, stderr, _) = query(&[sql, place, "--csv", "--raw"]);
    let raw = "a,b,c,d,e,src_port\n=1+1,-5,,\"\",x\u{9b}31m,0\n";
    assert_eq!(stdout, raw, "{stderr}");
    // A row with a single NULL is a row.
    let sql = "SELECT NULL AS a FROM flows";
    let (stdout, stderr, _) = query(&[sql, place, "--csv"]);
    assert_eq!(stdout, "a\n\"\"\n\"\"\n", "{stderr}");
}
