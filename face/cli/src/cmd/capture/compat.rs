//! tcpdump's flags that barewire ignores, because it always does so, or refuses, with a
//! replacement. The others are defined with barewire's own.

use clap::{ArgAction, ValueEnum};

use crate::args::Timestamp;

/// Time stamp types of libpcap (pcap-tstamp(7)).
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum StampType {
    Host,
    HostLowprec,
    HostHiprec,
    HostHiprecUnsynced,
    Adapter,
    AdapterUnsynced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    Micro,
    Nano,
}

/// What to print instead of capturing.
#[derive(clap::Args)]
#[command(next_help_heading = "Lists")]
pub struct ListArgs {
    /// List the interfaces with the numbers that -i takes; `barewire devices` shows more
    #[arg(short = 'D', long = "list-interfaces")]
    pub interfaces: bool,
    /// List the link types of the port
    #[arg(short = 'L', long = "list-data-link-types")]
    pub link_types: bool,
    /// List the timestamp types of the port
    #[arg(short = 'J', long = "list-time-stamp-types")]
    pub stamp_types: bool,
    /// Print the compiled filter: -d as text, -dd as C, -ddd as numbers
    #[arg(short = 'd', action = ArgAction::Count)]
    pub program: u8,
    /// Print the versions of barewire and libpcap
    #[arg(long)]
    pub version: bool,
}

/// Flags in scripts written for tcpdump.
#[derive(clap::Args)]
#[command(next_help_heading = "tcpdump flags")]
pub struct CompatArgs {
    /// Timestamp type, as tcpdump names it: host is --timestamp kernel, adapter is --timestamp
    /// device
    #[arg(short = 'j', long = "time-stamp-type", value_enum, value_name = "TYPE")]
    #[arg(hide_possible_values = true, conflicts_with = "timestamp")]
    pub stamp_type: Option<StampType>,
    /// Timestamp precision: micro is --micro, nano is --nano
    #[arg(long = "time-stamp-precision", value_enum, value_name = "PRECISION")]
    pub precision: Option<Precision>,
    /// Link type: only that of the port; with -d, any
    #[arg(short = 'y', long = "linktype", value_name = "TYPE")]
    pub link_type: Option<String>,
    /// Same as --user; root means no change of user
    #[arg(
        id = "relinquish",
        short = 'Z',
        long = "relinquish-privileges",
        value_name = "USER"
    )]
    #[arg(conflicts_with = "user")]
    pub user: Option<String>,
    /// Do not optimize the filter program
    #[arg(short = 'O', long = "no-optimize")]
    pub no_optimize: bool,
    /// Deliver each packet at once: -U -l --idle wait, and immediate=yes on afpacket ports
    #[arg(long = "immediate-mode")]
    pub immediate: bool,
    /// Ignored: checksums are never verified
    #[arg(short = 'K', long = "dont-verify-checksums")]
    no_checksums: bool,
    /// Ignored: names are never resolved
    #[arg(short = 'N')]
    no_domains: bool,
    /// Ignored: names are never resolved
    #[arg(short = 'f')]
    foreign: bool,
    /// Ignored: BGP is not decoded, so there are no AS numbers
    #[arg(short = 'b')]
    asdot: bool,
    /// Ignored: NFS is not decoded
    #[arg(short = 'u')]
    nfs: bool,
    /// Ignored: a packet is always one line
    #[arg(short = 'g', long = "ip-oneline")]
    oneline: bool,

    #[arg(short = 'E', hide = true, value_name = "KEYS")]
    esp: Option<String>,
    #[arg(short = 'H', hide = true)]
    mesh: bool,
    #[arg(short = 'I', long = "monitor-mode", hide = true)]
    monitor: bool,
    #[arg(short = 'm', hide = true, value_name = "MODULE")]
    mib: Option<String>,
    #[arg(short = 'M', hide = true, value_name = "SECRET")]
    md5: Option<String>,
    #[arg(short = 'T', hide = true, value_name = "TYPE")]
    kind: Option<String>,
    #[arg(long = "skip", hide = true, value_name = "COUNT")]
    skip: Option<u64>,
    #[arg(long = "print-sampling", hide = true, value_name = "NTH")]
    sampling: Option<u64>,
}

impl CompatArgs {
    /// Why a flag is refused, and what to use instead.
    pub fn refusal(&self) -> Option<&'static str> {
        let rows = [
            (
                self.esp.is_some(),
                "-E: ESP is not decrypted; write the packets with -w, and pass the keys to \
                 `tcpdump -E` or Wireshark",
            ),
            (
                self.mesh,
                "-H: draft headers of 802.11s are not decoded; write the packets with -w, and read \
                 them with `tcpdump -H -r`",
            ),
            (
                self.monitor,
                "-I: monitor mode is not set here; use `iw dev wlan0 set monitor none` first, and \
                 capture on wlan0 as usual",
            ),
            (
                self.mib.is_some(),
                "-m: SNMP is not decoded, so MIB modules have no use; write the packets with -w, \
                 and read them with `tcpdump -m`",
            ),
            (
                self.md5.is_some(),
                "-M: digests of TCP segments (RFC 2385) are not verified; write the packets with \
                 -w, and read them with `tcpdump -M`",
            ),
            (
                self.kind.is_some(),
                "-T: not needed for protocols that are decoded here, which are recognized on any \
                 port; for others, write the packets with -w, and read them with \
                 `tcpdump -T TYPE -r`",
            ),
            (
                self.skip.is_some(),
                "--skip: packets cannot be skipped; cut a file with `editcap -r FILE OUT 101-`",
            ),
            (
                self.sampling.is_some(),
                "--print-sampling: lines cannot be sampled; pipe them through `awk 'NR % N == 0'`",
            ),
        ];
        let found = rows.into_iter().find(|(is_given, _)| *is_given);
        found.map(|(_, why)| why)
    }

    /// The timestamp source for libpcap's timestamp type.
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.stamp_type.map(|kind| match kind {
            StampType::Adapter | StampType::AdapterUnsynced => Timestamp::Device,
            _ => Timestamp::Kernel,
        })
    }
}
