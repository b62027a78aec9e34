//! The interface and the direction of a cooked packet (`any`) at the start of its line, as tcpdump
//! prints them.

use std::collections::HashMap;
use std::fmt;

use sys::link::Link;

/// Maximum number of cached interface names: containers come and go.
const NAMES_MAX: usize = 4096;

/// Interface names by index, each looked up once. Indices in a file are resolved on this host, too.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    names: HashMap<u32, Option<String>>,
}

impl Interfaces {
    /// Prints the interface name and direction of a cooked header (LINKTYPE_LINUX_SLL2).
    pub(super) fn show(&mut self, bytes: &[u8], out: &mut impl fmt::Write) -> fmt::Result {
        let &[_, _, _, _, a, b, c, d, _, _, kind, ..] = bytes else {
            return Ok(());
        };
        let index = u32::from_be_bytes([a, b, c, d]);
        if self.names.len() == NAMES_MAX {
            self.names.clear();
        }
        let name = self.names.entry(index);
        let name = name.or_insert_with(|| Some(Link::by_index(index).ok()?.name));
        let name = name.as_deref().unwrap_or("?");
        write!(out, "{name:<5} {:<3} ", way(kind))
    }
}

/// The direction for a packet type of packet(7), in tcpdump's words.
pub(super) fn way(packet_type: u8) -> &'static str {
    match packet_type {
        0 => "In",
        1 => "B",
        2 => "M",
        3 => "P",
        4 => "Out",
        _ => "?",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_indices_are_printed_as_names_of_this_host() {
        let mut interfaces = Interfaces::default();
        let mut show = |index: u32, kind: u8| {
            let mut bytes = [0; 20];
            bytes[4..8].copy_from_slice(&index.to_be_bytes());
            bytes[10] = kind;
            let mut text = String::new();
            interfaces.show(&bytes, &mut text).unwrap();
            text
        };
        assert_eq!(show(1, 4), "lo    Out ");
        assert_eq!(show(4_000_000_000, 0), "?     In  ");
        assert_eq!(show(1, 9), "lo    ?   ");
        let mut text = String::new();
        interfaces.show(&[0; 9], &mut text).unwrap();
        assert_eq!(text, "");
    }
}
