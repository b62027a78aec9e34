//! Warnings about interfaces from which no packets will come: a command that waits for packets does
//! not fail, but says what to do.

use port::{Plain, PortName, Target};
use sys::link::Link;

use crate::out::{say, warning};

/// Warns about each of these ports that is an interface which is down or has no carrier, and about
/// taps behind an XDP program.
pub fn warn<'n>(names: impl IntoIterator<Item = &'n str>) {
    for name in names {
        let Ok(name) = PortName::parse(name) else {
            continue;
        };
        let row = name.backend();
        let is_interface = row.is_some_and(|row| row.target == Target::Interface);
        // `any` is no interface; others that do not exist are reported when they are opened.
        let link = Link::by_name(&name.target).ok().filter(|_| is_interface);
        let is_tap = row.is_some_and(|row| row.plain == Plain::Interfaces);
        let problems = link.iter().flat_map(|link| problems(link, is_tap));
        report(&name.target, problems);
    }
}

/// Warns about an interface that is down or has no carrier.
pub fn warn_down(name: &str) {
    let link = Link::by_name(name).ok();
    report(name, link.iter().flat_map(|link| problems(link, false)));
}

fn report(name: &str, problems: impl Iterator<Item = (String, String)>) {
    for (what, hint) in problems {
        warning!("warning: {name}: {what}");
        say!("hint: {hint}");
    }
}

/// What is wrong with an interface, and what to do.
fn problems(link: &Link, is_tap: bool) -> Vec<(String, String)> {
    let name = &link.name;
    let mut found = Vec::new();
    if !link.is_up() {
        let hint = format!("ip link set {name} up");
        found.push(("it is down; packets arrive once it is up".into(), hint));
    } else if !link.is_running() {
        let hint = "check the cable or the other end of the link";
        let what = "it has no carrier; packets arrive once the link is up";
        found.push((what.into(), hint.into()));
    }
    if let Some(xdp) = link.xdp.first().filter(|_| is_tap) {
        let what = format!(
            "the XDP program {} ({}) runs before this tap, which does not see received packets \
             that it drops or redirects",
            xdp.program_id,
            xdp.place.word()
        );
        let hint = format!(
            "`barewire devices {name}` shows who holds it; to share an interface with an AF_XDP \
             program, use `barewire cluster`; `ip link set dev {name} xdp off` detaches one that \
             nobody holds"
        );
        found.push((what, hint));
    }
    found
}
