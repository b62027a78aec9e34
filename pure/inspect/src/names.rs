//! Names of numbers in decoded fields, by the IANA registry "Domain Name System (DNS) Parameters".

/// The name of a common DNS record type, for printing.
pub fn dns_type(number: u64) -> Option<&'static str> {
    Some(match number {
        1 => "A",
        2 => "NS",
        5 => "CNAME",
        6 => "SOA",
        12 => "PTR",
        15 => "MX",
        16 => "TXT",
        28 => "AAAA",
        33 => "SRV",
        35 => "NAPTR",
        43 => "DS",
        46 => "RRSIG",
        48 => "DNSKEY",
        64 => "SVCB",
        65 => "HTTPS",
        252 => "AXFR",
        255 => "ANY",
        257 => "CAA",
        _ => return None,
    })
}

/// The name of a DNS response code (RFC 1035 §4.1.1): those of the protocol's first version.
pub fn dns_rcode(number: u64) -> Option<&'static str> {
    Some(match number {
        0 => "NOERROR",
        1 => "FORMERR",
        2 => "SERVFAIL",
        3 => "NXDOMAIN",
        4 => "NOTIMP",
        5 => "REFUSED",
        _ => return None,
    })
}
