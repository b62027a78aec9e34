//! Warnings about interfaces from which no packets will come: a command that waits for packets does
//! not fail, but says what to do.

use port::{Plain, PortName, Target};
use sys::link::Link;

use crate::out::{say, warning};

/// Warns about each of these ports that is an interface which is down or has no carrier, and about
/// taps behind an XDP program. Returns the first warning, for a screen on which it is not seen.
pub fn warn<'n>(names: impl IntoIterator<Item = &'n str>) -> Option<String> {
    let mut first = None;
    for name in names {
        let Ok(name) = PortName::parse(name) else {
            continue;
        };
        let row = name.backend();
        let is_interface = row.is_some_and(|row| row.target == Target::Interface);
        // `any` is no interface; others that do not exist are reported when they are opened.
        let link = Link::by_name(&name.target).ok().filter(|_| is_interface);
        let is_tap = row.is_some_and(|row| row.plain == Plain::Interfaces);
        for (what, hint) in link.iter().flat_map(|link| problems(link, is_tap)) {
            let line = report(&name.target, &what, &hint);
            first.get_or_insert(line);
        }
    }
    first
}

/// Warns about an interface that is down or has no carrier.
pub fn warn_down(name: &str) {
    let Ok(link) = Link::by_name(name) else {
        return;
    };
    for (what, hint) in problems(&link, false) {
        report(name, &what, &hint);
    }
}

fn report(name: &str, what: &str, hint: &str) -> String {
    let line = format!("{name}: {what}");
    warning!("warning: {line}");
    say!("hint: {hint}");
    line
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
