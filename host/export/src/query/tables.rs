//! The tables of a query as SQL views: which files they read, and how `directions` follows from
//! `flows`.
//!
//! Files with the same schema are read together, so that DuckDB opens them one after another. Told
//! to unite the schemas itself, it keeps the footers of all files in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sys::{Error, ErrorKind, Result};

use super::schema;

/// What has to be equal for files to be read together: the schema, and the names of the columns in
/// the names of the directories (`date=2026-11-22`). Without a schema the file is not Parquet, and
/// DuckDB says so.
type Kind = (Option<Vec<u8>>, Vec<String>);

/// Maximum depth of directories.
const DEPTH_MAX: usize = 32;

/// SQL statements that create the tables which a query uses.
///
/// # Errors
/// If a place cannot be read, or has no Parquet files.
pub fn create(places: &[PathBuf], sql: &str) -> Result<String> {
    let mut groups: BTreeMap<Kind, Vec<PathBuf>> = BTreeMap::new();
    for file in files(places)? {
        let kind = (schema::bytes_of(&file), partitions(&file));
        groups.entry(kind).or_default().push(file);
    }
    let mut parts = Vec::new();
    for files in groups.values() {
        let list: Vec<String> = files
            .iter()
            .map(|file| literal(file))
            .collect::<Result<_>>()?;
        parts.push(format!("SELECT * FROM read_parquet([{}])", list.join(", ")));
    }
    let flows = parts.join(" UNION ALL BY NAME ");
    // A progress bar would be written to standard output, between the rows.
    let mut setup = format!(
        "SET TimeZone = 'UTC'; SET enable_progress_bar = false; CREATE VIEW flows AS {flows}"
    );
    // Only then are the columns of these files those of flows.
    if sql.to_ascii_lowercase().contains("directions") {
        let mut columns: Vec<String> = Vec::new();
        for ((_, partitions), files) in &groups {
            let own = files
                .iter()
                .take(1)
                .flat_map(|file| schema::columns_of(file));
            for name in own.chain(partitions.iter().cloned()) {
                if !columns.contains(&name) {
                    columns.push(name);
                }
            }
        }
        if let Some(directions) = directions(&columns) {
            setup.push_str("; CREATE VIEW directions AS ");
            setup.push_str(&directions);
        }
    }
    Ok(setup)
}

/// The files of all places: those named, and those in directories, in order.
fn files(places: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for place in places {
        let failed = |e| Error::from_io(format!("read {}", place.display()), e);
        if !place.metadata().map_err(failed)?.is_dir() {
            files.push(place.clone());
            continue;
        }
        let before = files.len();
        search(place, DEPTH_MAX, &mut files).map_err(failed)?;
        if files.len() == before {
            let what = format!("read {}", place.display());
            let why = "there are no Parquet files in the directory";
            let hint = "`barewire flows PORT --export parquet:DIRECTORY` writes them";
            return Err(Error::new(ErrorKind::NotFound, what, why).with_hint(hint));
        }
    }
    Ok(files)
}

/// Finds the Parquet files in a directory. Links to directories are not followed.
fn search(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        entries.push((entry.path(), entry.file_type()?.is_dir()));
    }
    entries.sort();
    for (path, is_dir) in entries {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if is_dir && depth > 1 {
            search(&path, depth - 1, files)?;
        } else if !is_dir && name.ends_with(b".parquet") && !name.starts_with(b".") {
            files.push(path);
        }
    }
    Ok(())
}

/// The names of the columns in a file's directories.
fn partitions(file: &Path) -> Vec<String> {
    let folders = file.parent().into_iter().flat_map(Path::components);
    let names = folders.filter_map(|folder| folder.as_os_str().to_str()?.split_once('='));
    names.map(|(name, _)| name.to_owned()).collect()
}

/// A path as an SQL string, with its pattern characters quoted.
fn literal(path: &Path) -> Result<String> {
    let text = path.to_str().ok_or_else(|| {
        let what = format!("read {}", path.display());
        Error::new(ErrorKind::InvalidInput, what, "the name is not UTF-8")
    })?;
    let mut out = String::from("'");
    for char in text.chars() {
        match char {
            '*' | '?' | '[' => out.extend(['[', char, ']']),
            '\'' => out.push_str("''"),
            _ => out.push(char),
        }
    }
    out.push('\'');
    Ok(out)
}

/// The query behind `directions`: a row for each direction of a flow in which there were packets.
/// `None` if these are not the columns of flows.
fn directions(columns: &[String]) -> Option<String> {
    let has = |name: &str| columns.iter().any(|other| other == name);
    if !["src", "dst", "packets", "reverse_packets"]
        .iter()
        .all(|name| has(name))
    {
        return None;
    }
    let ways = [("src", "dst", ""), ("dst", "src", "reverse_")].map(|(from, to, prefix)| {
        let mut list = vec![format!("{from} AS address")];
        let mut add = |name: &str, new: &str| {
            if has(name) {
                list.push(format!("\"{}\" AS \"{new}\"", name.replace('"', "\"\"")));
            }
        };
        add(&format!("{from}_port"), "port");
        add(to, "peer");
        add(&format!("{to}_port"), "peer_port");
        for name in columns {
            let own = name.strip_prefix("src_");
            let own = own.filter(|own| has(&format!("dst_{own}")));
            match own {
                // Above, and in text.
                Some("port" | "address") => {}
                Some(own) => {
                    add(&format!("{from}_{own}"), own);
                    add(&format!("{to}_{own}"), &format!("peer_{own}"));
                }
                None if has(&format!("reverse_{name}")) => {
                    add(&format!("{prefix}{name}"), name);
                }
                None if is_shared(name) => add(name, name),
                None => {}
            }
        }
        let is_initiator = prefix.is_empty();
        list.push(format!("{is_initiator} AS is_initiator"));
        let list = list.join(", ");
        format!("SELECT {list} FROM flows WHERE {prefix}packets > 0")
    });
    Some(ways.join(" UNION ALL "))
}

/// Whether a column describes the flow as a whole. The lists of its first packets are left out:
/// they mix both directions.
fn is_shared(name: &str) -> bool {
    let is_of_end = name == "src" || name == "dst" || name.starts_with("dst_");
    !is_of_end && !name.starts_with("reverse_") && !name.starts_with("packet_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_and_directories_searched() {
        let folder = std::env::temp_dir().join(format!("barewire-it's-[{}]", std::process::id()));
        let inner = folder.join("date=2026-01-01").join("hour=02");
        std::fs::create_dir_all(&inner).unwrap();
        for name in ["b.parquet", "a.parquet", ".c.parquet", "d.parquet.part"] {
            std::fs::write(inner.join(name), b"").unwrap();
        }
        let sql = create(&[folder.clone(), inner.join("b.parquet")], "SELECT 1").unwrap();
        let name = inner.to_str().unwrap();
        let name = name.replace('\'', "''").replace('[', "[[]");
        let list = ["a", "b", "b"].map(|file| format!("'{name}/{file}.parquet'"));
        assert!(sql.ends_with(&format!("([{}])", list.join(", "))), "{sql}");
        assert_eq!(partitions(&inner.join("a.parquet")), ["date", "hour"]);
        std::fs::remove_dir_all(&inner).unwrap();
        let error = create(std::slice::from_ref(&folder), "SELECT 1").unwrap_err();
        assert!(error.to_string().contains("no Parquet files"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
        let error = create(&[folder], "SELECT 1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn each_direction_has_the_columns_of_its_sender() {
        let names = "src dst src_address dst_address src_port dst_port protocol packets tcp_flags \
                     reverse_packets reverse_tcp_flags src_asn dst_asn packet_lengths date";
        let columns: Vec<String> = names.split(' ').map(str::to_owned).collect();
        let sql = directions(&columns).unwrap();
        let (forward, reverse) = sql.split_once(" UNION ALL ").unwrap();
        for part in [
            "src AS address, \"src_port\" AS \"port\", \"dst\" AS \"peer\", \
             \"dst_port\" AS \"peer_port\"",
            "\"protocol\" AS \"protocol\", \"packets\" AS \"packets\"",
            "\"src_asn\" AS \"asn\", \"dst_asn\" AS \"peer_asn\", \"date\" AS \"date\", \
             true AS is_initiator FROM flows WHERE packets > 0",
        ] {
            assert!(forward.contains(part), "{part}: {forward}");
        }
        for part in [
            "dst AS address, \"dst_port\" AS \"port\", \"src\" AS \"peer\"",
            "\"reverse_packets\" AS \"packets\", \"reverse_tcp_flags\" AS \"tcp_flags\"",
            "\"dst_asn\" AS \"asn\"",
            "false AS is_initiator FROM flows WHERE reverse_packets > 0",
        ] {
            assert!(reverse.contains(part), "{part}: {reverse}");
        }
        assert!(!sql.contains("packet_lengths") && !sql.contains("src_address"));
        assert_eq!(directions(&columns[1..]), None);
    }
}
