//! Which fields of applications share a template.

/// Name prefixes of fields that belong together; those after an exclamation mark are left out, so
/// that the template fits a datagram. An application uses the smallest group that has all of its
/// fields.
pub(super) const GROUPS: &[&[&str]] = &[
    &[],
    &["tls_", "ja3", "ja4"],
    &["http_"],
    &["dns_"],
    &["quic_", "tls_", "ja3", "ja4"],
    &["ssh_", "hassh"],
    &["mail_"],
    &["mqtt_"],
    &["ntp_"],
    &["dhcp_"],
    &["sip_"],
    // After STARTTLS.
    &["mail_", "tls_", "ja3", "ja4"],
    &["ldap_", "tls_", "ja3", "ja4"],
    &["rdp_", "tls_", "ja3", "ja4"],
    &["smb_"],
    &["rtp_"],
    &["rtsp_"],
    &["netbios_"],
    &["mysql_", "tls_", "ja3", "ja4"],
    &["postgresql_", "tls_", "ja3", "ja4"],
    &["redis_"],
    &["snmp_"],
    &["memcached_"],
    &["vnc_"],
    &["telnet_"],
    // Mixtures, without what only certificates have.
    &[
        "",
        "!tls_serial",
        "!tls_signature",
        "!tls_key_",
        "!tls_certificate_",
    ],
    &["ndpi"],
    // Several requests or questions.
    &["http_", "transactions"],
    &["dns_", "transactions"],
    // Protocols inside a proxy connection.
    &[
        "http_",
        "transactions",
        "inner_protocol",
        "tls_",
        "ja3",
        "ja4",
    ],
    &["socks_"],
    &["socks_", "inner_protocol", "tls_", "ja3", "ja4"],
    &["socks_", "inner_protocol", "http_", "transactions"],
    // Mixtures with certificates, without protocols that never have any.
    &[
        "",
        "!ntp_",
        "!dhcp_",
        "!rtp_",
        "!netbios_",
        "!snmp_",
        "!memcached_",
        "!telnet_",
    ],
];

/// Prefix of the fields that do not depend on the protocol, which are in every nonempty group.
const EVERYWHERE: &str = "ndpi";

/// Whether a group has the field of this name.
pub(super) fn has(number: usize, name: &str) -> bool {
    let starts = GROUPS[number];
    let is_own = starts.iter().any(|start| name.starts_with(start));
    let is_left_out = starts.iter().any(|start| {
        let start = start.strip_prefix('!');
        start.is_some_and(|start| name.starts_with(start))
    });
    is_own && !is_left_out || number != 0 && name == EVERYWHERE
}
