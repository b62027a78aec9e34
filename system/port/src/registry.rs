//! Backends by name: `scheme:target?option=value&…`, or a plain interface or file name.
//!
//! The backends of this crate are listed in `open.rs`; a program adds its own to a [`Registry`].

use std::path::{Path, PathBuf};

use ring::{Pool, PoolConfig};
use sys::privileges::Capability;
use sys::{Error, ErrorKind, Result};

use crate::joined;
use crate::options::{OPTION_NAMES, PortOptions, apply};
use crate::port::Port;

/// A parsed port name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// Scheme of the backend.
    pub scheme: &'static str,
    /// Interface, path, or another name of the backend's devices.
    pub target: String,
    /// A single queue, such as 3 in `afxdp:eth0/3`.
    pub queue: Option<u32>,
    /// Options in the name, in order.
    pub options: Vec<(String, String)>,
}

/// Names without a scheme that select a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// None: its names begin with its scheme.
    Never,
    /// Those that look like a capture file: `-`, with a slash, with a known suffix, or of an
    /// existing file. The first row with this is used; a question mark may be part of its targets.
    Files,
    /// All others. The first row with this is used.
    Interfaces,
}

/// Kind of a backend's targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Interfaces of the kernel.
    Interface,
    /// Files.
    File,
    /// Other existing things, such as a card.
    Device,
    /// Nothing that exists: each opening creates something new.
    New,
}

/// A row in the table of backends.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// Text before the colon.
    pub scheme: &'static str,
    /// One line for help and documentation.
    pub summary: &'static str,
    /// An example of a name.
    pub example: &'static str,
    /// Requirements: kernel and privileges.
    pub needs: &'static str,
    /// Whether `/N` at the end of the target names a queue.
    pub queues: bool,
    /// Kind of its targets.
    pub target: Target,
    /// Names without a scheme that select it.
    pub plain: Plain,
    /// Whether its filter decides which packets are taken from the host, and is therefore not up to
    /// a reader.
    pub filter_takes: bool,
    /// The right that an open port needs to read its counters or to receive, if any.
    pub to_count: fn() -> Option<Capability>,
    /// The rights that opening a port for receiving needs.
    pub to_receive: &'static [Capability],
    /// The right that an open port needs to send, if any.
    pub to_send: Option<Capability>,
    /// Whether an open port calls bpf(2): to read its counters, to send, to attach again.
    pub calls_bpf: bool,
    /// A faster way to send, as a clause; empty if there is none.
    pub faster: &'static str,
    /// Options of its names that have other names elsewhere: here, and there.
    pub renamed: &'static [(&'static str, &'static str)],
    /// Number and length of the frames that a port allocates if the caller supplies no pool. `None`
    /// for one that has nothing to share.
    pub frames: fn(&PortName, &PortOptions) -> Result<Option<PoolConfig>>,
    /// File that an open port deletes when it is closed, if any.
    pub deletes: fn(&PortName) -> Option<PathBuf>,
    /// Opens a port.
    pub open: fn(&PortName, &PortOptions) -> Result<Port>,
    /// Opens several of its targets, each with its own options, as one port that returns their
    /// packets in timestamp order. `None` if targets have no common order.
    pub merge: Option<Merge>,
}

/// Opens several targets as one port ([`Backend::merge`]). There are at least two.
pub type Merge = fn(&[(PortName, PortOptions)]) -> Result<Port>;

impl Backend {
    /// A row with a scheme and defaults, for `..Backend::new("name", open)`.
    pub const fn new(
        scheme: &'static str,
        open: fn(&PortName, &PortOptions) -> Result<Port>,
    ) -> Self {
        Self {
            scheme,
            summary: "",
            example: "",
            needs: "nothing",
            queues: false,
            target: Target::Device,
            plain: Plain::Never,
            filter_takes: false,
            to_count: || None,
            to_receive: &[],
            to_send: None,
            calls_bpf: false,
            faster: "",
            renamed: &[],
            frames: |_, _| Ok(None),
            deletes: |_| None,
            open,
            merge: None,
        }
    }
}

/// Suffixes that make a plain name a capture file even if it does not exist yet.
const FILE_SUFFIXES: &[&str] = &[".pcap", ".pcapng", ".cap", ".ntar", ".dmp", ".gz", ".zst"];

/// Backends for opening ports. The default contains those of this crate.
#[derive(Clone, Debug)]
pub struct Registry {
    rows: Vec<Backend>,
}

impl Registry {
    /// Creates a registry with these rows.
    pub(crate) fn with(rows: &[Backend]) -> Self {
        Self {
            rows: rows.to_vec(),
        }
    }

    /// Adds a backend.
    ///
    /// # Errors
    /// `InvalidInput` if a backend with this scheme exists, or the scheme is invalid.
    pub fn add(&mut self, backend: Backend) -> Result<()> {
        let refuse = |why: &str| {
            let what = format!("add the backend {:?}", backend.scheme);
            Error::new(ErrorKind::InvalidInput, what, why)
        };
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if backend.scheme.is_empty() || !backend.scheme.chars().all(letters) {
            return Err(refuse(
                "a scheme consists of lower-case letters, digits and hyphens",
            ));
        }
        if self.find(backend.scheme).is_some() {
            return Err(refuse("a backend with this scheme exists"));
        }
        self.rows.push(backend);
        Ok(())
    }

    /// All rows.
    pub fn backends(&self) -> &[Backend] {
        &self.rows
    }

    fn find(&self, scheme: &str) -> Option<&Backend> {
        self.rows.iter().find(|row| row.scheme == scheme)
    }

    /// Parses a name. A name without a scheme is a capture file if it is `-`, has a slash, has a
    /// known suffix, or exists as a file; otherwise it is an interface, which is opened as a tap.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown scheme; lists the known ones.
    pub fn parse(&self, name: &str) -> Result<PortName> {
        let refuse =
            |why: String| Error::new(ErrorKind::InvalidInput, format!("open {name:?}"), why);
        if name.is_empty() {
            return Err(refuse("the name is empty".into()));
        }
        if let Some((scheme, rest)) = name.split_once(':')
            && !scheme.contains('/')
            && !Path::new(name).exists()
        {
            let Some(backend) = self.find(scheme) else {
                let known: Vec<&str> = self.rows.iter().map(|row| row.scheme).collect();
                return Err(refuse(format!("unknown scheme {scheme:?}"))
                    .with_hint(format!("backends: {}", known.join(", "))));
            };
            return parse_target(backend, backend.queues, rest).map_err(refuse);
        }
        let plain = name.split('?').next().unwrap_or(name);
        let is_file = plain == "-"
            || plain.contains('/')
            || FILE_SUFFIXES.iter().any(|suffix| plain.ends_with(suffix))
            || Path::new(plain).is_file();
        let wanted = if is_file {
            Plain::Files
        } else {
            Plain::Interfaces
        };
        let Some(backend) = self.rows.iter().find(|row| row.plain == wanted) else {
            return Err(refuse("it has no scheme".into()));
        };
        parse_target(backend, false, name).map_err(refuse)
    }

    /// Opens a port by name. Options in the name override the given ones.
    ///
    /// # Errors
    /// Each states what was tried, why it failed, and a hint.
    pub fn open(&self, name: &str, options: &PortOptions) -> Result<Port> {
        let (backend, parsed, options) = self.prepare(name, options)?;
        (backend.open)(&parsed, &options)
    }

    /// Opens several ports as one; a single name as [`open`](Self::open) does. Capture files are
    /// merged in timestamp order. The queues of other ports stay separate.
    ///
    /// # Errors
    /// As [`open`](Self::open); `InvalidInput` for no name, for files mixed with other ports, and
    /// for an interface named twice.
    pub fn open_all(&self, names: &[&str], options: &PortOptions) -> Result<Port> {
        if let [name] = names {
            return self.open(name, options);
        }
        let refuse = |what: &str, why: &str| Err(Error::new(ErrorKind::InvalidInput, what, why));
        let mut targets = Vec::with_capacity(names.len());
        let mut merges = Vec::with_capacity(names.len());
        for name in names {
            let (backend, parsed, options) = self.prepare(name, options)?;
            merges.push(backend.merge);
            targets.push((backend, parsed, options));
        }
        match merges.as_slice() {
            [] => refuse("open a port", "no port is given"),
            [Some(merge), rest @ ..] if rest.iter().all(Option::is_some) => {
                let targets = targets.into_iter();
                let targets: Vec<_> = targets.map(|(_, name, options)| (name, options)).collect();
                merge(&targets)
            }
            _ if merges.iter().any(Option::is_some) => refuse(
                &format!("open {}", names.join(", ")),
                "capture files and live ports cannot be read together",
            ),
            _ => {
                let open =
                    |(backend, name, options): &(&Backend, _, _)| (backend.open)(name, options);
                let ports: Result<Vec<Port>> = targets.iter().map(open).collect();
                joined::join(ports?)
            }
        }
    }

    /// Like [`frames_of`](crate::frames_of).
    ///
    /// # Errors
    /// As [`open`](Self::open), for what can be detected before anything is opened.
    pub fn frames_of(&self, name: &str, options: &PortOptions) -> Result<Option<PoolConfig>> {
        let (backend, parsed, options) = self.prepare(name, options)?;
        (backend.frames)(&parsed, &options)
    }

    /// Like [`shared_pool`](crate::shared_pool).
    ///
    /// # Errors
    /// As [`open`](Self::open), for what can be detected before anything is opened; `NoSpace` if
    /// memory is short.
    pub fn shared_pool(&self, ports: &[(&str, &PortOptions)]) -> Result<Option<Pool>> {
        let mut frames = Vec::new();
        for (name, options) in ports {
            let (backend, parsed, options) = self.prepare(name, options)?;
            frames.extend((backend.frames)(&parsed, &options)?);
        }
        if frames.len() < 2 {
            return Ok(None);
        }
        let sum = frames.iter().map(|config| config.frame_count).sum::<u32>();
        let most = frames.iter().map(|config| config.frame_count).max();
        let frame_len = frames.iter().map(|config| config.frame_len).max();
        let config = PoolConfig {
            // No port gives its device more than half of a pool with other users.
            frame_count: sum.max(most.unwrap_or(0).saturating_mul(2)),
            frame_len: frame_len.unwrap_or(0),
            huge_pages: frames[0].huge_pages,
        };
        Pool::new(config).map(Some)
    }

    /// The backend of a name, the parsed name, and the options combined with those in the name.
    fn prepare(
        &self,
        name: &str,
        options: &PortOptions,
    ) -> Result<(&Backend, PortName, PortOptions)> {
        let parsed = self.parse(name)?;
        let backend = self.find(parsed.scheme).ok_or_else(|| {
            let why = format!("the backend {:?} is not part of this build", parsed.scheme);
            Error::new(ErrorKind::Unsupported, format!("open {name:?}"), why)
        })?;
        let mut options = options.clone();
        for (key, value) in &parsed.options {
            let renamed = backend.renamed.iter().find(|(here, _)| here == key);
            let key = renamed.map_or(key.as_str(), |(_, there)| there);
            apply(&mut options, key, value).map_err(|why| {
                Error::new(ErrorKind::InvalidInput, format!("open {name:?}"), why).with_hint(
                    format!("options in a port name: {}", OPTION_NAMES.join(", ")),
                )
            })?;
        }
        Ok((backend, parsed, options))
    }
}

/// Parses the text after the scheme.
fn parse_target(
    backend: &Backend,
    queues: bool,
    text: &str,
) -> std::result::Result<PortName, String> {
    // A file's name may contain a question mark.
    let is_file = backend.plain == Plain::Files && Path::new(text).exists();
    let (target, query) = match text.split_once('?') {
        Some(parts) if !is_file => parts,
        _ => (text, ""),
    };
    let mut options = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        options.push((key.to_owned(), value.to_owned()));
    }
    let (target, queue) = match target.rsplit_once('/') {
        Some((target, number)) if queues => {
            let queue = number
                .parse()
                .map_err(|_| format!("{number:?} is not a queue number"))?;
            (target, Some(queue))
        }
        _ => (target, None),
    };
    Ok(PortName {
        scheme: backend.scheme,
        target: target.to_owned(),
        queue,
        options,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(name: &PortName, _: &PortOptions) -> Result<Port> {
        let what = format!("open {}", name.target);
        Err(Error::new(ErrorKind::Unsupported, what, "nothing opens"))
    }

    #[test]
    fn rows_are_added_once() {
        let mut registry = Registry::with(&[]);
        assert!(registry.parse("eth0").is_err(), "nobody takes plain names");
        registry.add(Backend::new("one", nothing)).unwrap();
        assert!(registry.add(Backend::new("one", nothing)).is_err());
        for scheme in ["", "a/b", "a:b", "Upper", "a?b"] {
            let scheme: &'static str = scheme;
            assert!(registry.add(Backend::new(scheme, nothing)).is_err());
        }
        let error = registry.open("one:here", &PortOptions::default()).err();
        assert!(error.unwrap().to_string().contains("nothing opens"));
        assert_eq!(registry.backends().len(), 1);
    }

    #[test]
    fn options_of_a_row_may_have_other_names() {
        fn show(name: &PortName, options: &PortOptions) -> Result<Port> {
            let what = format!("{:?} {}", options.bind, options.bind_card);
            nothing(name, options).map_err(|_| Error::new(ErrorKind::Unsupported, what, "no"))
        }
        let row = Backend::new("plain", show);
        let other = Backend {
            renamed: &[("bind", "bind_card")],
            ..Backend::new("other", show)
        };
        let registry = Registry::with(&[row, other]);
        let reported = |name| {
            let error = registry.open(name, &PortOptions::default()).err();
            error.unwrap().to_string()
        };
        assert!(reported("plain:x?bind=copy").contains("Copy false"));
        assert!(reported("other:x?bind=yes").contains("Auto true"));
        assert!(reported("plain:x?bind=yes").contains("not a valid bind"));
    }
}
