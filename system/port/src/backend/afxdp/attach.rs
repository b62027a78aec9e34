//! The program on the interface: its variant, its attach mode, and the error if it cannot be
//! attached.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bpf::cbpf::Program;
use sys::bpf::Loader;
use sys::ethtool::Ethtool;
use sys::link::{Link, XdpFeatures};
use sys::netns::Namespace;
use sys::xsk::PACKET_HEADROOM;
use sys::{Error, ErrorKind, KernelVersion, Result};
use xdp::{MetadataSpec, Redirect, RedirectSpec, XdpLink, XdpProgram};

use crate::options::{AttachMode, BindMode, PortOptions, TimestampSource};

/// The program, its maps and its attachment. On drop the interface is as before.
pub(super) struct Attachment {
    pub redirect: Redirect,
    held: Mutex<Held>,
    /// Configuration of the program.
    spec: RedirectSpec,
    /// The namespace in which the interface's index was valid when the port was opened.
    namespace: Namespace,
    ifindex: u32,
    pub mode: xdp::AttachMode,
    pub frags: bool,
    pub metadata: MetadataSpec,
    /// Number of queues that the program counts.
    pub queue_count: u32,
    /// Variants tried before and refused, for display.
    pub refusals: Vec<String>,
}

/// State of the attachment.
struct Held {
    link: Option<XdpLink>,
    /// A program with another filter, replacing the first.
    replaced: Option<XdpProgram>,
    /// The process that replaces the program once this one may not.
    loader: Option<Loader>,
}

impl Held {
    /// The attached program.
    fn program<'a>(&'a self, first: &'a Redirect) -> &'a XdpProgram {
        self.replaced.as_ref().unwrap_or_else(|| first.program())
    }
}

impl Attachment {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the attached program with one that has another filter; no packet passes in between.
    ///
    /// # Errors
    /// As [`Redirect::load`]; the old program then stays.
    pub(super) fn replace_filter(&self, filter: Option<&Program>) -> Result<()> {
        let spec = RedirectSpec {
            filter: filter.cloned(),
            ..self.spec.clone()
        };
        let mut held = self.held();
        // A program for a single device is loaded in that device's namespace.
        let run = self.namespace.run(|| self.redirect.another(&spec));
        let new = match (run.flatten(), &mut held.loader) {
            (Ok(new), _) => {
                if let Some(link) = &held.link {
                    link.update(&new)?;
                }
                new
            }
            (Err(error), Some(loader)) if error.kind() == ErrorKind::Permission => {
                // It is in the namespace of the time when the port was opened.
                self.redirect.another_by(loader, &spec)?
            }
            (Err(error), _) => return Err(error),
        };
        held.replaced = Some(new);
        Ok(())
    }

    /// Passes a queue's packets to the host again. The device may be gone: nothing arrives then.
    pub(super) fn forget(&self, queue_index: u32) {
        let _ = self.redirect.sockets().clear(queue_index);
    }

    /// Whether another process has detached the program, or replaced it in the link. `None` if the
    /// kernel does not answer (it may require privileges that were dropped).
    pub(super) fn is_lost(&self) -> bool {
        let held = self.held();
        let program = held.program(&self.redirect);
        held.link
            .as_ref()
            .is_some_and(|link| matches!(link.calls(program), Ok(false)))
    }

    /// Attaches the program again in the same mode. A detached link cannot be reused. If another
    /// process replaced the program in the link, that program stays: it occupies the interface like
    /// any other attached program.
    ///
    /// # Errors
    /// As [`XdpLink::attach`]; `Busy` names the program that is attached instead.
    pub(super) fn attach_again(&self) -> Result<()> {
        let mut held = self.held();
        let program = held.program(&self.redirect);
        let attach = || XdpLink::attach(program, self.ifindex, self.mode);
        held.link = Some(self.namespace.run(attach)??);
        // Its link is the old one.
        held.loader = None;
        Ok(())
    }

    /// Detaches the program. Counters can still be read.
    ///
    /// Detaches explicitly instead of only closing the link: a child process that is being started
    /// may briefly have a copy of its descriptor.
    pub(super) fn detach(&self) {
        let mut held = self.held();
        if let Some(link) = held.link.take() {
            let _ = link.detach();
        }
        held.loader = None;
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Properties of the interface needed for negotiation.
pub(super) struct Device {
    pub link: Link,
    /// Features of the driver; `None` if the kernel does not report them (before Linux 6.3).
    pub features: Option<XdpFeatures>,
    pub driver: String,
    pub lro: bool,
    /// Frame length: the given pool's, or what suits MTU and driver.
    pub frame_len: u32,
    /// Maximum packet length: the MTU plus link header and two VLAN tags.
    pub packet_len_max: u32,
}

/// `ARPHRD_ETHER` of `if_arp.h`.
const ETHERNET: u16 = 1;
/// `ARPHRD_LOOPBACK`, whose packets also have Ethernet headers.
const LOOPBACK: u16 = 772;

/// Frame lengths of a pool of its own. Short frames hold packets of 1500 bytes with full headroom;
/// twice as many packets then fit into the caches, because data at the same offset of every page
/// shares a few cache sets.
const FRAME_LENS: [u32; 2] = [2048, 4096];

/// Cards have buffer lengths in such steps, rounded down (Linux igb and ixgbe:
/// `SRRCTL_BSIZEPKT_SHIFT` 10): of 1792 bytes a zero-copy driver may use 1024, and igb delivers the
/// rest of a longer packet as a separate one.
const CARD_BUFFER_STEP: u32 = 1024;

impl Device {
    pub(super) fn find(name: &str, options: &PortOptions) -> Result<Self> {
        let link = Link::by_name(name)?;
        if !matches!(link.hardware, ETHERNET | LOOPBACK) {
            let why = "its packets have no Ethernet header";
            return Err(
                Error::new(ErrorKind::Unsupported, format!("open afxdp:{name}"), why)
                    .with_hint("afpacket: supports all kinds of interfaces"),
            );
        }
        let ethtool = Ethtool::open()?;
        let info = ethtool.driver_info(name).ok().flatten();
        let offloads = ethtool.offloads(name).ok().flatten();
        let driver = info.map(|info| info.driver).filter(|name| !name.is_empty());
        let mut device = Self {
            features: XdpFeatures::of(link.index).ok(),
            driver: driver.unwrap_or_else(|| "unknown".into()),
            lro: offloads.is_some_and(|offloads| offloads.lro),
            frame_len: 0,
            packet_len_max: link.mtu.saturating_add(14 + 8),
            link,
        };
        let [short, long] = FRAME_LENS;
        device.frame_len = match &options.pool {
            Some(pool) => pool.frame_len(),
            None => short,
        };
        let zero_copy = options.bind != BindMode::Copy && device.may_zero_copy();
        if options.pool.is_none() && (device.needs_frags(false) || device.needs_frags(zero_copy)) {
            device.frame_len = long;
        }
        Ok(device)
    }

    /// Whether packets of the MTU exceed one frame, or with zero-copy one buffer of the card.
    pub(super) fn needs_frags(&self, zero_copy: bool) -> bool {
        let room = self.frame_len - PACKET_HEADROOM;
        let room = match zero_copy {
            true => room - room % CARD_BUFFER_STEP,
            false => room,
        };
        self.packet_len_max > room
    }

    /// Whether to load the program with multi-buffer support, best first. Without it, it could not
    /// be attached if packets are longer than a frame, or would lose them.
    fn frags_choices(&self) -> &'static [bool] {
        match self.needs_frags(false) {
            true => &[true],
            false => &[true, false],
        }
    }

    /// Whether the driver reports that it lacks these features; drivers that report nothing are
    /// tried.
    fn lacks(&self, bits: u64) -> bool {
        self.features.is_some_and(|features| !features.has(bits))
    }

    pub(super) fn may_zero_copy(&self) -> bool {
        !self.lacks(XdpFeatures::ZERO_COPY)
    }

    /// Driver, kernel and MTU, for errors.
    pub(super) fn circumstances(&self) -> String {
        let kernel = KernelVersion::running().map_or_else(String::new, |v| format!(", Linux {v}"));
        format!("driver {}{kernel}, MTU {}", self.driver, self.link.mtu)
    }
}

/// Loads and attaches the best variant that the options allow and the device accepts.
pub(super) fn attach(
    device: &Device,
    queue_count: u32,
    options: &PortOptions,
) -> Result<Attachment> {
    let (native, generic) = (xdp::AttachMode::Native, xdp::AttachMode::Generic);
    let modes: &[xdp::AttachMode] = match options.attach {
        AttachMode::Auto => &[native, generic],
        AttachMode::Native => &[native],
        AttachMode::Generic => &[generic],
    };
    let mut refusals: Vec<String> = Vec::new();
    let mut last = None;
    for &mode in modes {
        for metadata in metadata_choices(device, mode, options) {
            for &frags in device.frags_choices() {
                let spec = RedirectSpec {
                    queue_count,
                    filter: options.filter.clone(),
                    metadata,
                    frags,
                    ifindex: device.link.index,
                };
                let attached = Redirect::load(&spec).and_then(|redirect| {
                    let link = XdpLink::attach(redirect.program(), device.link.index, mode)?;
                    // Without one, the filter cannot be replaced after privileges are dropped.
                    let loader = options.filter_helper.then(|| redirect.loader(&link));
                    let loader = loader.and_then(Result::ok);
                    Ok((redirect, (link, loader), Namespace::current()?))
                });
                let error = match attached {
                    Ok((redirect, (link, loader), namespace)) => {
                        return Ok(Attachment {
                            redirect,
                            held: Mutex::new(Held {
                                link: Some(link),
                                replaced: None,
                                loader,
                            }),
                            spec,
                            namespace,
                            ifindex: device.link.index,
                            mode,
                            frags,
                            metadata,
                            queue_count,
                            refusals,
                        });
                    }
                    Err(error) => error,
                };
                // Another program is attached, or privileges are missing: no other mode would help.
                if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Permission) {
                    return Err(error);
                }
                let refusal = format!("{mode}: {}", error.why());
                if refusals.last() != Some(&refusal) {
                    refusals.push(refusal);
                }
                last = Some(error);
            }
        }
    }
    Err(last.map_or_else(
        || no_device_time(device),
        |error| explain(error, device, options, &refusals),
    ))
}

/// The metadata to request, best first.
fn metadata_choices(
    device: &Device,
    mode: xdp::AttachMode,
    options: &PortOptions,
) -> Vec<MetadataSpec> {
    use xdp::TimestampSource as Source;
    let lacks = |bit: u64| {
        mode == xdp::AttachMode::Generic || device.features.is_none_or(|f| f.rx_metadata & bit == 0)
    };
    let no_time = lacks(XdpFeatures::META_TIMESTAMP);
    let program = MetadataSpec {
        time: Source::Program,
        ..MetadataSpec::default()
    };
    let time = match options.timestamp {
        TimestampSource::Device if no_time => return Vec::new(),
        TimestampSource::Auto if no_time => Source::Program,
        TimestampSource::Auto | TimestampSource::Device => Source::Device,
        TimestampSource::Kernel => Source::Program,
        TimestampSource::Batch | TimestampSource::None => Source::None,
    };
    let full = MetadataSpec {
        time,
        hash: !lacks(XdpFeatures::META_HASH),
        vlan: !lacks(XdpFeatures::META_VLAN),
    };
    let mut choices = vec![full];
    match options.timestamp {
        TimestampSource::Device => {}
        TimestampSource::Auto | TimestampSource::Kernel => choices.push(program),
        TimestampSource::Batch | TimestampSource::None => choices.push(MetadataSpec::default()),
    }
    choices.dedup();
    choices
}

fn no_device_time(device: &Device) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("use the timestamps of {}", device.link.name),
        format!(
            "its driver provides no timestamps to XDP programs ({})",
            device.circumstances()
        ),
    )
    .with_hint("--timestamp kernel reads the clock in the XDP program")
}

/// Explains the last refusal, given the circumstances.
fn explain(error: Error, device: &Device, options: &PortOptions, refusals: &[String]) -> Error {
    let name = &device.link.name;
    let tried = if refusals.len() > 1 {
        refusals.join("; ")
    } else {
        error.why().to_owned()
    };
    let why = format!("{tried} ({})", device.circumstances());
    let (kind, hint) = (error.kind(), error.hint().map(str::to_owned));
    let error = error.with_why(why).with_kind(kind);
    let forced = options.attach == AttachMode::Native;
    if device.lro && forced {
        return error.with_hint(format!(
            "large receive offload is on, and XDP needs packets as received: ethtool -K {name} \
             lro off"
        ));
    }
    // Errors for what a driver refuses (EINVAL, ERANGE, EOPNOTSUPP); others have a different cause.
    let is_refused = matches!(error.os_code(), Some(22 | 34 | 95));
    if is_refused && device.needs_frags(false) {
        return error.with_hint(format!(
            "packets of this MTU need several buffers: ip link set dev {name} mtu 1500, or \
             attach=generic"
        ));
    }
    match hint {
        Some(hint) => error.with_hint(hint),
        None if forced => error.with_hint("attach=auto falls back to generic mode"),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(mtu: u32, frame_len: u32) -> Device {
        Device {
            link: Link {
                mtu,
                ..Link::default()
            },
            features: None,
            driver: "test".into(),
            lro: false,
            frame_len,
            packet_len_max: mtu + 14 + 8,
        }
    }

    /// 2048 bytes with 256 of headroom hold packets of up to 1792; cards use 1024 of them.
    #[test]
    fn packets_longer_than_a_frame_need_several() {
        for (mtu, frame_len, copy, zero_copy) in [
            (1000, 2048, false, false),
            (1002, 2048, false, false),
            (1003, 2048, false, true),
            (1500, 2048, false, true),
            (1770, 2048, false, true),
            (1771, 2048, true, true),
            (1500, 4096, false, false),
            (3050, 4096, false, false),
            (3051, 4096, false, true),
            (3818, 4096, false, true),
            (3819, 4096, true, true),
            (9000, 4096, true, true),
        ] {
            let device = device(mtu, frame_len);
            assert_eq!(device.needs_frags(false), copy, "{mtu} {frame_len}");
            assert_eq!(device.needs_frags(true), zero_copy, "{mtu} {frame_len}");
            let choices: &[bool] = if copy { &[true] } else { &[true, false] };
            assert_eq!(device.frags_choices(), choices, "{mtu} {frame_len}");
        }
    }
}
