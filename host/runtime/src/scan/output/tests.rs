//! Files are complete at any time: new, continued, on a full disk.

use std::fs;
use std::net::Ipv4Addr;

use ::scan::{Answer, AskedRate, Evidence, Found, Probe, ProbeTarget, State};
use wire::Timestamp;

use super::*;

fn run() -> Run {
    Run {
        version: "1".into(),
        arguments: "scan".into(),
        start: Timestamp(0),
        seed: 1,
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

fn found(port: u16) -> Found {
    let addr = Ipv4Addr::new(192, 0, 2, 1).into();
    let probe = Probe::Syn;
    Found {
        answer: Answer {
            target: ProbeTarget { addr, probe, port },
            state: State::Closed,
            evidence: Evidence::Reset,
            ttl: 64,
            from: addr,
            payload: (0, 0),
            sent_us: None,
        },
        time: Timestamp(0),
        rtt: None,
        payload: Box::default(),
        vendor: None,
    }
}

fn outcome() -> Outcome {
    Outcome {
        totals: Totals::default(),
        elapsed: Duration::ZERO,
        sending: Duration::ZERO,
        is_complete: true,
        error: None,
    }
}

/// A directory that is deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("barewire-scan-output-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<OutputName> {
        let mut text = OsString::from("all:");
        text.push(self.0.join("out"));
        OutputName::parse(&text, &[]).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Checks that files end as their formats require.
fn check_ends(names: &[OutputName]) {
    for name in names {
        let text = fs::read_to_string(&name.path).unwrap();
        let end = match name.format.word() {
            "xml" => "</runstats>\n</nmaprun>\n",
            "json" => "\n]\n",
            _ => continue,
        };
        assert!(text.ends_with(end), "{text}");
        assert_eq!(text.matches(end).count(), 1, "{text}");
    }
}

fn open(names: &[OutputName], append: bool) -> Outputs {
    let options = OutputOptions {
        append,
        rotation: None,
    };
    Outputs::open(names, &run(), (options, &Totals::default()), &[]).unwrap()
}

#[test]
fn files_are_whole_at_any_time_and_can_be_continued() {
    let folder = Folder::new("whole");
    let names = folder.names();
    assert_eq!(names.len(), FORMATS.len());
    for round in 0..3u16 {
        let mut outputs = open(&names, round != 0);
        check_ends(&names);
        for port in 0..4 {
            let notice = &found(round * 4 + port);
            outputs.note(&Notice::Found(notice)).unwrap();
            let progress = Notice::Progress(&Totals::default(), Duration::ZERO);
            outputs.note(&progress).unwrap();
            check_ends(&names);
        }
        // The second scan is killed.
        if round != 1 {
            outputs.end(&outcome()).unwrap();
            check_ends(&names);
        }
    }
    for name in &names {
        let text = fs::read_to_string(&name.path).unwrap();
        let rows = text.matches("192.0.2.1").count();
        let per_row = match name.format.word() {
            "ndjson" | "csv" | "sql" => 2,
            // Certificates alone.
            "pem" => 0,
            _ => 1,
        };
        assert_eq!(rows, 12 * per_row, "{text}");
    }
    let outputs = open(&names, false);
    drop(outputs);
    let len = |name: &OutputName| fs::metadata(&name.path).unwrap().len();
    assert!(names.iter().all(|name| len(name) < 600));
}

#[test]
fn outputs_are_files_of_their_own() {
    let folder = Folder::new("own");
    let path = folder.0.join("one");
    let name = |word: &str| {
        let mut text = OsString::from(format!("{word}:"));
        text.push(&path);
        OutputName::parse(&text, &[]).unwrap().remove(0)
    };
    let both = [name("xml"), name("json")];
    let opened = Outputs::open(
        &both,
        &run(),
        (
            OutputOptions {
                append: false,
                rotation: None,
            },
            &Totals::default(),
        ),
        &[],
    );
    assert!(opened.unwrap_err().why().contains("input file"));
    fs::write(&path, "a letter to a friend").unwrap();
    let opened = Outputs::open(
        &both[..1],
        &run(),
        (
            OutputOptions {
                append: true,
                rotation: None,
            },
            &Totals::default(),
        ),
        &[],
    );
    assert!(opened.unwrap_err().why().contains("in the format xml"));
    for bad in ["xml", "xml:", "exe:file", ":file"] {
        assert!(OutputName::parse(OsStr::new(bad), &[]).is_err(), "{bad}");
    }
}

/// Simulates a full disk: the rows written before are complete.
#[test]
fn a_write_that_fails_leaves_the_file_as_it_was() {
    let folder = Folder::new("full");
    let path = folder.0.join("out.json");
    let names = [OutputName {
        format: OutputFormat::Text(FORMATS.iter().find(|f| f.word == "json").unwrap()),
        path: path.clone(),
    }];
    let mut outputs = open(&names, false);
    outputs.note(&Notice::Found(&found(1))).unwrap();
    let progress = Notice::Progress(&Totals::default(), Duration::ZERO);
    outputs.note(&progress).unwrap();
    let before = fs::read(&path).unwrap();
    // Opened read-only, so that writing fails.
    outputs.files[0].file = File::open(&path).unwrap();
    outputs.note(&Notice::Found(&found(2))).unwrap();
    assert!(outputs.note(&progress).is_err());
    assert!(outputs.note(&progress).is_ok(), "reported once");
    assert_eq!(fs::read(&path).unwrap(), before);
}

/// Simulates a kill in the middle of a write, at every byte of the last rows.
#[test]
fn a_file_that_a_kill_cut_off_is_continued_after_its_last_whole_row() {
    let folder = Folder::new("cut");
    let names = folder.names();
    let mut outputs = open(&names, false);
    for port in 1..=3 {
        outputs.note(&Notice::Found(&found(port))).unwrap();
    }
    outputs.end(&outcome()).unwrap();
    // A file of certificates has no row of an answer.
    for name in names.iter().filter(|name| name.format.word() != "pem") {
        let whole = fs::read(&name.path).unwrap();
        // The totals of JSON lines have this name, too.
        let mark = if name.format.word() == "ndjson" {
            ":\"closed\""
        } else {
            "closed"
        };
        let rows = |bytes: &[u8]| String::from_utf8_lossy(bytes).matches(mark).count();
        let first = (0..whole.len())
            .find(|len| rows(&whole[..*len]) == 2)
            .unwrap();
        for len in first..whole.len() {
            fs::write(&name.path, &whole[..len]).unwrap();
            let mut outputs = open(std::slice::from_ref(name), true);
            outputs.note(&Notice::Found(&found(9))).unwrap();
            outputs.end(&outcome()).unwrap();
            check_ends(std::slice::from_ref(name));
            let now = fs::read(&name.path).unwrap();
            // The row that is cut is left out, and the ones before it are kept.
            let kept = rows(&whole[..len]);
            let expected = [kept, kept + 1];
            assert!(
                expected.contains(&rows(&now)),
                "{name:?} {len}: {}",
                rows(&now)
            );
            let text = String::from_utf8(now).unwrap();
            if name.format.word() == "json" {
                assert_eq!(
                    text.matches("}]},\n{").count() + 1,
                    rows(text.as_bytes()),
                    "{text}"
                );
            }
            if name.format.word() == "xml" {
                assert_eq!(
                    text.matches("<host ").count(),
                    text.matches("</host>\n").count()
                );
            }
        }
    }
}

#[test]
fn files_are_rotated_by_size_and_each_is_whole() {
    let folder = Folder::new("rotated");
    for format in FORMATS.into_iter().filter(|format| format.word != "pem") {
        let name = OutputName {
            format: OutputFormat::Text(format),
            path: folder.0.join(format!("scan.{}", format.extension)),
        };
        let names = [name.clone()];
        let options = OutputOptions {
            append: false,
            rotation: Some(Rotation::Size(1)),
        };
        let totals = Totals::default();
        let mut outputs = Outputs::open(&names, &run(), (options, &totals), &[]).unwrap();
        for port in 1..=3 {
            outputs.note(&Notice::Found(&found(port))).unwrap();
            let progress = Notice::Progress(&totals, Duration::ZERO);
            outputs.note(&progress).unwrap();
        }
        outputs.end(&outcome()).unwrap();
        // One row each; the last one has none.
        for number in 1..=4 {
            let bytes = fs::read(numbered(&name.path, number)).unwrap();
            let end = &bytes[bytes.len().saturating_sub(CLOSING_MAX)..];
            let is_whole = bytes.is_empty() || Report::continued(format, run(), end).is_some();
            assert!(is_whole, "{format:?} {number}");
            let rows = String::from_utf8(bytes).unwrap().contains("192.0.2.1");
            assert_eq!(rows, number < 4, "{format:?} {number}");
        }
        assert!(!numbered(&name.path, 5).exists());
        // A continued series continues its last file.
        let options = OutputOptions {
            append: true,
            ..options
        };
        let mut outputs = Outputs::open(&names, &run(), (options, &totals), &[]).unwrap();
        outputs.note(&Notice::Found(&found(9))).unwrap();
        outputs.end(&outcome()).unwrap();
        let text = fs::read_to_string(numbered(&name.path, 4)).unwrap();
        assert!(text.contains("192.0.2.1"), "{format:?}");
    }
}

#[test]
fn a_new_series_is_not_mixed_with_an_old_one() {
    let folder = Folder::new("series");
    let names = folder.names();
    let options = |append, rotation| OutputOptions { append, rotation };
    let rotation = Some(Rotation::Size(1));
    let open = |options| Outputs::open(&names, &run(), (options, &Totals::default()), &[]);
    let last = names.last().unwrap();
    fs::write(&names[0].path, b"old").unwrap();
    let second = numbered(&last.path, 2);
    fs::write(&second, b"old").unwrap();
    let error = open(options(false, rotation)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(second.to_str().unwrap()), "{text}");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    // Nothing is truncated.
    assert_eq!(fs::read(&names[0].path).unwrap(), b"old");
    assert_eq!(fs::read(&second).unwrap(), b"old");
    open(options(false, None)).unwrap();
    fs::remove_file(&second).unwrap();
    open(options(false, rotation)).unwrap();
    open(options(true, rotation)).unwrap();
}

#[test]
fn files_of_a_series_with_gaps_are_neither_overwritten_nor_continued_in_the_middle() {
    let folder = Folder::new("gaps");
    let path = folder.0.join("scan.csv");
    let names = [OutputName {
        format: OutputFormat::Text(FORMATS.into_iter().find(|it| it.word == "csv").unwrap()),
        path: path.clone(),
    }];
    let open = |append| {
        let rotation = Some(Rotation::Size(1));
        let options = OutputOptions { append, rotation };
        Outputs::open(&names, &run(), (options, &Totals::default()), &[])
    };
    // Others were moved away, and these are of other series.
    let third = numbered(&path, 3);
    for name in ["scan.03.csv", "scan.7.csv.gz", "scan.x.csv", "scan2.9.csv"] {
        fs::write(folder.0.join(name), b"other").unwrap();
    }
    assert_eq!(last_number(&path), 1);
    let mut outputs = open(false).unwrap();
    fs::write(&third, b"old").unwrap();
    for port in 1..=2 {
        outputs.note(&Notice::Found(&found(port))).unwrap();
        let progress = Notice::Progress(&Totals::default(), Duration::ZERO);
        outputs.note(&progress).unwrap();
    }
    outputs.end(&outcome()).unwrap();
    assert_eq!(fs::read(&third).unwrap(), b"old");
    assert_eq!(last_number(&path), 4);
    fs::remove_file(numbered(&path, 2)).unwrap();
    let error = open(false).unwrap_err().to_string();
    assert!(error.contains("scan.4.csv"), "{error}");
    open(true).unwrap();
}

#[test]
fn numbers_precede_extensions() {
    for (path, expected) in [
        ("a/scan.xml", "a/scan.2.xml"),
        ("scan", "scan.2"),
        ("a.b/.hidden", "a.b/.hidden.2"),
        ("x.tar.gz", "x.tar.2.gz"),
    ] {
        assert_eq!(numbered(Path::new(path), 2), Path::new(expected));
        assert_eq!(numbered(Path::new(path), 1), Path::new(path));
    }
}
