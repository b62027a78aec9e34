//! Data sent to a service, by its port.
//!
//! Each service is one row. Nothing is sent to services known to speak first. At other ports the
//! scanner waits, then sends an HTTP request: a service other than HTTP usually answers with an
//! error, which is a banner, too.

use std::net::IpAddr;
use std::sync::Arc;

use crate::cookie::ProbeTarget;

mod greeted;
mod ssh;
pub(super) mod tls;

pub(super) use ssh::identification;

/// What a scanner says about itself, where a protocol has a place for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Random bytes for TLS, new for each run.
    pub random: [u8; 32],
    /// The name of the program: printable ASCII, at most [`IDENTITY_MAX`] bytes.
    pub user_agent: String,
    /// Whom to contact: likewise.
    pub contact: Option<String>,
}

/// Maximum length of a user agent and of a contact in bytes.
pub const IDENTITY_MAX: usize = 128;

impl Identity {
    /// The default user agent.
    pub const USER_AGENT: &str = "barewire (network scan)";

    /// User agent and contact as one text.
    fn agent(&self) -> String {
        let Some(contact) = &self.contact else {
            return self.user_agent.clone();
        };
        format!("{} ({contact})", self.user_agent)
    }

    /// The contact, if it is a mail address.
    fn mail(&self) -> Option<&str> {
        let contact = self.contact.as_deref()?;
        let (name, host) = contact.split_once('@')?;
        let is_address = !name.is_empty() && !host.is_empty() && !contact.contains(' ');
        is_address.then_some(contact)
    }
}

/// A service that is spoken to, by the name under which it was given.
#[derive(Clone, Copy, Debug)]
pub struct To<'a> {
    /// The service.
    pub target: &'a ProbeTarget,
    /// The name, if there is one.
    pub name: Option<&'a str>,
}

/// What is said first to some ports.
#[derive(Clone, Debug)]
pub struct Given {
    /// The ports.
    pub ports: Vec<u16>,
    /// What is said.
    pub hello: GivenHello,
}

/// What is said first to a port.
#[derive(Clone, Debug)]
pub enum GivenHello {
    /// The data for a service: one of [`service_names`].
    Service(&'static str),
    /// These bytes.
    Bytes(Arc<[u8]>),
}

/// The services that something is sent to first, by name.
pub fn service_names() -> impl Iterator<Item = &'static str> {
    let rows = ROWS.iter().filter(|row| row.make.is_some());
    rows.map(|row| row.name)
}

/// Maximum length of the bytes said first.
pub const HELLO_LEN_MAX: usize = 16 << 10;

/// Builds the data to send.
pub type Make = fn(&To<'_>, &Identity) -> Vec<u8>;

/// A service, and the data to send to it.
#[derive(Debug)]
pub struct Row {
    /// Name of the service.
    pub name: &'static str,
    /// Ports at which it is expected.
    pub ports: &'static [u16],
    /// Builds the data to send first; `None` if the server speaks first.
    pub make: Option<Make>,
    /// Possible first bytes of an answer. Anything else is decoded as if nothing had been sent.
    pub answers: &'static [&'static [u8]],
    /// What is sent next, for a server that speaks first, or once it has answered.
    pub reply: Option<Reply>,
}

/// First bytes of a server, and the reply to everything that it has sent so far: with more data,
/// the reply becomes longer, but its beginning stays.
pub type Reply = (&'static [u8], fn(&[u8], &Identity) -> Vec<u8>);

/// All services.
pub const ROWS: &[Row] = &[
    Row {
        name: "http",
        ports: &[
            80, 81, 591, 3000, 5000, 8000, 8008, 8080, 8081, 8088, 8888, 9000, 9090,
        ],
        make: Some(http),
        answers: &[b"HTTP/"],
        reply: None,
    },
    Row {
        name: "tls",
        ports: &[
            443, 465, 563, 636, 853, 989, 990, 992, 993, 994, 995, 5061, 8443, 8883, 9443,
        ],
        make: Some(tls::hello),
        answers: &[&[22, 3], &[21, 3]],
        reply: None,
    },
    Row {
        name: "ssh",
        ports: &[22, 2022, 2222],
        make: Some(ssh::hello),
        answers: &[b"SSH-"],
        reply: Some((b"SSH-", ssh::reply)),
    },
    Row {
        name: "ssh elsewhere",
        ports: &[],
        make: None,
        answers: &[],
        reply: Some((b"SSH-", ssh::greeted)),
    },
    Row {
        name: "rtsp",
        ports: &[554, 8554],
        make: Some(|to, who| {
            format!(
                "OPTIONS rtsp://{}/ RTSP/1.0\r\nCSeq: 1\r\nUser-Agent: {}\r\n\r\n",
                host(to),
                who.agent()
            )
            .into_bytes()
        }),
        answers: &[b"RTSP/"],
        reply: None,
    },
    Row {
        name: "redis",
        ports: &[6379, 6380],
        make: Some(|_, _| b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n".to_vec()),
        answers: &[b"$", b"-"],
        reply: None,
    },
    Row {
        name: "memcached",
        ports: &[11_211],
        make: Some(|_, _| b"version\r\n".to_vec()),
        answers: &[],
        reply: None,
    },
    Row {
        // SSLRequest: the answer is one letter (PostgreSQL manual, "Message Formats").
        name: "postgresql",
        ports: &[5432],
        make: Some(|_, _| vec![0, 0, 0, 8, 4, 210, 22, 47]),
        answers: &[b"N", b"S", b"E"],
        reply: Some((b"N", greeted::postgresql)),
    },
    Row {
        // X.224 Connection Request that offers TLS and CredSSP (MS-RDPBCGR 2.2.1.1).
        name: "rdp",
        ports: &[3389],
        make: Some(|_, _| vec![3, 0, 0, 19, 14, 0xe0, 0, 0, 0, 0, 0, 1, 0, 8, 0, 3, 0, 0, 0]),
        answers: &[&[3, 0]],
        reply: None,
    },
    Row {
        name: "smb",
        ports: &[445],
        make: Some(smb),
        answers: &[],
        reply: None,
    },
    Row {
        // A clean session without an identifier (MQTT 3.1.1, 3.1).
        name: "mqtt",
        ports: &[1883],
        make: Some(|_, _| b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0".to_vec()),
        answers: &[&[0x20, 2]],
        reply: None,
    },
    Row {
        // TXT of version.bind in class CHAOS, with its length (RFC 1035 4.2.2).
        name: "dns",
        ports: &[53],
        make: Some(|_, _| {
            b"\0\x1e\x62\x77\0\0\0\x01\0\0\0\0\0\0\x07version\x04bind\0\0\x10\0\x03".to_vec()
        }),
        answers: &[],
        reply: None,
    },
    Row {
        name: "ldap",
        ports: &[389, 3268],
        make: Some(|_, _| super::starttls::LDAP_REQUEST.to_vec()),
        answers: &[&[0x30]],
        reply: None,
    },
    Row {
        name: "telnet",
        ports: &[23, 2323],
        make: None,
        answers: &[],
        reply: Some((&[greeted::IAC], greeted::telnet)),
    },
    Row {
        name: "vnc",
        ports: &[5900, 5901, 5902, 5903],
        make: None,
        answers: &[],
        reply: Some((b"RFB ", greeted::vnc)),
    },
    Row {
        name: "speaks first",
        ports: &[
            21, 24, 25, 109, 110, 119, 143, 194, 220, 587, 2525, 3306, 6667,
        ],
        make: None,
        answers: &[],
        reply: None,
    },
];

/// What is sent to silent services at ports without a row.
const LATER: &Row = &ROWS[0];
const TLS: &Row = &ROWS[1];

/// The data to send to a service.
#[derive(Clone, Debug)]
pub enum Hello {
    /// None, until the server remains silent.
    Later,
    /// That of a service.
    Row(&'static Row),
    /// These bytes.
    Bytes(Arc<[u8]>),
}

impl Hello {
    /// Selects the service by port, as given or by the table.
    pub fn of(port: u16, given: &[Given]) -> Self {
        let given = given.iter().rev().find(|given| given.ports.contains(&port));
        let row = match given.map(|given| &given.hello) {
            Some(GivenHello::Bytes(bytes)) => return Self::Bytes(bytes.clone()),
            Some(GivenHello::Service(name)) => ROWS.iter().find(|row| row.name == *name),
            None => ROWS.iter().find(|row| row.ports.contains(&port)),
        };
        row.map_or(Self::Later, Self::Row)
    }

    /// The hello of TLS.
    pub fn tls() -> Self {
        Self::Row(TLS)
    }

    fn row(&self) -> Option<&'static Row> {
        match self {
            Self::Row(row) => Some(row),
            Self::Later | Self::Bytes(_) => None,
        }
    }

    /// Name of the service, if it is known.
    pub fn name(&self) -> Option<&'static str> {
        self.row().map(|row| row.name)
    }

    /// The data to send first; empty if the server speaks first.
    pub fn bytes(&self, to: &To<'_>, who: &Identity) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.to_vec(),
            _ => {
                let make = self.row().and_then(|row| row.make);
                make.map_or_else(Vec::new, |make| make(to, who))
            }
        }
    }

    /// Whether the data to send are a TLS hello.
    pub fn is_tls(&self) -> bool {
        self.name() == Some(TLS.name)
    }

    /// Whether a server has a page or a certificate for each of its names.
    pub fn has_names(&self) -> bool {
        self.is_tls() || self.name() == Some(LATER.name)
    }

    /// Whether a request is sent to a silent server.
    pub fn is_later(&self) -> bool {
        matches!(self, Self::Later)
    }

    /// The data to send to a server that remained silent.
    pub fn later(&mut self, to: &To<'_>, who: &Identity) -> Vec<u8> {
        if !self.is_later() {
            return Vec::new();
        }
        *self = Self::Row(LATER);
        self.bytes(to, who)
    }

    /// The reply to everything that a server has sent: to the answer to the first data, or to a
    /// server that speaks first, by what it sends. Empty if there is none.
    pub fn reply(&self, start: &[u8], who: &Identity) -> Vec<u8> {
        let start = ssh::identification(start);
        let to = |row: &Row| row.reply.filter(|(first, _)| start.starts_with(first));
        let reply = match self {
            Self::Row(row) if row.make.is_some() => to(row),
            Self::Bytes(_) => None,
            _ => ROWS.iter().filter(|row| row.make.is_none()).find_map(to),
        };
        reply.map_or_else(Vec::new, |(_, reply)| reply(start, who))
    }

    /// Whether the server's first bytes answer the data sent; `None` for too few bytes.
    pub fn is_answered_by(&self, start: &[u8]) -> Option<bool> {
        let answers = self.row().map_or(&[][..], |row| row.answers);
        if answers.iter().any(|answer| start.starts_with(answer)) {
            return Some(true);
        }
        let may_be = answers.iter().any(|answer| answer.starts_with(start));
        (!may_be).then_some(false)
    }
}

/// The name as in a Host header and a URL: without the dot at its end.
fn plain(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

fn host(to: &To<'_>) -> String {
    match (to.name, to.target.addr) {
        (Some(name), _) => plain(name).to_owned(),
        (None, IpAddr::V4(addr)) => addr.to_string(),
        (None, IpAddr::V6(addr)) => format!("[{addr}]"),
    }
}

/// NEGOTIATE of SMB 2.0.2 to 3.0.2 (MS-SMB2 2.2.3) in a session message.
fn smb(_: &To<'_>, who: &Identity) -> Vec<u8> {
    const DIALECTS: [u16; 4] = [0x0202, 0x0210, 0x0300, 0x0302];
    let mut message = b"\xfeSMB\x40\0\0\0\0\0\0\0\0\0\x01\0".to_vec();
    message.resize(64, 0);
    // Length of this structure, dialects, signing enabled; capabilities; an identifier.
    message.extend([36, 0, DIALECTS.len() as u8, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    message.extend(&who.random[..16]);
    message.extend([0; 8]);
    message.extend(DIALECTS.iter().flat_map(|dialect| dialect.to_le_bytes()));
    [&(message.len() as u32).to_be_bytes()[..], &message].concat()
}

fn http(to: &To<'_>, who: &Identity) -> Vec<u8> {
    let (mut host, agent) = (host(to), who.agent());
    // Unless it is the port of the scheme (RFC 9110 §7.2).
    if to.target.port != 80 {
        host = format!("{host}:{}", to.target.port);
    }
    let from = who.mail();
    let from = from.map_or_else(String::new, |mail| format!("From: {mail}\r\n"));
    format!(
        "GET / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\n{from}Accept: */*\r\n\
         Connection: close\r\n\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Probe;

    fn who(contact: Option<&str>) -> Identity {
        Identity {
            random: [1; 32],
            user_agent: Identity::USER_AGENT.into(),
            contact: contact.map(str::to_owned),
        }
    }

    #[test]
    fn contacts_are_where_a_protocol_has_a_place_for_them() {
        let target = ProbeTarget {
            addr: [192, 0, 2, 1].into(),
            probe: Probe::Syn,
            port: 80,
        };
        let to = To {
            target: &target,
            name: None,
        };
        let text = |port, contact| {
            let bytes = Hello::of(port, &[]).bytes(&to, &who(contact));
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let plain = text(80, None);
        assert!(plain.contains("\r\nUser-Agent: barewire (network scan)\r\nAccept"));
        assert!(!plain.contains("From:"));
        let mail = text(80, Some("abuse@example.org"));
        assert!(mail.contains("\r\nUser-Agent: barewire (network scan) (abuse@example.org)\r\n"));
        assert!(mail.contains("\r\nFrom: abuse@example.org\r\n"));
        let page = text(80, Some("https://scan.example.org/"));
        assert!(page.contains("(https://scan.example.org/)\r\n") && !page.contains("From:"));
        let ssh = text(22, Some("me@x"));
        assert!(ssh.starts_with("SSH-2.0-barewire me@x\r\n"));
        assert!(text(554, Some("me@x")).contains("User-Agent: barewire (network scan) (me@x)"));
    }

    #[test]
    fn a_service_is_spoken_to_by_its_name() {
        let target = ProbeTarget {
            addr: [192, 0, 2, 1].into(),
            probe: Probe::Syn,
            port: 8080,
        };
        let bytes = |hello: &Hello, name| {
            let to = To {
                target: &target,
                name,
            };
            let bytes = hello.bytes(&to, &who(None));
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let http = Hello::of(8080, &[]);
        assert!(bytes(&http, None).contains("\r\nHost: 192.0.2.1:8080\r\n"));
        assert!(bytes(&http, Some("a.example.")).contains("\r\nHost: a.example:8080\r\n"));
        let tls = Hello::tls();
        assert!(bytes(&tls, Some("a.example.")).contains("\0\0\x09a.example"));
        assert!(!bytes(&tls, None).contains("example"));
        let given = [
            Given {
                ports: vec![8080],
                hello: GivenHello::Service("tls"),
            },
            Given {
                ports: vec![80, 81],
                hello: GivenHello::Bytes((*b"?").into()),
            },
        ];
        assert!(Hello::of(8080, &given).is_tls());
        assert_eq!(bytes(&Hello::of(81, &given), None), "?");
        assert!(Hello::of(443, &given).is_tls() && !Hello::of(82, &given).is_tls());
        assert!(service_names().any(|name| name == "http"));
    }

    #[test]
    fn ports_belong_to_one_row_and_hellos_are_short() {
        let mut ports: Vec<u16> = ROWS.iter().flat_map(|row| row.ports).copied().collect();
        let count = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count);
        for port in ports {
            let target = ProbeTarget {
                addr: [255; 16].into(),
                probe: Probe::Syn,
                port,
            };
            let long_name = ["a"; 127].join(".");
            let to = To {
                target: &target,
                name: Some(&long_name),
            };
            let long = "x".repeat(IDENTITY_MAX);
            let who = Identity {
                user_agent: long.clone(),
                ..who(Some(&long))
            };
            assert!(Hello::of(port, &[]).bytes(&to, &who).len() <= 1536);
        }
    }

    #[test]
    fn recognizing_an_answer_does_not_depend_on_segmentation() {
        let decide = |port, bytes: &[u8]| {
            (1..=bytes.len()).find_map(|len| Hello::of(port, &[]).is_answered_by(&bytes[..len]))
        };
        assert_eq!(decide(80, b"HTTP/1.1 200 OK"), Some(true));
        assert_eq!(decide(80, b"HTML"), Some(false));
        assert_eq!(decide(80, b"HT"), None);
        assert_eq!(decide(80, b"SSH-2.0-x"), Some(false));
        assert_eq!(decide(443, &[22, 3, 3]), Some(true));
        assert_eq!(decide(443, &[22, 4]), Some(false));
        assert_eq!(decide(12_345, b"x"), Some(false));
    }

    #[test]
    fn a_reply_only_becomes_longer() {
        let who = who(None);
        let telnet: Vec<u8> = (0..=255).flat_map(|n| [255, 251 + n % 4, n / 2]).collect();
        for (port, greeting) in [
            (23, &telnet[..]),
            (
                23,
                b"\xff\xfa\x18\x01\xff\xf0\xff\xfd\x18 \xff\xff\xff\xfd\x18login: ",
            ),
            (5900, b"RFB 003.008\n\x02\x01\x02"),
            (9999, b"RFB 003.003\n\0\0\0\x01"),
            (9999, b"RFB 1\n"),
            (5432, b"NR\0\0\0\x08\0\0\0\x05salt"),
        ] {
            let whole = Hello::of(port, &[]).reply(greeting, &who);
            assert!(whole.len() <= 512, "{port}");
            for len in 0..greeting.len() {
                let part = Hello::of(port, &[]).reply(&greeting[..len], &who);
                assert!(whole.starts_with(&part), "{port} after {len}");
            }
        }
        let vnc = |text: &str| Hello::of(9999, &[]).reply(text.as_bytes(), &who);
        assert_eq!(vnc("RFB 003.889\n"), b"RFB 003.008\n");
        assert_eq!(vnc("RFB 003.007\n"), b"RFB 003.007\n");
        assert_eq!(vnc("RFB 003.005\n"), b"RFB 003.003\n");
        assert_eq!(vnc("RFB 003.x08\n"), b"");
        // DO is refused once; an offer, too.
        let telnet = b"\xff\xfd\x18\xff\xfd\x18\xff\xfb\x01\xff\xfc\x03\xff\xfe\x03";
        let reply = |port, start: &[u8]| Hello::of(port, &[]).reply(start, &who);
        assert_eq!(reply(23, telnet), b"\xff\xfc\x18\xff\xfe\x01");
        // A client that has spoken does not reply.
        assert_eq!(reply(80, b"RFB 003.008\n"), b"");
        assert_eq!(reply(80, b"SSH-2.0-x\r\n"), b"");
        // Text in front of the version of SSH.
        assert!(reply(9999, b"Welcome\r\nto SSH-2.0\nSSH-2.0-x\r\n").starts_with(b"SSH-2.0-"));
        assert_eq!(reply(9999, b"Welcome to SSH-2.0-x\r\n"), b"");
        // PostgreSQL without TLS; with it, nothing else is sent in the clear.
        let startup = reply(5432, b"N");
        assert_eq!(startup[..8], [0, 0, 0, startup.len() as u8, 0, 3, 0, 0]);
        assert_eq!(reply(5432, b"S"), b"");
        assert_eq!(reply(9999, b"N"), b"");
    }
}
