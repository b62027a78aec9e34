//! A table of nftables that drops the resets by which the kernel would end the scan's connections.
//!
//! The kernel does not know these connections, and answers their packets with resets. Only resets
//! from the scan's addresses and source ports are dropped. The kernel deletes the table when the
//! process ends, also after `kill -9`.

use std::net::IpAddr;

use ::scan::Source;
use sys::nftables::{Base, Match, OwnedTable};
use sys::{ErrorKind, Result};

const TCP: u8 = 6;
/// Offset of the flags in a TCP header, and the flag of a reset.
const FLAGS_AT: u32 = 13;
const RST: u8 = 0x04;
/// Offsets of the source address in an IPv4 and in an IPv6 header.
const SOURCE_AT: [u32; 2] = [12, 8];
/// Names that are tried.
const NAMES_MAX: u32 = 16;

/// Creates the table.
///
/// # Errors
/// As [`OwnedTable::drop_output`].
pub(super) fn open(source: &Source) -> Result<OwnedTable> {
    let addrs = [source.ipv4.map(IpAddr::V4), source.ipv6.map(IpAddr::V6)];
    let (first, count) = source.ports;
    let rules: Vec<_> = addrs
        .into_iter()
        .flatten()
        .map(|addr| {
            let bytes = match addr {
                IpAddr::V4(addr) => addr.octets().to_vec(),
                IpAddr::V6(addr) => addr.octets().to_vec(),
            };
            let at = SOURCE_AT[usize::from(addr.is_ipv6())];
            vec![
                Match::IsIpv6(addr.is_ipv6()),
                Match::Equal(Base::Network, at, bytes),
                Match::Protocol(TCP),
                Match::Within(Base::Transport, 0, [first, first + (count - 1)]),
                Match::AnyBit(Base::Transport, FLAGS_AT, RST),
            ]
        })
        .collect();
    let pid = std::process::id();
    let mut last = OwnedTable::drop_output(&format!("barewire-scan-{pid}"), &rules);
    // Process ids of another PID namespace may be the same.
    for number in 2..=NAMES_MAX {
        match &last {
            Err(error) if error.kind() == ErrorKind::Busy => {
                let name = format!("barewire-scan-{pid}-{number}");
                last = OwnedTable::drop_output(&name, &rules);
            }
            _ => break,
        }
    }
    last.map_err(|error| match error.kind() {
        ErrorKind::Unsupported => {
            error.with_hint("set the rule by hand: without --firewall it is printed")
        }
        _ => error,
    })
}
