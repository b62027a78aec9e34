//! Opening a port by name: `scheme:target?option=value&…`, or a plain interface or file name.

use std::path::Path;
use std::time::Duration;

use ring::{Pool, PoolConfig};
use sys::{Error, ErrorKind, Result};

use crate::backend;
use crate::control::{Capabilities, PortControl};
use crate::options::{AttachMode, BindMode, Fanout, IommuBy, PortOptions, TapBy, TimestampSource};
use crate::rx::RxQueue;
use crate::tx::TxQueue;

/// An open port: queues for threads to own, and the control side.
pub struct Port {
    /// The name it was opened by.
    pub name: String,
    /// Receiving queues; each may move to its own thread.
    pub rx: Vec<RxQueue>,
    /// Sending queues; each may move to its own thread.
    pub tx: Vec<TxQueue>,
    /// Counters, events, description. Closing the port is dropping this and the queues.
    pub control: Box<dyn PortControl>,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// A port's name, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// Which backend.
    pub scheme: &'static str,
    /// Interface, path, or whatever the backend names its devices by.
    pub target: String,
    /// One queue of it, from `afxdp:eth0/3`.
    pub queue: Option<u32>,
    /// Options in the name, in order.
    pub options: Vec<(String, String)>,
}

/// A row of the table of backends.
pub struct Backend {
    /// What stands before the colon.
    pub scheme: &'static str,
    /// One line for help and docs.
    pub summary: &'static str,
    /// A name as an example.
    pub example: &'static str,
    /// What it needs of the kernel and of rights.
    pub needs: &'static str,
    /// Whether `/N` at the end of the target names a queue.
    pub queues: bool,
    /// The frames that a port makes for itself when it is given no pool, where a pool of somebody
    /// else's would do: how many, and how long. `None` for one that has nothing to share.
    pub frames: fn(&PortName, &PortOptions) -> Result<Option<PoolConfig>>,
    /// Opens a port.
    pub open: fn(&PortName, &PortOptions) -> Result<Port>,
}

/// Every backend there is. A new one is a file in `backend/` and a row here.
pub const BACKENDS: &[Backend] = &[
    backend::memory::BACKEND,
    backend::afxdp::BACKEND,
    backend::afpacket::BACKEND,
    backend::xdplive::BACKEND,
    backend::vfio::BACKEND,
    backend::file::BACKEND,
];

/// Suffixes that make a plain name a capture file even if it does not exist yet.
const FILE_SUFFIXES: &[&str] = &[".pcap", ".pcapng", ".cap", ".ntar", ".dmp", ".gz", ".zst"];

impl PortName {
    /// Takes a name apart. A name without a scheme is a capture file if it is `-`, has a slash,
    /// ends like one, or exists as a file; else it is an interface, which is opened as a tap.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown scheme, with the list of those there are.
    pub fn parse(name: &str) -> Result<Self> {
        let refuse =
            |why: String| Error::new(ErrorKind::InvalidInput, format!("open {name:?}"), why);
        if name.is_empty() {
            return Err(refuse("the name is empty".into()));
        }
        if let Some((scheme, rest)) = name.split_once(':')
            && !scheme.contains('/')
            && !Path::new(name).exists()
        {
            let Some(backend) = BACKENDS.iter().find(|b| b.scheme == scheme) else {
                let known: Vec<&str> = BACKENDS.iter().map(|b| b.scheme).collect();
                return Err(refuse(format!("there is no backend called {scheme:?}"))
                    .with_hint(format!("backends: {}", known.join(", "))));
            };
            return Self::parse_target(backend.scheme, backend.queues, rest).map_err(refuse);
        }
        let plain = name.split('?').next().unwrap_or(name);
        let is_file = plain == "-"
            || plain.contains('/')
            || FILE_SUFFIXES.iter().any(|suffix| plain.ends_with(suffix))
            || Path::new(plain).is_file();
        let scheme = if is_file { "file" } else { "afpacket" };
        Self::parse_target(scheme, false, name).map_err(refuse)
    }

    fn parse_target(
        scheme: &'static str,
        queues: bool,
        text: &str,
    ) -> std::result::Result<Self, String> {
        // A question mark may be part of a file's name.
        let (target, query) = match text.split_once('?') {
            Some(parts) if scheme != "file" || !Path::new(text).exists() => parts,
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
        Ok(Self {
            scheme,
            target: target.to_owned(),
            queue,
            options,
        })
    }
}

/// Opens a port by name. Options in the name go before those given.
///
/// # Errors
/// Each says what was tried, why it failed, and has a hint.
pub fn open(name: &str, options: &PortOptions) -> Result<Port> {
    let (backend, parsed, options) = prepare(name, options)?;
    (backend.open)(&parsed, &options)
}

/// One pool for several ports, to be given to each in [`PortOptions::pool`], so that packets go
/// from one to the other without a copy. `None` if fewer than two of them have frames.
///
/// # Errors
/// As [`open`], for what can be told before anything is opened; `NoSpace` where memory is short.
pub fn shared_pool(ports: &[(&str, &PortOptions)]) -> Result<Option<Pool>> {
    let mut frames = Vec::new();
    for (name, options) in ports {
        let (backend, parsed, options) = prepare(name, options)?;
        frames.extend((backend.frames)(&parsed, &options)?);
    }
    if frames.len() < 2 {
        return Ok(None);
    }
    let sum = frames.iter().map(|config| config.frame_count).sum::<u32>();
    let most = frames.iter().map(|config| config.frame_count).max();
    let config = PoolConfig {
        // No port lends its device more than half of a pool that has other users.
        frame_count: sum.max(most.unwrap_or(0).saturating_mul(2)),
        frame_len: frames
            .iter()
            .map(|config| config.frame_len)
            .max()
            .unwrap_or(0),
        huge_pages: frames[0].huge_pages,
    };
    Pool::new(config).map(Some)
}

/// The backend of a name, the name taken apart, and the options with those in the name.
fn prepare(name: &str, options: &PortOptions) -> Result<(&'static Backend, PortName, PortOptions)> {
    let parsed = PortName::parse(name)?;
    let mut options = options.clone();
    for (key, value) in &parsed.options {
        let is_lending = parsed.scheme == "vfio" && key == "bind";
        let key = if is_lending { "lend" } else { key };
        apply(&mut options, key, value).map_err(|why| {
            let known: Vec<&str> = OPTION_NAMES.to_vec();
            Error::new(ErrorKind::InvalidInput, format!("open {name:?}"), why)
                .with_hint(format!("options in a name: {}", known.join(", ")))
        })?;
    }
    let backend = BACKENDS
        .iter()
        .find(|b| b.scheme == parsed.scheme)
        .ok_or_else(|| {
            let why = format!("the backend {:?} is not part of this build", parsed.scheme);
            Error::new(ErrorKind::Unsupported, format!("open {name:?}"), why)
        })?;
    Ok((backend, parsed, options))
}

/// Options that may stand in a name.
const OPTION_NAMES: &[&str] = &[
    "attach=auto|native|generic",
    "bind=auto|zero-copy|copy",
    "timestamp=auto|device|kernel|batch|none",
    "queues=N",
    "snaplen=N",
    "ring=N",
    "ring_bytes=N",
    "batch=N",
    "promiscuous=yes|no",
    "outgoing=yes|no",
    "busy_poll=N",
    "need_wakeup=yes|no",
    "block_timeout_ms=N",
    "tap=auto|tpacket|bpf",
    "fanout=hash|hash-defrag|lb|cpu|qm|rollover",
    "rss_hash=yes|no",
    "qdisc_bypass=yes|no",
    "iommu=auto|type1|iommufd",
    "bind=yes|no (vfio)",
];

fn apply(options: &mut PortOptions, key: &str, value: &str) -> std::result::Result<(), String> {
    let bad = || format!("{value:?} is no value for {key}");
    let number = || value.parse::<u32>().map_err(|_| bad());
    let yes = || match value {
        "yes" | "on" | "1" | "true" | "" => Ok(true),
        "no" | "off" | "0" | "false" => Ok(false),
        _ => Err(bad()),
    };
    match key {
        "attach" => options.attach = value.parse().map_err(|()| bad())?,
        "bind" => options.bind = value.parse().map_err(|()| bad())?,
        "timestamp" => options.timestamp = value.parse().map_err(|()| bad())?,
        "queues" => options.queue_count = number()?,
        "snaplen" => options.snaplen = number()?,
        "ring" => options.ring_len = number()?,
        "ring_bytes" => options.ring_bytes = value.parse().map_err(|_| bad())?,
        "batch" => options.batch_max = number()? as usize,
        "promiscuous" => options.promiscuous = yes()?,
        "outgoing" => options.outgoing = yes()?,
        "busy_poll" => options.busy_poll_budget = Some(value.parse().map_err(|_| bad())?),
        "need_wakeup" => options.need_wakeup = yes()?,
        "block_timeout_ms" => options.block_timeout = Duration::from_millis(number()?.into()),
        "tap" => options.tap = value.parse().map_err(|()| bad())?,
        "fanout" => options.fanout = value.parse().map_err(|()| bad())?,
        "rss_hash" => options.rss_hash = yes()?,
        "qdisc_bypass" => options.qdisc_bypass = yes()?,
        "lend" => options.lend = yes()?,
        "iommu" => options.iommu = value.parse().map_err(|()| bad())?,
        _ => return Err(format!("there is no option {key:?}")),
    }
    Ok(())
}

macro_rules! words {
    ($type:ident { $($word:literal => $variant:ident,)* }) => {
        impl std::str::FromStr for $type {
            type Err = ();

            fn from_str(text: &str) -> std::result::Result<Self, ()> {
                match text {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(()),
                }
            }
        }

        impl $type {
            /// The word for it in options and reports.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// All words.
            pub const WORDS: &'static [&'static str] = &[$($word,)*];
        }
    };
}

words!(AttachMode { "auto" => Auto, "native" => Native, "generic" => Generic, });
words!(BindMode { "auto" => Auto, "zero-copy" => ZeroCopy, "copy" => Copy, });
words!(TapBy { "auto" => Auto, "tpacket" => Tpacket, "bpf" => Bpf, });
words!(Fanout {
    "hash" => Hash, "hash-defrag" => HashDefrag, "lb" => RoundRobin, "cpu" => Cpu, "qm" => Queue,
    "rollover" => Rollover,
});
words!(IommuBy { "auto" => Auto, "type1" => Type1, "iommufd" => Iommufd, });
words!(TimestampSource {
    "auto" => Auto, "device" => Device, "kernel" => Kernel, "batch" => Batch, "none" => None,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let name = PortName::parse("memory:a?batch=32&outgoing=no").unwrap();
        assert_eq!(
            (name.scheme, name.target.as_str(), name.queue),
            ("memory", "a", None)
        );
        assert_eq!(name.options.len(), 2);
        assert_eq!(PortName::parse("eth0").unwrap().scheme, "afpacket");
        assert_eq!(PortName::parse("-").unwrap().scheme, "file");
        assert_eq!(PortName::parse("x.pcapng.zst").unwrap().scheme, "file");
        assert_eq!(PortName::parse("./x").unwrap().scheme, "file");
        assert!(
            PortName::parse("warp:eth0")
                .unwrap_err()
                .hint()
                .unwrap()
                .contains("memory")
        );
        assert!(PortName::parse("").is_err());
    }

    #[test]
    fn options_in_names_are_checked() {
        let mut options = PortOptions::default();
        apply(&mut options, "attach", "generic").unwrap();
        assert_eq!(options.attach, AttachMode::Generic);
        assert!(apply(&mut options, "attach", "sideways").is_err());
        assert!(apply(&mut options, "colour", "red").is_err());
        for word in TimestampSource::WORDS {
            assert_eq!(word.parse::<TimestampSource>().unwrap().word(), *word);
        }
    }
}
