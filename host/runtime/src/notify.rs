//! Notifies the service manager that started barewire: sd_notify(3), a datagram with lines
//! `NAME=VALUE` to the socket in `NOTIFY_SOCKET`. Without one nothing is sent.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Interval of status messages.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// How long to wait while the manager's queue is full.
const PATIENCE: Duration = Duration::from_millis(200);

/// The service manager, if any.
#[derive(Debug)]
pub struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Half of the manager's watchdog interval.
    watchdog: Option<Duration>,
    alive_at: Instant,
    status_at: Option<Instant>,
}

impl Manager {
    /// The manager named in the environment.
    pub fn from_environment() -> Manager {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        // A watchdog for another process is ignored.
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().into());
        let watchdog = number("WATCHDOG_USEC").filter(|_| is_ours);
        Manager {
            socket: std::env::var_os("NOTIFY_SOCKET").and_then(|name| {
                let name = name.into_string().ok()?;
                let address = match name.strip_prefix('@') {
                    Some(name) => SocketAddr::from_abstract_name(name),
                    None => SocketAddr::from_pathname(&name),
                };
                let socket = UnixDatagram::unbound().ok()?;
                // A manager that does not read must not block the probe.
                socket.set_write_timeout(Some(PATIENCE)).ok()?;
                Some((socket, address.ok()?))
            }),
            watchdog: watchdog.map(|us| Duration::from_micros(us / 2)),
            alive_at: Instant::now(),
            status_at: None,
        }
    }

    /// Whether there is a manager.
    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// Reports readiness, also after a reload.
    pub fn ready(&self) {
        self.say("READY=1");
    }

    /// Reports that the configuration is being reloaded.
    pub fn reloading(&self) {
        // Microseconds on the clock that the manager uses: since boot.
        let now_us = sys::clock::monotonic_ns() / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// Reports that the probe is stopping.
    pub fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// Sends keep-alives and the status when they are due; call it often.
    pub fn pulse(&mut self, status: impl FnOnce() -> String) {
        if self.socket.is_none() {
            return;
        }
        if self
            .watchdog
            .is_some_and(|interval| self.alive_at.elapsed() >= interval)
        {
            self.alive_at = Instant::now();
            self.say("WATCHDOG=1");
        }
        if self
            .status_at
            .is_none_or(|at| at.elapsed() >= STATUS_INTERVAL)
        {
            self.status_at = Some(Instant::now());
            self.say(&format!("STATUS={}", status().replace('\n', " ")));
        }
    }

    fn say(&self, words: &str) {
        if let Some((socket, address)) = &self.socket {
            // Without a service manager there is nothing to notify.
            drop(socket.send_to_addr(words.as_bytes(), address));
        }
    }
}
