//! Watches the packets that arrive at an interface while something else runs.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wire::{Dissection, LinkType, dissect};

use crate::packet::Raw;

/// Sets a flag when it is dropped, also by a panic: ends the thread that looks at the flag.
pub struct Ending<'a>(pub &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// How long packets may still arrive after the body has ended, where others are never silent.
const REST: Duration = Duration::from_secs(1);

/// Runs `body`, and meanwhile calls `each` for every packet that arrives at the socket, in another
/// thread: until nothing has arrived for a moment after its end, at most a second. Errors of the
/// socket are ignored: it reports one when the interface is set down.
pub fn packets<T>(raw: &Raw, mut each: impl FnMut(&[u8]) + Send, body: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut end = None;
            loop {
                // Packets sent before the end are in the socket by then.
                let is_over = over.load(Ordering::Acquire);
                if is_over && *end.get_or_insert_with(Instant::now) + REST < Instant::now() {
                    return;
                }
                match raw.receive(Duration::from_millis(50)) {
                    Ok(Some(packet)) => each(&packet),
                    _ if is_over => return,
                    _ => {}
                }
            }
        });
        let _ending = Ending(&over);
        body()
    })
}

/// Runs `body`, and counts the SYNs that arrive meanwhile, by address and port.
pub fn syns<T>(raw: &Raw, body: impl FnOnce() -> T) -> (T, HashMap<(IpAddr, u16), usize>) {
    let mut counts = HashMap::new();
    let count = |packet: &[u8]| {
        let mut found = Dissection::EMPTY;
        dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut found);
        if found.ip_protocol == 6
            && found.tcp_flags == 2
            && let Some(addr) = found.dst_addr()
        {
            *counts.entry((addr, found.dst_port)).or_default() += 1;
        }
    };
    let result = packets(raw, count, body);
    (result, counts)
}
