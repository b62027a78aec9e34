//! Writes occasional messages: templates and options. They may be allocated.

use super::{HEADER_LEN, SET_HEADER_LEN, VERSION};

/// Builds the header of a message.
pub(super) fn header(len: usize, seconds: u32, sequence: u32, domain: u32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..2].copy_from_slice(&VERSION.to_be_bytes());
    header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    header[4..8].copy_from_slice(&seconds.to_be_bytes());
    header[8..12].copy_from_slice(&sequence.to_be_bytes());
    header[12..].copy_from_slice(&domain.to_be_bytes());
    header
}

/// Appends a field specifier (RFC 7011 §3.2).
pub(super) fn specifier(out: &mut Vec<u8>, id: u16, len: u16, enterprise: u32) {
    const HAS_ENTERPRISE: u16 = 0x8000;
    let bit = if enterprise == 0 { 0 } else { HAS_ENTERPRISE };
    out.extend((id | bit).to_be_bytes());
    out.extend(len.to_be_bytes());
    if enterprise != 0 {
        out.extend(enterprise.to_be_bytes());
    }
}

/// Appends a value after its length (RFC 7011 §7).
pub(super) fn variable(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.push(0);
    write(out);
    let len = out.len() - at - 1;
    if len < 255 {
        out[at] = len as u8;
        return;
    }
    // Far below the limit: the longest list has 1,033 bytes.
    let [high, low] = (len.min(usize::from(u16::MAX)) as u16).to_be_bytes();
    out[at] = 255;
    drop(out.splice(at + 1..at + 1, [high, low]));
}

/// Writes records of any kind into as many messages as needed.
pub(super) struct Writer {
    messages: Vec<Vec<u8>>,
    /// Offset and id of the open set in the last message.
    set: Option<(usize, u16)>,
    len_max: usize,
    domain: u32,
    seconds: u32,
    /// Number of data records up to the end of the last message.
    sequence: u32,
}

impl Writer {
    pub(super) fn new(len_max: usize, domain: u32, seconds: u32, sequence: u32) -> Writer {
        Writer {
            messages: Vec::new(),
            set: None,
            len_max,
            domain,
            seconds,
            sequence,
        }
    }

    /// Adds a record to a set with this id. Data records are counted in the sequence. A record that
    /// does not fit into a message alone is omitted, which never happens to barewire's own.
    pub(super) fn record(&mut self, set_id: u16, record: &[u8], is_data: bool) {
        let opens = self.set.is_none_or(|(_, id)| id != set_id);
        let more = record.len() + if opens { SET_HEADER_LEN } else { 0 };
        let len = self.messages.last().map_or(usize::MAX, Vec::len);
        if len.saturating_add(more) > self.len_max {
            if HEADER_LEN + SET_HEADER_LEN + record.len() > self.len_max {
                return;
            }
            self.close();
            self.messages
                .push(header(0, self.seconds, self.sequence, self.domain).to_vec());
        }
        let Some(message) = self.messages.last_mut() else {
            return;
        };
        if self.set.is_none_or(|(_, id)| id != set_id) {
            close_set(message, self.set);
            self.set = Some((message.len(), set_id));
            message.extend(set_id.to_be_bytes());
            message.extend([0; 2]);
        }
        message.extend(record);
        if is_data {
            self.sequence = self.sequence.wrapping_add(1);
        }
    }

    /// Begins a new set with the next record.
    pub(super) fn end_set(&mut self) {
        let set = self.set.take();
        if let Some(message) = self.messages.last_mut() {
            close_set(message, set);
        }
    }

    /// Closes the last message.
    fn close(&mut self) {
        let set = self.set.take();
        if let Some(message) = self.messages.last_mut() {
            close_set(message, set);
            let len = message.len() as u16;
            message[2..4].copy_from_slice(&len.to_be_bytes());
        }
    }

    /// Returns the messages, and the number of data records sent after them.
    pub(super) fn finish(mut self) -> (Vec<Vec<u8>>, u32) {
        self.close();
        (self.messages, self.sequence)
    }
}

fn close_set(message: &mut [u8], set: Option<(usize, u16)>) {
    if let Some((at, _)) = set {
        let len = (message.len() - at) as u16;
        message[at + 2..at + 4].copy_from_slice(&len.to_be_bytes());
    }
}
