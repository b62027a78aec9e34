//! QEMU's monitor: what the processors of a guest do that says nothing any more.
//!
//! A processor that QEMU emulates loses the end of an interrupt once in a hundred minutes or so:
//! its local APIC has the timer's vector in service for good, while the processor is halted in the
//! kernel's idle loop, outside of any handler. No timer runs there from then on, and the guest
//! waits for ever for whatever that processor was to do. No program in the guest can bring this
//! about, and none can mend it; so it is looked for, and told from a test that hangs.
//!
//! The same goes for a processor that stays in the kernel with interrupts off and does nothing but
//! look at the same place for seconds: seen where the kernel waits for the emulated IOMMU to say
//! that an invalidation is done.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// The socket, in the folder of a run. Named from there alone: a whole path may be longer than the
/// name of a socket (107 bytes: unix(7)).
pub const SOCKET: &str = "monitor";

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The end of an answer.
const PROMPT: &str = "(qemu)";

/// Between two looks at the processors: a handler takes microseconds, on a busy machine
/// milliseconds.
const PAUSE: Duration = Duration::from_secs(1);

/// Looks that must find the same.
const LOOKS: usize = 5;

/// Keys that the kernel answers on its console: all messages, stacks of all processors, all tasks,
/// those that are blocked.
const KEYS: [&str; 4] = ["9", "l", "t", "w"];

/// What is asked about the machine.
const QUESTIONS: [&str; 4] = [
    "info registers -a",
    "info lapic 0",
    "info lapic 1",
    // The IOMMU's registers.
    "xp /64wx 0xfed90000",
];

/// A processor that waits for an interrupt.
const HALTED: &str = "HLT=1";

/// In the flags: interrupts are let through.
const INTERRUPTS: u64 = 1 << 9;

/// A conversation.
struct Monitor(UnixStream);

impl Monitor {
    fn open(dir: &Path) -> Result<Monitor> {
        let dir = File::open(dir)?;
        let path = format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd());
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(Duration::from_millis(500)))?;
        let mut monitor = Monitor(stream);
        monitor.read()?;
        Ok(monitor)
    }

    fn ask(&mut self, question: &str) -> Result<String> {
        writeln!(self.0, "{question}")?;
        self.read()
    }

    /// Everything up to the next prompt, without the echo of what was asked.
    fn read(&mut self) -> Result<String> {
        let until = Instant::now() + PATIENCE;
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        while Instant::now() < until {
            match self.0.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => bytes.extend_from_slice(&chunk[..count]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
            if String::from_utf8_lossy(&bytes).trim_end().ends_with(PROMPT) {
                break;
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        ensure!(text.trim_end().ends_with(PROMPT), "it does not answer");
        let lines = text.lines().filter(|line| !line.contains('\u{1b}'));
        Ok(lines.fold(String::new(), |text, line| text + line.trim_end() + "\n"))
    }
}

/// Asks a guest that hangs. The answers are in the file `hung` of its folder, those of its kernel
/// on the console.
///
/// # Errors
/// When the monitor is not there or does not answer.
pub fn question(dir: &Path) -> Result<()> {
    let mut monitor = Monitor::open(dir)?;
    let mut answers = String::new();
    for question in QUESTIONS {
        answers += &monitor.ask(question)?;
    }
    for key in KEYS {
        monitor.ask(&format!("sendkey alt-sysrq-{key}"))?;
        // The kernel writes it to a slow line.
        std::thread::sleep(Duration::from_secs(2));
    }
    std::fs::write(dir.join("hung"), answers)?;
    Ok(())
}

/// Pulls the wire of the card with this number, or plugs it in.
///
/// # Errors
/// When the monitor is not there, or what it says to it.
pub fn set_wire(dir: &Path, card: usize, is_there: bool) -> Result<()> {
    let word = if is_there { "on" } else { "off" };
    let answer = Monitor::open(dir)?.ask(&format!("set_link n{card} {word}"))?;
    let answer = answer.replace(PROMPT, "");
    ensure!(answer.trim().is_empty(), "{}", answer.trim());
    Ok(())
}

/// Whether a processor of the guest is where no program can have brought it (see the module):
/// several looks in a row find the same.
pub fn stuck(dir: &Path) -> Option<String> {
    let mut monitor = Monitor::open(dir).ok()?;
    let mut found = None;
    for look in 0..LOOKS {
        let registers = monitor.ask("info registers -a").ok()?;
        let apics = [0, 1].map(|cpu| monitor.ask(&format!("info lapic {cpu}")));
        let apics: Vec<_> = apics.into_iter().collect::<Result<_>>().ok()?;
        let now = lost_interrupt(&registers, &apics).or_else(|| in_kernel(&registers));
        if now.is_none() || look != 0 && now != found {
            return None;
        }
        found = now;
        std::thread::sleep(PAUSE);
    }
    found
}

/// The first processor that is halted although its local APIC has vectors in service, and these:
/// a kernel does not halt in a handler.
fn lost_interrupt(registers: &str, apics: &[String]) -> Option<String> {
    for ((cpu, text), apic) in processors(registers).zip(apics) {
        let mut lines = apic.lines().filter_map(|line| line.strip_prefix("ISR"));
        let in_service = lines.next().unwrap_or_default().trim();
        let has_some = in_service.starts_with(|letter: char| letter.is_ascii_digit());
        if has_some && text.contains(HALTED) {
            return Some(format!(
                "processor {cpu} is halted, and its APIC has vector {in_service} in service: QEMU \
                 has lost the end of an interrupt"
            ));
        }
    }
    None
}

/// The first processor that works in the kernel with interrupts off, and where. Several looks that
/// find one and the same place mean a loop that nothing ends: a handler goes on.
fn in_kernel(registers: &str) -> Option<String> {
    for (cpu, text) in processors(registers) {
        let value = |name: &str| {
            let (_, rest) = text.split_once(name)?;
            let digits = rest
                .split(|letter: char| !letter.is_ascii_hexdigit())
                .next()?;
            u64::from_str_radix(digits, 16).ok()
        };
        let (Some(flags), Some(place)) = (value("RFL="), value("RIP=")) else {
            continue;
        };
        if flags & INTERRUPTS == 0 && text.contains("CPL=0") && !text.contains(HALTED) {
            let page = place & !0xfff;
            return Some(format!(
                "processor {cpu} is in the kernel with interrupts off and goes no further than \
                 {page:#x}"
            ));
        }
    }
    None
}

/// What is told of each.
fn processors(registers: &str) -> impl Iterator<Item = (usize, &str)> {
    registers.split("CPU#").skip(1).enumerate()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Of a guest that hung, without the registers in between.
    const REGISTERS: &str = "\nCPU#0\nRAX=0\nRIP=ffffffffbb9b8d0f II=0 A20=1 SMM=0 HLT=1\n\
                             \nCPU#1\nRIP=ffffffffbb9b8d0f II=0 A20=1 SMM=0 HLT=1\n";

    fn apic(in_service: &str) -> String {
        format!("LVTT\t 0x000000ec one-shot\nISR\t {in_service}\nIRR\t 236 \n\nAPR 0x00\n")
    }

    #[test]
    fn a_socket_in_a_folder_with_a_long_name_is_reached() {
        let top = std::env::temp_dir().join(format!("bw-monitor-{}", std::process::id()));
        let deep = top.join("d".repeat(200));
        std::fs::create_dir_all(&deep).unwrap();
        let dir = File::open(&deep).unwrap();
        let path = format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd());
        let listener = UnixListener::bind(path).unwrap();
        let qemu = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            write!(stream, "QEMU monitor\n{PROMPT} ").unwrap();
            let mut asked = String::new();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            lines.read_line(&mut asked).unwrap();
            write!(stream, "done\n{PROMPT} ").unwrap();
            asked
        });
        let answer = Monitor::open(&deep).and_then(|mut monitor| monitor.ask("do it"));
        std::fs::remove_dir_all(&top).unwrap();
        assert!(answer.unwrap().contains("done"));
        assert_eq!(qemu.join().unwrap(), "do it\n");
    }

    #[test]
    fn a_halted_processor_in_a_handler_is_found() {
        let none = apic("(none)");
        let held = apic("236 ");
        let of = |cpu: usize| format!("processor {cpu} is halted, and its APIC has vector 236");
        let both = [held.clone(), none.clone()];
        let found = lost_interrupt(REGISTERS, &both).unwrap();
        assert!(found.starts_with(&of(0)), "{found}");
        let both = [none.clone(), held.clone()];
        let found = lost_interrupt(REGISTERS, &both).unwrap();
        assert!(found.starts_with(&of(1)), "{found}");
        assert_eq!(lost_interrupt(REGISTERS, &[none.clone(), none]), None);
        // One that runs may well be in a handler.
        let runs = REGISTERS.replace("HLT=1", "HLT=0");
        assert_eq!(lost_interrupt(&runs, &both), None);
        assert_eq!(lost_interrupt("", &[held]), None);
    }

    #[test]
    fn a_processor_that_works_with_interrupts_off_is_found() {
        let of = |flags, ring, halted| {
            format!(
                "{REGISTERS}CPU#2\nRAX=0\nRIP=ffffffff82d7200e RFL={flags} [---Z---] CPL={ring} \
                 II=0 A20=1 SMM=0 HLT={halted}\n"
            )
        };
        let found = in_kernel(&of("00000046", 0, 0)).unwrap();
        assert!(found.starts_with("processor 2") && found.ends_with("0xffffffff82d72000"));
        // Interrupts are on; a program; halted for an interrupt that is on its way.
        assert_eq!(in_kernel(&of("00000246", 0, 0)), None);
        assert_eq!(in_kernel(&of("00000046", 3, 0)), None);
        assert_eq!(in_kernel(&of("00000046", 0, 1)), None);
        assert_eq!(in_kernel(""), None);
    }
}
