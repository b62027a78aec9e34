//! Builds packets that match a signature, and modifies them.

use super::super::*;

/// Xorshift, from a fixed seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn nonzero(&mut self) -> u32 {
        (self.next() as u32).max(1)
    }

    /// Modifies a bit, a byte, a field or the length.
    pub fn change(&mut self, packet: &mut Vec<u8>) {
        let at = self.below(packet.len() as u64) as usize;
        match self.below(6) {
            0 => packet.truncate(at),
            1 => packet[at] = self.next() as u8,
            2 => packet[at] = 0,
            3 => packet[at] = packet[at].wrapping_add(1),
            _ => packet[at] ^= 1 << self.below(8),
        }
    }
}

/// Builds a packet that matches the signature; everything else is random.
pub fn packet_of(signature: &Signature, handshake: Handshake, random: &mut Random) -> Vec<u8> {
    let versions: Vec<_> = signature.versions().to_vec();
    let mut version = versions[random.below(versions.len() as u64) as usize];
    if signature.ip_options > 0 {
        version = Version::V4;
    }
    let quirks = signature.quirks_of(version);
    let options = options(signature, quirks, handshake, random);
    let mss = value_of(signature, &options, TcpOption::Mss, 2, 2);
    let ts1 = value_of(signature, &options, TcpOption::Timestamp, 2, 4);
    let payload = match signature.payload {
        Payload::None => 0,
        Payload::Some => 1 + random.below(20) as usize,
        Payload::Any => random.below(20) as usize,
    };
    let ip_len = if version == Version::V6 {
        40
    } else {
        20 + usize::from(signature.ip_options)
    };
    let headers = ip_len + 20 + options.len();
    let seq = if quirks.has(Quirks::SEQ_ZERO) {
        0
    } else {
        random.nonzero()
    };
    let id = (seq ^ ts1.unwrap_or(0)) as u16;
    let in_ip = random.below(2) == 0;
    let mut packet = match version {
        Version::V6 => ipv6(
            signature,
            quirks,
            in_ip,
            20 + options.len() + payload,
            random,
        ),
        _ => ipv4(signature, quirks, in_ip, headers + payload, id, random),
    };
    let window = window(signature, mss.unwrap_or(0), headers, random);
    packet.extend((random.next() as u32).to_be_bytes());
    packet.extend(seq.to_be_bytes());
    let has_ack = handshake == Handshake::SynAck;
    let ack = match (
        has_ack,
        quirks.has(Quirks::ACK_NONZERO),
        quirks.has(Quirks::ACK_ZERO),
    ) {
        (true, _, false) | (false, true, _) => random.nonzero(),
        _ => 0,
    };
    packet.extend(ack.to_be_bytes());
    let flags = flags(quirks, has_ack, in_ip, options.len(), random);
    packet.extend(flags.to_be_bytes());
    packet.extend((window as u16).to_be_bytes());
    packet.extend((random.next() as u16).to_be_bytes());
    let pointer = match quirks.has(Quirks::URG_POINTER) {
        true => random.nonzero() as u16 | 1,
        false if quirks.has(Quirks::URG) => random.next() as u16,
        false => 0,
    };
    packet.extend(pointer.to_be_bytes());
    packet.extend(options);
    packet.extend((0..payload).map(|_| random.next() as u8));
    packet
}

fn ttl(signature: &Signature, random: &mut Random) -> u8 {
    signature.ttl - random.below(u64::from(signature.ttl.min(HOPS_MAX)) + 1) as u8
}

fn ipv4(
    signature: &Signature,
    quirks: Quirks,
    ecn: bool,
    total: usize,
    linux_id: u16,
    random: &mut Random,
) -> Vec<u8> {
    let ecn = if quirks.has(Quirks::ECN) && ecn {
        1 + random.below(3) as u8
    } else {
        0
    };
    let tos = (random.next() as u8) << 2 | ecn;
    let mut packet = vec![0x45 + signature.ip_options / 4, tos];
    packet.extend((total as u16).to_be_bytes());
    let df = quirks.has(Quirks::DF);
    let id = match (
        df,
        quirks.has(Quirks::ID_NONZERO),
        quirks.has(Quirks::ID_ZERO),
    ) {
        _ if quirks.has(Quirks::LINUX) => linux_id,
        (true, false, _) | (_, _, true) => 0,
        _ => random.nonzero() as u16 | 1,
    };
    packet.extend(id.to_be_bytes());
    let flags = u16::from(df) << 14 | u16::from(quirks.has(Quirks::RESERVED)) << 15;
    packet.extend(flags.to_be_bytes());
    packet.extend([ttl(signature, random), 6]);
    packet.extend((0..10).map(|_| random.next() as u8));
    packet.extend((0..signature.ip_options).map(|_| random.next() as u8));
    packet
}

fn ipv6(
    signature: &Signature,
    quirks: Quirks,
    ecn: bool,
    len: usize,
    random: &mut Random,
) -> Vec<u8> {
    let ecn = if quirks.has(Quirks::ECN) && ecn {
        1 + random.below(3) as u32
    } else {
        0
    };
    let flow = if quirks.has(Quirks::FLOW) {
        random.nonzero() & 0xf_ffff | 1
    } else {
        0
    };
    let class = (random.below(64) as u32) << 2 | ecn;
    let mut packet = (6 << 28 | class << 20 | flow).to_be_bytes().to_vec();
    packet.extend((len as u16).to_be_bytes());
    packet.extend([6, ttl(signature, random)]);
    packet.extend((0..32).map(|_| random.next() as u8));
    packet
}

fn options(
    signature: &Signature,
    quirks: Quirks,
    handshake: Handshake,
    random: &mut Random,
) -> Vec<u8> {
    let all = super::super::compile::lengths(&signature.layout);
    let lengths = &all[random.below(all.len() as u64) as usize];
    let mut bytes = Vec::new();
    for (option, len) in signature.layout.iter().zip(lengths) {
        let body = usize::from(*len).saturating_sub(2);
        match option {
            TcpOption::Nop => bytes.push(1),
            TcpOption::End(padding) => {
                bytes.push(0);
                bytes.resize(bytes.len() + usize::from(*padding), 0);
                if quirks.has(Quirks::OPT_NONZERO) {
                    let at = bytes.len() - 1 - random.below((*padding).into()) as usize;
                    bytes[at] = 1;
                }
            }
            TcpOption::Mss => {
                let any = [1460, 1400, 536, 100, 99, 1452][random.below(6) as usize];
                bytes.extend([2, 4]);
                bytes.extend(signature.mss.unwrap_or(any).to_be_bytes());
            }
            TcpOption::WindowScale => {
                let any = match quirks.has(Quirks::EXCESSIVE_SCALE) {
                    true => 15 + random.below(200) as u8,
                    false => random.below(15) as u8,
                };
                bytes.extend([3, 3, signature.scale.unwrap_or(any)]);
            }
            TcpOption::SackPermitted => bytes.extend([4, 2]),
            TcpOption::Timestamp => {
                let ts1 = if quirks.has(Quirks::TS1_ZERO) {
                    0
                } else {
                    random.nonzero()
                };
                let ts2 = match quirks.has(Quirks::TS2_NONZERO) || handshake == Handshake::SynAck {
                    true => random.nonzero(),
                    false => 0,
                };
                bytes.extend([8, 10]);
                bytes.extend(ts1.to_be_bytes());
                bytes.extend(ts2.to_be_bytes());
            }
            TcpOption::Sack | TcpOption::Other(_) => {
                let kind = if let TcpOption::Other(kind) = option {
                    *kind
                } else {
                    5
                };
                bytes.extend([kind, *len]);
                bytes.extend((0..body).map(|_| random.next() as u8));
            }
        }
    }
    bytes
}

/// Reads the number of `len` bytes at an offset in an option.
fn value_of(
    signature: &Signature,
    bytes: &[u8],
    option: TcpOption,
    offset: usize,
    len: usize,
) -> Option<u32> {
    signature.layout.contains(&option).then_some(())?;
    let kind = if option == TcpOption::Mss {
        [2, 4]
    } else {
        [8, 10]
    };
    let at = bytes.windows(2).rposition(|two| two == kind)? + offset;
    let number = |number: u32, byte: &u8| number << 8 | u32::from(*byte);
    Some(bytes.get(at..at + len)?.iter().fold(0, number))
}

fn window(signature: &Signature, mss: u32, headers: usize, random: &mut Random) -> u32 {
    let divisors = [
        mss,
        mss.wrapping_sub(12),
        1460,
        1448,
        1440,
        mss + headers as u32,
        1500,
    ];
    let divisor = divisors[random.below(7) as usize];
    match signature.window {
        Window::Any => random.next() as u32,
        Window::Exact(window) => window.into(),
        Window::Multiple(of) => {
            u32::from(of) * random.below(u64::from(65_536 / u32::from(of))) as u32
        }
        Window::Mss(times) | Window::Mtu(times) => divisor.wrapping_mul(times.into()),
    }
}

fn flags(quirks: Quirks, has_ack: bool, in_ip: bool, options: usize, random: &mut Random) -> u16 {
    let mut flags = ((20 + options) as u16 / 4) << 12 | 2;
    for (is_set, bit) in [
        (has_ack, 0x10),
        (quirks.has(Quirks::URG), 0x20),
        (quirks.has(Quirks::PUSH), 8),
        (quirks.has(Quirks::ECN) && !in_ip, 0x40 << random.below(3)),
        (random.below(4) == 0, 0x0800),
    ] {
        flags |= if is_set { bit } else { 0 };
    }
    flags
}
