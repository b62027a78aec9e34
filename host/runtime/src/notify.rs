//! Notifications to the service manager that started us: sd_notify(3), a datagram with lines
//! `NAME=VALUE` to the socket that `NOTIFY_SOCKET` names. Without one nothing is sent.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// How often the state is reported.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// How long a manager may leave its queue full.
const PATIENCE: Duration = Duration::from_millis(200);

/// A manager, if there is one.
#[derive(Debug)]
pub struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Half of what it waits for a sign of life.
    watchdog: Option<Duration>,
    alive_at: Instant,
    status_at: Option<Instant>,
}

impl Manager {
    /// The one that the environment names.
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
                // A manager that reads nothing must not hold us.
                socket.set_write_timeout(Some(PATIENCE)).ok()?;
                Some((socket, address.ok()?))
            }),
            watchdog: watchdog.map(|us| Duration::from_micros(us / 2)),
            alive_at: Instant::now(),
            status_at: None,
        }
    }

    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// All is ready, also after the configuration was read again.
    pub fn ready(&self) {
        self.say("READY=1");
    }

    /// The configuration is being read again.
    pub fn reloading(&self) {
        // The same clock as that of the manager: since the start of the machine, in microseconds.
        let now_us = sys::clock::monotonic_ns() / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// The end begins.
    pub fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// To be called often: sends keep-alives and the status from time to time.
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
