//! Which packets a peer that has exited had not taken. The model tests (`tests/loom_queue.rs`)
//! compile this module too.

/// What is looked at of an entry in the owner's copy of a ring.
pub(crate) trait Entry: Copy {
    /// Index of the frame.
    fn frame(&self) -> usize;

    /// Whether the frame continues the packet of the previous entry.
    fn follows(&self) -> bool;
}

/// Returns the entries from the peer's position to `head`, `count` of them, of packets whose
/// frames it still `holds`, and marks these frames in `is_kept`, which is all false and as long as
/// the pool.
///
/// `count` is the peer's word, at most the length of the ring.
pub(crate) fn rest<T: Entry>(
    ring: &[T],
    head: u32,
    count: u32,
    is_kept: &mut [bool],
    holds: impl Fn(usize) -> bool,
) -> Vec<T> {
    let mask = ring.len() - 1;
    let entry = |age: u32| ring[head.wrapping_sub(age) as usize & mask];
    // From the newest entry: a frame that was returned early may be in an older one as well.
    let mut usable = vec![false; count as usize];
    for age in 1..=count {
        let frame = entry(age).frame();
        let is_new = !std::mem::replace(&mut is_kept[frame], true);
        usable[(count - age) as usize] = is_new && holds(frame);
    }
    is_kept.fill(false);
    let entries: Vec<T> = (1..=count).rev().map(entry).collect();
    let mut rest = Vec::new();
    let mut at = 0;
    while at < entries.len() {
        let mut end = at + 1;
        while end < entries.len() && entries[end].follows() {
            end += 1;
        }
        // A position within a packet, or a frame returned before it was taken: only a peer that
        // breaks the protocol causes these.
        let is_whole = !entries[at].follows();
        if is_whole && usable[at..end].iter().all(|&usable| usable) {
            for packet in &entries[at..end] {
                is_kept[packet.frame()] = true;
                rest.push(*packet);
            }
        }
        at = end;
    }
    rest
}
