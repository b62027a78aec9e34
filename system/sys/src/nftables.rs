//! Tables of nftables that last as long as their owner (`nf_tables.h`).
//!
//! A table with `NFT_TABLE_F_OWNER` (Linux 5.12) belongs to the netlink socket that created it: no
//! other process can change it, and the kernel deletes it when the socket is closed, however the
//! process ends.

use crate::netlink::{Message, Socket};
use crate::{Error, ErrorKind, KernelVersion, Result, Unsupported};

/// Number of the subsystem, the upper byte of message types.
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_NEWRULE: u16 = 6;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

const NFPROTO_INET: u8 = 1;
const NFT_TABLE_F_OWNER: u32 = 2;
const NF_INET_LOCAL_OUT: u32 = 3;
/// The register of 16 bytes that values are loaded into, and that of verdicts.
const NFT_REG_1: u32 = 1;
const NFT_REG_VERDICT: u32 = 0;
const NF_DROP: u32 = 0;
const NFT_META_NFPROTO: u32 = 15;
const NFT_META_L4PROTO: u32 = 16;
const NFT_CMP_EQ: u32 = 0;
const NFT_CMP_NEQ: u32 = 1;
const NFT_CMP_LTE: u32 = 3;
const NFT_CMP_GTE: u32 = 5;

/// Where bytes of a packet are counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Base {
    /// The IP header.
    Network = 1,
    /// The header after it.
    Transport = 2,
}

/// A condition on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// It is IPv6 rather than IPv4.
    IsIpv6(bool),
    /// The number of the IP protocol, after IPv6 extension headers.
    Protocol(u8),
    /// These bytes, at most 16, are at an offset.
    Equal(Base, u32, Vec<u8>),
    /// The 16 bits at an offset are within these bounds.
    Within(Base, u32, [u16; 2]),
    /// One of these bits is set in the byte at an offset.
    AnyBit(Base, u32, u8),
}

/// A table of the family `inet` in the network namespace in which it was created.
#[derive(Debug)]
pub struct OwnedTable {
    /// The kernel deletes the table when this socket is closed.
    _socket: Socket,
    name: String,
}

impl OwnedTable {
    /// Creates a table that drops packets this host sends if they match all conditions of one of
    /// the rules.
    ///
    /// # Errors
    /// `Busy` if there is a table of that name; `Unsupported` before Linux 5.12 and without
    /// nftables; `Permission` without CAP_NET_ADMIN.
    pub fn drop_output(name: &str, rules: &[Vec<Match>]) -> Result<Self> {
        let what = format!("create the nftables table {name}");
        let mut messages = vec![
            message(NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL)
                .attr_text(1, name)
                .attr(2, &NFT_TABLE_F_OWNER.to_be_bytes()),
            message(NFT_MSG_NEWCHAIN, NLM_F_CREATE)
                .attr_text(1, name)
                .attr_text(3, CHAIN)
                .nest(4, |hook| {
                    let hook = hook.attr(1, &NF_INET_LOCAL_OUT.to_be_bytes());
                    hook.attr(2, &0u32.to_be_bytes())
                })
                .attr_text(7, "filter"),
        ];
        messages.extend(rules.iter().map(|rule| {
            message(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND)
                .attr_text(1, name)
                .attr_text(2, CHAIN)
                .nest(4, |list| dropping(rule.iter().fold(list, matching)))
        }));
        let mut socket = Socket::netfilter().map_err(|error| unsupported(&what, error))?;
        socket
            .transaction(&what, NFNL_SUBSYS_NFTABLES, &messages)
            .map_err(|error| unsupported(&what, error))?;
        Ok(Self {
            _socket: socket,
            name: name.to_owned(),
        })
    }

    /// Name of the table.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The chain of a table.
const CHAIN: &str = "output";

fn unsupported(what: &str, error: Error) -> Error {
    let since = KernelVersion::new(5, 12);
    let is_old = KernelVersion::running().is_some_and(|now| now < since);
    match error.kind() {
        // Older kernels refuse the flag as unsupported or invalid.
        ErrorKind::Unsupported | ErrorKind::InvalidInput if is_old => Error::unsupported(
            what,
            Unsupported {
                feature: "a table of nftables with an owner",
                since: Some(since),
            },
        ),
        _ => error,
    }
}

fn message(kind: u16, flags: u16) -> Message {
    // `struct nfgenmsg`: family, version, and no resource.
    Message::new(NFNL_SUBSYS_NFTABLES << 8 | kind, flags).raw(&[NFPROTO_INET, 0, 0, 0])
}

/// Appends an expression to a list.
fn expression(list: Message, name: &str, data: impl FnOnce(Message) -> Message) -> Message {
    list.nest(1, |element| element.attr_text(1, name).nest(2, data))
}

fn meta(list: Message, key: u32) -> Message {
    expression(list, "meta", |data| {
        let data = data.attr(1, &NFT_REG_1.to_be_bytes());
        data.attr(2, &key.to_be_bytes())
    })
}

fn payload(list: Message, base: Base, offset: u32, len: u32) -> Message {
    expression(list, "payload", |data| {
        let data = data.attr(1, &NFT_REG_1.to_be_bytes());
        let data = data.attr(2, &(base as u32).to_be_bytes());
        let data = data.attr(3, &offset.to_be_bytes());
        data.attr(4, &len.to_be_bytes())
    })
}

fn compare(list: Message, operator: u32, value: &[u8]) -> Message {
    expression(list, "cmp", |data| {
        let data = data.attr(1, &NFT_REG_1.to_be_bytes());
        let data = data.attr(2, &operator.to_be_bytes());
        data.nest(3, |nest| nest.attr(1, value))
    })
}

fn masked(list: Message, mask: &[u8]) -> Message {
    expression(list, "bitwise", |data| {
        let data = data.attr(1, &NFT_REG_1.to_be_bytes());
        let data = data.attr(2, &NFT_REG_1.to_be_bytes());
        let data = data.attr(3, &(mask.len() as u32).to_be_bytes());
        let data = data.nest(4, |nest| nest.attr(1, mask));
        data.nest(5, |nest| nest.attr(1, &vec![0; mask.len()]))
    })
}

fn matching(list: Message, condition: &Match) -> Message {
    const NFPROTO_IPV4: u8 = 2;
    const NFPROTO_IPV6: u8 = 10;
    match condition {
        Match::IsIpv6(is_ipv6) => {
            let family = if *is_ipv6 { NFPROTO_IPV6 } else { NFPROTO_IPV4 };
            compare(meta(list, NFT_META_NFPROTO), NFT_CMP_EQ, &[family])
        }
        Match::Protocol(number) => compare(meta(list, NFT_META_L4PROTO), NFT_CMP_EQ, &[*number]),
        Match::Equal(base, offset, bytes) => {
            let list = payload(list, *base, *offset, bytes.len() as u32);
            compare(list, NFT_CMP_EQ, bytes)
        }
        Match::Within(base, offset, [first, last]) => {
            let list = payload(list, *base, *offset, 2);
            let list = compare(list, NFT_CMP_GTE, &first.to_be_bytes());
            compare(list, NFT_CMP_LTE, &last.to_be_bytes())
        }
        Match::AnyBit(base, offset, bits) => {
            let list = payload(list, *base, *offset, 1);
            compare(masked(list, &[*bits]), NFT_CMP_NEQ, &[0])
        }
    }
}

fn dropping(list: Message) -> Message {
    expression(list, "immediate", |data| {
        let data = data.attr(1, &NFT_REG_VERDICT.to_be_bytes());
        data.nest(2, |nest| {
            nest.nest(2, |verdict| verdict.attr(1, &NF_DROP.to_be_bytes()))
        })
    })
}
