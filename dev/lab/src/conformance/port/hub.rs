//! What is between the ports of a line if it is neither a wire nor a ring: a cluster, or guests.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use port::{Direction, Port, PortOptions};
use runtime::Stop;
use runtime::cluster::{self, Application, Outcome, Setup};
use vhost::testing::FrontEnd;

use super::line::reported;

/// Length of the queues of a cluster, unless the options of the line say another.
const RING_LEN: u32 = 4096;

fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{what}-{}-{number}", std::process::id())
}

fn socket() -> PathBuf {
    std::env::temp_dir().join(unique("barewire-conformance"))
}

/// A running cluster or two guests; ended by [`stop`](Self::stop) or on drop.
pub(super) enum Hub {
    /// Readers of the first application send to the second one. The input has no packets.
    Cluster {
        name: String,
        stop: Stop,
        thread: Option<JoinHandle<Outcome>>,
        input: PathBuf,
    },
    /// What a guest receives from one port it sends to the other.
    Guests {
        sockets: [PathBuf; 2],
        is_over: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    },
}

impl Hub {
    /// Starts a cluster.
    pub(super) fn cluster(options: &PortOptions) -> Result<Hub> {
        let (name, input, stop) = (unique("lab"), socket(), Stop::new());
        let setup = Setup {
            name: name.clone(),
            // No guest ever connects.
            inputs: vec![format!("vm:{}", input.display())],
            applications: vec![
                Application::new("one", 1),
                Application {
                    source: Some("one".into()),
                    ..Application::new("two", 1)
                },
            ],
            ring_len: match options.ring_len {
                0 => RING_LEN,
                len => len,
            },
            filter: runtime::filter::Expression::default(),
            merge: None,
            returns: Vec::new(),
            options: PortOptions::default(),
            allow: Vec::new(),
            user: None,
        };
        let opened = cluster::open(&setup).map_err(reported)?;
        let is_over = stop.clone();
        let run = move || cluster::run(opened, &cluster::Options::default(), &is_over, |_| ());
        let thread = Some(std::thread::spawn(run));
        Ok(Hub::Cluster {
            name,
            stop,
            thread,
            input,
        })
    }

    /// Sockets for two guests, which connect once the ports are open.
    pub(super) fn guests() -> Hub {
        Hub::Guests {
            sockets: [socket(), socket()],
            is_over: Arc::default(),
            thread: None,
        }
    }

    /// Opens the sending (0) or the receiving (1) port.
    pub(super) fn open(&self, index: usize, options: &PortOptions) -> Result<Port> {
        let name = match self {
            Hub::Cluster { name, .. } => format!("ring:{name}/{}", ["one", "two"][index]),
            Hub::Guests { sockets, .. } => format!("vm:{}", sockets[index].display()),
        };
        let both = PortOptions {
            direction: match index {
                0 => Direction::Both,
                _ => Direction::Rx,
            },
            ..options.clone()
        };
        port::open(&name, &both).map_err(reported)
    }

    /// Called once both ports are open: guests connect.
    pub(super) fn connect(&mut self, ports: [&mut Port; 2]) -> Result<()> {
        let Hub::Guests {
            sockets,
            is_over,
            thread,
        } = self
        else {
            return Ok(());
        };
        // The first call of a queue listens.
        for port in ports {
            for rx in &mut port.rx {
                drop(rx.receive().map_err(reported)?);
            }
        }
        let options = vhost::testing::Options::default();
        let connect = |path: &PathBuf| FrontEnd::connect(path, options).map_err(reported);
        let (mut first, mut second) = (connect(&sockets[0])?, connect(&sockets[1])?);
        let is_over = is_over.clone();
        *thread = Some(std::thread::spawn(move || {
            let mut packet = None;
            while !is_over.load(Ordering::Relaxed) {
                packet = packet.or_else(|| first.receive(0));
                match packet.take() {
                    Some(one) if second.send(0, &one) => {}
                    rest => {
                        packet = rest;
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
            }
        }));
        Ok(())
    }

    /// A cluster ends in order: its readers receive what is in their queues.
    pub(super) fn stop(&self) {
        match self {
            Hub::Cluster { stop, .. } => stop.set(),
            Hub::Guests { is_over, .. } => is_over.store(true, Ordering::Relaxed),
        }
    }

    /// Waits for the end; everything that passed is accounted for.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.stop();
        match self {
            Hub::Guests { thread, .. } => match thread.take().map(JoinHandle::join) {
                Some(Err(_)) => Err(anyhow!("the guests' thread panicked")),
                _ => Ok(()),
            },
            Hub::Cluster { thread, .. } => {
                let outcome = thread.take().context("it has ended")?.join();
                let outcome = outcome.map_err(|_| anyhow!("the cluster panicked"))?;
                if let Some(error) = outcome.error {
                    return Err(reported(error));
                }
                let (imbalance, queues) = (outcome.imbalance(), &outcome.queues);
                ensure!(imbalance == 0, "{imbalance} unaccounted for: {queues:?}");
                let refused: u64 = queues.iter().map(|queue| queue.sent.refused).sum();
                ensure!(refused == 0, "{refused} refused: {queues:?}");
                Ok(())
            }
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.stop();
        let paths = match self {
            Hub::Cluster { thread, input, .. } => {
                let _ = thread.take().map(JoinHandle::join);
                vec![input.clone()]
            }
            Hub::Guests {
                thread, sockets, ..
            } => {
                let _ = thread.take().map(JoinHandle::join);
                sockets.to_vec()
            }
        };
        for path in paths {
            let _ = std::fs::remove_file(path);
        }
    }
}
