//! Data sent to a service, by its port.
//!
//! Each service is one row. Nothing is sent to services known to speak first. At other ports the
//! scanner waits, then sends an HTTP request: a service other than HTTP usually answers with an
//! error, which is a banner, too.

use std::net::IpAddr;

use crate::cookie::ProbeTarget;

mod tls;

/// Builds the data to send, with random bytes of this run.
pub type Make = fn(&ProbeTarget, &[u8; 32]) -> Vec<u8>;

/// A service, and the data to send to it.
pub struct Row {
    /// Name of the service.
    pub name: &'static str,
    /// Ports at which it is expected.
    pub ports: &'static [u16],
    /// Builds the data to send first; `None` if the server speaks first.
    pub make: Option<Make>,
    /// Possible first bytes of an answer. Anything else is decoded as if nothing had been sent.
    pub answers: &'static [&'static [u8]],
}

/// All services.
pub const ROWS: &[Row] = &[
    Row {
        name: "http",
        ports: &[
            80, 81, 591, 3000, 5000, 8000, 8008, 8080, 8081, 8088, 8888, 9000, 9090,
        ],
        make: Some(http),
        answers: &[b"HTTP/"],
    },
    Row {
        name: "tls",
        ports: &[
            443, 465, 563, 636, 853, 989, 990, 992, 993, 994, 995, 5061, 8443, 8883, 9443,
        ],
        make: Some(tls::hello),
        answers: &[&[22, 3], &[21, 3]],
    },
    Row {
        name: "ssh",
        ports: &[22, 2022, 2222],
        make: Some(|_, _| b"SSH-2.0-barewire\r\n".to_vec()),
        answers: &[b"SSH-"],
    },
    Row {
        name: "rtsp",
        ports: &[554, 8554],
        make: Some(|target, _| {
            format!(
                "OPTIONS rtsp://{}/ RTSP/1.0\r\nCSeq: 1\r\n\r\n",
                host(target)
            )
            .into_bytes()
        }),
        answers: &[b"RTSP/"],
    },
    Row {
        name: "redis",
        ports: &[6379, 6380],
        make: Some(|_, _| b"PING\r\nINFO server\r\n".to_vec()),
        answers: &[],
    },
    Row {
        name: "memcached",
        ports: &[11_211],
        make: Some(|_, _| b"version\r\n".to_vec()),
        answers: &[],
    },
    Row {
        // SSLRequest: the answer is one letter (PostgreSQL manual, "Message Formats").
        name: "postgresql",
        ports: &[5432],
        make: Some(|_, _| vec![0, 0, 0, 8, 4, 210, 22, 47]),
        answers: &[],
    },
    Row {
        // X.224 Connection Request that offers TLS and CredSSP (MS-RDPBCGR 2.2.1.1).
        name: "rdp",
        ports: &[3389],
        make: Some(|_, _| vec![3, 0, 0, 19, 14, 0xe0, 0, 0, 0, 0, 0, 1, 0, 8, 0, 3, 0, 0, 0]),
        answers: &[&[3, 0]],
    },
    Row {
        name: "speaks first",
        ports: &[
            21, 23, 24, 25, 109, 110, 119, 143, 194, 220, 587, 2323, 2525, 3306, 5900, 5901, 6667,
        ],
        make: None,
        answers: &[],
    },
];

/// What is sent to silent services at ports without a row.
const LATER: &Row = &ROWS[0];

/// The data to send to a service.
#[derive(Clone, Copy)]
pub struct Hello(Option<&'static Row>);

impl Hello {
    /// Selects the service by port.
    pub fn of(port: u16) -> Self {
        Self(ROWS.iter().find(|row| row.ports.contains(&port)))
    }

    /// The data to send first; empty if the server speaks first.
    pub fn bytes(self, target: &ProbeTarget, random: &[u8; 32]) -> Vec<u8> {
        let make = self.0.and_then(|row| row.make);
        make.map_or_else(Vec::new, |make| make(target, random))
    }

    /// Whether a request is sent to a silent server.
    pub fn is_later(self) -> bool {
        self.0.is_none()
    }

    /// The data to send to a server that remained silent.
    pub fn later(&mut self, target: &ProbeTarget, random: &[u8; 32]) -> Vec<u8> {
        if !self.is_later() {
            return Vec::new();
        }
        self.0 = Some(LATER);
        self.bytes(target, random)
    }

    /// Whether the server's first bytes answer the data sent; `None` for too few bytes.
    pub fn is_answered_by(self, start: &[u8]) -> Option<bool> {
        let answers = self.0.map_or(&[][..], |row| row.answers);
        if answers.iter().any(|answer| start.starts_with(answer)) {
            return Some(true);
        }
        let may_be = answers.iter().any(|answer| answer.starts_with(start));
        (!may_be).then_some(false)
    }
}

fn host(target: &ProbeTarget) -> String {
    match target.addr {
        IpAddr::V4(addr) => addr.to_string(),
        IpAddr::V6(addr) => format!("[{addr}]"),
    }
}

fn http(target: &ProbeTarget, _: &[u8; 32]) -> Vec<u8> {
    let host = host(target);
    format!(
        "GET / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: barewire (network scan)\r\nAccept: */*\r\n\
         Connection: close\r\n\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Probe;

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
            assert!(Hello::of(port).bytes(&target, &[1; 32]).len() <= 512);
        }
    }

    #[test]
    fn recognizing_an_answer_does_not_depend_on_segmentation() {
        let decide = |port, bytes: &[u8]| {
            (1..=bytes.len()).find_map(|len| Hello::of(port).is_answered_by(&bytes[..len]))
        };
        assert_eq!(decide(80, b"HTTP/1.1 200 OK"), Some(true));
        assert_eq!(decide(80, b"HTML"), Some(false));
        assert_eq!(decide(80, b"HT"), None);
        assert_eq!(decide(80, b"SSH-2.0-x"), Some(false));
        assert_eq!(decide(443, &[22, 3, 3]), Some(true));
        assert_eq!(decide(443, &[22, 4]), Some(false));
        assert_eq!(decide(12_345, b"x"), Some(false));
    }
}
