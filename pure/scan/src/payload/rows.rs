//! The built-in requests, one row each. None of them changes anything at the target, and none
//! requests much data.

use std::borrow::Cow;

use super::{Id, Payload, check};

type Check = fn(&[u8], u32) -> Option<bool>;

fn row(name: &'static str, ports: &'static [u16], bytes: &'static [u8]) -> Payload {
    Payload {
        name: Cow::Borrowed(name),
        ports: Cow::Borrowed(ports),
        bytes: Cow::Borrowed(bytes),
        id: Id::None,
        check: check::any,
        is_from_any_port: false,
        is_given: false,
    }
}

fn keyed(
    name: &'static str,
    ports: &'static [u16],
    bytes: &'static [u8],
    (id, check): (Id, Check),
) -> Payload {
    Payload {
        id,
        check,
        ..row(name, ports, bytes)
    }
}

fn from_any_port(payload: Payload, check: Check) -> Payload {
    Payload {
        is_from_any_port: true,
        check,
        ..payload
    }
}

/// TXT of version.bind in class CHAOS.
const DNS: &[u8] = b"\0\0\0\0\0\x01\0\0\0\0\0\0\x07version\x04bind\0\0\x10\0\x03";
/// Lists the services of a host, answered by unicast (RFC 6762 section 5.4).
const MDNS: &[u8] =
    b"\0\0\0\0\0\x01\0\0\0\0\0\0\x09_services\x07_dns-sd\x04_udp\x05local\0\0\x0c\x80\x01";
/// Node status of the name `*` (RFC 1002 section 4.2.17).
const NBSTAT: &[u8] = b"\0\0\0\0\0\x01\0\0\0\0\0\0 CKAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\0\0\x21\0\x01";
/// A client packet of version 4.
const NTP: &[u8; 48] = &{
    let mut bytes = [0; 48];
    bytes[0] = 0x23;
    bytes[40] = 0xe0;
    bytes
};
/// Get of sysDescr.0 with the community `public`, version 2c.
const SNMP: &[u8] =
    b"\x30\x29\x02\x01\x01\x04\x06public\xa0\x1c\x02\x04\0\0\0\0\x02\x01\0\x02\x01\0\
\x30\x0e\x30\x0c\x06\x08\x2b\x06\x01\x02\x01\x01\x01\0\x05\0";
/// Engine discovery (RFC 3414 section 4).
const SNMP_V3: &[u8] =
    b"\x30\x3b\x02\x01\x03\x30\x11\x02\x04\0\0\0\0\x02\x03\0\xff\xe3\x04\x01\x04\
\x02\x01\x03\x04\x10\x30\x0e\x04\0\x02\x01\0\x02\x01\0\x04\0\x04\0\x04\0\
\x30\x11\x04\0\x04\0\xa0\x0b\x02\x01\0\x02\x01\0\x02\x01\0\x30\0";
const SSDP: &[u8] =
    b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\nMAN: \"ssdp:discover\"\r\n\
MX: 1\r\nST: upnp:rootdevice\r\n\r\n";
const SIP: &[u8] = b"OPTIONS sip:nobody@example.invalid SIP/2.0\r\n\
Via: SIP/2.0/UDP example.invalid;branch=z9hG4bK\0\0\0\0\0\0\0\0;rport\r\n\
From: <sip:scan@example.invalid>;tag=1\r\nTo: <sip:nobody@example.invalid>\r\n\
Call-ID: 1@example.invalid\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n";
/// Offset of the branch's digits.
const SIP_BRANCH: usize = 91;
const MEMCACHED: &[u8] = b"\0\0\0\0\0\x01\0\0version\r\n";
/// A long header with a version reserved to force negotiation (RFC 9000 section 15), in a datagram
/// as long as a client's first one has to be.
const QUIC: &[u8; 1200] = &{
    let mut bytes = [0; 1200];
    let head = *b"\xc0\x1a\x2a\x3a\x4a\x08barewire\x08";
    let mut at = 0;
    while at < head.len() {
        bytes[at] = head[at];
        at += 1;
    }
    bytes
};
/// Read request for a file that no server has.
const TFTP: &[u8] = b"\0\x01barewire-scan\0octet\0";
/// Call of procedure 0 of the port mapper, which does nothing.
const RPC: &[u8] = b"\0\0\0\0\0\0\0\0\0\0\0\x02\0\x01\x86\xa0\0\0\0\x02\0\0\0\0\
\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// Main mode with one transform: 3DES, SHA-1, pre-shared key, group 2.
const ISAKMP: &[u8] = b"\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\x01\x10\x02\0\0\0\0\0\0\0\0\x50\
\0\0\0\x34\0\0\0\x01\0\0\0\x01\0\0\0\x28\x01\x01\0\x01\0\0\0\x20\x01\x01\0\0\
\x80\x01\0\x05\x80\x02\0\x02\x80\x03\0\x01\x80\x04\0\x02\x80\x0b\0\x01\x80\x0c\x70\x80";
/// GET /.well-known/core.
const COAP: &[u8] = b"\x44\x01\0\x01\0\0\0\0\xbb.well-known\x04core";
const STUN: &[u8] = b"\0\x01\0\0\x21\x12\xa4\x42\0\0\0\0\0\0\0\0\0\0\0\0";
/// The root entry, without attributes.
const LDAP: &[u8] =
    b"\x30\x28\x02\x04\0\0\0\0\x63\x20\x04\0\x0a\x01\0\x0a\x01\0\x02\x01\0\x02\x01\0\
\x01\x01\0\x87\x0bobjectClass\x30\0";
/// A client's hard reset, version 2.
const OPENVPN: &[u8] = b"\x38\0\0\0\0\0\0\0\x01\0\0\0\0\0";
/// List Identity.
const ENIP: &[u8] = b"\x63\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// ASF presence ping.
const RMCP: &[u8] = b"\x06\0\xff\x06\0\0\x11\xbe\x80\0\0\0";
/// Reads the object identifier of the device, with the wildcard instance number.
const BACNET: &[u8] = b"\x81\x0a\0\x11\x01\x04\0\x05\x01\x0c\x0c\x02\x3f\xff\xff\x1e\x4b";
const SOURCE_ENGINE: &[u8] = b"\xff\xff\xff\xffTSource Engine Query\0";
/// Requests the whole routing table.
const RIP: &[u8] = b"\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10";
const WS_DISCOVERY: &[u8] = b"<?xml version=\"1.0\" encoding=\"utf-8\"?>\
<e:Envelope xmlns:e=\"http://www.w3.org/2003/05/soap-envelope\" \
xmlns:a=\"http://schemas.xmlsoap.org/ws/2004/08/addressing\" \
xmlns:d=\"http://schemas.xmlsoap.org/ws/2005/04/discovery\"><e:Header>\
<a:MessageID>urn:uuid:00000000-0000-4000-8000-000000000001</a:MessageID>\
<a:To>urn:schemas-xmlsoap-org:ws:2005:04:discovery</a:To>\
<a:Action>http://schemas.xmlsoap.org/ws/2005/04/discovery/Probe</a:Action></e:Header>\
<e:Body><d:Probe/></e:Body></e:Envelope>";

/// All rows. The first is for ports without a request of their own.
pub(super) fn all() -> Vec<Payload> {
    use Id::{Bits16, Bits32, Hex, Positive};
    vec![
        row("empty", &[], b""),
        row("line", &[7, 13, 17, 19, 37], b"\r\n"),
        keyed("dns", &[53], DNS, (Bits16(0), check::dns)),
        from_any_port(row("tftp", &[69], TFTP), check::tftp),
        keyed("rpc", &[111], RPC, (Bits32(0), check::rpc)),
        keyed("ntp", &[123], NTP, (Bits32(44), check::ntp)),
        keyed("netbios", &[137], NBSTAT, (Bits16(0), check::dns)),
        keyed("snmp", &[161], SNMP, (Positive(17), check::snmp)),
        keyed("snmp3", &[161], SNMP_V3, (Positive(9), check::snmp_v3)),
        row("xdmcp", &[177], b"\0\x01\0\x02\0\x01\0"),
        keyed("ldap", &[389], LDAP, (Positive(4), check::ldap)),
        keyed(
            "quic",
            &[80, 443, 784, 853, 8443],
            QUIC,
            (Bits32(15), check::quic),
        ),
        keyed("isakmp", &[500], ISAKMP, (Bits32(0), check::isakmp)),
        row("rip", &[520], RIP),
        row("rmcp", &[623], RMCP),
        keyed("openvpn", &[1194], OPENVPN, (Bits32(1), check::openvpn)),
        row("mssql", &[1434], b"\x03"),
        from_any_port(row("ssdp", &[1900], SSDP), check::ssdp),
        keyed("stun", &[3478, 19302], STUN, (Bits32(8), check::stun)),
        row("ws-discovery", &[3702], WS_DISCOVERY),
        keyed("sip", &[5060], SIP, (Hex(SIP_BRANCH), check::sip)),
        row("nat-pmp", &[5351], b"\0\0"),
        row("mdns", &[5353], MDNS),
        keyed("coap", &[5683], COAP, (Bits32(4), check::coap)),
        row("ubiquiti", &[10001], b"\x01\0\0\0"),
        keyed(
            "memcached",
            &[11211],
            MEMCACHED,
            (Bits16(0), check::memcached),
        ),
        row("source-engine", &[27015], SOURCE_ENGINE),
        keyed("enip", &[44818], ENIP, (Bits32(12), check::enip)),
        row("bacnet", &[47808], BACNET),
    ]
}
