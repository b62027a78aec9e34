//! Enrichment of flows from the user's files: autonomous systems, countries and cities of
//! addresses, MAC vendors.
//!
//! A record is enriched when it ends, in the thread that reports it. Results by address are cached
//! in a table of fixed size; each name is stored once, up to a bound. Files are read whole, up to a
//! bound, and nothing in them is trusted unchecked.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flow::{Extra, Origin, OriginParts, Origins, Record, Side};
use sys::{Error, ErrorKind, Result};

mod database;
#[cfg(test)]
mod laws;
mod ranges;
mod vendors;

use database::Database;
use ranges::{Ranges, cut};
pub use vendors::Vendors;

/// Maximum file size in bytes.
const FILE_MAX: u64 = 1 << 30;
/// Magic numbers of gzip, zstd, xz, bzip2 and zip files.
const PACKED: [&[u8]; 5] = [
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ\0",
    b"BZh",
    b"PK\x03\x04",
];
/// Number of cached addresses.
const REMEMBERED: usize = 16 << 10;
/// Maximum number of names stored at a time.
const NAMES_MAX: usize = 64 << 10;
/// Maximum memory in bytes per name: its slot in the set, its counts and its text.
const NAME_LEN: usize = 2 * size_of::<Arc<str>>() + 16 + ranges::NAME_MAX;

/// Files for enrichment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginFiles {
    /// Autonomous systems: lists or MaxMind DB files; the first that has an address wins.
    pub networks: Vec<PathBuf>,
    /// Countries and cities, likewise.
    pub places: Vec<PathBuf>,
    /// Vendors of network cards.
    pub vendors: Vec<PathBuf>,
}

impl OriginFiles {
    /// The kinds of data in the files.
    pub fn parts(&self) -> OriginParts {
        OriginParts {
            network: !self.networks.is_empty(),
            place: !self.places.is_empty(),
            vendor: !self.vendors.is_empty(),
        }
    }
}

/// A file of addresses.
enum Source {
    Ranges(Ranges),
    Database(Database),
}

/// The loaded files.
pub struct OriginTable {
    networks: Vec<Source>,
    places: Vec<Source>,
    vendors: Vendors,
    /// Cache, by a hash of the address.
    remembered: Vec<Option<(IpAddr, Origin)>>,
    names: HashSet<Arc<str>>,
}

impl OriginTable {
    /// Reads the files, which takes a while if they are large.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid file, with the line; errors of reading.
    pub fn open(files: &OriginFiles) -> Result<OriginTable> {
        let mut vendors = Vendors::default();
        for path in &files.vendors {
            let bytes = read(path)?;
            vendors.add(&bytes).map_err(|why| wrong(path, &why))?;
        }
        let remembered = files.parts().network || files.parts().place;
        Ok(OriginTable {
            networks: sources(&files.networks)?,
            places: sources(&files.places)?,
            vendors,
            remembered: vec![None; if remembered { REMEMBERED } else { 0 }],
            names: HashSet::new(),
        })
    }

    /// Looks up both ends of a record.
    pub fn of(&mut self, record: &Record, extra: &Extra<'_>) -> Origins {
        [Side::A, Side::B].map(|side| {
            let mut origin = self.of_address(record.key().addr(side));
            if let Some(key) = extra.key {
                let mac = key.mac[side as usize];
                origin.vendor = self.vendors.find(mac).filter(|_| mac != [0; 6]).cloned();
            }
            origin
        })
    }

    /// Looks up an address.
    pub fn of_address(&mut self, addr: IpAddr) -> Origin {
        let mut hasher = DefaultHasher::new();
        addr.hash(&mut hasher);
        let at = hasher.finish() as usize % self.remembered.len().max(1);
        if let Some(Some((of, origin))) = self.remembered.get(at)
            && *of == addr
        {
            return origin.clone();
        }
        let origin = self.find(addr);
        if let Some(place) = self.remembered.get_mut(at) {
            *place = Some((addr, origin.clone()));
        }
        origin
    }

    fn find(&mut self, addr: IpAddr) -> Origin {
        let mut origin = Origin::default();
        let names = &mut self.names;
        for source in &self.networks {
            match source {
                Source::Ranges(ranges) => {
                    let row = ranges.find(addr).filter(|row| row.is_of_network());
                    if let Some(row) = row {
                        (origin.asn, origin.network) = (row.asn, row.name.clone());
                    }
                }
                Source::Database(database) => {
                    let found = database.find(addr);
                    (origin.asn, origin.network) = (found.asn, keep(names, found.network));
                }
            }
            if origin.asn != 0 {
                break;
            }
        }
        for source in &self.places {
            match source {
                Source::Ranges(ranges) => {
                    if let Some(row) = ranges.find(addr) {
                        origin.country = row.country;
                        // In a list of networks the name is that of the network.
                        let name = row.name.clone();
                        origin.city = name.filter(|_| !row.is_of_network());
                    }
                }
                Source::Database(database) => {
                    let found = database.find(addr);
                    (origin.country, origin.city) = (found.country, keep(names, found.city));
                }
            }
            if origin.country != [0; 2] || origin.city.is_some() {
                break;
            }
        }
        origin
    }

    /// Maximum memory in bytes.
    pub fn memory_len(&self) -> usize {
        let sources = self.networks.iter().chain(&self.places);
        let files: usize = sources
            .map(|source| match source {
                Source::Ranges(ranges) => ranges.memory_len(),
                Source::Database(database) => database.memory_len(),
            })
            .sum();
        // The names of lists belong to the lists.
        let has_database = |sources: &[Source]| {
            let mut kinds = sources.iter();
            kinds.any(|source| matches!(source, Source::Database(_)))
        };
        let names = match has_database(&self.networks) || has_database(&self.places) {
            true => NAMES_MAX * NAME_LEN,
            false => 0,
        };
        files
            + self.vendors.memory_len()
            + self.remembered.len() * size_of::<Option<(IpAddr, Origin)>>()
            + names
    }
}

fn sources(paths: &[PathBuf]) -> Result<Vec<Source>> {
    paths.iter().map(|path| Source::open(path)).collect()
}

/// Interns a name.
fn keep(names: &mut HashSet<Arc<str>>, name: &str) -> Option<Arc<str>> {
    let name = cut(name);
    if name.is_empty() {
        return None;
    }
    if let Some(kept) = names.get(name) {
        return Some(kept.clone());
    }
    if names.len() >= NAMES_MAX {
        names.clear();
    }
    let kept: Arc<str> = name.into();
    names.insert(kept.clone());
    Some(kept)
}

impl Source {
    fn open(path: &Path) -> Result<Source> {
        let bytes = read(path)?;
        if Database::is_one(&bytes) {
            let database = Database::new(bytes).map_err(|why| wrong(path, &why))?;
            return Ok(Source::Database(database));
        }
        let ranges = Ranges::parse(&bytes).map_err(|why| wrong(path, &why))?;
        Ok(Source::Ranges(ranges))
    }
}

fn wrong(path: &Path, why: &str) -> Error {
    let what = format!("use {}", path.display());
    let hint = "lists of address ranges or prefixes, MaxMind DB files; for --mac-vendors IEEE's \
                oui.csv or Wireshark's manuf (docs/enrichment.md)";
    Error::new(ErrorKind::InvalidInput, what, why).with_hint(hint)
}

/// Reads a whole file.
fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |e| Error::from_io(format!("read {}", path.display()), e);
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    // One more than allowed.
    let mut limited = file.take(FILE_MAX + 1);
    limited.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(wrong(path, "it is larger than 1 GiB"));
    }
    if PACKED.iter().any(|magic| bytes.starts_with(magic)) {
        let what = format!("use {}", path.display());
        let error = Error::new(ErrorKind::InvalidInput, what, "it is compressed");
        return Err(error.with_hint("decompress it first: gunzip --keep or unzip"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
