//! Timestamps that switches and test devices append to packets: those of Ixia, of Arista's
//! MetaWatch, and of Arista 7150, whose key frames relate its ticks to the time.

/// Seconds and nanoseconds.
pub type Time = (u32, u32);

/// Length of Ixia's trailer: type, length, seconds, nanoseconds, length, signature, checksum.
pub const IXIA_LEN: usize = 19;
/// Length of MetaWatch's trailer: options, seconds, nanoseconds, flags, device, port.
pub const METAWATCH_LEN: usize = 16;
/// Length of the ticks that Arista 7150 appends.
pub const ARISTA_LEN: usize = 4;

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let found = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*found))
}

/// The trailer of a packet.
fn trailer(packet: &[u8], len: usize) -> Option<&[u8]> {
    packet.get(packet.len().checked_sub(len)?..)
}

/// The timestamp of Ixia's trailer, which its signature shows. The fields are the first 15 of its
/// bytes.
pub fn ixia(packet: &[u8]) -> Option<Time> {
    let trailer = trailer(packet, IXIA_LEN)?;
    let is_signed = trailer[11..13] == [0xaf, 0x12];
    is_signed.then_some((word(trailer, 2)?, word(trailer, 6)?))
}

/// The timestamp of MetaWatch's trailer, and its device and port. It has no signature.
pub fn metawatch(packet: &[u8]) -> Option<(Time, u16, u8)> {
    let trailer = trailer(packet, METAWATCH_LEN)?;
    let device = u16::from_be_bytes([trailer[13], trailer[14]]);
    Some(((word(trailer, 4)?, word(trailer, 8)?), device, trailer[15]))
}

/// A key frame: at so many nanoseconds since 1970, the clock had so many ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyFrame {
    /// The time in nanoseconds since 1970.
    pub time_ns: u64,
    /// The ticks.
    pub ticks: u32,
}

impl KeyFrame {
    /// Reads a key frame: a broadcast of IP protocol 253.
    pub fn read(packet: &[u8]) -> Option<Self> {
        /// Ticks in two words, times, counters and identifiers.
        const LEN: usize = 46;
        if packet.get(..6)? != [0xff; 6] {
            return None;
        }
        let mut at = 12;
        while packet.get(at..at + 2)? == [0x81, 0] {
            at += 4;
        }
        let header = packet.get(at + 2..)?;
        if packet.get(at..at + 2)? != [8, 0] || header.len() < 20 || header[9] != 253 {
            return None;
        }
        let body = header.get(usize::from(header[0] & 15) * 4..)?.get(..LEN)?;
        let high = u64::from(word(body, 8)?);
        Some(Self {
            time_ns: high << 32 | u64::from(word(body, 12)?),
            ticks: word(body, 4)?,
        })
    }

    /// The time of a packet by its ticks, 31 bits of 20/7 nanoseconds each.
    pub fn time_ns(self, ticks: u32) -> u64 {
        let since = ticks.wrapping_sub(self.ticks) & 0x7fff_ffff;
        // The time comes from the wire.
        self.time_ns.saturating_add(u64::from(since) * 20 / 7)
    }
}

/// The ticks at the end of a packet.
pub fn arista_ticks(packet: &[u8]) -> Option<u32> {
    word(trailer(packet, ARISTA_LEN)?, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_are_found_at_the_end() {
        let mut packet = vec![0x55; 60];
        packet.extend([
            1, 8, 0, 0, 0, 9, 0, 0, 1, 0, 8, 0xaf, 0x12, 0, 0, 0, 0, 0, 0,
        ]);
        assert_eq!(ixia(&packet), Some((9, 256)));
        assert_eq!(ixia(&[0; 60]), None);
        for len in 0..IXIA_LEN {
            assert_eq!(ixia(&packet[..len]), None);
        }
        let mut watch = vec![0; 60];
        watch.extend([0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 8, 1, 1, 2, 3]);
        assert_eq!(metawatch(&watch), Some(((7, 8), 0x102, 3)));
        assert_eq!(metawatch(&[0; 15]), None);
    }

    #[test]
    fn key_frames_relate_ticks_to_the_time() {
        let mut packet = vec![0xff; 6];
        packet.extend([2, 0, 0, 0, 0, 1, 0x81, 0, 0, 5, 8, 0, 0x45]);
        packet.extend([0; 8]);
        packet.push(253);
        packet.extend([0; 10]);
        let mut body = [0; 46];
        body[4..8].copy_from_slice(&700_u32.to_be_bytes());
        body[8..16].copy_from_slice(&1_700_000_000_000_000_000_u64.to_be_bytes());
        packet.extend(body);
        let frame = KeyFrame::read(&packet).unwrap();
        assert_eq!(
            (frame.ticks, frame.time_ns),
            (700, 1_700_000_000_000_000_000)
        );
        // 350 MHz: 7 ticks are 20 ns.
        assert_eq!(frame.time_ns(707) - frame.time_ns, 20);
        // The ticks have wrapped: 31 bits.
        assert_eq!(
            frame.time_ns(0) - frame.time_ns,
            (0x8000_0000 - 700) * 20 / 7
        );
        let late = KeyFrame {
            time_ns: u64::MAX - 1,
            ..frame
        };
        assert_eq!(late.time_ns(700), u64::MAX - 1);
        assert_eq!(late.time_ns(707), u64::MAX);
        for len in 0..packet.len() {
            assert_eq!(KeyFrame::read(&packet[..len]), None);
        }
        packet[0] = 0;
        assert_eq!(KeyFrame::read(&packet), None);
        assert_eq!(arista_ticks(&[0, 0, 1, 2, 3, 4]), Some(0x0102_0304));
        assert_eq!(arista_ticks(&[0; 3]), None);
    }
}
