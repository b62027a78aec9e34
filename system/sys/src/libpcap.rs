//! The system's libpcap, of which only the compiler of filter expressions (pcap-filter(7)) is used,
//! if `--filter-compiler libpcap` requests it.
//!
//! It is loaded on demand, not linked. Debian calls the library `libpcap.so.0.8`, its authors
//! `libpcap.so.1`.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::bpf::ClassicInsn;
use crate::{Error, ErrorKind, Result};

const NAMES: [&CStr; 3] = [c"libpcap.so.0.8", c"libpcap.so.1", c"libpcap.so"];

/// The netmask for `ip broadcast` if there is none: the one that tcpdump uses for capture files and
/// for interfaces without an IPv4 address. Only the broadcast addresses 255.255.255.255 and 0.0.0.0
/// are then recognised.
const NETMASK_NONE: u32 = 0;

/// `struct bpf_program`.
#[repr(C)]
struct ProgramRaw {
    len: c_uint,
    insns: *mut ClassicInsn,
}

/// `pcap_t`, whose layout is not known here.
#[repr(C)]
struct Handle {
    opaque: [u8; 0],
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut Handle;
type OpenFile = unsafe extern "C" fn(*mut libc::FILE, *mut c_char) -> *mut Handle;
type Compile =
    unsafe extern "C" fn(*mut Handle, *mut ProgramRaw, *const c_char, c_int, u32) -> c_int;
type FreeCode = unsafe extern "C" fn(*mut ProgramRaw);
type LastError = unsafe extern "C" fn(*mut Handle) -> *mut c_char;
type Close = unsafe extern "C" fn(*mut Handle);
type Version = unsafe extern "C" fn() -> *const c_char;
type Create = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut Handle;
type Activate = unsafe extern "C" fn(*mut Handle) -> c_int;
type LookUpNet = unsafe extern "C" fn(*const c_char, *mut u32, *mut u32, *mut c_char) -> c_int;
type DataLink = unsafe extern "C" fn(*mut Handle) -> c_int;

/// The functions that we use, with libpcap's signatures (pcap.h).
struct Library {
    open_dead: OpenDead,
    open_file: OpenFile,
    compile: Compile,
    free_code: FreeCode,
    last_error: LastError,
    close: Close,
    version: Version,
    create: Create,
    activate: Activate,
    look_up_net: LookUpNet,
    link_type: DataLink,
}

impl Library {
    fn open() -> std::result::Result<Self, String> {
        let mut why = String::new();
        for name in NAMES {
            // SAFETY: the name is a C string. Opening runs the library's constructors, which is
            // what linking to it would do as well.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if handle.is_null() {
                if why.is_empty() {
                    why = dl_error();
                }
                continue;
            }
            // The library is never closed, because the addresses of its functions are kept.
            return Self::find(handle);
        }
        Err(why)
    }

    fn find(handle: *mut c_void) -> std::result::Result<Self, String> {
        let symbol = |name: &CStr| {
            // SAFETY: the handle is open, the name a C string.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if address.is_null() {
                Err(dl_error())
            } else {
                Ok(address)
            }
        };
        use std::mem::transmute;
        // SAFETY: each type is that of the function of this name in pcap.h, unchanged since
        // libpcap 1.0; both sides are pointers to code.
        unsafe {
            Ok(Self {
                open_dead: transmute::<*mut c_void, OpenDead>(symbol(c"pcap_open_dead")?),
                open_file: transmute::<*mut c_void, OpenFile>(symbol(c"pcap_fopen_offline")?),
                compile: transmute::<*mut c_void, Compile>(symbol(c"pcap_compile")?),
                free_code: transmute::<*mut c_void, FreeCode>(symbol(c"pcap_freecode")?),
                last_error: transmute::<*mut c_void, LastError>(symbol(c"pcap_geterr")?),
                close: transmute::<*mut c_void, Close>(symbol(c"pcap_close")?),
                version: transmute::<*mut c_void, Version>(symbol(c"pcap_lib_version")?),
                create: transmute::<*mut c_void, Create>(symbol(c"pcap_create")?),
                activate: transmute::<*mut c_void, Activate>(symbol(c"pcap_activate")?),
                look_up_net: transmute::<*mut c_void, LookUpNet>(symbol(c"pcap_lookupnet")?),
                link_type: transmute::<*mut c_void, DataLink>(symbol(c"pcap_datalink")?),
            })
        }
    }
}

impl Library {
    /// A handle for compiling only.
    fn open_source(
        &self,
        source: PacketSource,
        snaplen: u32,
    ) -> std::result::Result<*mut Handle, String> {
        let (link_type, swapped) = match source {
            PacketSource::Live { link_type } => return self.open_live(link_type, snaplen),
            PacketSource::Tap { link_type, ifindex } => {
                return match self.open_tap(link_type, ifindex) {
                    Some(handle) => Ok(handle),
                    None => self.open_live(link_type, snaplen),
                };
            }
            PacketSource::File { link_type, swapped } => (link_type, swapped),
        };
        // The header of a capture without packets: magic, version 2.4, zone, accuracy, snaplen,
        // link type.
        let order = |word: u32| if swapped { word.swap_bytes() } else { word };
        let half = |half: u16| if swapped { half.swap_bytes() } else { half }.to_ne_bytes();
        let version = [half(2), half(4)].concat();
        let mut header = [0u8; 24];
        header[..4].copy_from_slice(&order(0xa1b2_c3d4).to_ne_bytes());
        header[4..8].copy_from_slice(&version);
        header[16..20].copy_from_slice(&order(snaplen).to_ne_bytes());
        header[20..].copy_from_slice(&order(u32::from(link_type)).to_ne_bytes());
        // SAFETY: the buffer is readable for its length and outlives the stream's only use: the
        // handle reads the header when it opens, and nothing after.
        let file = unsafe { libc::fmemopen(header.as_mut_ptr().cast(), 24, c"r".as_ptr()) };
        if file.is_null() {
            return Err(std::io::Error::last_os_error().to_string());
        }
        // PCAP_ERRBUF_SIZE
        let mut text: [c_char; 256] = [0; 256];
        // SAFETY: the stream is open, and the handle's from here on; text is as long as pcap.h
        // asks for.
        let handle = unsafe { (self.open_file)(file, text.as_mut_ptr()) };
        if handle.is_null() {
            // SAFETY: on failure the stream stays ours; the text is a C string.
            unsafe { libc::fclose(file) };
            // SAFETY: as above.
            let why = unsafe { CStr::from_ptr(text.as_ptr()) };
            return Err(why.to_string_lossy().into_owned());
        }
        Ok(handle)
    }
}

impl Library {
    fn open_live(&self, link_type: i32, snaplen: u32) -> std::result::Result<*mut Handle, String> {
        let snaplen = c_int::try_from(snaplen).unwrap_or(c_int::MAX);
        // SAFETY: no precondition.
        let handle = unsafe { (self.open_dead)(link_type, snaplen) };
        if handle.is_null() {
            return Err("out of memory".into());
        }
        Ok(handle)
    }

    /// A handle for the interface itself: only then does the compiler know what metadata this
    /// kernel provides with a packet. `None` if that is refused, or if the link type is a different
    /// one.
    fn open_tap(&self, link_type: i32, ifindex: u32) -> Option<*mut Handle> {
        let mut name: [c_char; libc::IF_NAMESIZE] = [0; libc::IF_NAMESIZE];
        let mut text: [c_char; 256] = [0; 256];
        // SAFETY: name and text are as long as the two functions require; the handle is closed
        // if it is not handed on.
        unsafe {
            if libc::if_indextoname(ifindex, name.as_mut_ptr()).is_null() {
                return None;
            }
            let handle = (self.create)(name.as_ptr(), text.as_mut_ptr());
            if handle.is_null() {
                return None;
            }
            if (self.activate)(handle) < 0 || (self.link_type)(handle) != link_type {
                (self.close)(handle);
                return None;
            }
            Some(handle)
        }
    }
}

impl Library {
    /// The netmask of an interface's IPv4 address, in libpcap's form.
    fn netmask(&self, ifindex: u32) -> u32 {
        let mut name: [c_char; libc::IF_NAMESIZE] = [0; libc::IF_NAMESIZE];
        let mut text: [c_char; 256] = [0; 256];
        let (mut net, mut mask) = (0, 0);
        // SAFETY: name and text are as long as the two functions require, and the numbers ours.
        let is_known = unsafe {
            !libc::if_indextoname(ifindex, name.as_mut_ptr()).is_null()
                && (self.look_up_net)(name.as_ptr(), &mut net, &mut mask, text.as_mut_ptr()) == 0
        };
        if is_known { mask } else { NETMASK_NONE }
    }
}

fn dl_error() -> String {
    // SAFETY: dlerror has no precondition; its text lives until the next dl call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown reason".into();
    }
    // SAFETY: not null, hence a C string.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(Library::open).as_ref().map_err(|why| {
        Error::new(
            ErrorKind::Unsupported,
            "open libpcap, which compiles filters",
            why.clone(),
        )
        .with_hint("apt-get install libpcap0.8")
    })
}

/// The library's own description of its version.
///
/// # Errors
/// `Unsupported` if the library is not present.
pub fn version() -> Result<String> {
    let library = library()?;
    // SAFETY: no precondition; the text is static.
    let text = unsafe { CStr::from_ptr((library.version)()) };
    Ok(text.to_string_lossy().into_owned())
}

/// The origin of the packets for which an expression is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketSource {
    /// Packets of an interface. Direction (`inbound`, `outbound`) is compiled to ancillary loads.
    Live {
        /// libpcap's `DLT_` number, 1 for Ethernet.
        link_type: i32,
    },
    /// Packets of an interface as a tap in the kernel sees them: the outermost VLAN tag is in the
    /// metadata, and `vlan` looks for it there. libpcap opens the interface briefly to learn what
    /// the kernel supports; if it may not, this is the same as `Live`.
    Tap {
        /// libpcap's `DLT_` number, 1 for Ethernet.
        link_type: i32,
        /// Index of the interface.
        ifindex: u32,
    },
    /// Packets of a capture file, which may come from another system: where systems differ
    /// (loopback link types), all variants are recognised.
    File {
        /// The file format's `LINKTYPE_` number, 1 for Ethernet.
        link_type: u16,
        /// Whether the file has the byte order that is not this machine's.
        swapped: bool,
    },
}

/// Compiles an expression. Selected packets are kept up to `snaplen` bytes. Names of hosts in the
/// expression are looked up, which can take a while.
///
/// # Errors
/// `InvalidInput` with libpcap's words if it does not compile, `Unsupported` without the library.
pub fn compile(
    expression: &str,
    source: PacketSource,
    snaplen: u32,
    optimize: bool,
) -> Result<Vec<ClassicInsn>> {
    // Before 1.8 the compiler kept its state in global variables, and name look-ups may still do
    // so.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let library = library()?;
    let refused = |why: &str| {
        let what = format!("compile the filter \"{expression}\"");
        Error::new(ErrorKind::InvalidInput, what, why.trim())
            .with_hint("`man pcap-filter` has the syntax")
    };
    let text = CString::new(expression).map_err(|_| refused("it contains a zero byte"))?;
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = library
        .open_source(source, snaplen)
        .map_err(|why| refused(&why))?;
    let netmask = match source {
        PacketSource::Tap { ifindex, .. } => library.netmask(ifindex),
        _ => NETMASK_NONE,
    };
    let mut raw = ProgramRaw {
        len: 0,
        insns: std::ptr::null_mut(),
    };
    // SAFETY: the handle is live, the program ours to fill, the text a C string.
    let status =
        unsafe { (library.compile)(handle, &mut raw, text.as_ptr(), optimize.into(), netmask) };
    let result = if status == 0 && !raw.insns.is_null() {
        // SAFETY: on success libpcap gives `len` instructions at `insns`; copied before freed.
        let insns = unsafe { std::slice::from_raw_parts(raw.insns, raw.len as usize) }.to_vec();
        // SAFETY: filled by compile, freed once.
        unsafe { (library.free_code)(&mut raw) };
        Ok(insns)
    } else {
        // SAFETY: the handle is live; its text is a C string within it, copied before it closes.
        let why = unsafe { CStr::from_ptr((library.last_error)(handle)) };
        Err(refused(&why.to_string_lossy()))
    };
    // SAFETY: live, and not used after this.
    unsafe { (library.close)(handle) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETHERNET: PacketSource = PacketSource::Live { link_type: 1 };

    #[test]
    fn expressions_become_instructions_or_words() {
        let insns = match compile("udp", ETHERNET, 1000, true) {
            Ok(insns) => insns,
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                assert!(e.hint().is_some_and(|h| h.contains("libpcap0.8")), "{e}");
                skip::skip!("{e}");
            }
            Err(e) => panic!("{e}"),
        };
        assert_eq!(
            insns[0],
            ClassicInsn {
                code: 0x28,
                jt: 0,
                jf: 0,
                k: 12
            }
        );
        assert!(insns.contains(&ClassicInsn {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: 1000
        }));
        // The empty expression selects everything.
        assert_eq!(compile("", ETHERNET, 64, true).unwrap().len(), 1);
        assert!(version().unwrap().contains("libpcap"));

        let e = compile("tcp port", ETHERNET, 1000, true).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        assert!(e.why().contains("syntax error"), "{e}");
        let e = compile("host 300.1.2.3.4", ETHERNET, 1000, true).unwrap_err();
        assert!(!e.why().is_empty(), "{e}");
        assert!(compile("ip\0", ETHERNET, 1000, true).is_err());
    }

    #[test]
    fn taps_match_stripped_tags() {
        let may_tap = crate::privileges::has(crate::privileges::Capability::NetRaw);
        if version().is_err() || !may_tap {
            skip::skip!("no libpcap, or no right");
        }
        // SAFETY: the name is a C string.
        let ifindex = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        let link_type = 1;
        let tap = compile("vlan 7", PacketSource::Tap { link_type, ifindex }, 64, true).unwrap();
        // SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT
        let beside = |insns: &[ClassicInsn]| insns.iter().any(|i| i.k == 0xffff_f000 + 48);
        assert!(beside(&tap), "{tap:x?}");
        assert!(!beside(&compile("vlan 7", ETHERNET, 64, true).unwrap()));
        // An interface that does not exist causes no failure.
        let ifindex = u32::MAX;
        assert!(compile("vlan 7", PacketSource::Tap { link_type, ifindex }, 64, true).is_ok());
    }

    #[test]
    fn files_and_interfaces_differ_where_they_must() {
        if version().is_err() {
            skip::skip!("no libpcap");
        }
        let file = |link_type, swapped| PacketSource::File { link_type, swapped };
        assert_eq!(
            compile("udp", file(1, false), 1000, true).unwrap(),
            compile("udp", ETHERNET, 1000, true).unwrap()
        );
        // Only the kernel knows a packet's direction.
        assert!(compile("inbound", ETHERNET, 1000, true).is_ok());
        assert!(compile("inbound", file(1, false), 1000, true).is_err());
        // A loopback header is the address family, in its machine's order: 2 for IPv4.
        for (swapped, family) in [(false, 2u32.to_be()), (true, 2u32.swap_bytes().to_be())] {
            let insns = compile("ip", file(0, swapped), 1000, true).unwrap();
            assert!(insns.iter().any(|i| i.k == family), "{swapped} {insns:x?}");
        }
        assert!(compile("ip", file(0xffff, false), 1000, true).is_err());
    }

    #[test]
    fn many_threads_may_compile() {
        if version().is_err() {
            skip::skip!("no libpcap");
        }
        let expected = compile("tcp port 80 or ip6", ETHERNET, 96, true).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let insns = compile("tcp port 80 or ip6", ETHERNET, 96, true).unwrap();
                        assert_eq!(insns, expected);
                    }
                });
            }
        });
    }
}
