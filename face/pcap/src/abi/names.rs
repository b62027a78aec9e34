//! Names of hosts, services and protocols: the name database's part of the interface.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::ptr::{null, null_mut};

use super::raw::bytes;
use sys::boundary::guard;

/// `PROTO_UNDEF`.
const UNDEFINED: c_int = -1;

/// A row of [`eproto_db`].
#[repr(C)]
pub struct EtherProtocol {
    name: *const c_char,
    number: u16,
}

// SAFETY: the texts are constants.
unsafe impl Sync for EtherProtocol {}

const fn row(name: &'static CStr, number: u16) -> EtherProtocol {
    let name = name.as_ptr();
    EtherProtocol { name, number }
}

/// EtherTypes by name: an exported variable of the original, in its layout.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static eproto_db: [EtherProtocol; 13] = [
    row(c"aarp", 0x80f3),
    row(c"arp", 0x806),
    row(c"atalk", 0x809b),
    row(c"decnet", 0x6003),
    row(c"ip", 0x800),
    row(c"ip6", 0x86dd),
    row(c"lat", 0x6004),
    row(c"loopback", 0x9000),
    row(c"mopdl", 0x6001),
    row(c"moprc", 0x6002),
    row(c"rarp", 0x8035),
    row(c"sca", 0x6007),
    EtherProtocol {
        name: null(),
        number: 0,
    },
];

/// LLC SAPs by name.
const LLC: [(&[u8], c_int); 4] = [
    (b"iso", 0xfe),
    (b"stp", 0x42),
    (b"ipx", 0xe0),
    (b"netbeui", 0xf0),
];

unsafe extern "C" {
    fn getservbyname(name: *const c_char, protocol: *const c_char) -> *mut libc::servent;
    fn getnetbyname(name: *const c_char) -> *mut NetworkEntry;
    fn ether_hostton(name: *const c_char, address: *mut [u8; 6]) -> c_int;
}

/// `struct netent`.
#[repr(C)]
struct NetworkEntry {
    name: *mut c_char,
    aliases: *mut *mut c_char,
    family: c_int,
    number: u32,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_nametoeproto(name: *const c_char) -> c_int {
    guard(UNDEFINED, || {
        // SAFETY: null or a text, as are the rows.
        unsafe {
            let Some(name) = bytes(name) else {
                return UNDEFINED;
            };
            let is_it = |row: &&EtherProtocol| bytes(row.name) == Some(name);
            let found = eproto_db.iter().find(is_it);
            found.map_or(UNDEFINED, |row| row.number.into())
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_nametollc(name: *const c_char) -> c_int {
    guard(UNDEFINED, || {
        // SAFETY: null or a text.
        let name = unsafe { bytes(name) };
        let found = LLC.iter().find(|row| Some(row.0) == name);
        found.map_or(UNDEFINED, |row| row.1)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_nametoproto(name: *const c_char) -> c_int {
    if name.is_null() {
        return UNDEFINED;
    }
    // SAFETY: a text; the entry is libc's until the next call.
    unsafe {
        let entry = libc::getprotobyname(name);
        entry.as_ref().map_or(UNDEFINED, |entry| entry.p_proto)
    }
}

/// The port of a service for a transport; `None` if it has none.
///
/// # Safety
/// The name ends with a zero.
unsafe fn service(name: *const c_char, transport: &CStr) -> Option<c_int> {
    // SAFETY: texts; the entry is libc's until the next call.
    unsafe {
        let entry = getservbyname(name, transport.as_ptr());
        let port = entry.as_ref()?.s_port;
        Some(u16::from_be(port as u16).into())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_nametoport(
    name: *const c_char,
    port: *mut c_int,
    protocol: *mut c_int,
) -> c_int {
    if name.is_null() || port.is_null() || protocol.is_null() {
        return 0;
    }
    // SAFETY: not null, so as pcap/namedb.h says.
    unsafe {
        let text = bytes(name).and_then(|text| std::str::from_utf8(text).ok());
        // The original asks getaddrinfo(3), for which nothing is port 0.
        let text = text.map(|text| if text.is_empty() { "0" } else { text });
        if let Some(number) = text
            && let Ok(number) = number.parse::<u16>()
        {
            (*port, *protocol) = (number.into(), UNDEFINED);
            return 1;
        }
        let (tcp, udp) = (service(name, c"tcp"), service(name, c"udp"));
        (*port, *protocol) = match (tcp, udp) {
            (Some(tcp), Some(udp)) if tcp == udp => (tcp, UNDEFINED),
            (Some(tcp), _) => (tcp, libc::IPPROTO_TCP),
            (None, Some(udp)) => (udp, libc::IPPROTO_UDP),
            (None, None) => return 0,
        };
        1
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_nametoportrange(
    name: *const c_char,
    first: *mut c_int,
    last: *mut c_int,
    protocol: *mut c_int,
) -> c_int {
    guard(0, || {
        if first.is_null() || last.is_null() || protocol.is_null() {
            return 0;
        }
        // SAFETY: not null, so as pcap/namedb.h says.
        unsafe {
            let Some(text) = bytes(name) else { return 0 };
            let mut second = 0;
            let Some(at) = text.iter().position(|byte| *byte == b'-') else {
                let found = pcap_nametoport(name, first, protocol);
                *last = *first;
                return found;
            };
            let ends = |part: &[u8]| [part, b"\0"].concat();
            let (low, high) = (ends(&text[..at]), ends(&text[at + 1..]));
            let found = pcap_nametoport(low.as_ptr().cast(), first, protocol) != 0
                && pcap_nametoport(high.as_ptr().cast(), last, &raw mut second) != 0;
            if found && *protocol != second {
                *protocol = UNDEFINED;
            }
            found.into()
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_nametonetaddr(name: *const c_char) -> u32 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: a text; the entry is libc's until the next call.
    unsafe { getnetbyname(name).as_ref() }.map_or(0, |entry| entry.number)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_nametoaddrinfo(name: *const c_char) -> *mut libc::addrinfo {
    let mut found = null_mut();
    if name.is_null() {
        return found;
    }
    // SAFETY: all zeros is a hint that asks for nothing; a text; the program frees the list by
    // freeaddrinfo(3).
    unsafe {
        let mut hints: libc::addrinfo = std::mem::zeroed();
        hints.ai_socktype = libc::SOCK_STREAM;
        hints.ai_protocol = libc::IPPROTO_TCP;
        match libc::getaddrinfo(name, null(), &raw const hints, &raw mut found) {
            0 => found,
            _ => null_mut(),
        }
    }
}

/// Addresses, and a null-terminated array of pointers to them.
struct Addresses {
    numbers: Vec<u32>,
    list: Vec<*mut u32>,
}

thread_local! {
    static ADDRESSES: RefCell<Addresses> =
        const { RefCell::new(Addresses { numbers: Vec::new(), list: Vec::new() }) };
    static ETHER: RefCell<EtherEntry> =
        const { RefCell::new(EtherEntry { address: [0; 6], name: [0; 122] }) };
}

/// The IPv4 addresses of a host, in host byte order. They are valid until the thread's next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_nametoaddr(name: *const c_char) -> *mut *mut u32 {
    guard(null_mut(), || {
        // SAFETY: null or a text.
        let Some(Ok(name)) = (unsafe { bytes(name) }).map(std::str::from_utf8) else {
            return null_mut();
        };
        let Ok(found) = std::net::ToSocketAddrs::to_socket_addrs(&(name, 0)) else {
            return null_mut();
        };
        let mut numbers: Vec<u32> = found
            .filter_map(|address| match address.ip() {
                std::net::IpAddr::V4(address) => Some(address.to_bits()),
                std::net::IpAddr::V6(_) => None,
            })
            .collect();
        numbers.dedup();
        if numbers.is_empty() {
            return null_mut();
        }
        ADDRESSES.with_borrow_mut(|addresses| {
            addresses.numbers = numbers;
            addresses.list = addresses.numbers.iter_mut().map(|n| &raw mut *n).collect();
            addresses.list.push(null_mut());
            addresses.list.as_mut_ptr()
        })
    })
}

/// Parses six bytes in hexadecimal separated by colons, dashes or dots; leading zeros may be
/// omitted, as in `8:0:20:…`.
fn ether(text: &[u8]) -> Option<[u8; 6]> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = |part: &str| {
        u8::from_str_radix(part, 16)
            .ok()
            .filter(|_| part.len() <= 2)
    };
    let mut address = [0; 6];
    if !text.contains([':', '-', '.']) || text.split('.').all(|part| part.len() == 4) {
        let plain: String = text.split('.').collect();
        if plain.len() != 12 {
            return None;
        }
        for (at, byte) in address.iter_mut().enumerate() {
            *byte = digits(plain.get(at * 2..at * 2 + 2)?)?;
        }
        return Some(address);
    }
    let mut parts = text.split([':', '-', '.']);
    for byte in &mut address {
        *byte = digits(parts.next()?)?;
    }
    parts.next().is_none().then_some(address)
}

/// An address in memory that the program frees.
fn allocated(address: [u8; 6]) -> *mut u8 {
    // SAFETY: room for the six bytes.
    unsafe {
        let memory = libc::malloc(address.len()).cast::<[u8; 6]>();
        if let Some(place) = memory.as_mut() {
            *place = address;
        }
        memory.cast()
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_ether_aton(text: *const c_char) -> *mut u8 {
    guard(null_mut(), || {
        // SAFETY: null or a text.
        let address = unsafe { bytes(text) }.and_then(ether);
        address.map_or(null_mut(), allocated)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_ether_hostton(name: *const c_char) -> *mut u8 {
    let mut address = [0; 6];
    // SAFETY: a text, and room for the address.
    match !name.is_null() && unsafe { ether_hostton(name, &raw mut address) } == 0 {
        true => allocated(address),
        false => null_mut(),
    }
}

/// `struct pcap_etherent`.
#[repr(C)]
pub struct EtherEntry {
    address: [u8; 6],
    name: [u8; 122],
}

/// The next entry of a stream in the format of ethers(5). It is valid until the thread's next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_next_etherent(file: *mut libc::FILE) -> *mut EtherEntry {
    guard(null_mut(), || {
        if file.is_null() {
            return null_mut();
        }
        let mut line = [0u8; 1024];
        loop {
            // SAFETY: an open stream, and room for as many bytes.
            let text = unsafe { libc::fgets(line.as_mut_ptr().cast(), 1024, file) };
            if text.is_null() {
                return null_mut();
            }
            let end = line.iter().position(|byte| *byte == 0).unwrap_or(0);
            let mut words = line[..end]
                .split(u8::is_ascii_whitespace)
                .filter(|word| !word.is_empty());
            let (Some(first), Some(name)) = (words.next(), words.next()) else {
                continue;
            };
            let Some(address) = ether(first) else {
                continue;
            };
            return ETHER.with_borrow_mut(|entry| {
                let len = name.len().min(entry.name.len() - 1);
                entry.address = address;
                entry.name.fill(0);
                entry.name[..len].copy_from_slice(&name[..len]);
                &raw mut *entry
            });
        }
    })
}
