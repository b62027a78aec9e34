//! Accounts and numbers, for people (on standard error) and for programs (JSON).

use std::io::{self, Write};

use port::{DropReason, PortAccount, QueueAccount};
use serde_json::{Map, Value, json};

/// A number with an SI prefix and a unit: `14.88 Mpps`.
pub fn si(value: f64, unit: &str) -> String {
    let (scale, prefix) = match value.abs() {
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let number = value / scale;
    if prefix.is_empty() && number.fract() == 0.0 {
        format!("{number} {unit}")
    } else {
        format!("{number:.2} {prefix}{unit}")
    }
}

/// A count of bytes in binary units: `16.0 MiB`.
pub fn bytes(value: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut number = value as f64;
    let mut at = 0;
    while number >= 1024.0 && at + 1 < units.len() {
        number /= 1024.0;
        at += 1;
    }
    if at == 0 {
        format!("{value} B")
    } else {
        format!("{number:.1} {}", units[at])
    }
}

/// One queue's account as JSON.
pub fn queue_json(queue: &QueueAccount) -> Value {
    let dropped: Map<String, Value> = DropReason::ALL
        .iter()
        .map(|&reason| {
            (
                reason.name().to_owned(),
                queue.dropped[reason as usize].into(),
            )
        })
        .collect();
    json!({
        "queue": queue.queue_index,
        "seen": queue.seen,
        "delivered": queue.delivered,
        "delivered_bytes": queue.delivered_bytes,
        "passed": queue.passed,
        "in_flight": queue.in_flight,
        "dropped": dropped,
        "imbalance": queue.imbalance(),
    })
}

/// A port's account as JSON.
pub fn account_json(account: &PortAccount) -> Value {
    let sending: Vec<Value> = account
        .tx
        .iter()
        .map(|tx| {
            json!({
                "queue": tx.queue_index, "sent": tx.sent, "sent_bytes": tx.sent_bytes,
                "failed": tx.failed, "copied": tx.copied,
            })
        })
        .collect();
    json!({
        "total": queue_json(&account.rx_total()),
        "queues": account.rx.iter().map(queue_json).collect::<Vec<_>>(),
        "sending": sending,
        "interface_seen": account.interface_seen,
        "interface_sent": account.interface_sent,
    })
}

/// The loss account of the receiving side, as a table. Reasons that never happened are left out.
pub fn write_account(out: &mut impl Write, account: &PortAccount) -> io::Result<()> {
    let total = account.rx_total();
    let reasons: Vec<DropReason> = DropReason::ALL
        .into_iter()
        .filter(|&r| total.dropped[r as usize] != 0)
        .collect();
    write!(
        out,
        "{:>7} {:>12} {:>12} {:>12}",
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
            "{name:>7} {:>12} {:>12} {:>12}",
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
    for queue in &account.rx {
        row(&queue.queue_index.to_string(), queue)?;
    }
    if account.rx.len() != 1 {
        row("all", &total)?;
    }
    if let Some(seen) = account.interface_seen {
        writeln!(out, "the interface itself counted {seen} received")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_carry_units() {
        assert_eq!(si(14_880_000.0, "pps"), "14.88 Mpps");
        assert_eq!(si(12.0, "pps"), "12 pps");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(16 << 20), "16.0 MiB");
    }

    #[test]
    fn the_table_says_whether_it_adds_up() {
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
        assert_eq!(account_json(&account)["total"]["dropped"]["ring_full"], 2);
    }
}
