//! The table of decoders: their rows, first bytes, and states.

use core::array::from_fn;

use super::arena::slots_of;
use super::{
    Decode, DecoderRow, dhcp, dns, dtls, http, ldap, mail, memcached, mqtt, mysql, netbios, ntp,
    postgresql, quic, rdp, redis, rtp, rtsp, sip, smb, snmp, socks, ssdp, ssh, telnet, tls, vnc,
    wireguard,
};
use crate::field::Protocol;
use crate::identify::Row;
use crate::ports::Transport;

macro_rules! over {
    ($transport:ident $state:ty) => {
        Transport::$transport
    };
}

/// States of one decoder for a transport.
macro_rules! states {
    ($name:ident $($variant:ident $state:ty,)*) => {
        pub(super) enum $name {
            $($variant([$state; slots_of::<$state>()]),)*
        }

        impl $name {
            fn new(row: Row) -> Option<$name> {
                $(if row.0 == Index::$variant as u16 {
                    return Some($name::$variant(from_fn(|_| <$state as Decode>::new())));
                })*
                None
            }

            fn count(&self) -> usize {
                match self {
                    $($name::$variant(_) => slots_of::<$state>(),)*
                }
            }

            fn clear(&mut self, at: usize) {
                match self {
                    $($name::$variant(slots) => {
                        slots.get_mut(at).map(<$state as Decode>::clear);
                    })*
                }
            }

            #[inline]
            fn get_mut(&mut self, at: usize) -> Option<&mut dyn Decode> {
                match self {
                    $($name::$variant(slots) => one(slots, at),)*
                }
            }
        }
    };
}

#[inline]
fn one<T: Decode + 'static>(slots: &mut [T], at: usize) -> Option<&mut dyn Decode> {
    slots.get_mut(at).map(|state| state as &mut dyn Decode)
}

macro_rules! decoders {
    ($(
        $variant:ident {
            name: $name:literal,
            protocols: [$($protocol:ident),*],
            ports: [$($port:literal),*],
            starts: $starts:expr,
            check: $check:expr,
            $(tcp: $tcp:ty,)?
            $(udp: $udp:ty,)?
        }
    )*) => {
        /// All decoders. The order matters if two match at the same byte.
        pub const DECODERS: &[DecoderRow] = &[$(
            DecoderRow {
                name: $name,
                protocols: &[$(Protocol::$protocol),*],
                transports: &[$(over!(Tcp $tcp),)? $(over!(Udp $udp),)?],
                ports: &[$($port),*],
                starts: $starts,
                check: $check,
            },
        )*];

        /// Indices of the rows.
        #[repr(u16)]
        enum Index {
            $($variant,)*
        }

        states! { Streams $($($variant $tcp,)?)* }
        states! { Datagrams $($($variant $udp,)?)* }
    };
}

decoders! {
    Tls {
        name: "tls",
        protocols: [Tls],
        ports: [443, 465, 563, 636, 853, 989, 990, 992, 993, 994, 995, 5061, 8443, 8883],
        starts: tls::STARTS,
        check: Some(tls::first),
        tcp: tls::Tls,
    }
    Quic {
        name: "quic",
        protocols: [Quic],
        ports: [443, 784, 853],
        starts: quic::STARTS,
        check: Some(quic::first),
        udp: quic::Quic,
    }
    Sip {
        name: "sip",
        protocols: [Sip],
        ports: [5060],
        starts: sip::STARTS,
        check: Some(sip::first),
        tcp: sip::Sip,
        udp: sip::Datagrams,
    }
    Http {
        name: "http",
        protocols: [Http, Http2],
        ports: [80, 591, 3128, 8000, 8008, 8080, 8888],
        starts: http::STARTS,
        check: Some(http::first),
        tcp: http::Http,
    }
    Ssh {
        name: "ssh",
        protocols: [Ssh],
        ports: [22],
        starts: ssh::STARTS,
        check: None,
        tcp: ssh::Ssh,
    }
    Mail {
        name: "mail",
        protocols: [Smtp, Imap, Pop3, Ftp],
        ports: [],
        starts: mail::STARTS,
        check: None,
        tcp: mail::Mail,
    }
    Mqtt {
        name: "mqtt",
        protocols: [Mqtt],
        ports: [1883],
        starts: mqtt::STARTS,
        check: Some(mqtt::first),
        tcp: mqtt::Mqtt,
    }
    Socks {
        name: "socks",
        protocols: [Socks4, Socks5],
        ports: [1080, 9050, 9150],
        starts: socks::STARTS,
        check: Some(socks::first),
        tcp: socks::Socks,
    }
    Dtls {
        name: "dtls",
        protocols: [Dtls],
        ports: [],
        starts: dtls::STARTS,
        check: Some(dtls::first),
        udp: dtls::Dtls,
    }
    Ntp {
        name: "ntp",
        protocols: [Ntp],
        ports: [123],
        starts: ntp::STARTS,
        check: Some(ntp::first),
        udp: ntp::Ntp,
    }
    Dhcp {
        name: "dhcp",
        protocols: [Dhcp],
        ports: [67, 68],
        starts: dhcp::STARTS,
        check: Some(dhcp::first),
        udp: dhcp::Dhcp,
    }
    Ssdp {
        name: "ssdp",
        protocols: [Ssdp],
        ports: [1900],
        starts: ssdp::STARTS,
        check: Some(ssdp::first),
        udp: ssdp::Ssdp,
    }
    WireGuard {
        name: "wireguard",
        protocols: [WireGuard],
        ports: [51820],
        starts: wireguard::STARTS,
        check: Some(wireguard::first),
        udp: wireguard::WireGuard,
    }
    Ldap {
        name: "ldap",
        protocols: [Ldap, Cldap],
        ports: [],
        starts: ldap::STARTS,
        check: Some(ldap::first),
        tcp: ldap::Ldap,
        udp: ldap::Datagrams,
    }
    Rdp {
        name: "rdp",
        protocols: [Rdp],
        ports: [3389],
        starts: rdp::STARTS,
        check: Some(rdp::first),
        tcp: rdp::Rdp,
    }
    Smb {
        name: "smb",
        protocols: [Smb],
        ports: [139, 445],
        starts: smb::STARTS,
        check: Some(smb::first),
        tcp: smb::Smb,
    }
    Mysql {
        name: "mysql",
        protocols: [Mysql],
        ports: [3306],
        starts: mysql::STARTS,
        check: Some(mysql::first),
        tcp: mysql::Mysql,
    }
    Postgresql {
        name: "postgresql",
        protocols: [Postgresql],
        ports: [5432],
        starts: postgresql::STARTS,
        check: Some(postgresql::first),
        tcp: postgresql::Postgresql,
    }
    Redis {
        name: "redis",
        protocols: [Redis],
        ports: [6379],
        starts: redis::STARTS,
        check: Some(redis::first),
        tcp: redis::Redis,
    }
    Vnc {
        name: "vnc",
        protocols: [Vnc],
        ports: [5900, 5901],
        starts: vnc::STARTS,
        check: None,
        tcp: vnc::Vnc,
    }
    Telnet {
        name: "telnet",
        protocols: [Telnet],
        ports: [23, 2323],
        starts: telnet::STARTS,
        check: Some(telnet::first),
        tcp: telnet::Telnet,
    }
    Snmp {
        name: "snmp",
        protocols: [Snmp],
        ports: [161],
        starts: snmp::STARTS,
        check: Some(snmp::first),
        udp: snmp::Snmp,
    }
    Rtsp {
        name: "rtsp",
        protocols: [Rtsp],
        ports: [554, 8554],
        starts: rtsp::STARTS,
        check: Some(rtsp::first),
        tcp: rtsp::Rtsp,
    }
    Netbios {
        name: "netbios",
        protocols: [Nbns, Nbdgm],
        ports: [],
        starts: netbios::STARTS,
        check: Some(netbios::first),
        udp: netbios::Netbios,
    }
    Dns {
        name: "dns",
        protocols: [Dns, Mdns, Llmnr],
        ports: [53],
        starts: dns::STARTS,
        check: Some(dns::first),
        tcp: dns::Stream,
        udp: dns::Datagrams,
    }
    Memcached {
        name: "memcached",
        protocols: [Memcached],
        ports: [11211],
        starts: memcached::STARTS,
        check: Some(memcached::first),
        tcp: memcached::Memcached,
        udp: memcached::Datagrams,
    }
    // After all others: its first packet only makes the flow a candidate.
    Rtp {
        name: "rtp",
        protocols: [Rtp, Rtcp],
        ports: [],
        starts: rtp::STARTS,
        check: Some(rtp::first),
        udp: rtp::Rtp,
    }
}

/// The states in a page of an arena.
pub(super) enum Slots {
    Streams(Streams),
    Datagrams(Datagrams),
}

impl Slots {
    /// Creates the states of a row; `None` if it does not support this transport.
    pub(super) fn new(row: Row, transport: Transport) -> Option<Slots> {
        match transport {
            Transport::Tcp => Streams::new(row).map(Slots::Streams),
            Transport::Udp => Datagrams::new(row).map(Slots::Datagrams),
        }
    }

    /// Number of states.
    pub(super) fn count(&self) -> usize {
        match self {
            Slots::Streams(slots) => slots.count(),
            Slots::Datagrams(slots) => slots.count(),
        }
    }

    /// Resets a state.
    pub(super) fn clear(&mut self, at: usize) {
        match self {
            Slots::Streams(slots) => slots.clear(at),
            Slots::Datagrams(slots) => slots.clear(at),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut dyn Decode> {
        match self {
            Slots::Streams(slots) => slots.get_mut(at),
            Slots::Datagrams(slots) => slots.get_mut(at),
        }
    }
}
