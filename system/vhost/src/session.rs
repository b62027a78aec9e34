//! The state of one connection: what the front-end has set so far, and the effect of each request.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sys::eventfd::EventFd;

use crate::memory::Memory;
use crate::message::{self, Header, Request, VringAddr, code};
use crate::queues::{Event, Queue, Queues};
use crate::split::{Layout, SIZE_MAX, Vring};
use crate::{feature, protocol_feature};

/// What is set of a vring before it starts.
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    size: u32,
    addr: Option<VringAddr>,
    base: u16,
}

/// A connection with a front-end. Dropping it stops all vrings.
pub struct Session {
    queues: Arc<Queues>,
    features: u64,
    protocol_features: u64,
    memory: Option<Arc<Memory>>,
    settings: Vec<Settings>,
    is_in_use: bool,
}

/// Why the connection must end.
type Refused = String;

impl Session {
    /// A new connection, with all vrings stopped.
    pub fn new(queues: Arc<Queues>) -> Self {
        let settings = vec![Settings::default(); 2 * queues.pair_count() as usize];
        Self {
            queues,
            features: 0,
            protocol_features: 0,
            memory: None,
            settings,
            is_in_use: false,
        }
    }

    /// Handles a message and returns the reply, if it has one.
    ///
    /// # Errors
    /// In words, why the connection must end: the message is invalid, or comes at the wrong time.
    pub fn handle(
        &mut self,
        header: Header,
        payload: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Option<Vec<u8>>, Refused> {
        let request = Request::decode(header.request, payload, fds.len());
        let request =
            request.map_err(|invalid| format!("request {}: {}", header.request, invalid.0))?;
        let reply = match request {
            Request::GetFeatures => Some(feature::OFFERED),
            Request::GetProtocolFeatures => Some(protocol_feature::OFFERED),
            Request::GetQueueNum => Some(self.queues.pair_count().into()),
            Request::GetVringBase(index) => {
                let base = self.queue(index)?.stop();
                let settings = &mut self.settings[index as usize];
                settings.base = base.unwrap_or(settings.base);
                let base = settings.base.into();
                self.report_use();
                return Ok(Some(message::vring_reply(
                    code::GET_VRING_BASE,
                    index,
                    base,
                )));
            }
            _ => {
                self.set(request, fds)
                    .map_err(|why| format!("request {}: {why}", header.request))?;
                let is_wanted =
                    header.needs_reply && self.protocol_features & protocol_feature::REPLY_ACK != 0;
                is_wanted.then_some(0)
            }
        };
        Ok(reply.map(|number| message::reply(header.request, number)))
    }

    fn queue(&self, index: u32) -> Result<&Queue, Refused> {
        let queue = self.queues.get(index);
        queue.ok_or_else(|| format!("there is no vring {index}"))
    }

    /// The queue of a vring that is not started, and its settings.
    fn stopped(&mut self, index: u32) -> Result<&mut Settings, Refused> {
        if self.queue(index)?.is_started() {
            return Err(format!("vring {index} is started"));
        }
        Ok(&mut self.settings[index as usize])
    }

    /// Handles a request without a reply of its own.
    fn set(&mut self, request: Request, fds: Vec<OwnedFd>) -> Result<(), Refused> {
        match request {
            Request::SetFeatures(features) => {
                if features & !feature::OFFERED != 0 {
                    return Err(format!("features {features:#x} were not offered"));
                }
                self.features = features;
            }
            Request::SetProtocolFeatures(features) => {
                if features & !protocol_feature::OFFERED != 0 {
                    return Err(format!("protocol features {features:#x} were not offered"));
                }
                self.protocol_features = features;
            }
            Request::SetMemTable(regions) => self.set_memory(&regions, fds)?,
            Request::SetVringNum(index, size) => {
                if size > SIZE_MAX || !size.is_power_of_two() {
                    return Err(format!("{size} descriptors"));
                }
                self.stopped(index)?.size = size;
            }
            Request::SetVringAddr(index, addr) => self.stopped(index)?.addr = Some(addr),
            Request::SetVringBase(index, base) => {
                let base = u16::try_from(base).map_err(|_| format!("base {base}"))?;
                self.stopped(index)?.base = base;
            }
            Request::SetVringKick(index) => self.start(index, fds)?,
            Request::SetVringCall(index, _) => {
                let call = event(fds)?;
                self.queue(index)?.set_call(call);
            }
            Request::SetVringErr(index, _) => {
                let err = event(fds)?;
                self.queue(index)?.set_err(err);
            }
            Request::SetVringEnable(index, is_enabled) => {
                self.queue(index)?.enable(is_enabled);
                self.report_use();
            }
            Request::NetSetMtu(mtu) => {
                let mtu = u32::try_from(mtu).ok().filter(|mtu| *mtu <= 65535);
                let mtu = mtu.ok_or("the MTU is above 65535")?;
                self.queues.add_event(Event::Mtu(mtu));
            }
            // Nothing depends on them.
            Request::SetOwner | Request::ResetOwner => {}
            // Answered by the caller.
            Request::GetFeatures
            | Request::GetProtocolFeatures
            | Request::GetQueueNum
            | Request::GetVringBase(_) => {}
        }
        Ok(())
    }

    /// Maps the guest's memory; started vrings move to it.
    fn set_memory(
        &mut self,
        table: &[message::Region],
        files: Vec<OwnedFd>,
    ) -> Result<(), Refused> {
        let memory = Memory::map(table, files).map_err(|error| match error.hint() {
            Some(hint) => format!("{} ({hint})", error.why()),
            None => error.why().to_owned(),
        })?;
        let memory = Arc::new(memory);
        for (index, queue) in self.queues.iter().enumerate() {
            if !queue.move_to(&memory) {
                return Err(format!("vring {index} is outside of the new memory table"));
            }
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// Starts a vring.
    fn start(&mut self, index: u32, mut fds: Vec<OwnedFd>) -> Result<(), Refused> {
        let queue = self.queue(index)?;
        let settings = self.settings[index as usize];
        let kick = fds.pop().ok_or("no descriptor")?;
        let (Some(memory), Some(addr)) = (&self.memory, settings.addr) else {
            return Err(format!("vring {index} has no memory or no place yet"));
        };
        if queue.is_started() {
            return Err(format!("vring {index} is started"));
        }
        if self.features & feature::VERSION_1 == 0 {
            return Err("the driver is older than VIRTIO 1.0".into());
        }
        let layout = Layout {
            size: settings.size,
            addr,
            base: settings.base,
            features: self.features,
        };
        let vring = Vring::new(memory.clone(), layout)
            .ok_or_else(|| format!("vring {index} is outside of the memory table"))?;
        // Without the feature there is no message that enables it.
        let by_message = self.features & feature::PROTOCOL_FEATURES != 0;
        let is_enabled = (!by_message).then_some(true);
        EventFd::of_peer(kick.try_clone().map_err(|error| error.to_string())?)
            .map_err(|error| error.why().to_owned())?;
        queue
            .start(vring, kick, is_enabled)
            .map_err(|error| error.to_string())?;
        self.report_use();
        Ok(())
    }

    /// Reports the beginning or the end of the device's use by the guest.
    fn report_use(&mut self) {
        let is_in_use = self.queues.iter().any(|queue| queue.lock().is_running());
        if is_in_use != std::mem::replace(&mut self.is_in_use, is_in_use) {
            let event = if is_in_use {
                Event::Started
            } else {
                Event::Stopped
            };
            self.queues.add_event(event);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.queues.iter().for_each(Queue::reset);
    }
}

/// The descriptor of a message that may have one.
fn event(mut fds: Vec<OwnedFd>) -> Result<Option<EventFd>, Refused> {
    let event = fds.pop().map(EventFd::of_peer).transpose();
    event.map_err(|error| error.why().to_owned())
}
