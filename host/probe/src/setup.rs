//! What collectors receive in addition to records, as the probe's configuration has it.

use export::{FanOut, Setup};
use flow::element::Column;
use flow::encode::extra_fields::ExtraFields;
use flow::{Octets, OriginParts, Sampling};
use port::PortDescription;
use runtime::flows::Config;

/// What is exported in addition to records; the sampling may change while the probe runs.
#[derive(Clone)]
pub(crate) struct Reported {
    has_vlan: bool,
    has_interface: bool,
    is_layer2: bool,
    pub(crate) extra_fields: ExtraFields,
    /// How packets, and then records, are chosen.
    pub(crate) selectors: [Sampling; 2],
    pub(crate) fan_out: FanOut,
    /// One of so many packets came to us.
    pub(crate) sampling_rate: u32,
}

impl Reported {
    /// Of a probe of this configuration.
    pub(crate) fn of(
        config: &Config,
        community_seed: Option<u16>,
        origin: OriginParts,
        has_all_fields: bool,
    ) -> Reported {
        let meter = &config.meter;
        let application = config.applications.is_some();
        Reported {
            has_vlan: meter.key_vlan,
            has_interface: meter.key_interface,
            is_layer2: matches!(meter.octets, Octets::Packet),
            extra_fields: ExtraFields {
                key: meter.key_extra,
                interface: meter.key_interface,
                application,
                community_seed: community_seed.or(application.then_some(0)),
                origin,
                record: has_all_fields,
                packets: meter.extra.packet_count != 0,
                timing: meter.extra.timing,
                bytes: meter.extra.bytes,
            },
            selectors: [meter.sampling, config.record_sampling],
            fan_out: FanOut::All,
            sampling_rate: 1,
        }
    }

    /// What formats are reported.
    pub(crate) fn setup(&self, port: &PortDescription) -> Setup {
        let is_file = port.intake == port::Intake::File;
        let interval: f64 = self.selectors.iter().map(Sampling::interval).product();
        let mut setup = Setup {
            fan_out: self.fan_out,
            // What was sampled before us, and what we sampled. Out of range becomes the limit.
            sampling: (f64::from(self.sampling_rate) * interval).round() as u32,
            selectors: self.selectors,
            extra_fields: self.extra_fields,
            can_wait: is_file,
            is_layer2: self.is_layer2,
            ..Setup::default()
        };
        if self.has_vlan {
            // Most collectors show 58; 243 and 245 are the IEEE's elements.
            let names = ["vlanId", "dot1qVlanId", "dot1qCustomerVlanId"];
            setup
                .columns
                .extend(names.into_iter().filter_map(Column::find));
        }
        if self.has_interface && (is_file || port.interfaces.len() > 1) {
            // Those of a capture, and of several ports, count from 1.
            setup.interface = 1;
            let named = port.interfaces.iter().enumerate();
            let named = named.filter(|(_, (_, name))| !name.is_empty());
            setup.interfaces = named
                .map(|(index, (_, name))| (index as u32 + 1, name.clone()))
                .collect();
        } else if let Some(index) = interface_index(&port.target).filter(|_| !is_file) {
            setup.interface = index;
            setup.interfaces.push((index, port.target.clone()));
        }
        setup
    }
}

/// The kernel's number of an interface of this namespace.
fn interface_index(name: &str) -> Option<u32> {
    let path = format!("/sys/class/net/{name}/ifindex");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
