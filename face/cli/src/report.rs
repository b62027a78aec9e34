//! Human-readable packet accounts, on standard error.

use std::io::{self, Write};

use port::{DropReason, PortAccount, PortDescription, PortEvent, QueueAccount};
pub use probe::account::account_json;
pub use probe::text::{bytes, counted, si};

use crate::out::Level;

/// Where a port runs its filter: in its XDP program, on its socket in the kernel, or, if not
/// stated, in user space.
pub fn filter_place(description: &PortDescription) -> &str {
    let mut facts = description.facts.iter();
    let place = facts.find(|(fact, _)| *fact == "filter");
    place.map_or("in user space", |(_, place)| place)
}

/// An event of a port as a line. For several ports the event contains the name.
pub fn event_line(name: &str, event: &PortEvent) -> String {
    match event {
        PortEvent::Of(..) => event.to_string(),
        _ => format!("{name}: {event}"),
    }
}

/// The priority of a port's event.
pub fn event_level(event: &PortEvent) -> Level {
    match event {
        PortEvent::Of(_, event) => event_level(event),
        PortEvent::LinkUp
        | PortEvent::MtuChanged(_)
        | PortEvent::Connected
        | PortEvent::Waiting(_) => Level::Info,
        _ => Level::Warning,
    }
}

/// The loss account of the receiving side, as a table. Reasons that are 0 are omitted.
pub fn write_account(out: &mut impl Write, account: &PortAccount) -> io::Result<()> {
    let total = account.rx_total();
    let reasons: Vec<DropReason> = DropReason::ALL
        .into_iter()
        .filter(|&r| total.dropped[r as usize] != 0)
        .collect();
    let names = account.rx_names.iter().map(String::len);
    let width = names.max().unwrap_or(0).max(7);
    write!(
        out,
        "{:>width$} {:>12} {:>12} {:>12}",
        "queue", "seen", "delivered", "to host"
    )?;
    for reason in &reasons {
        write!(out, " {:>12}", reason.name())?;
    }
    if total.in_flight != 0 {
        write!(out, " {:>12}", "in flight")?;
    }
    writeln!(out, "  account")?;
    let mut row = |name: &str, queue: &QueueAccount| -> io::Result<()> {
        write!(
            out,
            "{name:>width$} {:>12} {:>12} {:>12}",
            queue.seen, queue.delivered, queue.passed
        )?;
        for &reason in &reasons {
            write!(out, " {:>12}", queue.dropped[reason as usize])?;
        }
        if total.in_flight != 0 {
            write!(out, " {:>12}", queue.in_flight)?;
        }
        match queue.imbalance() {
            0 => writeln!(out, "  adds up"),
            missing if missing > 0 => writeln!(out, "  {missing} unaccounted for"),
            surplus => writeln!(out, "  {} counted twice", -surplus),
        }
    };
    for (index, queue) in account.rx.iter().enumerate() {
        let name = account.rx_names.get(index);
        let name = name.map_or_else(|| queue.queue_index.to_string(), String::clone);
        row(&name, queue)?;
    }
    if account.rx.len() != 1 {
        row("all", &total)?;
    }
    if let Some(seen) = account.interface_seen {
        // It also counts before the first and after the last packet seen, and a tap also sees what
        // the host sends: neither count follows from the other.
        writeln!(
            out,
            "interface counter: {seen} received (no filter, longer window; not in the account)"
        )?;
    }
    write_notes(out, &total)
}

/// What the account of capture files says besides its sums.
pub fn write_file_notes(
    out: &mut impl Write,
    account: &PortAccount,
    description: &PortDescription,
) -> io::Result<()> {
    let total = account.rx_total();
    write_notes(out, &total)?;
    let mut facts = description.facts.iter();
    if let Some((_, links)) = facts.find(|(fact, _)| *fact == "filter unsuitable for") {
        writeln!(out, "the filter is not supported on link type {links}")?;
    }
    Ok(())
}

/// Reports packets of capture files that need a remark, if any.
fn write_notes(out: &mut impl Write, total: &QueueAccount) -> io::Result<()> {
    if total.filter_unsuitable != 0 {
        let count = counted(total.filter_unsuitable, "packet");
        writeln!(
            out,
            "{count} rejected because the filter is not supported on their link type"
        )?;
    }
    if total.capture_lost != 0 {
        let count = counted(total.capture_lost, "packet");
        writeln!(out, "{count} lost when the file was captured, as it states")?;
    }
    match total.wire_len_damaged {
        0 => {}
        1 => writeln!(
            out,
            "1 packet has a damaged wire length (above 1 MiB): captured length used instead"
        )?,
        count => writeln!(
            out,
            "{count} packets have damaged wire lengths (above 1 MiB): captured lengths used instead"
        )?,
    }
    if total.time_clamped != 0 {
        let packets = counted(total.time_clamped, "packet");
        writeln!(
            out,
            "{packets} from before 1970 or after 2554: the first or last time of that range used \
             instead"
        )?;
    }
    if total.time_missing != 0 {
        let packets = counted(total.time_missing, "packet");
        writeln!(
            out,
            "{packets} without a time in the file (Simple Packet Block)"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_an_imbalance() {
        let mut queue = QueueAccount {
            seen: 10,
            delivered: 7,
            ..QueueAccount::default()
        };
        queue.dropped[DropReason::RingFull as usize] = 2;
        let mut account = PortAccount {
            rx: vec![queue],
            ..PortAccount::default()
        };
        let text = |account: &PortAccount| {
            let mut out = Vec::new();
            write_account(&mut out, account).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(text(&account).contains("1 unaccounted for"));
        account.rx[0].passed = 1;
        assert!(text(&account).contains("adds up"));
        // More than was seen, which is not a loss.
        account.interface_seen = Some(17);
        let text = text(&account);
        assert!(text.contains("interface counter: 17 received"), "{text}");
        assert!(text.contains("not in the account"), "{text}");
        assert_eq!(account_json(&account)["total"]["dropped"]["ring_full"], 2);
    }
}
