//! Arithmetic of indirection tables: entry `i` is the queue of packets whose hash ends in `i`.

/// The table without a queue: its entries go to the other queues of the table, the least used
/// first; all other entries stay, and with them the queues of their flows.
pub(super) fn without(table: &[u32], queue: u32, rings: u32) -> Vec<u32> {
    let mut others: Vec<(usize, u32)> = Vec::new();
    for &entry in table.iter().filter(|&&entry| entry != queue) {
        match others.iter_mut().find(|(_, other)| *other == entry) {
            Some((count, _)) => *count += 1,
            None => others.push((1, entry)),
        }
    }
    if others.is_empty() {
        let rest = (0..rings).filter(|&other| other != queue);
        others = rest.map(|other| (0, other)).collect();
    }
    let mut without = table.to_vec();
    for entry in without.iter_mut().filter(|entry| **entry == queue) {
        let Some(least) = others.iter_mut().min() else {
            break;
        };
        least.0 += 1;
        *entry = least.1;
    }
    without
}

/// Whether a table is the kernel's default (`ethtool_rxfh_indir_default`).
pub(super) fn is_default(table: &[u32], rings: u32) -> bool {
    let mut default = (0..rings).cycle();
    rings != 0 && table.iter().all(|&entry| Some(entry) == default.next())
}

/// The difference of two tables for users.
pub(super) fn changes(from: &[u32], to: &[u32]) -> String {
    let changed: Vec<(u32, u32)> = from
        .iter()
        .zip(to)
        .filter(|(from, to)| from != to)
        .map(|(&from, &to)| (from, to))
        .collect();
    let listed = |mut queues: Vec<u32>| {
        queues.sort_unstable();
        queues.dedup();
        let list: Vec<_> = queues.iter().map(u32::to_string).collect();
        let word = if list.len() == 1 { "queue" } else { "queues" };
        format!("{word} {}", list.join(", "))
    };
    let (old, new) = changed.iter().copied().unzip();
    format!(
        "{} of {} entries from {} to {}",
        changed.len(),
        from.len(),
        listed(old),
        listed(new)
    )
}
