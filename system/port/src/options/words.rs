//! Options in a port name: `?option=value&…`.

use std::time::Duration;

use super::{
    AttachMode, BindMode, Fanout, IommuInterface, PortOptions, TapMethod, TimestampSource,
};

/// Options that may be in a name.
pub(crate) const OPTION_NAMES: &[&str] = &[
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
    "immediate=yes|no",
    "tap=auto|tpacket|bpf",
    "fanout=hash|hash-defrag|addresses|inner-addresses|lb|cpu|qm|rollover",
    "fanout_group=N",
    "rss_hash=yes|no",
    "qdisc_bypass=yes|no",
    "iommu=auto|type1|iommufd",
    "bind=yes|no (vfio)",
];

/// Sets an option by its name.
pub(crate) fn apply(
    options: &mut PortOptions,
    key: &str,
    value: &str,
) -> std::result::Result<(), String> {
    let bad = || format!("{value:?} is not a valid {key}");
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
        "immediate" => options.immediate = yes()?,
        "tap" => options.tap = value.parse().map_err(|()| bad())?,
        "fanout" => options.fanout = value.parse().map_err(|()| bad())?,
        "fanout_group" => options.fanout_group = Some(value.parse().map_err(|_| bad())?),
        "rss_hash" => options.rss_hash = yes()?,
        "qdisc_bypass" => options.qdisc_bypass = yes()?,
        "bind_card" => options.bind_card = yes()?,
        "iommu" => options.iommu = value.parse().map_err(|()| bad())?,
        _ => return Err(format!("unknown option {key:?}")),
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
            /// Its name in options and reports.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// All names.
            pub const WORDS: &'static [&'static str] = &[$($word,)*];
        }
    };
}

words!(AttachMode { "auto" => Auto, "native" => Native, "generic" => Generic, });
words!(BindMode { "auto" => Auto, "zero-copy" => ZeroCopy, "copy" => Copy, });
words!(TapMethod { "auto" => Auto, "tpacket" => Tpacket, "bpf" => Bpf, });
words!(Fanout {
    "hash" => Hash, "hash-defrag" => HashDefrag, "addresses" => Addresses,
    "inner-addresses" => InnerAddresses, "lb" => RoundRobin, "cpu" => Cpu, "qm" => Queue,
    "rollover" => Rollover,
});
words!(IommuInterface { "auto" => Auto, "type1" => Type1, "iommufd" => Iommufd, });
words!(TimestampSource {
    "auto" => Auto, "device" => Device, "kernel" => Kernel, "batch" => Batch, "none" => None,
});

#[cfg(test)]
mod tests {
    use super::*;

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
