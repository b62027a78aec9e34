//! Detaches packets from their batch: the ring's memory cannot be given away, so a detached packet
//! is copied.

use std::sync::{Arc, OnceLock};

use ring::slot::Slot;
use ring::{Frame, FrameCache, Pool, PoolConfig};
use sys::{Error, ErrorKind, Result};

use crate::account::RxCounters;

/// Number of frames in the pool created at the first `detach` without one: 4 MiB.
const DETACH_FRAMES: u32 = 1024;

/// A queue's access to the port's pool, which is created on demand.
pub(in crate::backend) struct Keep {
    pool: Arc<OnceLock<Pool>>,
    cache: Option<FrameCache>,
    counters: Arc<RxCounters>,
}

impl Keep {
    pub(in crate::backend) fn new(pool: Arc<OnceLock<Pool>>, counters: Arc<RxCounters>) -> Self {
        Self {
            pool,
            cache: None,
            counters,
        }
    }

    /// The pool, if it exists yet.
    pub(in crate::backend) fn pool(&self) -> Option<&Pool> {
        self.pool.get()
    }

    /// Copies the bytes of a slot into a frame.
    ///
    /// # Safety
    /// The queue must own the slot's memory.
    pub(in crate::backend) unsafe fn copy(&mut self, slot: &Slot) -> Result<Frame> {
        let what = "keep a packet";
        let cache = self.cache()?;
        let (len, room) = (slot.cap_len(), cache.pool().frame_len());
        if len > room {
            let why = format!("its {len} bytes do not fit into a frame of {room}");
            return Err(Error::new(ErrorKind::InvalidInput, what, why));
        }
        let Some(mut frame) = cache.take() else {
            let why = "the pool has no free frame";
            return Err(Error::new(ErrorKind::NoSpace, what, why)
                .with_hint("return frames, or open the port with a larger pool"));
        };
        let pool = cache.pool();
        pool.set_range(&mut frame, 0, len);
        // SAFETY: the slot's range was checked when it was made, and is the queue's, as promised.
        let bytes = unsafe { std::slice::from_raw_parts(slot.data().as_ptr(), len as usize) };
        pool.bytes_mut(&mut frame).copy_from_slice(bytes);
        self.counters.detach_copies.add(1);
        Ok(frame)
    }

    fn cache(&mut self) -> Result<&mut FrameCache> {
        let cache = match self.cache.take() {
            Some(cache) => cache,
            None => FrameCache::new(self.pool_or_new()?),
        };
        Ok(self.cache.insert(cache))
    }

    fn pool_or_new(&self) -> Result<Pool> {
        if let Some(pool) = self.pool.get() {
            return Ok(pool.clone());
        }
        let pool = Pool::new(PoolConfig {
            frame_count: DETACH_FRAMES,
            ..PoolConfig::default()
        })?;
        // Another queue of the port may have created it first.
        Ok(self.pool.get_or_init(|| pool).clone())
    }
}
