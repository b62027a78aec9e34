//! The system's libndpi: recognises several hundred application protocols by the first packets of
//! flows.
//!
//! It is loaded on demand, not linked. Its structures change with each release, so only its
//! functions are used, and only of releases whose signatures are known here (ndpi_api.h of 4.2);
//! other releases are refused. The state of flows is in memory that was reserved here, for a fixed
//! number of flows; what the library allocates for a flow besides is freed with it.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ushort};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::dynamic::{self, functions};
use crate::{Error, ErrorKind, Result};

const NAMES: [&CStr; 2] = [c"libndpi.so.4.2", c"libndpi.so"];

/// The release with these signatures, and the version number of its interface.
const RELEASE: &str = "4.2.";
const API_VERSION: u16 = 8668;
/// `NDPI_PROTOCOL_UNKNOWN`.
const UNKNOWN: u16 = 0;
/// More bits than `NDPI_PROTOCOL_BITMASK` (512) has.
const ALL_PROTOCOLS: [u64; 64] = [u64::MAX; 64];
/// `ndpi_no_prefs`.
const NO_PREFERENCES: u32 = 0;
/// Space for a name and that of the protocol that carries it.
const NAME_LEN: usize = 64;
/// An upper limit of the size of a flow's state in any release.
const FLOW_LEN_MAX: usize = 64 << 10;

/// `struct ndpi_detection_module_struct`, whose layout is not known here.
#[repr(C)]
struct Module {
    opaque: [u8; 0],
}

/// `struct ndpi_flow_struct`, likewise.
#[repr(C)]
struct Flow {
    opaque: [u8; 0],
}

/// What a flow carries: `ndpi_protocol`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Protocol {
    master: u16,
    app: u16,
    category: c_int,
}

impl Protocol {
    /// Whether any protocol was recognised.
    pub fn is_known(&self) -> bool {
        self.master != UNKNOWN || self.app != UNKNOWN
    }
}

type Init = unsafe extern "C" fn(u32) -> *mut Module;
type SetBitmask = unsafe extern "C" fn(*mut Module, *const u64);
type Finalize = unsafe extern "C" fn(*mut Module);
type Exit = unsafe extern "C" fn(*mut Module);
type FlowLen = unsafe extern "C" fn() -> u32;
type FreeFlow = unsafe extern "C" fn(*mut Flow);
type Process = unsafe extern "C" fn(*mut Module, *mut Flow, *const u8, c_ushort, u64) -> Protocol;
type GiveUp = unsafe extern "C" fn(*mut Module, *mut Flow, u8, *mut u8) -> Protocol;
type WantsMore = unsafe extern "C" fn(*mut Module, *mut Flow) -> u8;
type Name = unsafe extern "C" fn(*mut Module, Protocol, *mut c_char, c_uint) -> *mut c_char;
type Revision = unsafe extern "C" fn() -> *const c_char;
type ApiVersion = unsafe extern "C" fn() -> u16;

functions! {
    /// The functions that we use, with the signatures of release 4.2 (ndpi_api.h).
    init: Init = c"ndpi_init_detection_module";
    set_bitmask: SetBitmask = c"ndpi_set_protocol_detection_bitmask2";
    finalize: Finalize = c"ndpi_finalize_initialization";
    exit: Exit = c"ndpi_exit_detection_module";
    flow_len: FlowLen = c"ndpi_detection_get_sizeof_ndpi_flow_struct";
    free_flow: FreeFlow = c"ndpi_free_flow_data";
    process: Process = c"ndpi_detection_process_packet";
    give_up: GiveUp = c"ndpi_detection_giveup";
    wants_more: WantsMore = c"ndpi_extra_dissection_possible";
    name: Name = c"ndpi_protocol2name";
    revision: Revision = c"ndpi_revision";
    api_version: ApiVersion = c"ndpi_get_api_version";
}

impl Library {
    fn open() -> std::result::Result<Self, String> {
        let library = Self::find(dynamic::open(&NAMES)?)?;
        // SAFETY: both have had these signatures in every release.
        let api_version = unsafe { (library.api_version)() };
        let release = library.release();
        if !is_known(&release, api_version) {
            return Err(format!(
                "it is release {release} (interface {api_version}), and only {RELEASE}x is \
                 supported"
            ));
        }
        Ok(library)
    }

    fn release(&self) -> String {
        // SAFETY: no precondition; the text is static.
        let text = unsafe { (self.revision)() };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: not null, hence a C string.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    }
}

/// Whether the signatures above are valid for this release.
fn is_known(release: &str, api_version: u16) -> bool {
    release.starts_with(RELEASE) && api_version == API_VERSION
}

fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(Library::open).as_ref().map_err(|why| {
        let what = "open libndpi, which identifies applications";
        Error::new(ErrorKind::Unsupported, what, why.clone())
            .with_hint("apt-get install libndpi4.2; or leave ndpi out of --decode")
    })
}

/// The library's release, such as `4.2.0`.
///
/// # Errors
/// `Unsupported` if it is not present, or is one that is not known here.
pub fn version() -> Result<String> {
    Ok(library()?.release())
}

/// Size of a flow's state in bytes, without what the library allocates for it.
///
/// # Errors
/// As [`version`].
pub fn flow_len() -> Result<usize> {
    // SAFETY: no precondition.
    let len = unsafe { (library()?.flow_len)() } as usize;
    if len == 0 || len > FLOW_LEN_MAX {
        let why = format!("a flow would take {len} bytes");
        return Err(Error::new(ErrorKind::Unsupported, "use libndpi", why));
    }
    Ok(len)
}

/// The library's detection for one thread, with space for the state of a fixed number of flows.
pub struct Detector {
    library: &'static Library,
    module: *mut Module,
    /// States, one after the other, aligned to 16 bytes.
    states: Vec<u128>,
    /// Units of 16 bytes that a state takes.
    stride: usize,
    is_used: Vec<bool>,
    free: Vec<u32>,
}

// SAFETY: a detection module is used by one thread at a time (ndpi_api.h: several of them are
// independent contexts), which `&mut self` sees to; nothing in it belongs to a thread.
unsafe impl Send for Detector {}

impl Detector {
    /// A detector for this many flows. The library's own tables take another 7 MB or so.
    ///
    /// # Errors
    /// As [`version`]; `NoSpace` if the library or we have no memory for it.
    pub fn new(flow_count: u32) -> Result<Detector> {
        // Creating a module changes state that all modules share (ndpi_api.h: not in parallel).
        static MAKING: Mutex<()> = Mutex::new(());
        let library = library()?;
        let stride = flow_len()?.div_ceil(size_of::<u128>());
        let count = flow_count as usize;
        let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: no precondition but the lock.
        let module = unsafe { (library.init)(NO_PREFERENCES) };
        if module.is_null() {
            let why = "libndpi created no detection module";
            return Err(Error::new(ErrorKind::NoSpace, "identify applications", why));
        }
        // SAFETY: the module is live; the set is longer than the library reads.
        unsafe {
            (library.set_bitmask)(module, ALL_PROTOCOLS.as_ptr());
            (library.finalize)(module);
        }
        Ok(Detector {
            library,
            module,
            states: vec![0; count * stride],
            stride,
            is_used: vec![false; count],
            free: (0..flow_count).rev().collect(),
        })
    }

    /// Memory in bytes for the states of this many flows.
    ///
    /// # Errors
    /// As [`version`].
    pub fn memory_len(flow_count: u32) -> Result<usize> {
        Ok(flow_count as usize * (flow_len()?.next_multiple_of(16) + 5))
    }

    /// Reserves a state for a new flow, if one is free.
    pub fn begin(&mut self) -> Option<u32> {
        let flow = self.free.pop()?;
        let at = flow as usize * self.stride;
        self.states[at..at + self.stride].fill(0);
        self.is_used[flow as usize] = true;
        Some(flow)
    }

    /// The state of a flow that has begun and not ended.
    fn state(&mut self, flow: u32) -> Option<*mut Flow> {
        if !*self.is_used.get(flow as usize)? {
            return None;
        }
        let at = flow as usize * self.stride;
        let state = self.states.get_mut(at..at + self.stride)?;
        Some(state.as_mut_ptr().cast())
    }

    /// Processes a packet of a flow, from its IP header on, at a time in milliseconds. Bytes after
    /// the first 65,535 are ignored. Returns what the flow carries, as far as known.
    pub fn packet(&mut self, flow: u32, packet: &[u8], time_ms: u64) -> Protocol {
        let len = packet.len().min(u16::MAX.into()) as u16;
        let Some(state) = self.state(flow) else {
            return Protocol::default();
        };
        // SAFETY: the module is live; the state is ours alone, as long as the library said, and was
        // zeros when it began; the packet is readable for its length, and only read.
        unsafe { (self.library.process)(self.module, state, packet.as_ptr(), len, time_ms) }
    }

    /// Whether more packets of a flow whose protocol is known could refine it.
    pub fn wants_more(&mut self, flow: u32) -> bool {
        let Some(state) = self.state(flow) else {
            return false;
        };
        // SAFETY: both are live.
        unsafe { (self.library.wants_more)(self.module, state) != 0 }
    }

    /// Decides what the flow carries by the packets seen so far, when there will be no more. Ports
    /// and addresses are not considered.
    pub fn give_up(&mut self, flow: u32) -> Protocol {
        let mut is_guess = 0;
        let Some(state) = self.state(flow) else {
            return Protocol::default();
        };
        // SAFETY: both are live; the byte is written at most.
        unsafe { (self.library.give_up)(self.module, state, 0, &raw mut is_guess) }
    }

    /// Frees the flow's state for another flow.
    pub fn end(&mut self, flow: u32) {
        let Some(state) = self.state(flow) else {
            return;
        };
        // SAFETY: live; what it holds next to itself is freed, and it is not used after this.
        unsafe { (self.library.free_flow)(state) };
        self.is_used[flow as usize] = false;
        self.free.push(flow);
    }

    /// Appends the library's name of a protocol: `TLS`, or with the protocol inside it
    /// `TLS.Google`.
    pub fn name(&self, protocol: Protocol, out: &mut Vec<u8>) {
        let mut text: [c_char; NAME_LEN] = [0; NAME_LEN];
        // SAFETY: the module is live; the text has the stated length, and the library ends it with
        // a zero byte within that.
        let name = unsafe {
            (self.library.name)(self.module, protocol, text.as_mut_ptr(), NAME_LEN as c_uint)
        };
        if name.is_null() {
            return;
        }
        let bytes = text.iter().map(|byte| *byte as u8);
        out.extend(bytes.take_while(|byte| *byte != 0));
    }
}

impl Drop for Detector {
    fn drop(&mut self) {
        for flow in 0..self.is_used.len() as u32 {
            self.end(flow);
        }
        // SAFETY: live, and not used after this.
        unsafe { (self.library.exit)(self.module) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_release_with_these_signatures_is_used() {
        assert!(is_known("4.2.0", API_VERSION));
        // Later releases have one more argument for each packet.
        for (release, api_version) in [("4.4.0", 9001), ("4.2.0", 9001), ("5.0.0", API_VERSION)] {
            assert!(!is_known(release, api_version), "{release} {api_version}");
        }
    }

    /// A datagram from 192.0.2.1 port 5000 to 192.0.2.2.
    fn datagram(port: u16, payload: &[u8]) -> Vec<u8> {
        let udp_len = 8 + payload.len() as u16;
        let mut packet = vec![0x45, 0];
        packet.extend((20 + udp_len).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        for field in [5000, port, udp_len, 0] {
            packet.extend(field.to_be_bytes());
        }
        packet.extend(payload);
        packet
    }

    #[test]
    fn flows_are_named_and_states_are_used_again() {
        if let Err(error) = version() {
            let hint = error.hint().unwrap_or_default();
            assert!(hint.contains("libndpi4.2"), "{error}");
            skip::skip!("{error}");
        }
        let mut detector = Detector::new(2).unwrap();
        let question = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";
        let one = detector.begin().unwrap();
        let other = detector.begin().unwrap();
        assert_eq!(detector.begin(), None);
        let known = detector.packet(one, &datagram(53, question), 1000);
        assert!(known.is_known());
        let mut name = Vec::new();
        detector.name(known, &mut name);
        assert_eq!(name, b"DNS");
        let nothing = detector.packet(other, &datagram(7, b"\xff\xfe\xfd"), 1000);
        assert!(!nothing.is_known() && !detector.give_up(other).is_known());
        detector.end(one);
        detector.end(one);
        assert!(
            !detector
                .packet(one, &datagram(53, question), 1001)
                .is_known()
        );
        assert_eq!(detector.begin(), Some(one));
        assert_eq!(detector.begin(), None);
        // An empty packet gives no result.
        for len in 0..datagram(53, question).len() {
            detector.packet(one, &datagram(53, question)[..len], 1002);
        }
        assert!(!detector.wants_more(9));
    }
}
