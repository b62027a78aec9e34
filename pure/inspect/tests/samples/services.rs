//! Sample conversations of databases and other services.

use super::{Sample, answer, chrome, records};
use barewire_inspect::Direction::{Forward, Reverse};
use barewire_inspect::Transport::{Tcp, Udp};

/// A MySQL packet: its length, lowest byte first, and its number.
fn mysql_packet(number: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let len = (body.len() as u32).to_le_bytes();
    [&len[..3], &[number], &body].concat()
}

fn mysql_greeting(version: &str, capabilities: u32, plugin: &[u8]) -> Vec<u8> {
    let [a, b, c, d] = capabilities.to_le_bytes();
    let salt_len = if plugin.is_empty() { 0 } else { 21 };
    mysql_packet(
        0,
        &[
            &[10],
            version.as_bytes(),
            &[0, 7, 0, 0, 0],
            b"saltsalt\0",
            &[a, b, 45, 2, 0, c, d, salt_len],
            &[0; 10],
            b"twelve bytes\0",
            plugin,
        ],
    )
}

/// A login: capabilities, and the data after the fixed part.
fn mysql_login(number: u8, capabilities: u32, rest: &[&[u8]]) -> Vec<u8> {
    let head = [&capabilities.to_le_bytes()[..], &[0, 0, 0, 1, 45], &[0; 23]].concat();
    mysql_packet(number, &[&head[..], &rest.concat()])
}

const MYSQL_SERVER: u32 = 0x81ff_f7fe;
/// Protocol 4.1, secret with a one-byte length, plugin.
const MYSQL_CLIENT: u32 = 0x0008_8200;

fn mysql() -> Vec<Sample> {
    let mariadb = "5.5.5-10.11.6-MariaDB-0+deb12u1";
    let plugin = b"mysql_native_password\0";
    let secret = [&[20][..], &[0x5e; 20]].concat();
    // Longer than 250 bytes, as an LDAP plugin's.
    let long = [&[0xfc, 0x2c, 1][..], &[0x5e; 300]].concat();
    let ok = mysql_packet(2, &[&[0, 0, 0, 2, 0, 0, 0]]);
    let query = mysql_packet(0, &[b"\x03SELECT 1"]);
    let denied = b"\xff\x15\x04#28000Access denied for user 'alice'@'localhost'";
    let blocked = b"\xff\x6a\x04Host '192.0.2.1' is not allowed to connect to this server";
    vec![
        Sample::new("mysql", Tcp, 3306)
            .with(Reverse, mysql_greeting(mariadb, MYSQL_SERVER, plugin))
            .with(
                Forward,
                mysql_login(
                    1,
                    MYSQL_CLIENT | 8,
                    &[b"alice\0", &secret, b"sales\0", plugin],
                ),
            )
            .with(Reverse, &ok)
            .with(Forward, &query)
            .with(Reverse, mysql_packet(1, &[b"\xff\x51\x04#42000no"])),
        Sample::new("mysql-denied", Tcp, 9999)
            .with(
                Reverse,
                mysql_greeting("8.0.36", 0xdfff_ffff, b"caching_sha2_password\0"),
            )
            .with(
                Forward,
                mysql_login(
                    1,
                    MYSQL_CLIENT | 0x20_0008,
                    &[b"alice\0", &long, b"sales\0"],
                ),
            )
            // Another plugin, its answer, more, the error.
            .with(Reverse, mysql_packet(2, &[&[0xfe], plugin, b"salt\0"]))
            .with(Forward, mysql_packet(3, &[&[0x5e; 20]]))
            .with(Reverse, mysql_packet(4, &[&[1, 4]]))
            .with(Reverse, mysql_packet(5, &[denied])),
        Sample::new("mysql-tls", Tcp, 3306)
            .with(Reverse, mysql_greeting("8.0.36", 0xdfff_ffff, plugin))
            .with(Forward, mysql_login(1, MYSQL_CLIENT | 0x800, &[]))
            .with(Forward, records(&chrome(), 5000))
            .with(Reverse, records(&answer(), 5000)),
        Sample::new("mysql-old", Tcp, 9999)
            .with(Reverse, mysql_greeting("4.0.30-log", 0x202c, b""))
            .with(
                Forward,
                mysql_packet(
                    1,
                    &[&[0x8d, 0x24, 0, 0, 0], b"bob\0", b"scramble\0", b"stock\0"],
                ),
            )
            .with(Reverse, &ok),
        Sample::new("mysql-blocked", Tcp, 3306).with(Reverse, mysql_packet(0, &[blocked])),
        // Counts of a protocol with the same first bytes, and no version.
        Sample::new("mysql-not", Tcp, 9999)
            .with(
                Reverse,
                b"\x40\0\0\0\x0a1.\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b",
            )
            .with(Forward, [0x5e; 40]),
    ]
}

/// A PostgreSQL message: its kind, if it has one, and its length.
fn postgresql_message(kind: &[u8], body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32 + 4).to_be_bytes();
    [kind, &len, body].concat()
}

fn postgresql() -> Vec<Sample> {
    let message = postgresql_message;
    let startup = message(
        b"",
        b"\0\x03\0\0user\0alice\0database\0sales\0application_name\0psql\0\0",
    );
    let alone = message(b"", b"\0\x03\0\0client_encoding\0UTF8\0user\0bob\0\0");
    let (tls, gss) = (b"\0\0\0\x08\x04\xd2\x16\x2f", b"\0\0\0\x08\x04\xd2\x16\x30");
    let accepted = [
        message(b"R", b"\0\0\0\0"),
        message(b"S", b"client_encoding\0UTF8\0"),
        message(b"S", b"server_version\x0015.6 (Debian 15.6-0+deb12u1)\0"),
        message(b"N", &[&b"SNOTICE\0M"[..], &[b'x'; 700], b"\0\0"].concat()),
        message(b"K", b"\0\0\0\x07\x01\x02\x03\x04"),
        message(b"Z", b"I"),
    ];
    let denied = b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed\0\0";
    vec![
        Sample::new("postgresql", Tcp, 5432)
            .with(Forward, &startup)
            .with(
                Reverse,
                message(b"R", b"\0\0\0\x0aSCRAM-SHA-256\0SCRAM-SHA-256-PLUS\0\0"),
            )
            .with(Forward, message(b"p", b"SCRAM-SHA-256\0\0\0\0\x04n,,n"))
            .with(Reverse, message(b"R", b"\0\0\0\x0br=1"))
            .with(Forward, message(b"p", b"c=1"))
            .with(
                Reverse,
                [message(b"R", b"\0\0\0\x0cv=1"), accepted.concat()].concat(),
            )
            .with(Forward, message(b"Q", b"SELECT 1\0")),
        Sample::new("postgresql-denied", Tcp, 9999)
            .with(Forward, gss)
            .with(Reverse, b"N")
            .with(Forward, tls)
            .with(Reverse, b"N")
            .with(Forward, &alone)
            .with(Reverse, message(b"R", b"\0\0\0\x05salt"))
            .with(Forward, message(b"p", b"md5\0"))
            .with(Reverse, message(b"E", denied)),
        Sample::new("postgresql-tls", Tcp, 5432)
            .with(Forward, tls)
            .with(Reverse, b"S")
            .with(Forward, records(&chrome(), 5000))
            .with(Reverse, records(&answer(), 5000)),
        Sample::new("postgresql-old", Tcp, 5432)
            .with(Forward, tls)
            .with(Reverse, message(b"E", b"C0A000\0\0")),
        Sample::new("postgresql-gss", Tcp, 5432)
            .with(Forward, gss)
            .with(Reverse, b"G\0\0\0\x08gssapi..")
            .with(Forward, b"\0\0\0\x08gssapi.."),
        Sample::new("postgresql-cancel", Tcp, 5432).with(
            Forward,
            b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x07\x01\x02\x03\x04",
        ),
    ]
}

fn redis() -> Vec<Sample> {
    let info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n";
    let hello = "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.2.4\r\n";
    vec![
        Sample::new("redis", Tcp, 6379)
            .with(Forward, b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n")
            .with(Reverse, format!("${}\r\n{info}\r\n", info.len()))
            .with(Forward, b"*1\r\n$4\r\nQUIT\r\n"),
        Sample::new("redis-hello", Tcp, 9999)
            .with(Forward, b"*2\r\n$5\r\nhello\r\n$1\r\n3\r\n")
            .with(Reverse, hello),
        Sample::new("redis-denied", Tcp, 6379)
            .with(Forward, b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n")
            .with(
                Reverse,
                b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
            )
            .with(Forward, b"*1\r\n$4\r\nINFO\r\n"),
        // A value that looks like a version.
        Sample::new("redis-get", Tcp, 9999)
            .with(Forward, b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n")
            .with(Reverse, b"$17\r\nredis_version:1.2\r\n"),
    ]
}

fn memcached() -> Vec<Sample> {
    let datagram = |text: &str| [&b"\x12\x34\0\0\0\x01\0\0"[..], text.as_bytes()].concat();
    let stats = "STAT pid 1\r\nSTAT uptime 9\r\nSTAT version 1.5.6\r\nEND\r\n";
    vec![
        Sample::new("memcached", Tcp, 11_211)
            .with(Forward, "version\r\n")
            .with(Reverse, "VERSION 1.6.18\r\n")
            .with(Forward, "quit\r\n"),
        Sample::new("memcached-stats", Tcp, 9999)
            .with(Forward, "stats\r\n")
            .with(Reverse, stats),
        // A value that looks like a version.
        Sample::new("memcached-get", Tcp, 11_211)
            .with(Forward, "get a\r\n")
            .with(Reverse, "VALUE a 0 12\r\nVERSION 1.2\r\nEND\r\n"),
        Sample::new("memcached-server", Tcp, 9999).with(Reverse, "VERSION 1.4.0\n"),
        Sample::new("memcached-not", Tcp, 9999)
            .with(Forward, "get a\r\n")
            .with(Reverse, "VERSION unknown\r\n"),
        Sample::new("memcached-udp", Udp, 11_211)
            .with(Forward, datagram("version\r\n"))
            .with(Reverse, datagram("VERSION 1.6.18\r\n")),
        Sample::new("memcached-udp-stats", Udp, 9999)
            .with(Forward, datagram("stats\r\n"))
            .with(Reverse, datagram(stats)),
    ]
}

fn vnc() -> Vec<Sample> {
    vec![
        Sample::new("vnc", Tcp, 5900)
            .with(Reverse, "RFB 003.008\n")
            .with(Forward, "RFB 003.008\n")
            .with(Reverse, b"\x04\x13\x01\x02\x10")
            .with(Forward, b"\x02")
            .with(Reverse, [7; 16]),
        Sample::new("vnc-3.3", Tcp, 9999)
            .with(Reverse, "RFB 003.008\n")
            .with(Forward, "RFB 003.003\n")
            .with(Reverse, b"\0\0\0\x02")
            .with(Reverse, [7; 16]),
        Sample::new("vnc-refused", Tcp, 5900)
            .with(Reverse, "RFB 005.000\n")
            .with(Forward, "RFB 003.008\n")
            .with(Reverse, b"\0\0\0\0\x09too many\n"),
        Sample::new("vnc-silent", Tcp, 5900).with(Reverse, "RFB 003.007\n"),
        Sample::new("vnc-not", Tcp, 5900).with(Reverse, "RFB 003.008 x"),
    ]
}

fn telnet() -> Vec<Sample> {
    vec![
        Sample::new("telnet", Tcp, 23)
            .with(Reverse, b"\xff\xfd\x18\xff\xfd\x20")
            .with(Forward, b"\xff\xfb\x18\xff\xfc\x20")
            .with(Reverse, b"\xff\xfa\x18\x01\xff\xf0\xff\xfb\x01")
            .with(Forward, b"\xff\xfa\x18\0xterm\xff\xf0\xff\xfd\x01")
            .with(
                Reverse,
                b"\r\n\x1b[1mDebian \x1b[0;1mGNU/Linux\r\n\r\nhost login: ",
            )
            .with(Forward, "alice\r\n")
            .with(Reverse, "alice\r\nPassword: "),
        Sample::new("telnet-text", Tcp, 9999)
            .with(Reverse, b"\xff\xfb\x03Router\0  \x1b[0mPassword: "),
        Sample::new("telnet-long", Tcp, 9999)
            .with(Reverse, b"\xff\xfb\x03\xff\xfe\x8a")
            .with(Reverse, "word ".repeat(40)),
        // Frames of MPEG audio begin with the same byte.
        Sample::new("telnet-not", Tcp, 9999).with(Reverse, b"\xff\xfb\x90\x64\0\0\0\0"),
    ]
}

/// A BER element.
fn ber(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let len = (body.len() as u16).to_be_bytes();
    match body.len() {
        0..=0x7f => [&[tag, len[1]][..], &body].concat(),
        _ => [&[tag, 0x82][..], &len, &body].concat(),
    }
}

fn snmp_message(version: u8, community: &[u8], pdu: &[u8]) -> Vec<u8> {
    ber(0x30, &[&[2, 1, version], &ber(4, &[community]), pdu])
}

/// A PDU with these variables: the last number of their names below `system`, and their values.
fn snmp_pdu(tag: u8, variables: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let list: Vec<u8> = variables
        .iter()
        .flat_map(|(number, value)| {
            let name = ber(6, &[&[0x2b, 6, 1, 2, 1, 1, *number, 0]]);
            ber(0x30, &[&name, value])
        })
        .collect();
    ber(
        tag,
        &[
            b"\x02\x04\x12\x34\x56\x78\x02\x01\0\x02\x01\0",
            &ber(0x30, &[&list]),
        ],
    )
}

fn snmp_v3(engine: &[u8], pdu: &[u8]) -> Vec<u8> {
    let head = ber(
        0x30,
        &[b"\x02\x01\x07\x02\x02\x05\xdc\x04\x01\x04\x02\x01\x03"],
    );
    let engine = ber(4, &[engine]);
    let user = b"\x02\x01\x05\x02\x02\x03\xe8\x04\0\x04\0\x04\0";
    let security = ber(4, &[&ber(0x30, &[&engine, user])]);
    let scoped = ber(0x30, &[&engine, &[4, 0], pdu]);
    ber(0x30, &[&[2, 1, 3], &head, &security, &scoped])
}

fn snmp() -> Vec<Sample> {
    let null = || vec![5, 0];
    let linux = b"Linux router 6.1.0-18-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.1.76-1 (2024-02-01)";
    let answer = [(5, ber(4, &[b"router"])), (1, ber(4, &[linux]))];
    let engine = b"\x80\0\x1f\x88\x04abcd";
    let counter = [(3, vec![0x43, 1, 9])];
    vec![
        Sample::new("snmp", Udp, 161)
            .with(
                Forward,
                snmp_message(1, b"public", &snmp_pdu(0xa0, &[(1, null())])),
            )
            .with(
                Reverse,
                snmp_message(1, b"public", &snmp_pdu(0xa2, &answer)),
            ),
        Sample::new("snmp-1", Udp, 9999)
            .with(
                Forward,
                snmp_message(0, b"secret", &snmp_pdu(0xa1, &[(3, null())])),
            )
            .with(
                Reverse,
                snmp_message(0, b"secret", &snmp_pdu(0xa2, &counter)),
            ),
        Sample::new("snmp-3", Udp, 161)
            .with(Forward, snmp_v3(b"", &snmp_pdu(0xa0, &[])))
            .with(Reverse, snmp_v3(engine, &snmp_pdu(0xa8, &counter))),
        Sample::new("snmp-trap", Udp, 162).with(
            Forward,
            snmp_message(1, b"public", &snmp_pdu(0xa7, &counter)),
        ),
        Sample::new("snmp-not", Udp, 161).with(
            Forward,
            snmp_message(1, b"public", &snmp_pdu(0xa9, &counter)),
        ),
    ]
}

/// All samples of this file.
pub fn all() -> Vec<Sample> {
    let groups = [
        mysql(),
        postgresql(),
        redis(),
        memcached(),
        vnc(),
        telnet(),
        snmp(),
    ];
    groups.into_iter().flatten().collect()
}
