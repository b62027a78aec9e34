//! Messages of vhost-user: a header of 12 bytes, and a payload of fixed layout for each request, in
//! the machine's byte order (`docs/interop/vhost-user.rst`, "Message Specification").

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 12;
/// Maximum number of regions in a memory table.
pub const REGION_COUNT_MAX: usize = 8;
/// Length of the longest payload of a known request: a memory table.
pub const PAYLOAD_LEN_MAX: usize = 8 + REGION_COUNT_MAX * REGION_LEN;

const REGION_LEN: usize = 32;
/// Flags of a header: the version in two bits, then these.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// In the payload of a request with a descriptor: there is none.
const NO_FD: u64 = 1 << 8;

/// Codes of requests.
pub mod code {
    #![allow(missing_docs, reason = "the names of the specification")]
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const NET_SET_MTU: u32 = 20;
}

/// Why a message is refused; the connection then ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid(pub &'static str);

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The request's code.
    pub request: u32,
    /// Whether the front-end wants a reply to a request that has none of its own.
    pub needs_reply: bool,
    /// Length of the payload in bytes, at most [`PAYLOAD_LEN_MAX`].
    pub payload_len: usize,
}

/// A region of the guest's memory, as the front-end describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Its first address in the guest.
    pub guest_addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its first address in the front-end.
    pub user_addr: u64,
    /// Its offset in the file that comes with the message.
    pub file_offset: u64,
}

/// Places of the three parts of a vring, as addresses in the front-end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VringAddr {
    /// The descriptor table.
    pub descriptors: u64,
    /// The used ring.
    pub used: u64,
    /// The available ring.
    pub available: u64,
}

/// A request of the front-end. Numbers of vrings are unchecked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for the feature bits.
    GetFeatures,
    /// Selects feature bits.
    SetFeatures(u64),
    /// Begins the use of the device.
    SetOwner,
    /// Ends it; deprecated, to be ignored.
    ResetOwner,
    /// The guest's memory: at most 8 regions, each with a descriptor.
    SetMemTable(Vec<Region>),
    /// The number of a vring's descriptors.
    SetVringNum(u32, u32),
    /// The places of a vring.
    SetVringAddr(u32, VringAddr),
    /// The available index at which a vring begins.
    SetVringBase(u32, u32),
    /// Stops a vring; asks for the index at which it ended.
    GetVringBase(u32),
    /// The descriptor by which the guest notifies; starts the vring.
    SetVringKick(u32),
    /// The descriptor by which the guest is notified; false if there is none.
    SetVringCall(u32, bool),
    /// The descriptor by which errors are reported; false if there is none.
    SetVringErr(u32, bool),
    /// Asks for the protocol features.
    GetProtocolFeatures,
    /// Selects protocol features.
    SetProtocolFeatures(u64),
    /// Asks how many queue pairs there may be.
    GetQueueNum,
    /// Enables or disables a vring.
    SetVringEnable(u32, bool),
    /// Reports the MTU.
    NetSetMtu(u64),
}

impl Header {
    /// Decodes a header.
    ///
    /// # Errors
    /// For another version, a reply, or a payload that is longer than any request's.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, Invalid> {
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let (request, flags, len) = (word(0), word(4), word(8));
        if flags & VERSION_MASK != VERSION {
            return Err(Invalid("a message has another version than 1"));
        }
        if flags & REPLY != 0 {
            return Err(Invalid("a reply arrived to no request"));
        }
        let payload_len = usize::try_from(len).unwrap_or(usize::MAX);
        if payload_len > PAYLOAD_LEN_MAX {
            return Err(Invalid("a payload is longer than any known request's"));
        }
        Ok(Self {
            request,
            needs_reply: flags & NEED_REPLY != 0,
            payload_len,
        })
    }
}

/// The numbers of a payload.
struct Payload<'a>(&'a [u8]);

impl Payload<'_> {
    fn u64(&mut self) -> Result<u64, Invalid> {
        let Some((bytes, rest)) = self.0.split_first_chunk() else {
            return Err(Invalid("a payload is too short"));
        };
        self.0 = rest;
        Ok(u64::from_ne_bytes(*bytes))
    }

    fn u32(&mut self) -> Result<u32, Invalid> {
        let Some((bytes, rest)) = self.0.split_first_chunk() else {
            return Err(Invalid("a payload is too short"));
        };
        self.0 = rest;
        Ok(u32::from_ne_bytes(*bytes))
    }

    fn regions(&mut self) -> Result<Vec<Region>, Invalid> {
        let (count, _padding) = (self.u32()? as usize, self.u32()?);
        if count > REGION_COUNT_MAX {
            return Err(Invalid("the memory table has more than 8 regions"));
        }
        let mut region = || {
            Ok(Region {
                guest_addr: self.u64()?,
                len: self.u64()?,
                user_addr: self.u64()?,
                file_offset: self.u64()?,
            })
        };
        (0..count).map(|_| region()).collect()
    }

    /// The number of a vring, and whether a descriptor comes with it.
    fn descriptor(&mut self) -> Result<(u32, bool), Invalid> {
        let word = self.u64()?;
        Ok(((word & 0xff) as u32, word & NO_FD == 0))
    }

    fn flag(&mut self) -> Result<bool, Invalid> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Invalid("a vring is to be neither enabled nor disabled")),
        }
    }
}

impl Request {
    /// Decodes a request with this payload, and checks the number of descriptors beside it.
    ///
    /// # Errors
    /// For a request that is unknown or of a feature that is not offered, a payload of another
    /// length, and another number of descriptors.
    pub fn decode(code: u32, payload: &[u8], fd_count: usize) -> Result<Self, Invalid> {
        let mut rest = Payload(payload);
        let (request, fds) = match code {
            code::GET_FEATURES => (Self::GetFeatures, 0),
            code::SET_FEATURES => (Self::SetFeatures(rest.u64()?), 0),
            code::SET_OWNER => (Self::SetOwner, 0),
            code::RESET_OWNER => (Self::ResetOwner, 0),
            code::SET_MEM_TABLE => {
                let regions = rest.regions()?;
                let count = regions.len();
                (Self::SetMemTable(regions), count)
            }
            code::SET_VRING_NUM => (Self::SetVringNum(rest.u32()?, rest.u32()?), 0),
            code::SET_VRING_ADDR => {
                let (index, flags) = (rest.u32()?, rest.u32()?);
                let addr = VringAddr {
                    descriptors: rest.u64()?,
                    used: rest.u64()?,
                    available: rest.u64()?,
                };
                let _log = rest.u64()?;
                if flags != 0 {
                    return Err(Invalid("logging of a vring is not supported"));
                }
                (Self::SetVringAddr(index, addr), 0)
            }
            code::SET_VRING_BASE => (Self::SetVringBase(rest.u32()?, rest.u32()?), 0),
            code::GET_VRING_BASE => {
                let (index, _unused) = (rest.u32()?, rest.u32()?);
                (Self::GetVringBase(index), 0)
            }
            code::SET_VRING_KICK => match rest.descriptor()? {
                (index, true) => (Self::SetVringKick(index), 1),
                (_, false) => return Err(Invalid("a vring without a kick is not supported")),
            },
            code::SET_VRING_CALL => {
                let (index, is_there) = rest.descriptor()?;
                (Self::SetVringCall(index, is_there), usize::from(is_there))
            }
            code::SET_VRING_ERR => {
                let (index, is_there) = rest.descriptor()?;
                (Self::SetVringErr(index, is_there), usize::from(is_there))
            }
            code::GET_PROTOCOL_FEATURES => (Self::GetProtocolFeatures, 0),
            code::SET_PROTOCOL_FEATURES => (Self::SetProtocolFeatures(rest.u64()?), 0),
            code::GET_QUEUE_NUM => (Self::GetQueueNum, 0),
            code::SET_VRING_ENABLE => (Self::SetVringEnable(rest.u32()?, rest.flag()?), 0),
            code::NET_SET_MTU => (Self::NetSetMtu(rest.u64()?), 0),
            _ => return Err(Invalid("a request is unknown, or of a feature not offered")),
        };
        // A memory table may have room for regions that it does not have.
        let is_table = matches!(request, Self::SetMemTable(..));
        if !rest.0.is_empty() && !is_table {
            return Err(Invalid("a payload is too long"));
        }
        if fd_count != fds {
            return Err(Invalid("a message has another number of descriptors"));
        }
        Ok(request)
    }
}

/// Encodes a message with this payload; with `flags` besides the version.
fn encode(code: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
    for word in [code, VERSION | flags, payload.len() as u32] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.extend_from_slice(payload);
    bytes
}

/// The reply to a request, with a number.
pub fn reply(code: u32, number: u64) -> Vec<u8> {
    encode(code, REPLY, &number.to_ne_bytes())
}

/// The reply with the state of a vring.
pub fn vring_reply(code: u32, index: u32, base: u32) -> Vec<u8> {
    let payload = [index.to_ne_bytes(), base.to_ne_bytes()].concat();
    encode(code, REPLY, &payload)
}

/// A request, as a front-end sends it.
#[cfg(any(test, feature = "testing"))]
pub fn request(code: u32, needs_reply: bool, payload: &[u8]) -> Vec<u8> {
    encode(code, if needs_reply { NEED_REPLY } else { 0 }, payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn header(words: [u32; 3]) -> [u8; HEADER_LEN] {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.try_into().unwrap()
    }

    #[test]
    fn headers_are_checked() {
        let good = Header::decode(&header([5, 1 | 8, 40])).unwrap();
        let (request, needs_reply, payload_len) = (5, true, 40);
        let expected = Header {
            request,
            needs_reply,
            payload_len,
        };
        assert_eq!(good, expected);
        let too_long = PAYLOAD_LEN_MAX as u32 + 1;
        for bad in [
            [1, 0, 0],
            [1, 2, 0],
            [1, 5, 0],
            [1, 1, too_long],
            [1, 1, u32::MAX],
        ] {
            assert!(Header::decode(&header(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn requests_have_one_length_and_their_descriptors() {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let table = words(&[
            2, 0x1000, 0x2000, 0x7000, 0, 0x10_0000, 0x3000, 0x9000, 0x2000,
        ]);
        let known: &[(u32, Vec<u8>, usize)] = &[
            (code::GET_FEATURES, vec![], 0),
            (code::SET_FEATURES, words(&[7]), 0),
            (code::SET_OWNER, vec![], 0),
            (code::RESET_OWNER, vec![], 0),
            (code::SET_MEM_TABLE, table, 2),
            (code::SET_VRING_NUM, words(&[pair(1, 256)]), 0),
            (code::SET_VRING_ADDR, words(&[1, 2, 3, 4, 5]), 0),
            (code::SET_VRING_BASE, words(&[pair(1, 7)]), 0),
            (code::GET_VRING_BASE, words(&[1]), 0),
            (code::SET_VRING_KICK, words(&[1]), 1),
            (code::SET_VRING_CALL, words(&[1]), 1),
            (code::SET_VRING_CALL, words(&[0x101]), 0),
            (code::SET_VRING_ERR, words(&[0x101]), 0),
            (code::GET_PROTOCOL_FEATURES, vec![], 0),
            (code::SET_PROTOCOL_FEATURES, words(&[9]), 0),
            (code::GET_QUEUE_NUM, vec![], 0),
            (code::SET_VRING_ENABLE, words(&[pair(3, 1)]), 0),
            (code::NET_SET_MTU, words(&[9000]), 0),
        ];
        for (code, payload, fds) in known {
            Request::decode(*code, payload, *fds).unwrap();
            for other in [fds + 1, fds.wrapping_sub(1)] {
                assert!(Request::decode(*code, payload, other).is_err(), "{code}");
            }
            for len in 0..payload.len() {
                let short = Request::decode(*code, &payload[..len], *fds);
                assert!(short.is_err(), "{code} with {len} bytes");
            }
            if *code != code::SET_MEM_TABLE {
                let long = [&payload[..], &[0]].concat();
                assert!(Request::decode(*code, &long, *fds).is_err(), "{code}");
            }
        }
        // Too many regions, logging, a kick that is to be polled, not a truth value; unknown codes.
        let bad: &[(u32, Vec<u8>, usize)] = &[
            (code::SET_MEM_TABLE, words(&[9; 40]), 9),
            (code::SET_VRING_ADDR, words(&[pair(0, 1), 2, 3, 4, 5]), 0),
            (code::SET_VRING_KICK, words(&[0x100]), 0),
            (code::SET_VRING_ENABLE, words(&[pair(0, 2)]), 0),
            (0, vec![], 0),
            (6, words(&[0]), 0),
            (u32::MAX, vec![], 0),
        ];
        for (code, payload, fds) in bad {
            assert!(Request::decode(*code, payload, *fds).is_err(), "{code}");
        }
    }

    #[test]
    fn replies_are_marked() {
        let bytes = reply(code::GET_FEATURES, 0x1_0203_0405);
        let header: &[u8; HEADER_LEN] = bytes.first_chunk().unwrap();
        assert_eq!(header[..4], code::GET_FEATURES.to_ne_bytes());
        assert_eq!(header[4..8], 5u32.to_ne_bytes());
        assert_eq!(bytes[12..], 0x1_0203_0405u64.to_ne_bytes());
        assert!(Header::decode(header).is_err());
        let bytes = vring_reply(code::GET_VRING_BASE, 3, 77);
        assert_eq!(
            bytes[12..],
            [3u32.to_ne_bytes(), 77u32.to_ne_bytes()].concat()
        );
    }
}
