//! Independent programs whose results for the same bytes are compared.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

pub mod cache;
pub mod goflow2;
pub mod python;
pub mod tcpdump;
pub mod tshark;

/// A file in the system's temporary directory, deleted on drop.
#[derive(Debug)]
pub struct TempFile {
    path: PathBuf,
}

impl TempFile {
    /// A unique name with this suffix; the file is not created yet.
    pub fn new(suffix: &str) -> TempFile {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("barewire-{}-{number}{suffix}", std::process::id());
        TempFile {
            path: std::env::temp_dir().join(name),
        }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The standard output of a command for a file, from the [`cache`] if present; an exit code other
/// than 0 is an error with the full output.
fn checked(command: &mut Command, input: &Path) -> Result<String> {
    let output = cache::output(command, input)?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}\n{stdout}{stderr}", output.status);
    }
    Ok(stdout)
}

/// The packets of a little-endian pcap file as tcpdump writes it here, read without the code under
/// test. A record that is cut off is not returned.
///
/// # Errors
/// If the file cannot be read.
pub fn read_pcap(path: &Path) -> Result<Vec<Vec<u8>>> {
    let file = std::fs::read(path).with_context(|| path.display().to_string())?;
    let mut rest = file.get(24..).unwrap_or_default();
    let mut packets = Vec::new();
    while let Some((head, tail)) = rest.split_first_chunk::<16>() {
        let len = head[8..].first_chunk().context("a header of 16 bytes")?;
        let len = u32::from_le_bytes(*len) as usize;
        let Some((packet, tail)) = tail.split_at_checked(len) else {
            break;
        };
        packets.push(packet.to_vec());
        rest = tail;
    }
    Ok(packets)
}

/// Writes Ethernet packets to a pcap file (microseconds, one packet per millisecond), without the
/// code under test.
///
/// # Errors
/// If the file cannot be written.
pub fn write_pcap<P: AsRef<[u8]>>(packets: &[P]) -> Result<TempFile> {
    let temp = TempFile::new(".pcap");
    let file = File::create_new(temp.path()).with_context(|| temp.path().display().to_string())?;
    let mut file = BufWriter::new(file);
    // draft-ietf-opsawg-pcap §4: magic, version 2.4, zone, accuracy, snaplen, link type Ethernet.
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1];
    for word in header {
        file.write_all(&word.to_le_bytes())?;
    }
    for (index, packet) in packets.iter().enumerate() {
        let packet = packet.as_ref();
        let len = u32::try_from(packet.len())?;
        let (second, millisecond) = (index / 1000, index % 1000);
        let time = [
            1_700_000_000 + u32::try_from(second)?,
            u32::try_from(millisecond)? * 1000,
        ];
        for word in [time[0], time[1], len, len] {
            file.write_all(&word.to_le_bytes())?;
        }
        file.write_all(packet)?;
    }
    file.flush()?;
    Ok(temp)
}
