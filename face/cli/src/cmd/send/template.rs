//! Options of generated packets, and the template built from them.

use runtime::send::Target;
use sys::{Error, ErrorKind, Result};
use traffic::{Addresses, Icmp, L4, Order, Range, Sizes, Tcp, Template, Udp};

use super::{RewriteArgs, text};
use crate::out::say;

/// Addresses reserved for benchmarking (RFC 2544, RFC 5180).
const SRC_V4: &str = "198.18.0.1";
const DST_V4: &str = "198.19.0.1";
const SRC_V6: &str = "2001:2::1";
const DST_V6: &str = "2001:2::2";

/// Contents of generated packets.
#[derive(clap::Args)]
#[command(next_help_heading = "Generated packets")]
pub struct TemplateArgs {
    /// Send UDP packets
    #[arg(long, group = "kind")]
    udp: bool,
    /// Send TCP SYNs
    #[arg(long, group = "kind")]
    tcp_syn: bool,
    /// Send TCP packets with these flags: SYN,ACK, or S. as tcpdump prints them
    #[arg(long, group = "kind", value_parser = parse_flags, value_name = "FLAGS")]
    tcp: Option<u8>,
    /// Send ICMP or ICMPv6 echo requests
    #[arg(long, group = "kind")]
    icmp: bool,
    /// Source addresses [default: 198.18.0.1 or 2001:2::1]
    #[arg(long, value_name = "RANGE")]
    src: Option<String>,
    /// Destination addresses [default: 198.19.0.1 or 2001:2::2]
    #[arg(long, value_name = "RANGE")]
    dst: Option<String>,
    /// Source ports [default: 1024]
    #[arg(long, value_parser = parse_ports, value_name = "RANGE")]
    sport: Option<Range>,
    /// Destination ports [default: 9 (discard)]
    #[arg(long, value_parser = parse_ports, value_name = "RANGE")]
    dport: Option<Range>,
    /// Packet sizes in bytes [default: as short as possible]
    #[arg(long, value_parser = parse_sizes, value_name = "SIZES")]
    size: Option<Sizes>,
    /// Payload: text, or hex:00ff17; repeated or truncated to fill --size
    #[arg(long, value_parser = parse_payload, value_name = "TEXT")]
    payload: Option<Payload>,
    /// DSCP and ECN: the IPv4 type of service or IPv6 traffic class
    #[arg(long, value_name = "N")]
    tos: Option<u8>,
    /// Pick random values from ranges and sizes instead of the next one
    #[arg(long)]
    random: bool,
    /// Seed for --random; the same seed gives the same packets
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

#[derive(Clone, Debug)]
struct Payload(Vec<u8>);

fn parse_flags(value: &str) -> std::result::Result<u8, String> {
    traffic::parse_tcp_flags(value).map_err(text)
}

fn parse_ports(value: &str) -> std::result::Result<Range, String> {
    Range::numbers(value, 65_535).map_err(text)
}

fn parse_sizes(value: &str) -> std::result::Result<Sizes, String> {
    Sizes::parse(value).map_err(text)
}

fn parse_payload(value: &str) -> std::result::Result<Payload, String> {
    traffic::parse_payload(value).map(Payload).map_err(text)
}

impl TemplateArgs {
    /// Whether packets are to be generated.
    pub fn is_given(&self) -> bool {
        self.udp || self.tcp_syn || self.tcp.is_some() || self.icmp
    }

    /// An option given that is only for generated packets.
    pub fn first_option(&self) -> Option<&'static str> {
        let rows = [
            (self.src.is_some(), "--src"),
            (self.dst.is_some(), "--dst"),
            (self.sport.is_some(), "--sport"),
            (self.dport.is_some(), "--dport"),
            (self.size.is_some(), "--size"),
            (self.payload.is_some(), "--payload"),
            (self.tos.is_some(), "--tos"),
            (self.random, "--random"),
            (self.seed.is_some(), "--seed"),
        ];
        rows.iter().find(|row| row.0).map(|row| row.1)
    }

    /// The template; `target` provides the MAC addresses that are not given.
    pub fn template(
        &self,
        rewrite: &RewriteArgs,
        target: Option<&Target>,
        is_dry_run: bool,
    ) -> Result<Template> {
        let refuse = |error: traffic::Error| {
            let new = Error::new(ErrorKind::InvalidInput, "make packets", error.why);
            match error.hint {
                Some(hint) => new.with_hint(hint),
                None => new,
            }
        };
        let is_v6 = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains(':'));
        let (src, dst) = match is_v6(&self.src) || is_v6(&self.dst) {
            true => (SRC_V6, DST_V6),
            false => (SRC_V4, DST_V4),
        };
        let src = self.src.as_deref().unwrap_or(src);
        let dst = self.dst.as_deref().unwrap_or(dst);
        let addresses = Addresses::parse(src, dst).map_err(refuse)?;
        Ok(Template {
            src_mac: self.src_mac(rewrite, target)?,
            dst_mac: self.dst_mac(rewrite, target, &addresses, is_dry_run)?,
            tags: rewrite
                .vlan
                .as_ref()
                .map_or_else(Vec::new, |tags| tags.0.clone()),
            addresses,
            ttl: rewrite.ttl.unwrap_or(64),
            traffic_class: self.tos.unwrap_or(0),
            l4: self.transport(),
            payload: self
                .payload
                .clone()
                .map_or_else(Vec::new, |payload| payload.0),
            sizes: self.size.clone().unwrap_or_default(),
            order: if self.random {
                Order::Random
            } else {
                Order::Sequential
            },
            seed: self.seed.unwrap_or(0),
        })
    }

    fn transport(&self) -> L4 {
        let src_port = self.sport.clone().unwrap_or_else(|| Range::one(1024));
        let dst_port = self.dport.clone().unwrap_or_else(|| Range::one(9));
        if self.icmp {
            return L4::Icmp(Icmp {
                id: std::process::id() as u16,
            });
        }
        match (self.tcp, self.tcp_syn) {
            (None, false) => L4::Udp(Udp { src_port, dst_port }),
            (flags, _) => L4::Tcp(Tcp {
                src_port,
                dst_port,
                flags: flags.unwrap_or(2),
                window: 65_535,
            }),
        }
    }

    fn src_mac(&self, rewrite: &RewriteArgs, target: Option<&Target>) -> Result<Range> {
        if let Some(range) = &rewrite.src_mac {
            return Ok(range.clone());
        }
        let own = target.and_then(|target| target.link.address.first_chunk::<6>());
        Ok(mac_range(own.copied().unwrap_or([2, 0, 0, 0, 0, 1])))
    }

    /// The destination MAC address: the next hop's, resolved by the kernel for the given
    /// destination; otherwise it must be given too, as a guess would reach no one or everyone.
    fn dst_mac(
        &self,
        rewrite: &RewriteArgs,
        target: Option<&Target>,
        addresses: &Addresses,
        is_dry_run: bool,
    ) -> Result<Range> {
        if let Some(range) = &rewrite.dst_mac {
            return Ok(range.clone());
        }
        let Some(target) = target else {
            return Ok(mac_range([2, 0, 0, 0, 0, 2]));
        };
        let name = &target.link.name;
        if target.is_loopback() {
            return Ok(mac_range([0; 6]));
        }
        let refuse = |why: String| {
            let family = match addresses {
                Addresses::V4 { .. } => "",
                Addresses::V6 { .. } => "-6 ",
            };
            Error::new(ErrorKind::InvalidInput, "make packets", why).with_hint(format!(
                "give --dst-mac: the receiver's, or the gateway's; \
                 `ip {family}neigh show dev {name}` lists neighbours"
            ))
        };
        let Some(destination) = addresses.single_destination() else {
            let why = "with several destinations, their MAC address must be given";
            return Err(refuse(why.into()));
        };
        // Packets to the default address are not sent to a gateway. A dry run sends nothing at all,
        // not even a request.
        let ask = self.dst.is_some() && !is_dry_run;
        let found = match self.dst.is_some() {
            true => runtime::send::next_hop_mac(&target.link, destination, ask),
            false => runtime::send::neighbour_mac(&target.link, destination),
        };
        match found {
            Ok(Some(mac)) => Ok(mac_range(mac.0)),
            Ok(None) if ask => Err(refuse(format!("{destination} did not answer on {name}"))),
            Ok(None) if is_dry_run && self.dst.is_some() => {
                say!(
                    "note: the MAC address of {destination} is not known yet; sending resolves it"
                );
                Ok(mac_range([0; 6]))
            }
            Ok(None) => Err(refuse("the destination's MAC address is unknown".into())),
            Err(error) => Err(refuse(format!(
                "the MAC address of {destination} cannot be determined: {error}"
            ))),
        }
    }
}

fn mac_range(mac: [u8; 6]) -> Range {
    let bits = mac
        .iter()
        .fold(0, |bits, byte| bits << 8 | u128::from(*byte));
    Range::one(bits)
}
