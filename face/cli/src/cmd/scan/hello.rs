//! What a scan says first to services: `--hello`.

use std::path::PathBuf;

use ::scan::PortList;
use ::scan::grab::{Given, GivenHello, GrabOptions, HELLO_LEN_MAX, Identity, Names, service_names};
use sys::Result;

use super::{Args, random, refused};
use crate::inputs;

/// What is said.
#[derive(Clone, Debug)]
enum What {
    /// The data for this service.
    Service(&'static str),
    File(PathBuf),
}

/// What is said first to some ports.
#[derive(Clone, Debug)]
pub struct HelloArg {
    ports: Vec<u16>,
    what: What,
}

fn numbers(ports: &str) -> std::result::Result<Vec<u16>, String> {
    let list = PortList::parse(ports)?;
    let numbers = list.numbers();
    numbers.map_err(|_| "the protocol is TCP: no letter is expected".into())
}

impl HelloArg {
    /// Parses `PORTS=NAME` or `PORTS=FILE`.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let parts = text.split_once('=').filter(|(_, what)| !what.is_empty());
        let (ports, what) = parts.ok_or(
            "expected PORTS=NAME or PORTS=FILE, for example 8000-8100=tls or 9999=hello.bin",
        )?;
        let service = service_names().find(|name| *name == what);
        Ok(Self {
            ports: numbers(ports)?,
            what: service.map_or_else(|| What::File(what.into()), What::Service),
        })
    }

    /// The file that it is read from.
    pub fn path(&self) -> Option<&PathBuf> {
        match &self.what {
            What::File(path) => Some(path),
            What::Service(_) => None,
        }
    }

    fn read(&self) -> Result<Given> {
        let hello = match &self.what {
            What::Service(name) => GivenHello::Service(name),
            What::File(path) => {
                let bytes = inputs::read_bytes(path, HELLO_LEN_MAX as u64).map_err(|error| {
                    let names: Vec<&str> = service_names().collect();
                    error.with_hint(format!("a file, or one of {}", names.join(", ")))
                })?;
                if bytes.is_empty() {
                    let what = format!("say what is in {}", path.display());
                    return Err(refused(&what, "the file is empty".into()));
                }
                GivenHello::Bytes(bytes.into())
            }
        };
        let ports = self.ports.clone();
        Ok(Given { ports, hello })
    }
}

impl Args {
    /// How banners are read, if they are.
    pub(super) fn grab(&self, names: Names) -> Result<Option<GrabOptions>> {
        if !self.banners {
            return Ok(None);
        }
        let hellos = self.hello.iter().map(HelloArg::read);
        Ok(Some(GrabOptions {
            connection_count_max: self.connections,
            timeout_ns: self.banner_timeout.as_nanos().min(u64::MAX.into()) as u64,
            identity: Identity {
                random: random()?,
                user_agent: self.user_agent.clone(),
                contact: self.contact.clone(),
            },
            keeps_certificates: self.output.has("pem"),
            names,
            hellos: hellos.collect::<Result<_>>()?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_are_services_or_files() {
        let tls = HelloArg::parse("8000-8002=tls").unwrap();
        assert_eq!(tls.ports, [8000, 8001, 8002]);
        assert!(tls.path().is_none());
        let file = HelloArg::parse("9=./tls").unwrap();
        assert_eq!(file.path(), Some(&PathBuf::from("./tls")));
        for bad in ["", "tls", "80=", "=tls", "U:53=tls", "x=tls"] {
            assert!(HelloArg::parse(bad).is_err(), "{bad}");
        }
        let error = HelloArg::parse("80=/no/such/file").unwrap().read();
        assert!(error.unwrap_err().to_string().contains("/no/such/file"));
    }
}
