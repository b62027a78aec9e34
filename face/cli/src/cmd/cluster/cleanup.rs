//! Options of `cluster run` that clean up the traffic of applications.

use std::time::Duration;

use flow::cleanup::ShuntLimits;
use runtime::cluster::{Application, DEDUPLICATE_DEFAULT, Detunnel, parse_deduplicate};
use sys::{Error, ErrorKind, Result};

/// Options.
#[derive(clap::Args)]
#[command(next_help_heading = "Clean-up")]
pub(super) struct CleanupArgs {
    /// Hand over only the start of each flow: bytes (64k, 1M), packets (20), encrypted (until both
    /// sides of a TLS, SSH or QUIC connection are encrypted), or several, whichever is first
    /// (64k,encrypted). /direction behind bytes and packets: of each direction. Attacks behind the
    /// limit are not found. APP= in front: of this application only; repeat for several
    #[arg(long, value_name = "[APP=]LIMITS", value_parser = parse_shunt)]
    shunt: Vec<Of<ShuntLimits>>,
    /// Leave out packets that are equal, from the IP header on, to one received at most MS
    /// milliseconds (10) before, as from mirror ports; others than IP if they are equal as a whole
    #[arg(long, value_name = "[APP=]MS", value_parser = parse_window)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "")]
    deduplicate: Vec<Of<Duration>>,
    /// Hand over the packet inside tunnels (GRE, ERSPAN, VXLAN, GENEVE, GTP-U, L2TP, MPLS, IP in IP
    /// and so on) as an Ethernet packet; tags: without VLAN tags, too
    #[arg(long, value_name = "[APP=]tunnels|tags", value_parser = parse_detunnel)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "")]
    detunnel: Vec<Of<Detunnel>>,
}

/// A value for one application, or for all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Of<T> {
    application: Option<String>,
    value: T,
}

/// Parses a value, `APP=` and a value, or only `APP` if there is a value by default.
fn parse<T>(
    text: &str,
    default: Option<T>,
    value: impl Fn(&str) -> std::result::Result<T, String>,
) -> std::result::Result<Of<T>, String> {
    // A number names no application.
    let is_name = || !text.is_empty() && text.parse::<u64>().is_err() && value(text).is_err();
    let (application, rest) = match (text.split_once('='), &default) {
        (Some((name, rest)), _) => (Some(name.to_owned()), rest),
        (None, Some(_)) if is_name() => (Some(text.to_owned()), ""),
        (None, _) => (None, text),
    };
    let value = match default {
        Some(default) if rest.is_empty() => default,
        _ => value(rest)?,
    };
    Ok(Of { application, value })
}

fn parse_shunt(text: &str) -> std::result::Result<Of<ShuntLimits>, String> {
    parse(text, None, ShuntLimits::parse)
}

fn parse_window(text: &str) -> std::result::Result<Of<Duration>, String> {
    parse(text, Some(DEDUPLICATE_DEFAULT), parse_deduplicate)
}

fn parse_detunnel(text: &str) -> std::result::Result<Of<Detunnel>, String> {
    parse(text, Some(Detunnel::Tunnels), Detunnel::parse)
}

/// Sets the values of the applications; one that is for a single application counts more than one
/// for all.
fn set<T: Clone>(
    option: &str,
    values: &[Of<T>],
    applications: &mut [Application],
    place: impl Fn(&mut Application) -> &mut Option<T>,
) -> Result<()> {
    for of in values.iter().filter(|of| of.application.is_none()) {
        for application in &mut *applications {
            *place(application) = Some(of.value.clone());
        }
    }
    for of in values {
        let Some(name) = &of.application else {
            continue;
        };
        let Some(application) = applications.iter_mut().find(|it| it.name == *name) else {
            let why = format!("there is no application {name}");
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("use {option}"),
                why,
            ));
        };
        *place(application) = Some(of.value.clone());
    }
    Ok(())
}

impl CleanupArgs {
    /// The options that are given, with the key that a topology file has instead.
    pub fn given(&self) -> [(bool, &'static str, &'static str); 3] {
        [
            (!self.shunt.is_empty(), "--shunt", "shunt"),
            (!self.deduplicate.is_empty(), "--deduplicate", "deduplicate"),
            (!self.detunnel.is_empty(), "--detunnel", "detunnel"),
        ]
    }

    /// Sets what is removed from the packets of the applications.
    ///
    /// # Errors
    /// If an option names an application that there is not.
    pub fn apply(&self, applications: &mut [Application]) -> Result<()> {
        set("--shunt", &self.shunt, applications, |it| {
            &mut it.cleanup.shunt
        })?;
        set("--deduplicate", &self.deduplicate, applications, |it| {
            &mut it.cleanup.deduplicate
        })?;
        set("--detunnel", &self.detunnel, applications, |it| {
            &mut it.cleanup.detunnel
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_for_all_applications_or_for_one() {
        let of = |name: &str, ms| Of {
            application: Some(name.to_owned()).filter(|name| !name.is_empty()),
            value: Duration::from_millis(ms),
        };
        for (text, expected) in [
            ("", of("", 10)),
            ("20", of("", 20)),
            ("ids", of("ids", 10)),
            ("ids=20", of("ids", 20)),
        ] {
            assert_eq!(parse_window(text), Ok(expected), "{text}");
        }
        assert!(parse_window("ids=x").is_err() && parse_window("2000").is_err());
        assert!(parse_shunt("ids").is_err() && parse_shunt("ids=").is_err());
        let tags = parse_detunnel("ids=tags").unwrap();
        assert_eq!(
            (tags.application.as_deref(), tags.value),
            (Some("ids"), Detunnel::Tags)
        );
        let args = CleanupArgs {
            shunt: vec![parse_shunt("ids=1M").unwrap(), parse_shunt("64k").unwrap()],
            deduplicate: vec![of("flows", 7)],
            detunnel: Vec::new(),
        };
        let mut applications = ["ids", "flows"].map(|name| Application::new(name, 1));
        args.apply(&mut applications).unwrap();
        let shunt = applications
            .each_ref()
            .map(|it| it.cleanup.shunt.unwrap().to_string());
        assert_eq!(shunt, ["1M", "64k"]);
        assert_eq!(
            applications.map(|it| it.cleanup.deduplicate.is_some()),
            [false, true]
        );
        assert!(args.apply(&mut [Application::new("ids", 1)]).is_err());
    }
}
