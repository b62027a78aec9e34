//! Compares the bytes of a signature's TCP options, word by word.

use super::super::{Quirks, TcpOption};
use super::block::{Block, To};
use super::{Handshake, Variant};

/// Maximum length of the TCP options.
const LEN_MAX: usize = 40;
/// Maximum number of length combinations to try.
const SEARCH_MAX: usize = 64;

impl TcpOption {
    fn kind(self) -> u8 {
        match self {
            TcpOption::End(_) => 0,
            TcpOption::Nop => 1,
            TcpOption::Mss => 2,
            TcpOption::WindowScale => 3,
            TcpOption::SackPermitted => 4,
            TcpOption::Sack => 5,
            TcpOption::Timestamp => 8,
            TcpOption::Other(kind) => kind,
        }
    }

    fn lengths(self) -> std::ops::RangeInclusive<u8> {
        match self {
            TcpOption::End(padding) => 1 + padding..=1 + padding,
            TcpOption::Nop => 1..=1,
            TcpOption::Mss => 4..=4,
            TcpOption::WindowScale => 3..=3,
            TcpOption::SackPermitted => 2..=2,
            TcpOption::Sack => 10..=34,
            TcpOption::Timestamp => 10..=10,
            TcpOption::Other(_) => 2..=40,
        }
    }
}

/// Possible lengths of the options in a layout: whole words, at most 40 bytes together. The number
/// of combinations is bounded.
pub(in super::super) fn lengths(layout: &[TcpOption]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    combine(layout, &mut Vec::new(), 0, &mut found);
    found
}

fn combine(layout: &[TcpOption], chosen: &mut Vec<u8>, len: usize, found: &mut Vec<Vec<u8>>) {
    // Without the minimum of the remaining options, the number of combinations tried would grow
    // exponentially with their number.
    let least: usize = layout
        .iter()
        .map(|o| usize::from(*o.lengths().start()))
        .sum();
    if len + least > LEN_MAX || found.len() >= SEARCH_MAX {
        return;
    }
    let Some((option, rest)) = layout.split_first() else {
        if len.is_multiple_of(4) {
            found.push(chosen.clone());
        }
        return;
    };
    for length in option.lengths() {
        chosen.push(length);
        combine(rest, chosen, len + usize::from(length), found);
        chosen.pop();
    }
}

impl Variant<'_> {
    /// Offset of an option from the start of the packet; of the last one, whose value counts, if it
    /// occurs twice.
    pub(super) fn offset_of(&self, option: TcpOption) -> Option<u32> {
        self.offsets_of(option).last()
    }

    fn offsets_of(&self, option: TcpOption) -> impl Iterator<Item = u32> {
        let mut at = self.tcp_at() + 20;
        let layout = self.signature.layout.iter().zip(self.lengths);
        let places = layout.map(move |(other, len)| {
            let here = at;
            at += u32::from(*len);
            (*other, here)
        });
        places.filter_map(move |(other, here)| (other == option).then_some(here))
    }

    /// The option bytes; `None` for unknown ones.
    fn option_bytes(&self) -> Vec<Option<u8>> {
        let signature = self.signature;
        let mut bytes = Vec::new();
        let all = signature.layout.iter().zip(self.lengths);
        for (index, (option, len)) in all.enumerate() {
            let is_last = !signature.layout[index + 1..].contains(option);
            bytes.push(Some(option.kind()));
            let end = bytes.len() - 1 + usize::from(*len);
            if !matches!(option, TcpOption::End(_) | TcpOption::Nop) {
                bytes.push(Some(*len));
            }
            match option {
                TcpOption::Mss => match signature.mss {
                    Some(mss) if is_last => bytes.extend(mss.to_be_bytes().map(Some)),
                    _ => bytes.extend([None; 2]),
                },
                TcpOption::WindowScale => bytes.push(signature.scale.filter(|_| is_last)),
                TcpOption::Timestamp => {
                    let zero = |is_zero: bool| is_zero.then_some(0);
                    bytes.extend([zero(self.quirk(Quirks::TS1_ZERO)); 4]);
                    let is_syn = self.handshake == Handshake::Syn;
                    bytes.extend([zero(is_syn && !self.quirk(Quirks::TS2_NONZERO)); 4]);
                }
                TcpOption::End(_) if !self.quirk(Quirks::OPT_NONZERO) => {
                    bytes.resize(end, Some(0));
                }
                _ => {}
            }
            bytes.resize(end, None);
        }
        bytes
    }

    pub(super) fn options(&self, block: &mut Block) {
        let start = self.tcp_at() + 20;
        for (at, word) in (start..)
            .step_by(4)
            .zip(self.option_bytes().chunks_exact(4))
        {
            compare(block, at, word);
        }
        for timestamp in self.offsets_of(TcpOption::Timestamp) {
            if !self.quirk(Quirks::TS1_ZERO) {
                block.word(timestamp + 2);
                block.zero(false);
            }
            if self.quirk(Quirks::TS2_NONZERO) {
                block.word(timestamp + 6);
                block.zero(false);
            }
        }
        let last = self.offset_of(TcpOption::WindowScale);
        for scale in self.offsets_of(TcpOption::WindowScale) {
            if Some(scale) == last && self.signature.scale.is_some() {
                continue;
            }
            block.byte(scale + 2);
            match self.quirk(Quirks::EXCESSIVE_SCALE) {
                true => block.at_least(15),
                false => block.at_most(14),
            }
        }
        if self.quirk(Quirks::OPT_NONZERO) {
            self.padding(block);
        }
    }

    /// Tests for a nonzero byte after the end of options.
    fn padding(&self, block: &mut Block) {
        let end = self.tcp_at() + self.tcp_len();
        let Some(TcpOption::End(padding)) = self.signature.layout.last() else {
            return;
        };
        // Before the jumps, which skip what follows them.
        block.reach(end);
        let done = block.label();
        let mut at = end - u32::from(*padding);
        while at < end {
            match end - at {
                4.. if at.is_multiple_of(2) => block.word(at),
                2.. => block.half(at),
                _ => block.byte(at),
            }
            at += match end - at {
                4.. if at.is_multiple_of(2) => 4,
                2.. => 2,
                _ => 1,
            };
            let otherwise = if at < end { To::Next } else { To::Fail };
            block.jump_if(0x45, u32::MAX, To::Label(done), otherwise);
        }
        block.bind(done);
    }
}

/// Compares a partly known word, using the narrowest load.
fn compare(block: &mut Block, at: u32, word: &[Option<u8>]) {
    let number = |bytes: &[Option<u8>]| {
        let byte = |number: u32, byte: &Option<u8>| number << 8 | u32::from(byte.unwrap_or(0));
        bytes.iter().fold(0, byte)
    };
    match word {
        [None, None, None, None] => {}
        [Some(_), None, None, None] => {
            block.byte(at);
            block.equal(number(&word[..1]));
        }
        [None, None, None, Some(_)] => {
            block.byte(at + 3);
            block.equal(number(&word[3..]));
        }
        [None, Some(_), None, None] => {
            block.byte(at + 1);
            block.equal(number(&word[1..2]));
        }
        [None, None, Some(_), None] => {
            block.byte(at + 2);
            block.equal(number(&word[2..3]));
        }
        [Some(_), Some(_), None, None] => {
            block.half(at);
            block.equal(number(&word[..2]));
        }
        [None, None, Some(_), Some(_)] => {
            block.half(at + 2);
            block.equal(number(&word[2..]));
        }
        _ => {
            let mask = word.iter().map(|byte| byte.map(|_| 0xff));
            let mask = number(&mask.collect::<Vec<_>>());
            block.word(at);
            if mask != u32::MAX {
                block.and(mask);
            }
            block.equal(number(word));
        }
    }
}
