//! Tests that read files with the library's own reader; the lab uses independent readers.

use std::collections::BTreeMap;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;

use crate::Account;
use crate::exporters::tests::{export, records_at, setup};

const HOUR_NS: u64 = 3_600_000_000_000;

/// Rows and packets by directory, and the largest number of rows in a row group.
fn read(folder: &std::path::Path, sums: &mut BTreeMap<String, (u64, u64)>, most: &mut i64) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, sums, most);
            continue;
        }
        assert!(
            path.extension().is_some_and(|ending| ending == "parquet"),
            "{path:?}"
        );
        let file = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let groups = file.metadata().row_groups();
        *most = groups
            .iter()
            .map(|group| group.num_rows())
            .fold(*most, i64::max);
        let names = file.metadata().file_metadata().schema_descr();
        let column = |name: &str| {
            let mut columns = names.columns().iter();
            columns.position(|column| column.name() == name).unwrap()
        };
        let (packets, reverse) = (column("packets"), column("reverse_packets"));
        let sum = sums
            .entry(folder.to_string_lossy().into_owned())
            .or_default();
        for row in file.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            sum.0 += 1;
            sum.1 += row.get_ulong(packets).unwrap() + row.get_ulong(reverse).unwrap();
        }
    }
}

fn run(name: &str, options: &str) -> (Account, BTreeMap<String, (u64, u64)>, i64) {
    let folder = std::env::temp_dir().join(format!("barewire-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    // Seven hours in rotation: more than files may be open.
    let records = records_at(7000, |n| 472_222 * HOUR_NS + u64::from(n % 7) * HOUR_NS + 5);
    let url = format!("parquet:{}{options}", folder.display());
    let account = export(&url, &records, &setup());
    let (mut sums, mut most) = (BTreeMap::new(), 0);
    read(&folder, &mut sums, &mut most);
    std::fs::remove_dir_all(&folder).unwrap();
    (account, sums, most)
}

#[test]
fn every_record_is_written_to_the_file_of_its_hour() {
    let (account, sums, most) = run("parquet-hours", "?rows=2000");
    assert_eq!(
        (account.exported.flows, account.exported.packets),
        (7000, 7000 + 2334)
    );
    assert_eq!(account.waiting(), 0);
    assert_eq!(sums.len(), 7, "{sums:?}");
    for (folder, (rows, _)) in &sums {
        assert!(
            folder.contains("/date=2023-11-1") && folder.contains("/hour="),
            "{folder}"
        );
        assert_eq!(*rows, 1000);
    }
    assert_eq!(sums.values().map(|sum| sum.1).sum::<u64>(), 9334);
    assert!(most <= 2000 / 7 + 1, "{most}");
    // 2000 records are a group of each hour; with more hours than open files there are more files.
    assert!(account.files > 7 && account.messages == 28, "{account:?}");
}

#[test]
fn partitions_can_be_days_or_none() {
    let (account, sums, most) = run("parquet-day", "?partition=day&times=ns");
    assert_eq!((account.files, sums.len()), (2, 2), "{sums:?}");
    assert!(
        sums.keys().all(|folder| !folder.contains("hour=")),
        "{sums:?}"
    );
    assert!(most > 1000);
    let (account, sums, _) = run("parquet-flat", "?partition=none");
    assert_eq!((account.files, sums.len()), (1, 1), "{sums:?}");
    assert_eq!(sums.values().next(), Some(&(7000, 9334)));
}

#[test]
fn an_impossible_directory_is_reported_at_once() {
    for (url, words) in [
        ("parquet:/proc/none", "/proc/none"),
        ("parquet:-", "a directory is required"),
    ] {
        let target = crate::Target::parse(url).unwrap();
        let error = crate::Exporters::open(&[target], &setup()).err().unwrap();
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
}
