//! Opens both ports of a path, over one pool if possible, and refuses loops.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use port::{Direction, FilterSource, Port, PortName, PortOptions, TimestampSource};
use sys::link::Link;
use sys::{Error, ErrorKind, Result};
use wire::LinkType;

use super::Side;
use crate::filter::Expression;
use crate::send;

/// An Ethernet header and one VLAN tag in addition to the MTU.
const LINK_LEN: usize = 14 + 4;

/// The ports to open.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Names of the two ports.
    pub names: [String; 2],
    /// Forward in both directions.
    pub both: bool,
    /// Packets to forward, as a pcap expression; others stay with the host if the port takes
    /// packets from a host.
    pub filter: Expression,
    /// Options of the ports, except direction and filter.
    pub options: PortOptions,
    /// Allow interfaces that this host depends on.
    pub force: bool,
}

/// Both ports, and warnings to print before packets flow.
pub struct Opened {
    /// The two sides.
    pub sides: [Side; 2],
    /// Both use one pool: packets change hands without a copy.
    pub is_shared: bool,
    /// Warnings, as sentences.
    pub warnings: Vec<String>,
}

/// Opens both ports.
///
/// # Errors
/// A loop, an interface that the host depends on, a port that lacks a required direction, and
/// errors of opening.
pub fn open(setup: &Setup) -> Result<Opened> {
    let ends = [End::find(&setup.names[0])?, End::find(&setup.names[1])?];
    refuse_circle(setup, &ends)?;
    if !setup.force {
        ends.iter().try_for_each(End::refuse_lifeline)?;
    }
    let mut first = options_of_first(setup);
    let mut second = PortOptions {
        direction: match setup.both {
            true => Direction::Both,
            false => Direction::Tx,
        },
        ..first.clone()
    };
    setup.filter.prepare()?;
    first.filter_source = Some(filter(setup));
    if setup.both {
        second.filter_source = first.filter_source.clone();
    }
    let [a_name, b_name] = [&setup.names[0], &setup.names[1]];
    let pool = port::shared_pool(&[(a_name, &first), (b_name, &second)])?;
    (first.pool, second.pool) = (pool.clone(), pool.clone());
    let a = port::open(a_name, &first)?;
    let b = match setup.both {
        true => port::open(b_name, &second)?,
        false => open_sending(b_name, &mut second, a.rx.len() as u32)?,
    };
    check_ways(setup, &a, &b)?;
    let mut warnings = Vec::new();
    for (index, (end, port)) in ends.iter().zip([&a, &b]).enumerate() {
        let is_tap = end.target.is_some() && !port.capabilities.takes_traffic;
        if is_tap && (index == 0 || setup.both) {
            let name = &end.name.target;
            warnings.push(format!(
                "{name} is a tap: the host also receives these packets, and may answer or route \
                 them; afxdp:{name} takes them from the host"
            ));
        }
    }
    let [a_end, b_end] = ends;
    let moves = a.rx.iter().zip(&b.tx).all(|(rx, tx)| rx.moves_to(tx));
    Ok(Opened {
        is_shared: pool.is_some() || moves && !b.tx.is_empty(),
        sides: [a_end.side(a), b_end.side(b)],
        warnings,
    })
}

/// Options of the first port, before its filter and pool.
fn options_of_first(setup: &Setup) -> PortOptions {
    PortOptions {
        direction: match setup.both {
            true => Direction::Both,
            false => Direction::Rx,
        },
        // Packets that barewire itself sends must not be forwarded.
        outgoing: false,
        // A tap's ring would hold packets back until a block is full.
        immediate: true,
        timestamp: match setup.options.timestamp {
            // Timestamps are not used.
            TimestampSource::Auto => TimestampSource::None,
            requested => requested,
        },
        ..setup.options.clone()
    }
}

/// The filter, which also rejects packets that are not Ethernet: the link types of a file become
/// known while it is read.
fn filter(setup: &Setup) -> FilterSource {
    let (source, what) = (
        setup.filter.source(),
        format!("forward from {} to {}", setup.names[0], setup.names[1]),
    );
    FilterSource::new(move |target| {
        if target.link_type != LinkType::ETHERNET.0 {
            let why = format!(
                "a packet has no Ethernet header ({})",
                LinkType(target.link_type)
            );
            return Err(
                Error::new(ErrorKind::Unsupported, what.clone(), why).with_hint(
                    "`barewire send` can add Ethernet headers to the IP packets of a \
                            capture",
                ),
            );
        }
        source.compile(target)
    })
}

/// Opens a port with as many transmit queues as it has, at most `wanted`.
pub(crate) fn open_sending(name: &str, options: &mut PortOptions, wanted: u32) -> Result<Port> {
    options.queue_count = wanted.max(1);
    loop {
        match port::open(name, options) {
            // With fewer queues it is refused before anything is changed.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput)
                    && options.queue_count > 1 =>
            {
                options.queue_count -= 1;
            }
            result => return result,
        }
    }
}

/// A port's name, and its interface if there is one.
pub(crate) struct End {
    pub(crate) text: String,
    name: PortName,
    /// The kind of targets of its backend.
    kind: Option<port::Target>,
    target: Option<send::Target>,
}

impl End {
    pub(crate) fn find(text: &str) -> Result<Self> {
        let name = PortName::parse(text)?;
        let kind = name.backend().map(|row| row.target);
        let target = match kind == Some(port::Target::Interface) {
            true => Some(send::target(&name.target).map_err(|error| {
                let why = error.why().to_owned();
                let what = format!("forward with {text}");
                let hint = error.hint().map(str::to_owned);
                let error = Error::new(error.kind(), what, why);
                match hint {
                    Some(hint) => error.with_hint(hint),
                    None => error,
                }
            })?),
            false => None,
        };
        let text = text.to_owned();
        Ok(Self {
            text,
            name,
            kind,
            target,
        })
    }

    fn link(&self) -> Option<&Link> {
        self.target.as_ref().map(|target| &target.link)
    }

    pub(crate) fn refuse_lifeline(&self) -> Result<()> {
        let host_dependency = self
            .target
            .as_ref()
            .and_then(|target| target.host_dependency.as_ref());
        let Some(host_dependency) = host_dependency else {
            return Ok(());
        };
        let why = format!(
            "{host_dependency}: forwarding would take this host's own packets, or flood the \
             network it depends on"
        );
        let what = format!("forward with {}", self.text);
        Err(Error::new(ErrorKind::InvalidInput, what, why)
            .with_hint("use other interfaces, or --force to forward anyway"))
    }

    pub(crate) fn side(self, port: Port) -> Side {
        let mut side = Side::from(port);
        side.packet_len_max = match &self.target {
            Some(target) => packet_len_max(target.link.mtu, &side.port),
            None => side.port.capabilities.packet_len_max as usize,
        };
        side
    }
}

/// The maximum packet length that a port of an interface sends.
pub(super) fn packet_len_max(mtu: u32, port: &Port) -> usize {
    let by_mtu = mtu as usize + LINK_LEN;
    match port.capabilities.packet_len_max as usize {
        0 => by_mtu,
        by_port => by_mtu.min(by_port),
    }
}

pub(crate) fn refuse_circle(setup: &Setup, ends: &[End; 2]) -> Result<()> {
    let refuse = |why: String, hint: &str| {
        let what = format!("forward from {} to {}", setup.names[0], setup.names[1]);
        Err(Error::new(ErrorKind::InvalidInput, what, why).with_hint(hint))
    };
    let [a, b] = ends;
    if let (Some(one), Some(other)) = (a.link(), b.link()) {
        if one.index == other.index {
            let why = format!("both are {}: every packet would be sent back", one.name);
            return refuse(why, "use two interfaces");
        }
        if one.linked == other.index && other.linked == one.index {
            let why = format!(
                "{} and {} are peers of one veth pair: packets would loop forever",
                one.name, other.name
            );
            return refuse(why, "use interfaces of two different veth pairs");
        }
        return Ok(());
    }
    let identity = |end: &End| {
        let data = fs::metadata(Path::new(&end.name.target)).ok()?;
        (end.kind == Some(port::Target::File) && data.is_file()).then(|| (data.dev(), data.ino()))
    };
    if identity(a).is_some() && identity(a) == identity(b) {
        let why = "both are the same file, which would be overwritten".to_owned();
        return refuse(why, "write to another file");
    }
    let is_same = a.name.scheme == b.name.scheme && a.name.target == b.name.target;
    if is_same && a.kind != Some(port::Target::New) {
        let why = "both are the same".to_owned();
        return refuse(why, "use two different ports");
    }
    Ok(())
}

/// Checks that each port has the directions it is used in.
fn check_ways(setup: &Setup, a: &Port, b: &Port) -> Result<()> {
    let refuse = |name: &str, why: String| {
        let what = format!("forward from {} to {}", setup.names[0], setup.names[1]);
        let error = Error::new(ErrorKind::InvalidInput, what, format!("{name}: {why}"));
        Err(error.with_hint("docs/ports.md lists what each port supports"))
    };
    for (index, port) in [a, b].into_iter().enumerate() {
        let name = &setup.names[index];
        if port.rx.is_empty() && (index == 0 || setup.both) {
            return refuse(name, "the input port cannot receive".into());
        }
        if port.tx.is_empty() && (index == 1 || setup.both) {
            return refuse(name, "the output port cannot send".into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_delivers_packets_at_once_in_both_directions() {
        for both in [false, true] {
            let options = options_of_first(&Setup {
                both,
                ..Setup::default()
            });
            assert!(options.immediate && !options.outgoing);
            assert_eq!(options.timestamp, TimestampSource::None);
        }
    }
}
