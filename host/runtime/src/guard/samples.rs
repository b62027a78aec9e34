//! Samples of dropped packets, written to a pcapng file with the name of the rule as a comment.
//!
//! A thread writes, so that a full or slow disk does not delay the guard: samples that it has no
//! room for are lost, and counted.

use std::fs::File;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use ::guard::{SAMPLE_LEN_MAX, Sample, SampleCounts};
use sys::bpf::Events;
use sys::clock::monotonic_ns;
use sys::create::CreateOptions;
use sys::{Error, Result};
use wire::file::Direction;
use wire::file::pcapng::{self, InterfaceInfo, PacketInfo, SectionInfo, text_block_len};
use wire::{LinkType, Timestamp};

use super::table::Table;
use crate::Stop;
use crate::output::{Output, Patience, Piece, Refused};

/// Memory of each processor's ring.
const RING_LEN: usize = 128 << 10;
/// Maximum number of pieces, one for each reading of the rings, that wait for the file.
const PIECES_MAX: usize = 64;
/// Maximum length of a comment in bytes.
const COMMENT_MAX: usize = 200;

/// Which dropped packets are sampled, and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleSetup {
    /// The file; an existing one is overwritten.
    pub path: PathBuf,
    /// One dropped packet in this many is sampled.
    pub one_in: u32,
}

/// The rings and the file.
pub(super) struct Samples {
    setup: SampleSetup,
    pub(super) events: Events,
    sink: Sink,
    /// Samples that were read.
    read: u64,
    /// Of these, those that are not in the file.
    unwritten: u64,
}

enum Sink {
    /// Not started yet: the writer's thread must have dropped its privileges.
    File(File),
    Output(Output),
    /// Writing has failed.
    Ended,
}

impl Samples {
    /// Creates the rings and the file.
    pub(super) fn create(setup: &SampleSetup) -> Result<Self> {
        let events = Events::create("bw_samples", RING_LEN)?;
        let file = CreateOptions::PRIVATE
            .create(&setup.path)
            .map_err(|error| {
                let what = format!("create the file {}", setup.path.display());
                Error::from_io(what, error)
            })?;
        Ok(Self {
            setup: setup.clone(),
            events,
            sink: Sink::File(file),
            read: 0,
            unwritten: 0,
        })
    }

    /// What the program needs.
    pub(super) fn of_program(&self) -> (&Events, u32) {
        (&self.events, self.setup.one_in)
    }

    /// Starts the writer, and writes the beginning of the file.
    pub(super) fn start(&mut self, interface: &str) -> Result<()> {
        let Sink::File(file) = std::mem::replace(&mut self.sink, Sink::Ended) else {
            return Ok(());
        };
        let output = Output::start("samples", PIECES_MAX, file)?;
        self.sink = Sink::Output(output);
        let piece = Piece {
            bytes: head(interface),
            ..Piece::default()
        };
        self.give(piece)
    }

    /// Writes the samples in the rings.
    ///
    /// # Errors
    /// If writing fails; then nothing more is written.
    pub(super) fn read(&mut self, table: &Table) -> Result<()> {
        let mut piece = match &self.sink {
            Sink::Output(output) => output.empty(),
            _ => Piece::default(),
        };
        // From the monotonic clock to the wall clock.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ns = now.map_or(0, |now| now.as_nanos() as u64);
        let offset_ns = now_ns.wrapping_sub(monotonic_ns());
        self.events.read(|output| {
            let Some(sample) = Sample::read(output) else {
                return;
            };
            let name = table.name(sample.rule).unwrap_or_default();
            append(&mut piece.bytes, &sample, offset_ns, name);
            piece.records += 1;
        });
        self.read += piece.records;
        match piece.records {
            0 => Ok(()),
            _ => self.give(piece),
        }
    }

    fn give(&mut self, piece: Piece) -> Result<()> {
        let records = piece.records;
        let Sink::Output(output) = &self.sink else {
            self.unwritten += records;
            return Ok(());
        };
        match output.try_give(piece) {
            Ok(()) => Ok(()),
            Err(Refused::Full(_) | Refused::Stalled(_)) => {
                self.unwritten += records;
                Ok(())
            }
            Err(Refused::Failed(error)) => {
                self.unwritten += records;
                self.sink = Sink::Ended;
                Err(self.error(error))
            }
        }
    }

    fn error(&self, error: std::io::Error) -> Error {
        let what = format!("write samples to {}", self.setup.path.display());
        Error::from_io(what, error)
    }

    /// Whether all samples that programs took were read.
    pub(super) fn has_read(&self, taken: u64) -> bool {
        self.read >= taken
    }

    /// Counts samples that are not in the file as lost.
    pub(super) fn correct(&self, counts: &mut SampleCounts) {
        let unwritten = self.unwritten.min(counts.taken);
        counts.taken -= unwritten;
        counts.lost += unwritten;
    }

    /// Waits until the file is written.
    pub(super) fn finish(&mut self, stop: &Stop) -> Result<()> {
        let Sink::Output(output) = &self.sink else {
            return Ok(());
        };
        match output.drain(&Patience::over(stop)) {
            Ok(left) => {
                self.unwritten += left.map_or(0, |left| left.records);
                Ok(())
            }
            Err(error) => Err(self.error(error)),
        }
    }
}

/// The section and the interface.
fn head(interface: &str) -> Vec<u8> {
    let section = SectionInfo {
        application: concat!("barewire ", env!("CARGO_PKG_VERSION")),
        ..SectionInfo::default()
    };
    let info = InterfaceInfo {
        comment: "sampled packets that a rule dropped; the comment of a packet is its rule",
        ..InterfaceInfo::new(LinkType::ETHERNET, SAMPLE_LEN_MAX, interface)
    };
    let texts = section.application.len() + info.comment.len() + interface.len();
    let mut bytes = vec![0; 2 * text_block_len(texts)];
    let len = pcapng::emit_section(&mut bytes, &section).unwrap_or(0);
    let rest = pcapng::emit_interface(&mut bytes[len..], &info).unwrap_or(0);
    bytes.truncate(len + rest);
    bytes
}

/// Appends a packet with its rule.
fn append(out: &mut Vec<u8>, sample: &Sample<'_>, offset_ns: u64, rule: &str) {
    let info = PacketInfo {
        interface: 0,
        time: Timestamp(sample.time_ns.wrapping_add(offset_ns)),
        wire_len: sample.wire_len,
        direction: Direction::In,
        dropped: 0,
    };
    let mut end = rule.len().min(COMMENT_MAX);
    while !rule.is_char_boundary(end) {
        end -= 1;
    }
    let start = out.len();
    out.resize(start + sample.bytes.len() + text_block_len(end), 0);
    let written = pcapng::emit_packet(&mut out[start..], &info, sample.bytes, &rule[..end]);
    out.truncate(start + written.unwrap_or(0));
}
