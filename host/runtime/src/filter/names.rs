//! Names in expressions, resolved as the host does: host names by the resolver, the others from the
//! files in `/etc`.
//!
//! Results are cached, so that an expression compiled again (for a file with another link type)
//! needs no lookup: by that time system calls may be restricted.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ::filter::expression::{Builtin, Names, Service};
use ::guard::Prefix;

use crate::guard::ListSpec;

/// Maximum bytes read of a file of names.
const FILE_LEN_MAX: u64 = 4 << 20;

/// The host's names.
#[derive(Debug)]
pub struct HostNames {
    folder: PathBuf,
    hosts: Known<Vec<IpAddr>>,
    networks: Known<Option<(u32, u32)>>,
    services: Known<Option<Service>>,
    protocols: Known<Option<u8>>,
    ethers: Known<Option<[u8; 6]>>,
    prefixes: Known<Result<Vec<(IpAddr, u8)>, String>>,
}

/// Cached results by name. The 64 KiB limit of an expression bounds their number.
type Known<T> = Mutex<HashMap<String, T>>;

impl Default for HostNames {
    fn default() -> Self {
        Self::of(Path::new("/etc"))
    }
}

impl HostNames {
    /// Reads the files from another directory than `/etc`. The resolver is the host's.
    fn of(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            hosts: Known::default(),
            networks: Known::default(),
            services: Known::default(),
            protocols: Known::default(),
            ethers: Known::default(),
            prefixes: Known::default(),
        }
    }

    /// The words of each line of a file, without comments; empty if the file cannot be read.
    fn lines(&self, file: &str) -> Vec<Vec<String>> {
        use std::io::Read;
        let mut bytes = Vec::new();
        let read = std::fs::File::open(self.folder.join(file))
            .and_then(|file| file.take(FILE_LEN_MAX).read_to_end(&mut bytes));
        if read.is_err() {
            return Vec::new();
        }
        let text = String::from_utf8_lossy(&bytes);
        let words = |line: &str| {
            let line = line.split('#').next().unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect()
        };
        text.lines().map(words).collect()
    }

    fn find_service(&self, name: &str) -> Option<Service> {
        let (mut tcp, mut udp) = (None, None);
        for line in self.lines("services") {
            let [first, port, aliases @ ..] = line.as_slice() else {
                continue;
            };
            if first != name && !aliases.iter().any(|alias| alias == name) {
                continue;
            }
            match port.split_once('/') {
                Some((port, "tcp")) => tcp = tcp.or(port.parse().ok()),
                Some((port, "udp")) => udp = udp.or(port.parse().ok()),
                _ => {}
            }
        }
        // If the ports differ, libpcap uses TCP's.
        let port: u16 = tcp.or(udp)?;
        Some(Service {
            port,
            tcp: tcp.is_some(),
            udp: udp == Some(port),
        })
    }
}

/// The cached result, or a new one.
fn once<T: Clone>(known: &Known<T>, name: &str, ask: impl FnOnce() -> T) -> T {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(name.to_owned()).or_insert_with(ask).clone()
}

impl Names for HostNames {
    fn hosts(&self, name: &str) -> Vec<IpAddr> {
        once(&self.hosts, name, || {
            let found = (name, 0).to_socket_addrs();
            let mut all: Vec<IpAddr> = found.map_or_else(
                |_| Vec::new(),
                |list| list.map(|address| address.ip()).collect(),
            );
            all.dedup();
            all
        })
    }

    fn network(&self, name: &str) -> Option<(u32, u32)> {
        once(&self.networks, name, || {
            let lines = self.lines("networks");
            let line = lines.iter().find(|line| {
                let mut names = line.iter().enumerate().filter(|(at, _)| *at != 1);
                names.any(|(_, word)| word == name)
            })?;
            network(line.get(1)?)
        })
    }

    fn service(&self, name: &str) -> Option<Service> {
        once(&self.services, name, || {
            self.find_service(name).or_else(|| Builtin.service(name))
        })
    }

    fn protocol(&self, name: &str) -> Option<u8> {
        once(&self.protocols, name, || {
            let lines = self.lines("protocols");
            let line = lines.iter().find(|line| {
                let mut names = line.iter().enumerate().filter(|(at, _)| *at != 1);
                names.any(|(_, word)| word == name)
            });
            let number = line.and_then(|line| line.get(1)?.parse().ok());
            number.or_else(|| Builtin.protocol(name))
        })
    }

    fn ether(&self, name: &str) -> Option<[u8; 6]> {
        once(&self.ethers, name, || {
            let lines = self.lines("ethers");
            let line = lines.iter().find(|l| l.get(1).is_some_and(|n| n == name))?;
            let mut address = [0; 6];
            let mut parts = line[0].split(':');
            for byte in &mut address {
                *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
            }
            parts.next().is_none().then_some(address)
        })
    }

    fn prefixes(&self, file: &str) -> Result<Vec<(IpAddr, u8)>, String> {
        once(&self.prefixes, file, || {
            let list: ListSpec =
                ListSpec::file(Path::new(file)).map_err(|error| error.why().to_owned())?;
            Ok(list.list().iter().map(Prefix::parts).collect())
        })
    }
}

/// A network's number and mask: trailing zero bytes are host bits, as in libpcap.
fn network(text: &str) -> Option<(u32, u32)> {
    let (mut number, mut count) = (0u32, 0);
    for part in text.split('.') {
        number = number << 8 | u32::from(part.parse::<u8>().ok()?);
        count += 1;
    }
    if count > 4 {
        return None;
    }
    // getnetbyname(3) returns the number without leading or trailing zero bytes; libpcap shifts it
    // left until its first byte is not 0, and the mask with it.
    while number != 0 && number & 0xff == 0 {
        number >>= 8;
    }
    let mut mask = u32::MAX;
    while number != 0 && number & 0xff00_0000 == 0 {
        (number, mask) = (number << 8, mask << 8);
    }
    Some((number, mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_files_are_read_once() {
        let folder = std::env::temp_dir().join(format!("barewire-names-{}", std::process::id()));
        // Fails if it exists: another user may have created it.
        std::fs::create_dir(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write(
            "services",
            "# all\nhttp 80/tcp www # web\ndomain 53/tcp\ndomain 53/udp\nmix 7/tcp\nmix 8/udp\n",
        );
        write("protocols", "ospf 89 OSPFIGP\nbad\n");
        write("networks", "loop 127.0.0.0\noffice 192.0.2.0 home\n");
        write("lists", "192.0.2.0/24 # a\n2001:db8::/32\n");
        let lists = folder.join("lists").display().to_string();
        write("ethers", "02:0:0:0:0:1 router\n2:3 short\n");
        let names = HostNames::of(&folder);
        let service = |port, tcp, udp| Some(Service { port, tcp, udp });
        for _ in 0..2 {
            assert_eq!(names.service("www"), service(80, true, false));
            assert_eq!(names.service("domain"), service(53, true, true));
            assert_eq!(names.service("mix"), service(7, true, false));
            assert_eq!(names.service("ssh"), service(22, true, false), "built in");
            assert_eq!(names.protocol("OSPFIGP"), Some(89));
            assert_eq!(names.protocol("tcp"), Some(6));
            assert_eq!(names.network("loop"), Some((0x7f00_0000, 0xff00_0000)));
            assert_eq!(names.network("home"), Some((0xc000_0200, 0xffff_ff00)));
            assert_eq!(names.ether("router"), Some([2, 0, 0, 0, 0, 1]));
            assert_eq!(names.ether("short"), None);
            assert_eq!(
                names.hosts("192.0.2.7"),
                ["192.0.2.7".parse::<IpAddr>().unwrap()]
            );
            assert_eq!(
                names.prefixes(&lists).unwrap(),
                [
                    ("192.0.2.0".parse().unwrap(), 24),
                    ("2001:db8::".parse().unwrap(), 32)
                ]
            );
            assert!(names.prefixes("/none").is_err());
            let _ = std::fs::remove_dir_all(&folder);
        }
    }
}
