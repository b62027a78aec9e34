//! QEMU's monitor: what the processors of a guest do that says nothing any more.
//!
//! A processor that QEMU emulates loses the end of an interrupt once in a hundred minutes or so:
//! its local APIC has the timer's vector in service for good, while the processor is halted in the
//! kernel's idle loop, outside of any handler. No timer runs there from then on, and the guest
//! waits for ever for whatever that processor was to do. No program in the guest can bring this
//! about, and none can mend it; so it is looked for, and told from a test that hangs.
//!
//! The same goes for any other vector, where timers go on and only some devices fall silent; for a
//! processor that sleeps although an interrupt is requested; and for one that stays in the kernel
//! with interrupts off and does nothing but look at the same place for seconds: seen where the
//! kernel waits for the emulated IOMMU to say that an invalidation is done.

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

/// Looks that must find the same, and looks altogether: a processor that just then works in the
/// kernel says nothing of itself.
const LOOKS: usize = 5;
const LOOKS_MAX: usize = 15;

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

/// The vectors that are requested of each processor, and in service.
///
/// # Errors
/// When the monitor is not there or does not answer.
pub fn vectors(dir: &Path) -> Result<String> {
    let mut monitor = Monitor::open(dir)?;
    let mut text = String::new();
    for cpu in 0..2 {
        let apic = monitor.ask(&format!("info lapic {cpu}"))?;
        let is_asked = |line: &&str| line.starts_with("ISR") || line.starts_with("IRR");
        for line in apic.lines().filter(is_asked) {
            text += &format!("processor {cpu}: {line}\n");
        }
    }
    Ok(text)
}

/// Whether a processor of the guest is where no program can have brought it (see the module):
/// several looks find the same, and none in between finds it in order.
pub fn stuck(dir: &Path) -> Option<String> {
    let mut monitor = Monitor::open(dir).ok()?;
    let mut suspects: Vec<Suspect> = Vec::new();
    for _ in 0..LOOKS_MAX {
        let registers = monitor.ask("info registers -a").ok()?;
        let apics = [0, 1].map(|cpu| monitor.ask(&format!("info lapic {cpu}")));
        let apics: Vec<_> = apics.into_iter().collect::<Result<_>>().ok()?;
        let states: Vec<_> = processors(&registers)
            .zip(&apics)
            .map(|((cpu, text), apic)| state(cpu, text, apic))
            .collect();
        suspects.resize_with(states.len(), Suspect::default);
        for (suspect, state) in suspects.iter_mut().zip(states) {
            suspect.look(state);
        }
        if let Some(found) = suspects.iter().find(|suspect| suspect.looks >= LOOKS) {
            return found.fault.clone();
        }
        if suspects.iter().all(|suspect| suspect.fault.is_none()) {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
    None
}

/// What looks at a processor have found so far.
#[derive(Default)]
struct Suspect {
    fault: Option<String>,
    /// How many found it.
    looks: usize,
}

impl Suspect {
    fn look(&mut self, state: State) {
        match state {
            State::Fault(fault) if self.fault.as_ref() == Some(&fault) => self.looks += 1,
            State::Fault(fault) => (self.fault, self.looks) = (Some(fault), 1),
            State::InOrder => (self.fault, self.looks) = (None, 0),
            State::Busy => {}
        }
    }
}

/// What a single look says of a processor.
#[derive(Debug, PartialEq)]
enum State {
    /// Nothing is wrong with it.
    InOrder,
    /// It is in the kernel, and may well be in a handler.
    Busy,
    /// It cannot stay like this: for a moment, or for ever.
    Fault(String),
}

/// A kernel neither halts nor goes back to a program from within a handler, and takes an interrupt
/// that is requested as soon as it lets any through; a handler with interrupts off goes on.
fn state(cpu: usize, registers: &str, apic: &str) -> State {
    let value = |name: &str| {
        let (_, rest) = registers.split_once(name)?;
        let digits = rest
            .split(|letter: char| !letter.is_ascii_hexdigit())
            .next()?;
        u64::from_str_radix(digits, 16).ok()
    };
    let vectors = |name: &str| {
        let mut lines = apic.lines().filter_map(|line| line.strip_prefix(name));
        let list = lines.next().unwrap_or_default().trim().to_owned();
        Some(list).filter(|list| list.starts_with(|letter: char| letter.is_ascii_digit()))
    };
    let halted = registers.contains(HALTED);
    let in_program = !halted && registers.contains("CPL=3");
    if let (true, Some(in_service)) = (halted || in_program, vectors("ISR")) {
        let place = if halted {
            "is halted"
        } else {
            "runs a program"
        };
        return State::Fault(format!(
            "processor {cpu} {place}, and its APIC has vector {in_service} in service: QEMU has \
             lost the end of an interrupt"
        ));
    }
    if let (true, Some(requested)) = (halted, vectors("IRR")) {
        return State::Fault(format!(
            "processor {cpu} is halted, and its APIC has vector {requested} requested: QEMU does \
             not wake it"
        ));
    }
    if halted || in_program {
        return State::InOrder;
    }
    match (value("RFL="), value("RIP=")) {
        (Some(flags), Some(place)) if flags & INTERRUPTS == 0 && registers.contains("CPL=0") => {
            let page = place & !0xfff;
            State::Fault(format!(
                "processor {cpu} is in the kernel with interrupts off and goes no further than \
                 {page:#x}"
            ))
        }
        _ => State::Busy,
    }
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

    /// What a look at the first processor says, where its registers have this in them.
    fn state_of(registers: &str, in_service: &str, requested: &str) -> State {
        let apic = format!("LVTT\t 0xec\nISR\t {in_service}\nIRR\t {requested}\n\nAPR 0x00\n");
        let registers = format!("CPU#0\nRAX=0\nRIP=ffffffff82d7200e {registers}\n");
        let (cpu, text) = processors(&registers).next().unwrap();
        state(cpu, text, &apic)
    }

    const NONE: &str = "(none)";
    const HALT: &str = "RFL=00000246 [---Z---] CPL=0 II=0 A20=1 SMM=0 HLT=1";
    const PROGRAM: &str = "RFL=00000246 [---Z---] CPL=3 II=0 A20=1 SMM=0 HLT=0";
    const KERNEL: &str = "RFL=00000246 [---Z---] CPL=0 II=0 A20=1 SMM=0 HLT=0";
    const INTERRUPTS_OFF: &str = "RFL=00000046 [---Z---] CPL=0 II=0 A20=1 SMM=0 HLT=0";

    #[test]
    fn an_interrupt_that_does_not_end_or_wake_is_found() {
        let says = |registers, in_service, requested, words: &str| {
            let State::Fault(fault) = state_of(registers, in_service, requested) else {
                panic!("{registers}, {in_service}, {requested}");
            };
            assert!(fault.contains(words), "{fault}");
        };
        says(
            HALT,
            "236 ",
            "236 ",
            "0 is halted, and its APIC has vector 236 in service",
        );
        says(
            PROGRAM,
            "35 ",
            NONE,
            "0 runs a program, and its APIC has vector 35 in service",
        );
        says(
            HALT,
            NONE,
            "35 36 ",
            "0 is halted, and its APIC has vector 35 36 requested",
        );
        says(
            INTERRUPTS_OFF,
            NONE,
            NONE,
            "no further than 0xffffffff82d72000",
        );
        assert_eq!(state_of(HALT, NONE, NONE), State::InOrder);
        // It is about to be taken.
        assert_eq!(state_of(PROGRAM, NONE, "35 "), State::InOrder);
        // One that runs may well be in a handler.
        assert_eq!(state_of(KERNEL, "236 ", NONE), State::Busy);
        assert_eq!(state_of("", "236 ", NONE), State::Busy);
    }

    #[test]
    fn only_what_stays_is_a_fault() {
        let mut suspect = Suspect::default();
        let fault = |text: &str| State::Fault(text.into());
        let mut after = |state| {
            suspect.look(state);
            suspect.looks
        };
        assert_eq!(after(fault("a")), 1);
        assert_eq!(after(State::Busy), 1);
        assert_eq!(after(fault("a")), 2);
        assert_eq!(after(fault("b")), 1);
        assert_eq!(after(State::InOrder), 0);
        assert_eq!(after(fault("b")), 1);
    }
}
