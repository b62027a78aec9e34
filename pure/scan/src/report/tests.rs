//! Tests of continued files, and of untrusted text from services.

use std::net::IpAddr;

use inspect::{Field, FieldSink as _, Protocol, Value};

use super::*;
use crate::answer::{Answer, Evidence, State};
use crate::cookie::ProbeTarget;
use crate::grab::Ending as GrabEnding;
use crate::{AddrRange, Order, Payloads, PortList, Ports, Shard, Source, Targets};

const START: Timestamp = Timestamp(1_700_000_000_000_000_000);

const RATE: AskedRate = AskedRate {
    max: 1000.0,
    min: None,
    unit: "pps",
};

fn run() -> Run {
    let source = Source {
        ipv4: Some([198, 51, 100, 7].into()),
        ipv6: None,
        ports: (61_000, 1),
    };
    let mut ranges: Vec<AddrRange> = Vec::new();
    crate::parse_line("192.0.2.0/24", &mut ranges).unwrap();
    let targets = Targets::new(ranges, Vec::new()).unwrap();
    let list = PortList::parse("80,443-445,U:161,53").unwrap();
    let ports = Ports::new(&list, &[], Payloads::built_in()).unwrap();
    let order = Order {
        seed: 9,
        shard: Shard::WHOLE,
        attempts: 1,
        block: 1,
    };
    let plan = Plan::new(targets, ports, source, order).unwrap();
    Run::new(
        (&plan, 0xabc),
        "1.0",
        "scan \"<&>\" -p 80".into(),
        (START, RATE),
    )
}

fn target(addr: &str, port: u16) -> ProbeTarget {
    let addr: IpAddr = addr.parse().unwrap();
    let probe = Probe::Syn;
    ProbeTarget { addr, probe, port }
}

fn found(addr: &str, port: u16) -> Found {
    let target = target(addr, port);
    Found {
        answer: Answer {
            target,
            state: State::Open,
            evidence: Evidence::SynAck,
            ttl: 64,
            from: target.addr,
            payload: (0, 0),
            sent_us: None,
        },
        time: Timestamp(START.ns() + 1),
        rtt: Some(std::time::Duration::from_micros(1500)),
        payload: Box::default(),
        vendor: None,
    }
}

fn banner(start: &[u8]) -> Banner {
    Banner::new(target("2001:db8::1", 22), start, GrabEnding::Closed)
}

/// The bytes of a file with this number of answers, each with a banner.
fn file(format: &'static Format, count: u16, is_over: bool) -> Vec<u8> {
    let mut report = Report::new(format, run());
    for port in 0..count {
        report.answer(&found("192.0.2.1", port));
        report.banner(&banner(b"=1+2,\"</x>\r\n\xff\0/&amp;"), START);
    }
    let mut out = Vec::new();
    report.take(&mut out);
    close(&report, is_over, &mut out);
    out
}

fn close(report: &Report, is_over: bool, out: &mut Vec<u8>) {
    let totals = Totals::default();
    let ended = Ended {
        seconds: 1.5,
        sending_seconds: 1.0,
        is_complete: true,
        error: None,
    };
    let ending = Ending {
        totals: &totals,
        now: Timestamp(START.ns() + 2_000_000_000),
        result: is_over.then_some(ended),
    };
    report.close(&ending, out);
}

#[test]
fn services_are_ranges_of_ports() {
    let services: Vec<_> = run().services;
    let expected = [
        (Probe::Syn, 4, "80,443-445".to_owned()),
        (Probe::Udp, 2, "53,161".to_owned()),
    ];
    assert_eq!(services, expected);
    assert_eq!(ranges(&[65_534, 65_535]), "65534-65535");
}

#[test]
fn a_file_is_continued_before_its_closing_part() {
    for format in FORMATS {
        for is_over in [false, true] {
            for count in [0, 1, 2] {
                let mut bytes = file(format, count, is_over);
                let from = bytes.len().saturating_sub(CLOSING_MAX);
                let (mut report, overwritten) = Report::continued(format, run(), &bytes[from..])
                    .unwrap_or_else(|| {
                        let begun: &[_] = if bytes.is_empty() { b"\n" } else { b"" };
                        Report::continued(format, run(), begun).expect(format.word)
                    });
                bytes.truncate(bytes.len() - overwritten.min(bytes.len()));
                for port in count..3 {
                    report.answer(&found("192.0.2.1", port));
                    report.banner(&banner(b"=1+2,\"</x>\r\n\xff\0/&amp;"), START);
                }
                report.take(&mut bytes);
                close(&report, true, &mut bytes);
                // Comments and totals of the first part remain; the rows are the same as in a
                // single run.
                let rows = |bytes: &[u8]| {
                    let text = String::from_utf8(bytes.to_vec()).unwrap();
                    let lines = text.lines().map(|line| line.trim_end_matches(','));
                    let is_row = |line: &&str| {
                        !line.starts_with('#')
                            && !line.contains("totals")
                            && !line.contains("runstats")
                    };
                    lines.filter(is_row).map(str::to_owned).collect::<Vec<_>>()
                };
                let whole = file(format, 3, true);
                assert_eq!(rows(&bytes), rows(&whole), "{format:?} {count} {is_over}");
            }
        }
    }
}

#[test]
fn a_foreign_file_is_not_continued() {
    for format in FORMATS {
        let is_lines = ["list", "grepable", "ndjson", "csv"].contains(&format.word);
        let end = b"[1, 2] and more\n";
        let continued = Report::continued(format, run(), end);
        assert_eq!(continued.is_some(), is_lines, "{format:?}");
        assert!(Report::continued(format, run(), b"no line").is_none());
    }
}

#[test]
fn bytes_of_services_leave_the_form_intact() {
    let hostile: Vec<u8> = (0..=255).collect();
    for format in FORMATS {
        let mut report = Report::new(format, run());
        let mut bytes = Vec::new();
        report.take(&mut bytes);
        bytes.clear();
        report.banner(&banner(&hostile), START);
        report.take(&mut bytes);
        let text = String::from_utf8(bytes).expect("UTF-8");
        let breaks = text.trim_end_matches('\n').chars();
        let controls: Vec<char> = breaks
            .filter(|letter| inspect::is_unprintable(*letter))
            .collect();
        // A tab separates the fields of grepable lines.
        let expected: &[char] = if format.word == "grepable" {
            &['\t']
        } else {
            &[]
        };
        assert_eq!(controls, expected, "{format:?}");
    }
}

/// What separates fields or ends text in one of the formats.
const SEPARATORS: [&[u8]; 10] = [
    b"a\"b'c",
    b"a/b//c/",
    b"--> <!-- --",
    b"]]>",
    b"</host>\n</nmaprun>\n",
    b"}]},\n{",
    b"\n]\n",
    b"a,b\t,c",
    b"\\\"",
    b"&quot;&#10;",
];

/// Fields of a format's line for a banner: the same number, whatever the banner.
fn field_count(format: &Format, line: &str) -> usize {
    let unescaped = |quote: char, line: &str| {
        let mut is_escaped = false;
        let of = |letter: char| {
            let is_quote = letter == quote && !is_escaped;
            is_escaped = letter == '\\' && !is_escaped;
            is_quote
        };
        line.chars().map(of).filter(|is| *is).count()
    };
    match format.word {
        // Elements and attributes.
        "xml" => line.matches(['<', '>', '"']).count(),
        "grepable" => line.matches(['/', ',', '\t']).count(),
        "json" | "ndjson" => unescaped('"', line),
        // Commas outside of quotes.
        "csv" => line
            .split('"')
            .step_by(2)
            .map(|part| part.matches(',').count())
            .sum(),
        _ => 1,
    }
}

#[test]
fn separators_in_banners_do_not_separate() {
    for format in FORMATS {
        let line = |start: &[u8]| {
            let mut report = Report::new(format, run());
            let mut bytes = Vec::new();
            report.take(&mut bytes);
            bytes.clear();
            report.banner(&banner(start), START);
            report.take(&mut bytes);
            String::from_utf8(bytes).unwrap()
        };
        let plain = line(b"plain");
        for hostile in SEPARATORS {
            let line = line(hostile);
            let counts = (field_count(format, &line), field_count(format, &plain));
            assert_eq!(counts.0, counts.1, "{format:?}: {line}");
            assert_eq!(line.matches('\n').count(), plain.matches('\n').count());
        }
    }
}

/// The arguments are an attribute in XML and a comment elsewhere.
#[test]
fn separators_in_arguments_do_not_separate() {
    for format in FORMATS {
        for hostile in SEPARATORS {
            let begun = |arguments: &[u8]| {
                let mut run = run();
                run.arguments = String::from_utf8_lossy(arguments).into_owned();
                let mut bytes = Vec::new();
                Report::new(format, run).take(&mut bytes);
                String::from_utf8(bytes).unwrap()
            };
            let (plain, text) = (begun(b"plain"), begun(hostile));
            assert_eq!(
                text.lines().count(),
                plain.lines().count(),
                "{format:?}: {text}"
            );
            let marks = |text: &str| text.matches(['<', '>', '"']).count();
            assert!(
                format.word != "xml" || marks(&text) == marks(&plain),
                "{text}"
            );
        }
    }
}

#[test]
fn a_cut_file_is_repaired_only_if_it_is_a_report() {
    for format in FORMATS.into_iter().filter(|format| format.cut.is_some()) {
        let whole = file(format, 2, true);
        let cut = &whole[..whole.len() - 30];
        assert!(Report::repaired(format, run(), (&whole, cut)).is_some());
        assert!(Report::repaired(format, run(), (b"[1, 2", cut)).is_none());
        assert!(Report::repaired(format, run(), (&whole, b"no row")).is_none());
    }
}

/// SQLite reads all rows of a file, those of a cut and continued one, and none twice.
#[test]
fn sqlite_reads_statements() {
    if std::process::Command::new("sqlite3")
        .arg("--version")
        .output()
        .is_err()
    {
        skip::skip!("sqlite3 is not installed: apt-get install sqlite3");
    }
    let format = FORMATS.into_iter().find(|format| format.word == "sql");
    let format = format.unwrap();
    let read = |files: &[&[u8]], query: &str| {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let mut command = Command::new("sqlite3");
        let command = command.args(["-bail", ":memory:"]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut stdin = process.stdin.take().unwrap();
        files.iter().for_each(|file| stdin.write_all(file).unwrap());
        writeln!(stdin, "{query}").unwrap();
        drop(stdin);
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let counts = "SELECT count(*) FROM answers; SELECT count(*) FROM banners;";
    let three = file(format, 3, true);
    assert_eq!(read(&[&three], counts), "3\n1");
    assert_eq!(read(&[&three, &file(format, 5, false)], counts), "5\n1");
    let (mut more, overwritten) = Report::continued(format, run(), &three).unwrap();
    let mut bytes = three[..three.len() - overwritten].to_vec();
    more.answer(&found("2001:db8::7", 9));
    more.banner(&banner(b"\'); DROP TABLE answers; --"), START);
    more.take(&mut bytes);
    close(&more, false, &mut bytes);
    assert_eq!(read(&[&bytes], counts), "4\n2");
    let query = "SELECT port, state, rtt_ms, mac FROM answers WHERE address = \'2001:db8::7\';";
    assert_eq!(read(&[&bytes], query), "9|open|1.5|");
    // Builds of SQLite differ in whether LIKE matches blobs.
    let query = "SELECT start FROM banners WHERE CAST(start AS TEXT) LIKE \'%DROP%\';";
    assert_eq!(read(&[&bytes], query), "\'); DROP TABLE answers; --");
    let query = "SELECT vendor FROM answers; SELECT title, fields FROM banners;";
    let fields = r#"{"protocol":"http","by":"content","http_server":"a','b"}"#;
    let expected = format!("O'Brien's\nit's, '); --|{fields}");
    assert_eq!(read(&[&quoted(format)], query), expected);
}

/// A file whose vendor, title and decoded field have quotes.
fn quoted(format: &'static Format) -> Vec<u8> {
    let mut report = Report::new(format, run());
    let vendor = Some("O'Brien's".into());
    report.answer(&Found {
        vendor,
        ..found("192.0.2.1", 80)
    });
    let mut banner = banner(b"");
    banner.title = Some(b"it's, '); --".to_vec());
    let bytes = b"a','b";
    let text = Value::Text {
        bytes,
        is_cut: false,
    };
    banner.application.named(Protocol::Http);
    banner.application.field(Field::HttpServer, text);
    report.banner(&banner, START);
    let mut out = Vec::new();
    report.take(&mut out);
    close(&report, true, &mut out);
    out
}

/// As above, for hosts without SQLite.
#[test]
fn quotes_in_statements_are_doubled() {
    let format = FORMATS.into_iter().find(|format| format.word == "sql");
    let text = String::from_utf8(quoted(format.unwrap())).unwrap();
    for expected in ["'O''Brien''s'", "'it''s, ''); --'", ":\"a'',''b\""] {
        assert!(text.contains(expected), "{text}");
    }
}
