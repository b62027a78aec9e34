//! The state of a `pcap_t`.

use bpf::cbpf::{Insn, Program};
use bpf::vm_cbpf;

use crate::failure::{ERROR, ErrorText, Failure, NOT_ACTIVATED, Result};
use crate::live::{Live, Next};
use crate::savefile::{Header, Reader};

/// The state of a handle, except what other threads access.
pub struct State {
    /// The last error.
    pub error: ErrorText,
    /// The source of packets.
    pub kind: Kind,
    /// The filter, if any.
    pub filter: Option<Program>,
    /// The link type, as a `DLT_` number.
    pub dlt: i32,
    /// The other bits of a file's link type field.
    pub dlt_ext: i32,
    /// Bytes to keep per packet.
    pub snaplen: i32,
    /// Whether timestamps are in nanoseconds rather than microseconds.
    pub nanoseconds: bool,
    /// The current packet.
    pub data: Vec<u8>,
}

/// The source of a handle's packets.
pub enum Kind {
    /// None yet: `pcap_create`.
    Created(Settings),
    /// None: `pcap_open_dead`.
    Dead,
    /// A capture file.
    Savefile(Reader),
    /// A device.
    Live(Box<Live>),
}

/// Settings of a handle before activation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of the device.
    pub device: String,
    /// Bytes to keep per packet.
    pub snaplen: i32,
    /// Whether packets for other stations are received.
    pub promiscuous: bool,
    /// Whether packets are delivered immediately.
    pub immediate: bool,
    /// The timestamp type, a `PCAP_TSTAMP_` number.
    pub timestamp_type: i32,
    /// EtherType of the packets received; 0 for all.
    pub protocol: u16,
    /// Whether monitor mode is requested.
    pub monitor: bool,
    /// How long packets may be buffered.
    pub timeout_ms: i32,
    /// Size of the ring in bytes; 0 is the port's choice.
    pub buffer_bytes: i32,
    /// Whether reads do not wait.
    pub nonblocking: bool,
}

impl Settings {
    /// The default settings of a device.
    pub fn new(device: String) -> Self {
        Self {
            device,
            snaplen: 0,
            promiscuous: false,
            immediate: false,
            timestamp_type: 0,
            protocol: 0,
            monitor: false,
            timeout_ms: 0,
            buffer_bytes: 0,
            nonblocking: false,
        }
    }
}

impl State {
    /// Creates a handle of this kind.
    pub fn new(kind: Kind, dlt: i32, snaplen: i32, nanoseconds: bool) -> Self {
        Self {
            error: ErrorText::new(),
            kind,
            filter: None,
            dlt,
            dlt_ext: 0,
            snaplen,
            nanoseconds,
            data: Vec::new(),
        }
    }

    /// Creates a handle that reads a capture file.
    pub fn savefile(reader: Reader, nanoseconds: bool) -> Self {
        let facts = *reader.facts();
        let kind = Kind::Savefile(reader);
        let mut state = Self::new(kind, facts.dlt, facts.snaplen, nanoseconds);
        state.dlt_ext = facts.dlt_ext;
        state
    }

    /// Checks that it is activated or dead.
    ///
    /// # Errors
    /// `NOT_ACTIVATED` with an explanation.
    pub fn activated(&self) -> Result<()> {
        match self.kind {
            Kind::Created(_) => Err(Failure::of(
                NOT_ACTIVATED,
                "This handle hasn't been activated yet",
            )),
            _ => Ok(()),
        }
    }

    /// Reads the next packet that the filter selects into `data`. Waits for it if `may_wait`.
    ///
    /// # Errors
    /// The error of the file or device.
    pub fn next(&mut self, may_wait: bool) -> Result<Next> {
        if let Kind::Live(live) = &mut self.kind {
            let filter = self.filter.as_ref();
            return live.next(filter, self.nanoseconds, may_wait, &mut self.data);
        }
        let Kind::Savefile(reader) = &mut self.kind else {
            self.activated()?;
            return Err(Failure::new(
                "Packets aren't available from a pcap_open_dead pcap_t",
            ));
        };
        let Some(header) = reader.next(&mut self.data)? else {
            return Ok(Next::End);
        };
        let is_selected = match &self.filter {
            Some(filter) => vm_cbpf::run(filter, &self.data, header.wire_len) != 0,
            None => true,
        };
        Ok(match is_selected {
            true => Next::Packet(header),
            // Between two packets the caller checks whether it must stop.
            false => Next::Rejected,
        })
    }

    /// As [`Live::next_held`]; `None` also for a source of another kind.
    #[inline]
    pub fn next_held(&mut self) -> Option<(Header, *const u8)> {
        match &mut self.kind {
            Kind::Live(live) => live.next_held(self.filter.is_some(), self.nanoseconds),
            _ => None,
        }
    }

    /// Copies the current packet if it is in the device's memory, and the last there; returns where
    /// it is then.
    pub fn keep_last(&mut self) -> Option<*const u8> {
        let Kind::Live(live) = &mut self.kind else {
            return None;
        };
        live.keep_last(&mut self.data).then_some(self.data.as_ptr())
    }

    /// Ends a wait for packets before it is over.
    pub fn end_wait(&mut self) {
        if let Kind::Live(live) = &mut self.kind {
            live.end_wait();
        }
    }

    /// Ends a call that read packets: the current one is no longer valid unless it was copied.
    ///
    /// # Errors
    /// The error of the device.
    pub fn finish(&mut self) -> Result<()> {
        match &mut self.kind {
            Kind::Live(live) => live.finish(),
            _ => Ok(()),
        }
    }

    /// Checks that it can have a filter.
    ///
    /// # Errors
    /// If it is dead or not activated.
    pub fn takes_filter(&self) -> Result<()> {
        self.activated()?;
        match self.kind {
            Kind::Dead => Err(Failure::new(
                "A filter cannot be set on a pcap_open_dead pcap_t",
            )),
            _ => Ok(()),
        }
    }

    /// Sets the filter.
    ///
    /// # Errors
    /// For an invalid program, and for a handle that takes no filter.
    pub fn set_filter(&mut self, insns: Vec<Insn>) -> Result<()> {
        self.takes_filter()?;
        let program = Program::long(insns).map_err(|_| Failure::new("BPF program is not valid"))?;
        if let Kind::Live(live) = &mut self.kind {
            live.set_filter(&program)?;
        }
        self.filter = Some(program);
        Ok(())
    }

    /// The error of a function that needs a live capture: with texts for savefiles and for dead
    /// handles.
    pub fn not_live(&self, savefile: &str, dead: &str) -> Failure {
        match self.kind {
            Kind::Created(_) => Failure::of(NOT_ACTIVATED, "This handle hasn't been activated yet"),
            Kind::Dead => Failure::of(ERROR, format!("{dead} a pcap_open_dead pcap_t")),
            Kind::Savefile(_) | Kind::Live(_) => Failure::of(ERROR, savefile),
        }
    }
}
