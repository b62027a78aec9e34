//! What is checked before the first probe, and how the scan has ended.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::net::IpAddr;
use std::path::Path;

use ::scan::Shard;
use runtime::scan::{Outcome, Saved, Scan};
use sys::{Error, ErrorKind, Result};

use super::parse::Seed;
use super::show::{counted, span};
use super::{random, refused};
use crate::report::si;

/// Probes times packets per second above which a scan has to be confirmed.
const CONFIRM_ABOVE: f64 = 1e12;

/// The system's error for a closed pipe (errno(3)).
pub const EPIPE: i32 = 32;

/// The seed that was given, that of the scan to resume, or a random one.
///
/// # Errors
/// Without a seed that all shards share.
pub fn seed(given: Option<Seed>, saved: Option<Saved>, shard: Shard) -> Result<u64> {
    match (given, saved) {
        (Some(Seed::Number(seed)), _) => Ok(seed),
        (_, Some(saved)) => Ok(saved.seed),
        _ if shard.count > 1 => {
            let what = format!("scan shard {}/{}", shard.index + 1, shard.count);
            let why = "without --seed NUMBER each shard orders the probes differently: some would \
                       be sent by several shards, others by none";
            Err(refused(&what, why.into())
                .with_hint("give all shards the same number, for example --seed 7"))
        }
        _ => Ok(u64::from_ne_bytes(random()?)),
    }
}

/// Checks that a state file belongs to this scan.
///
/// # Errors
/// If it does not.
pub fn same(scan: &Scan, saved: &Saved, path: &Path) -> Result<()> {
    let order = scan.plan().order();
    if saved.fingerprint == scan.fingerprint() && saved.seed == order.seed {
        return Ok(());
    }
    let what = format!("resume the scan in {}", path.display());
    let why = "it was saved by a scan with other targets, ports, shard, retries or seed";
    Err(refused(&what, why.into()).with_hint("give the same arguments, or another file"))
}

/// Refuses two addresses of the same IP version.
///
/// # Errors
/// If there are two.
pub fn one_of_a_family(what: &str, addrs: &[IpAddr]) -> Result<()> {
    let count = |is_ipv4| {
        addrs
            .iter()
            .filter(|addr| addr.is_ipv4() == is_ipv4)
            .count()
    };
    match count(true) > 1 || count(false) > 1 {
        true => Err(refused(
            what,
            "two of them have the same IP version".to_owned(),
        )),
        false => Ok(()),
    }
}

/// Asks whether a large scan is meant, on a terminal.
///
/// # Errors
/// If it is not, and without a terminal.
pub fn confirm(scan: &Scan, is_confirmed: bool) -> Result<()> {
    let probes = scan.plan().probe_count().saturating_sub(scan.setup().from);
    let pps = scan.pps_max();
    if is_confirmed || !is_large(probes, pps) {
        return Ok(());
    }
    let size = format!(
        "{} at up to {} (about {})",
        counted(probes, "probe", "probes"),
        si(pps, "pps"),
        span(scan.plan().seconds(scan.setup().from, pps))
    );
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        let why = format!("{size} have to be confirmed, and there is no terminal to ask on");
        return Err(refused("start the scan", why).with_hint("--yes confirms it"));
    }
    let mut line = String::new();
    let asked = write!(io::stderr(), "send {size}? [y/N] ");
    let read = asked.and_then(|()| io::stdin().lock().read_line(&mut line));
    read.map_err(|error| Error::from_io("ask whether to send so large a scan", error))?;
    match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(refused("scan", "it was not confirmed".into())
            .with_hint("give fewer targets or a lower --rate; --dry-run shows what is sent")),
    }
}

fn is_large(probes: u128, pps: f64) -> bool {
    probes as f64 * pps > CONFIRM_ABOVE
}

/// How a scan has ended, unless by an error of its own.
///
/// # Errors
/// `Incomplete` if probes are left, `Lost` if answers may be.
pub fn ended(outcome: &Outcome, state: Option<&Path>) -> Result<()> {
    let totals = &outcome.totals;
    if !outcome.is_complete {
        let left = counted(totals.probes.saturating_sub(totals.next), "probe", "probes");
        let is_closed = |error: &Error| error.os_code() == Some(EPIPE);
        let cause = match outcome.error.as_ref().is_some_and(is_closed) {
            true => "standard output was closed",
            false => "it was stopped",
        };
        let why = format!("{cause}, and {left} were not sent");
        let hint = match state {
            Some(path) => format!("the same command resumes it from {}", path.display()),
            None => "with --state FILE, a scan can be resumed".to_owned(),
        };
        return Err(Error::new(ErrorKind::Incomplete, "complete the scan", why).with_hint(hint));
    }
    match totals.lost {
        0 => Ok(()),
        lost => {
            let why = format!("{lost} received packets were lost; they may include responses");
            Err(Error::new(ErrorKind::Lost, "receive all responses", why)
                .with_hint("scan at a lower --rate"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_need_a_seed_that_all_of_them_share() {
        let shard = |text| Shard::parse(text).unwrap();
        let saved = Saved {
            fingerprint: 1,
            seed: 9,
            block: 1,
            next: 0,
        };
        assert_eq!(seed(Some(Seed::Number(7)), None, shard("2/3")).unwrap(), 7);
        assert_eq!(seed(None, Some(saved), shard("2/3")).unwrap(), 9);
        assert!(seed(None, None, shard("1/1")).is_ok());
        for given in [None, Some(Seed::New)] {
            let error = seed(given, None, shard("2/3")).unwrap_err();
            assert!(error.to_string().contains("shard 2/3"), "{error}");
            assert!(error.hint().unwrap().contains("--seed 7"));
        }
    }

    #[test]
    fn scans_of_many_probes_at_a_high_rate_are_large() {
        for (probes, pps, expected) in [
            (1 << 24, 50_000.0, false),
            (1 << 24, 60_000.0, true),
            (1 << 32, 100.0, false),
            (1 << 32, 1_000.0, true),
            (65_536 * 1_000, 10_000.0, false),
            (1 << 64, 100.0, true),
        ] {
            assert_eq!(is_large(probes, pps), expected, "{probes} {pps}");
        }
    }
}
