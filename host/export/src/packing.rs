//! Compressed files: gzip (RFC 1952) and Zstandard (RFC 8878), by the extension of the name.
//!
//! Every message is compressed separately, as a gzip member or Zstandard frame; readers concatenate
//! them. So a message can be removed again when the disk is full, and the file can be read after a
//! crash.

use std::io::{self, Read};
use std::path::Path;

/// Levels: the defaults of both programs, for gzip lower, where the default costs twice the time
/// for a few percent.
const GZIP_LEVEL: u32 = 4;
const ZSTD_LEVEL: i32 = 2;

/// The compression of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    /// The compression implied by a file's name.
    pub fn of(path: &Path) -> Packing {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("gz") => Packing::Gzip,
            Some("zst") => Packing::Zstd,
            _ => Packing::Plain,
        }
    }

    /// The error for the name of an unsupported compression; an uncompressed file under such a name
    /// would be misleading.
    pub fn refusal(path: &Path) -> Option<&'static str> {
        let ending = path.extension().and_then(|ending| ending.to_str())?;
        [
            "xz", "bz2", "lz4", "br", "lzma", "Z", "zip", "7z", "gzip", "zstd",
        ]
        .contains(&ending)
        .then_some("files can be compressed as .gz or .zst only")
    }

    /// Compresses a message into `out`, which is cleared first.
    ///
    /// # Errors
    /// Out of memory.
    pub fn pack(self, message: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        match self {
            Packing::Plain => out.extend_from_slice(message),
            Packing::Gzip => {
                let level = flate2::Compression::new(GZIP_LEVEL);
                flate2::read::GzEncoder::new(message, level).read_to_end(out)?;
            }
            Packing::Zstd => zstd::stream::copy_encode(message, out, ZSTD_LEVEL)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_compressions_are_refused() {
        for (name, is_refused) in [
            ("x.csv.xz", true),
            ("x.csv.bz2", true),
            ("x.csv.gz", false),
            ("x.csv.zst", false),
            ("x.csv", false),
            ("xz", false),
        ] {
            assert_eq!(
                Packing::refusal(Path::new(name)).is_some(),
                is_refused,
                "{name}"
            );
        }
    }
}
