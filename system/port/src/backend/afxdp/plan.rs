//! Plans a port: its queues, ring lengths, and number of frames.

use ring::{Pool, PoolConfig};
use sys::ethtool::Ethtool;
use sys::{Error, ErrorKind, Result};

use super::attach::{self, Attachment, Device};
use crate::options::{AttachMode, BindMode, Direction, PortOptions, TimestampSource};
use crate::registry::PortName;

/// Default length of the RX and TX rings: at a million packets per second a reader may be off the
/// processor for 16 ms. With 2 KiB frames that is 64 MiB per receiving queue.
const RING_LEN: u32 = 16384;
/// The kernel's own limit on rings exceeds any sensible amount of memory.
const RING_LEN_MAX: u32 = 1 << 16;
/// Additional frames for caches and batches, for each end of a queue.
const FRAMES_BESIDE: u32 = 512;

/// The requested queues.
pub(super) fn choose_queues(
    name: &PortName,
    options: &PortOptions,
    device: &Device,
) -> Result<Vec<u32>> {
    let interface = &device.link.name;
    let channels = Ethtool::open()?.channels(interface).ok().flatten();
    let hint = match channels {
        Some(_) => format!("ethtool -L {interface} sets the number of queues"),
        None => format!("afxdp:{interface} opens all queues"),
    };
    let in_use = channels.map_or(0, |c| c.combined + c.rx.max(c.tx));
    let in_use = match in_use {
        0 => device.link.rx_queue_max.max(device.link.tx_queue_max),
        count => count,
    }
    .max(1);
    let refuse = |why| {
        Error::new(
            ErrorKind::NotFound,
            format!("open afxdp:{}", name.target),
            why,
        )
        .with_hint(hint.clone())
    };
    let has = match in_use {
        1 => format!("{interface} has 1 queue, number 0"),
        _ => format!("{interface} has {in_use} queues, 0 to {}", in_use - 1),
    };
    if let Some(queue) = name.queue {
        if queue >= in_use {
            return Err(refuse(format!("there is no queue {queue}: {has}")));
        }
        return Ok(vec![queue]);
    }
    let count = match (options.queue_count, options.direction) {
        (0, Direction::Tx) => 1,
        (0, _) => in_use,
        (count, _) if count > in_use => {
            return Err(refuse(format!("{count} queues were requested, but {has}")));
        }
        (count, _) => count,
    };
    Ok((0..count).collect())
}

/// Lengths of the RX and the TX ring of each of `count` queues.
fn ring_lens(options: &PortOptions, count: u32) -> Result<[u32; 2]> {
    if options.ring_len > RING_LEN_MAX {
        let len = options.ring_len;
        let why = format!("a ring of {len} entries is longer than {RING_LEN_MAX}");
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "open an afxdp: port",
            why,
        ));
    }
    if options.ring_len != 0 {
        return Ok([options.ring_len.next_power_of_two().max(64); 2]);
    }
    // Many queues share the load, so each may be shorter.
    let usual = (RING_LEN * 2 / count.next_power_of_two()).clamp(256, RING_LEN);
    let at_most = |len_max: u32| match len_max {
        0 => usual,
        _ => usual.min(len_max.clamp(64, RING_LEN).next_power_of_two()),
    };
    Ok([at_most(options.rx_len_max), at_most(options.tx_len_max)])
}

/// Parameters of the port to open.
pub(super) struct Plan {
    pub queues: Vec<u32>,
    pub has_rx: bool,
    pub has_tx: bool,
    /// Length of each RX ring.
    pub ring_len: u32,
    /// Length of each TX ring.
    pub tx_len: u32,
    /// Number of frames for each queue to receive into.
    pub fill_count: u32,
    frame_count: u32,
}

impl Plan {
    pub(super) fn new(options: &PortOptions, queues: Vec<u32>) -> Result<Self> {
        let count = queues.len() as u32;
        let [ring_len, tx_len] = ring_lens(options, count)?;
        let (has_rx, has_tx) = (options.direction.has_rx(), options.direction.has_tx());
        // Twice the RX ring: a slow reader then fills the ring before the kernel runs out of
        // frames, and the account shows the right reason.
        let rx_frames = 2 * ring_len;
        let own = u32::from(has_rx) * (rx_frames + FRAMES_BESIDE)
            + u32::from(has_tx) * (tx_len + FRAMES_BESIDE);
        let fill_count = match &options.pool {
            None => rx_frames,
            Some(pool) => {
                // A pool from the caller has other users: each queue takes at most its share of one
                // half.
                let part = pool.frame_count() / 2 / count;
                if part < 16 {
                    let why = format!(
                        "a pool of {} frames is too small for {count} queues",
                        pool.frame_count()
                    );
                    return Err(Error::new(ErrorKind::NoSpace, "open an afxdp: port", why)
                        .with_hint(format!("{} frames are enough", 2 * own * count)));
                }
                part.min(rx_frames)
            }
        };
        Ok(Self {
            has_rx,
            has_tx,
            ring_len,
            tx_len,
            fill_count,
            frame_count: own.saturating_mul(count),
            queues,
        })
    }

    /// Number of frames that each queue gives the kernel to receive into. A send-only queue needs
    /// some in zero-copy mode, because the card continues to receive for the host; all others are
    /// for packets to send.
    pub(super) fn fill_frames(&self, zero_copy: bool) -> u32 {
        match (self.has_rx, zero_copy) {
            (true, _) => self.fill_count,
            (false, true) => (self.fill_count / 4).min(FRAMES_BESIDE / 2),
            (false, false) => 0,
        }
    }

    pub(super) fn pool(&self, options: &PortOptions, device: &Device) -> Result<Pool> {
        match &options.pool {
            Some(pool) => Ok(pool.clone()),
            None => Pool::new(self.frames(device)),
        }
    }

    /// Configuration of a pool of its own.
    pub(super) fn frames(&self, device: &Device) -> PoolConfig {
        PoolConfig {
            frame_count: self.frame_count,
            frame_len: device.frame_len,
            ..PoolConfig::default()
        }
    }

    /// Sending alone needs no program, but some drivers set up their zero-copy rings only with one:
    /// a program that passes everything is then attached, unless another one is attached already.
    pub(super) fn attach(
        &self,
        device: &Device,
        options: &PortOptions,
    ) -> Result<Option<Attachment>> {
        let queue_max = self.queue_max(device);
        if options.sockets.is_some() {
            return Ok(None);
        }
        if self.has_rx {
            return attach::attach(device, queue_max, options).map(Some);
        }
        let zero_copy = options.bind != BindMode::Copy && device.may_zero_copy();
        if !zero_copy || !device.link.xdp.is_empty() {
            return Ok(None);
        }
        let native = PortOptions {
            attach: AttachMode::Native,
            timestamp: TimestampSource::None,
            filter: None,
            ..options.clone()
        };
        match attach::attach(device, queue_max, &native) {
            Err(error) if options.bind == BindMode::ZeroCopy => Err(error),
            result => Ok(result.ok()),
        }
    }

    /// Number of queues that the program counts: the maximum that the interface can have.
    pub(super) fn queue_max(&self, device: &Device) -> u32 {
        let highest = self.queues.iter().max().map_or(1, |queue| queue + 1);
        highest.max(device.link.rx_queue_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_as_long_as_their_user_needs() {
        let lens = |options: PortOptions, count| ring_lens(&options, count).unwrap();
        let usual = PortOptions::default();
        assert_eq!(lens(usual.clone(), 1), [RING_LEN; 2]);
        assert_eq!(lens(usual.clone(), 64), [512; 2]);
        let short = PortOptions {
            rx_len_max: 4000,
            tx_len_max: 1024,
            ..usual.clone()
        };
        assert_eq!(lens(short.clone(), 1), [4096, 1024]);
        // Never longer than without a limit.
        assert_eq!(lens(short.clone(), 64), [512, 512]);
        // The user's own length applies to both.
        let own = PortOptions {
            ring_len: 8192,
            ..short
        };
        assert_eq!(lens(own, 1), [8192; 2]);
        let too_long = PortOptions {
            ring_len: RING_LEN_MAX + 1,
            ..usual
        };
        assert!(ring_lens(&too_long, 1).is_err());
    }

    #[test]
    fn frames_are_left_for_sending() {
        let pool = Pool::new(PoolConfig {
            frame_count: 4096,
            ..PoolConfig::default()
        });
        let shared = pool.unwrap();
        for pool in [None, Some(shared)] {
            for queues in [1, 2, 8] {
                let options = |direction| PortOptions {
                    direction,
                    pool: pool.clone(),
                    ..PortOptions::default()
                };
                let plan = |direction| {
                    let options = options(direction);
                    Plan::new(&options, (0..queues).collect()).unwrap()
                };
                let (rx, tx) = (plan(Direction::Rx), plan(Direction::Tx));
                assert_eq!(tx.fill_frames(false), 0);
                // From its own pool, or from one that a receiving port uses as well.
                let (all, received) = match &pool {
                    None => (tx.frame_count, 0),
                    Some(pool) => (pool.frame_count(), queues * rx.fill_frames(true)),
                };
                let borrowed = queues * tx.fill_frames(true) + received;
                assert!(
                    borrowed + queues * 64 <= all,
                    "{borrowed} of {all}, {queues} queues"
                );
            }
        }
    }
}
