//! Fields and protocols compared with tshark, and its names for them.

use inspect::{Field, Protocol};

/// Protocols identified by few bytes, and tshark's names for them: it must agree wherever barewire
/// identifies one.
pub const NAMES: &[(Protocol, &[&str])] = &[
    (Protocol::Ldap, &["ldap"]),
    (Protocol::Cldap, &["cldap"]),
    (Protocol::Rdp, &["rdp"]),
    (Protocol::Smb, &["smb", "smb2", "nbss"]),
    (Protocol::Rtsp, &["rtsp"]),
    (Protocol::Rtp, &["rtp"]),
    (Protocol::Rtcp, &["rtcp"]),
    (Protocol::Nbns, &["nbns"]),
    (Protocol::Nbdgm, &["nbdgm"]),
    (Protocol::Mysql, &["mysql"]),
    (Protocol::Snmp, &["snmp"]),
    (Protocol::Memcached, &["memcache"]),
    (Protocol::Vnc, &["vnc"]),
    (Protocol::Telnet, &["telnet"]),
];

/// The fields compared with tshark, with its names for them.
pub const FIELDS: &[(Field, &str)] = &[
    (Field::TlsSni, "tls.handshake.extensions_server_name"),
    (Field::Ja3, "tls.handshake.ja3"),
    (Field::Ja3s, "tls.handshake.ja3s"),
    (Field::HttpMethod, "http.request.method"),
    (Field::HttpHost, "http.host"),
    (Field::HttpPath, "http.request.uri"),
    (Field::HttpAgent, "http.user_agent"),
    (Field::HttpStatus, "http.response.code"),
    (Field::DnsName, "dns.qry.name"),
    (Field::DnsType, "dns.qry.type"),
    (Field::SshClient, "ssh.protocol"),
    (Field::NtpMode, "ntp.flags.mode"),
    (Field::SipMethod, "sip.Method"),
    (Field::MqttClientId, "mqtt.clientid"),
    (Field::DhcpHostName, "dhcp.option.hostname"),
    (Field::LdapBindDn, "ldap.name"),
    (Field::LdapMechanism, "ldap.mechanism"),
    (Field::LdapBase, "ldap.baseObject"),
    (Field::LdapResult, "ldap.resultCode"),
    (Field::RdpUser, "rdp.rt_cookie"),
    (Field::RdpRequested, "rdp.negReq.requestedProtocols"),
    (Field::RdpSelected, "rdp.negReq.selectedProtocol"),
    (Field::RdpFailure, "rdp.negFailure.failureCode"),
    (Field::SmbDialect, "smb2.dialect"),
    (Field::SmbTree, "smb2.tree"),
    (Field::SmbTree, "smb.path"),
    (Field::SmbUser, "ntlmssp.auth.username"),
    (Field::SmbDomain, "ntlmssp.auth.domain"),
    (Field::SmbWorkstation, "ntlmssp.auth.hostname"),
    (Field::SmbUser, "smb.account"),
    (Field::SmbDomain, "smb.primary_domain"),
    (Field::RtpPayloadType, "rtp.p_type"),
    (Field::RtpSsrc, "rtp.ssrc"),
    (Field::RtspMethod, "rtsp.method"),
    (Field::RtspUrl, "rtsp.url"),
    (Field::RtspStatus, "rtsp.status"),
    (Field::NetbiosName, "nbns.name"),
    (Field::NetbiosOpcode, "nbns.flags.opcode"),
    (Field::NetbiosRcode, "nbns.flags.rcode"),
    (Field::NetbiosSource, "nbdgm.source_name"),
    (Field::NetbiosDestination, "nbdgm.destination_name"),
    (Field::MysqlProtocol, "mysql.protocol"),
    (Field::MysqlVersion, "mysql.version"),
    (Field::MysqlAuth, "mysql.auth_plugin"),
    (Field::MysqlUser, "mysql.user"),
    (Field::MysqlDatabase, "mysql.schema"),
    (Field::MysqlResult, "mysql.error_code"),
    (Field::MysqlResult, "mysql.response_code"),
    // DTLS.
    (Field::TlsSni, "dtls.handshake.extensions_server_name"),
    (Field::Ja3, "dtls.handshake.ja3"),
    (Field::Ja3s, "dtls.handshake.ja3s"),
    // HTTP over UDP. Its method is in HTTP's column: tshark fills no column twice.
    (Field::SsdpServer, "http.server"),
    (Field::SsdpLocation, "http.location"),
    (Field::WireGuardInitiator, "wg.sender"),
    (Field::SnmpVersion, "snmp.version"),
    (Field::SnmpVersion, "snmp.msgVersion"),
    (Field::SnmpEngine, "snmp.msgAuthoritativeEngineID"),
    (Field::MemcachedVersion, "memcache.version"),
    (Field::VncVersion, "vnc.server_proto_ver"),
];

/// A tshark value in barewire's form; `None` if barewire does not report it.
pub fn as_ours(field: Field, value: &str, protocols: &str) -> Option<String> {
    let is_in = |name: &str| protocols.split(':').any(|of| of == name);
    let value = match field {
        // Provisional responses are skipped here.
        Field::HttpStatus if value.starts_with('1') && value != "101" => return None,
        // Another round of the same bind.
        Field::LdapResult if value == "14" => return None,
        // No name at all.
        Field::LdapBindDn | Field::LdapBase if value == "<ROOT>" => return None,
        // Only OK is a result; errors have their own number.
        Field::MysqlResult if value.starts_with("0x") && value != "0x00" => return None,
        // The number in the message (RFC 3416, RFC 3412); ours are those of the names.
        Field::SnmpVersion => match value {
            "0" => "1",
            "1" => "2",
            _ => value,
        },
        // The first message of a manager, which asks for the engine.
        Field::SnmpEngine if value == "<MISSING>" => return None,
        Field::SnmpEngine => return Some(value.replace(':', "")),
        Field::RdpUser => value.strip_prefix("Cookie: mstshash=")?,
        Field::SmbDialect => match value {
            "0x0202" => "2.0.2",
            "0x0210" => "2.1",
            "0x0300" => "3.0",
            "0x0302" => "3.0.2",
            "0x0311" => "3.1.1",
            _ => return None,
        },
        Field::SmbUser | Field::SmbDomain | Field::SmbWorkstation
            if value == "NULL" || !(is_in("smb") || is_in("smb2")) =>
        {
            return None;
        }
        // SMB in datagrams has paths of mail slots.
        Field::SmbTree if is_in("nbdgm") => return None,
        Field::NetbiosName | Field::NetbiosSource | Field::NetbiosDestination => {
            // The meaning of the last byte follows.
            let name = value.split(" (").next().unwrap_or_default();
            let (name, last) = name.rsplit_once('<')?;
            let name = name.split("<00>").next().unwrap_or_default();
            let name = name.replace("<01>", "\x01").replace("<02>", "\x02");
            return Some(format!("{name}<{last}"));
        }
        _ => value,
    };
    let hex = value.strip_prefix("0x").filter(|_| {
        matches!(
            field,
            Field::RdpRequested
                | Field::RdpSelected
                | Field::RdpFailure
                | Field::RtpSsrc
                | Field::MysqlResult
        )
    });
    let number = hex.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    Some(number.map_or_else(|| value.to_owned(), |number| number.to_string()))
}

/// How many values of fields are the same in the large corpus, at least.
pub const LEAST: &[(&str, usize)] = &[
    ("tls_sni", 100),
    ("ja3", 200),
    ("ja3s", 100),
    ("http_host", 200),
    ("dns_name", 500),
    ("ldap_bind_dn", 2),
    ("smb_tree", 1),
    ("rdp_selected", 1),
    ("rtp_ssrc", 3),
    ("netbios_name", 40),
    ("netbios_source", 12),
    ("ssdp_method", 5),
    ("wireguard_initiator", 1),
    ("snmp_version", 10),
    ("snmp_engine", 1),
    ("vnc_version", 1),
];
