//! Tests of files and rotation.

use std::io::Read;
use std::path::PathBuf;

use crate::account::Account;
use crate::exporters::tests::{export, records, setup};

/// A temporary directory, deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("barewire-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    /// Exports to a pattern in the directory; returns the account, and the contents of the files by
    /// name.
    fn run(&self, name: &str, count: u16) -> (Account, Vec<(String, String)>) {
        let url = format!("csv:{}/{name}", self.0.display());
        let account = export(&url, &records(count), &setup());
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut texts: Vec<_> = entries
            .map(|entry| {
                let path = entry.unwrap().path();
                (
                    path.file_name().unwrap().to_string_lossy().into_owned(),
                    text(&path),
                )
            })
            .collect();
        texts.sort();
        (account, texts)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(path: &std::path::Path) -> String {
    let bytes = std::fs::read(path).unwrap();
    let mut text = String::new();
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("gz") => flate2::read::MultiGzDecoder::new(&bytes[..]).read_to_string(&mut text),
        Some("zst") => zstd::stream::read::Decoder::new(&bytes[..])
            .unwrap()
            .read_to_string(&mut text),
        _ => (&bytes[..]).read_to_string(&mut text),
    }
    .unwrap();
    text
}

/// Every file is complete and starts with column names, and together they have all records.
#[test]
fn files_are_rotated_by_size() {
    let folder = Folder::new("rotate");
    let (account, texts) = folder.run("flows-%Y%m%d-%n.csv?size=100k", 5000);
    assert_eq!((account.exported.flows, account.waiting()), (5000, 0));
    assert!(texts.len() > 3, "{}", texts.len());
    assert_eq!(account.files, texts.len() as u64);
    let mut lines = 0;
    for (name, text) in &texts {
        assert!(
            name.starts_with("flows-2") && name.ends_with(".csv"),
            "{name}"
        );
        assert!(text.starts_with("start,") && text.ends_with('\n'));
        lines += text.lines().count() - 1;
    }
    assert_eq!(lines, 5000);
    // The next run replaces no file, though its first file has the number 1 again.
    let (account, texts) = folder.run("flows-%Y%m%d-%n.csv?size=100M", 100);
    assert_eq!(account.files, 1);
    assert!(
        texts.iter().any(|(name, _)| name.ends_with("-1-2.csv")),
        "{texts:?}"
    );
}

#[test]
fn compressed_files_are_smaller_and_readable_by_gzip_and_zstd() {
    for ending in ["gz", "zst"] {
        let folder = Folder::new(&format!("pack-{ending}"));
        let (account, texts) = folder.run(&format!("flows-%n.csv.{ending}?rotate=1h"), 3000);
        assert_eq!((account.exported.flows, account.files), (3000, 1));
        assert_eq!(texts[0].1.lines().count(), 3001);
        let packed = folder.0.join(&texts[0].0).metadata().unwrap().len();
        assert!(packed * 4 < texts[0].1.len() as u64, "{packed} bytes");
        // Also a single file, which is not staged.
        let (account, texts) = folder.run(&format!("one.csv.{ending}"), 3000);
        assert_eq!((account.exported.flows, account.files), (3000, 0));
        let one = texts
            .iter()
            .find(|(name, _)| name.starts_with("one"))
            .unwrap();
        assert_eq!(one.1.lines().count(), 3001);
    }
}

/// Rotated by the clock, at multiples of the interval: two seconds give two files or three.
#[test]
fn files_are_rotated_by_the_clock() {
    let folder = Folder::new("clock");
    let url = format!("json:{}/%s.json?rotate=1s", folder.0.display());
    let target = crate::Target::parse(&url).unwrap();
    let mut exporters = crate::Exporters::open(&[target], &setup()).unwrap();
    exporters.start().unwrap();
    for _ in 0..3 {
        for (record, reason) in &records(100) {
            exporters.ended(record, *reason);
        }
        exporters.flush();
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    // Incomplete files are not counted.
    let before = exporters.accounts().remove(0).1;
    assert!(
        before.files >= 1 && before.exported.flows < 400,
        "{before:?}"
    );
    let (_, account) = exporters.finish(crate::Observed::default()).remove(0);
    assert_eq!((account.exported.flows, account.waiting()), (300, 0));
    assert!((2..=4).contains(&account.files), "{account:?}");
    let lines: usize = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| text(&entry.unwrap().path()).lines().count())
        .sum();
    assert_eq!(lines, 300);
}

#[test]
fn a_wrong_name_is_reported_at_once() {
    for (url, words) in [
        ("csv:flows.csv?rotate=1h", "need distinct names"),
        ("csv:flows-%Q.csv?rotate=1h", "unknown field %Q"),
        ("csv:/proc/none/flows-%n.csv?rotate=1h", "/proc/none"),
    ] {
        let target = crate::Target::parse(url).unwrap();
        let error = crate::Exporters::open(&[target], &setup()).err().unwrap();
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
}

/// Nothing remains of a message written in part, and the next one follows the last whole one.
#[test]
fn a_partly_written_message_is_removed() {
    use super::{Packing, Sent, Sink, Whole};
    use std::io::Write;
    let folder = Folder::new("taken-back");
    std::fs::create_dir_all(&folder.0).unwrap();
    let path = folder.0.join("x");
    let mut whole = Whole {
        is_regular: true,
        is_stdout: false,
        over: None,
        file: std::fs::File::create(&path).unwrap(),
        packing: Packing::Plain,
        packed: Vec::new(),
        len: 0,
    };
    assert!(matches!(whole.send(b"one "), Sent::Done));
    whole.file.write_all(b"half a mess").unwrap();
    whole.take_back().unwrap();
    assert!(matches!(whole.send(b"two"), Sent::Done));
    whole.close().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "one two");
    // Only a regular file can be truncated.
    whole.is_regular = false;
    whole.len = 0;
    whole.take_back().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "one two");
}
