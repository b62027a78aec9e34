//! TCP segments and UDP datagrams with correct checksums, to be damaged by tests; independent of
//! `wire`, as `lab::packet` is.

use lab::packet::checksum;

/// Precedes the number.
const MAGIC: [u8; 8] = *b"segment!";

/// Magic and number, at the end of the packet.
const STAMP_LEN: usize = 16;

/// One packet of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub v6: bool,
    pub tcp: bool,
    /// Last byte of the addresses, source first.
    pub hosts: [u8; 2],
    /// Source first.
    pub ports: [u16; 2],
    pub number: u64,
}

impl Segment {
    /// The same flow in the other direction.
    pub fn answer(self, number: u64) -> Segment {
        let ([a, b], [c, d]) = (self.hosts, self.ports);
        Segment {
            hosts: [b, a],
            ports: [d, c],
            number,
            ..self
        }
    }

    /// The packet from `source` to `destination`, with a VLAN tag if given.
    pub fn build(&self, destination: [u8; 6], source: [u8; 6], tci: Option<u16>) -> Vec<u8> {
        let mut packet = [destination, source].concat();
        if let Some(tci) = tci {
            packet.extend(0x8100_u16.to_be_bytes());
            packet.extend(tci.to_be_bytes());
        }
        let mut transport: Vec<u8> = self.ports.iter().flat_map(|p| p.to_be_bytes()).collect();
        let sum_at = if self.tcp {
            transport.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
            16
        } else {
            transport.extend([0, 0, 0, 0]);
            6
        };
        transport.extend([0x5a; 10]);
        transport.extend(MAGIC);
        transport.extend(self.number.to_be_bytes());
        let len = transport.len() as u16;
        if !self.tcp {
            transport[4..6].copy_from_slice(&len.to_be_bytes());
        }
        let protocol = if self.tcp { 6 } else { 17 };
        let addresses: Vec<u8> = self
            .hosts
            .iter()
            .flat_map(|&host| match self.v6 {
                true => [&[0xfd, 0x77][..], &[0; 13], &[host]].concat(),
                false => vec![10, 77, 0, host],
            })
            .collect();
        let mut summed = addresses.clone();
        summed.extend(len.to_be_bytes());
        summed.extend([0, protocol]);
        summed.extend(&transport);
        transport[sum_at..sum_at + 2].copy_from_slice(&checksum(&summed).to_be_bytes());
        if self.v6 {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            packet.extend(len.to_be_bytes());
            packet.extend([protocol, 64]);
            packet.extend(addresses);
        } else {
            packet.extend([0x08, 0]);
            let mut header = vec![0x45, 0];
            header.extend((20 + len).to_be_bytes());
            header.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
            header.extend(addresses);
            let sum = checksum(&header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            packet.extend(header);
        }
        packet.extend(transport);
        packet
    }
}

/// The number of a packet built here, damaged or not.
pub fn number_of(packet: &[u8]) -> Option<u64> {
    let at = packet.len().checked_sub(STAMP_LEN)?;
    let (magic, number) = packet[at..].split_at(MAGIC.len());
    (magic == MAGIC).then(|| u64::from_be_bytes(number.try_into().unwrap()))
}
