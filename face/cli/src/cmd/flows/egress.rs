//! `--egress`: forwards the beginning of each flow to another port.

use std::io::{self, Write};

use flow::{MeterConfig, Profile, Shunt};
use inspect::Protocol;
use port::PortOptions;
use runtime::flows::egress::{Choice, EgressReport, Plan};
use sys::{Error, ErrorKind, Result};

use crate::args::FilterCompiler;
use crate::inputs::Inputs;
use crate::report::counted;

/// Options of the egress.
#[derive(clap::Args)]
#[command(next_help_heading = "Egress")]
pub struct EgressArgs {
    /// Forward the first packets of each flow to this port, for example to an IDS
    #[arg(long, value_name = "PORT")]
    egress: Option<String>,
    /// How much of each flow record to forward: packets, bytes (with k or M), or both, whichever
    /// limit is reached first: 20, 64k, 20,64k
    #[arg(long, value_name = "HOW MUCH", default_value = "10", value_parser = first,
          requires = "egress")]
    egress_first: Shunt,
    /// Once the application of a flow is known, forward all its packets if it is one of these, and
    /// none otherwise; needs --decode
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = protocol,
          requires_all = ["egress", "decode"])]
    egress_only: Vec<Protocol>,
    /// Forward only packets that also match this expression (man pcap-filter)
    #[arg(long, value_name = "FILTER", requires = "egress")]
    egress_filter: Option<String>,
}

/// Parses `20`, `64k`, `20,64k`.
fn first(text: &str) -> std::result::Result<Shunt, String> {
    let mut shunt = Shunt {
        packets: u64::MAX,
        bytes: u64::MAX,
    };
    for part in text.split(',') {
        let (digits, unit) = match part.strip_suffix(['k', 'K']) {
            Some(digits) => (digits, Some(1 << 10)),
            None => match part.strip_suffix('M') {
                Some(digits) => (digits, Some(1 << 20)),
                None => (part, None),
            },
        };
        let number = digits.parse::<u64>().ok().filter(|number| *number > 0);
        let number = number.and_then(|number| number.checked_mul(unit.unwrap_or(1)));
        let Some(number) = number else {
            return Err(format!(
                "expected a number of packets (20) or bytes (64k, 1M), not {part:?}"
            ));
        };
        match unit {
            Some(_) => shunt.bytes = number,
            None => shunt.packets = number,
        }
    }
    Ok(shunt)
}

/// Parses one of a list of applications.
fn protocol(text: &str) -> std::result::Result<Protocol, String> {
    let all = || {
        Protocol::ALL
            .into_iter()
            .filter(|p| *p != Protocol::Unknown)
    };
    let none = || {
        let names: Vec<&str> = all().map(Protocol::name).collect();
        format!("unknown application {text:?}: use {}", names.join(", "))
    };
    all()
        .find(|protocol| protocol.name() == text)
        .ok_or_else(none)
}

impl EgressArgs {
    /// The egress port.
    pub fn port(&self) -> Option<&str> {
        self.egress.as_deref()
    }

    /// The plan for the egress port, if one is given. Adjusts the options of the input port so
    /// that both share a pool where possible.
    pub fn plan(
        &self,
        inputs: &Inputs,
        options: &mut PortOptions,
        compiler: FilterCompiler,
    ) -> Result<Option<Plan>> {
        let Some(name) = &self.egress else {
            return Ok(None);
        };
        if inputs.count() > 1 {
            let why = "packets are forwarded from one port only";
            return Err(Error::new(ErrorKind::InvalidInput, "use --egress", why));
        }
        let choice = Choice {
            only: self.egress_only.clone(),
            filter: compiler.expression(self.egress_filter.clone().unwrap_or_default()),
        };
        let out = PortOptions::default();
        Plan::new([inputs.first(), name], options, out, choice).map(Some)
    }

    /// Configures a meter to report which packets to forward.
    pub fn apply(&self, meter: &mut MeterConfig) {
        if self.egress.is_some() {
            // As with all extra fields.
            meter.table.profile = Profile::Standard;
            meter.extra.shunt = Some(self.egress_first);
        }
    }
}

/// Prints the account.
pub fn write_account(out: &mut impl Write, egress: &EgressReport) -> io::Result<()> {
    let status = &egress.status;
    write!(
        out,
        "egress: {} selected = {} forwarded",
        counted(status.chosen, "packet"),
        status.forwarded
    )?;
    for (count, why) in [
        (status.filtered, "filtered out"),
        (status.tx_full, "dropped: transmit ring full"),
        (status.too_long, "too long"),
        (status.unsendable, "without an Ethernet header, or cut"),
    ] {
        if count != 0 {
            write!(out, " + {count} {why}")?;
        }
    }
    match status.imbalance() {
        0 => writeln!(out, ": adds up")?,
        missing => writeln!(out, ": {missing} unaccounted for, a bug in barewire")?,
    }
    let failed: u64 = egress.account.tx.iter().map(|tx| tx.failed).sum();
    if failed != 0 {
        writeln!(out, "egress: the device failed to send {failed} of them")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shunt_limits_have_units() {
        let shunt = |packets, bytes| Ok(Shunt { packets, bytes });
        assert_eq!(first("20"), shunt(20, u64::MAX));
        assert_eq!(first("64k"), shunt(u64::MAX, 65_536));
        assert_eq!(first("5,1M"), shunt(5, 1 << 20));
        for bad in ["", "0", "k", "1G", "20,", "-1", "99999999999999999999"] {
            assert!(first(bad).is_err(), "{bad}");
        }
        assert_eq!(protocol("tls"), Ok(Protocol::Tls));
        assert!(protocol("unknown").is_err());
    }
}
