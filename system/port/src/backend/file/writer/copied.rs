//! Blocks of a pcapng file that are copied as they are, and what each file of a set needs of them.

use sys::{Error, ErrorKind, Result};
use wire::file::pcapng::{Block, BlockKind};

use super::{BlockCopy, FileFormat, FileWriter, State};

/// Maximum number of bytes repeated at the start of each file of a set: interfaces, names, secrets.
const PREAMBLE_MAX: usize = 32 << 20;

/// The blocks of the current section that the packets after them need.
#[derive(Debug, Default)]
pub(super) struct Preamble {
    blocks: Vec<u8>,
}

impl Preamble {
    /// The blocks, one after another.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.blocks
    }

    /// Adds a block if packets need it; false if there is no room.
    fn add(&mut self, kind: BlockKind, bytes: &[u8]) -> bool {
        match kind {
            BlockKind::Section => self.blocks.clear(),
            BlockKind::Interface | BlockKind::Lasting => {}
            BlockKind::Packet | BlockKind::Other => return true,
        }
        if self.blocks.len() + bytes.len() > PREAMBLE_MAX {
            return false;
        }
        self.blocks.extend_from_slice(bytes);
        true
    }
}

impl FileWriter {
    /// Whether blocks are copied from another file: then no section or interface is written but
    /// theirs.
    pub(super) fn copies(&self) -> bool {
        self.options.copy != BlockCopy::None && self.options.format == FileFormat::Pcapng
    }

    /// Writes a block that is not a packet, as it is in the file that is copied, in the order of
    /// that file. A set of files repeats what packets need in each.
    ///
    /// # Errors
    /// As [`FileWriter::write`]; `Unsupported` if a set would have to repeat more than 32 MiB.
    pub fn block(&mut self, mut bytes: Box<[u8]>) -> Result<()> {
        let Some(block) = Block::of(&bytes).filter(|_| self.copies()) else {
            return Ok(());
        };
        match self.state {
            State::Open => {}
            State::Full => return Ok(()),
            State::Failed => return Err(self.spent()),
        }
        if self.options.copy == BlockCopy::Some {
            block.clear_section_len(&mut bytes);
        }
        if self.options.snaplen != 0 {
            block.limit_snaplen(&mut bytes, self.options.snaplen);
        }
        if self.options.rotation.is_on() && !self.preamble.add(block.kind, &bytes) {
            let why = "more than 32 MiB of interfaces, names and secrets to repeat in each file";
            return Err(
                Error::new(ErrorKind::Unsupported, self.what(), why).with_hint("omit -C and -G")
            );
        }
        if self.output.is_none() {
            return Ok(());
        }
        self.gathered.put(&bytes);
        match self.gathered.len() >= self.piece_len {
            true => self.flush(),
            false => Ok(()),
        }
    }
}
