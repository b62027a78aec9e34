//! QEMU's monitor: the state of the processors of a silent guest.
//!
//! An emulated processor loses the end of an interrupt once in a hundred minutes or so: its local
//! APIC has the timer's vector in service permanently, while the processor is halted in the
//! kernel's idle loop, outside of any handler. No timer runs there from then on, and the guest
//! waits forever for that processor. No program in the guest can cause this, and none can repair
//! it; so it is detected, and distinguished from a test that hangs.
//!
//! The same applies to any other vector, where timers continue and only some devices fail; to a
//! processor that sleeps although an interrupt is requested; and to one that stays in the kernel
//! with interrupts off and polls the same address for seconds: seen where the kernel waits for the
//! emulated IOMMU to complete an invalidation.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// The socket, in the directory of a run. Relative to it: an absolute path may be longer than a
/// socket name (107 bytes: unix(7)).
pub const SOCKET: &str = "monitor";

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The end of an answer.
const PROMPT: &str = "(qemu)";

/// Interval of samples of the processors: a handler takes microseconds, on a busy machine
/// milliseconds.
const PAUSE: Duration = Duration::from_secs(1);

/// Number of samples that must agree.
const SAMPLES: usize = 5;

/// Samples without a finding after which there is no suspicion, and the total number of samples: a
/// sample of a processor that works in the kernel shows little.
const SAMPLES_MIN: usize = 3;
const LOOKS_MAX: usize = 15;

/// Time limit of an examination, including late answers.
const SAMPLING_MAX: Duration = Duration::from_secs(20);

/// Number of processors of a guest.
const CPUS: usize = 2;

/// Keys that the kernel answers on its console: all messages, stacks of all processors, all tasks,
/// blocked tasks.
const KEYS: [&str; 4] = ["9", "l", "t", "w"];

/// Queries about the machine.
const QUESTIONS: [&str; 4] = [
    "info registers -a",
    "info lapic 0",
    "info lapic 1",
    // The IOMMU's registers.
    "xp /64wx 0xfed90000",
];

/// A processor that waits for an interrupt.
const HALTED: &str = "HLT=1";

/// In the flags: interrupts are enabled.
const INTERRUPTS: u64 = 1 << 9;

/// A connection to the monitor.
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

    /// Reads up to the next prompt, without the echo of the command.
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

/// Examines a hung guest. QEMU's answers are in the file `hung` of its directory, those of its
/// kernel on the console.
///
/// # Errors
/// If the monitor does not exist or does not answer.
pub fn question(dir: &Path) -> Result<()> {
    let mut monitor = Monitor::open(dir)?;
    let mut answers = String::new();
    for question in QUESTIONS {
        answers += &monitor.ask(question)?;
    }
    for key in KEYS {
        monitor.ask(&format!("sendkey alt-sysrq-{key}"))?;
        // The kernel writes to a slow serial line.
        std::thread::sleep(Duration::from_secs(2));
    }
    std::fs::write(dir.join("hung"), answers)?;
    Ok(())
}

/// Unplugs the cable of the card with this number, or plugs it in.
///
/// # Errors
/// If the monitor cannot be reached, or its error.
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
/// If the monitor does not exist or does not answer.
pub fn vectors(dir: &Path) -> Result<String> {
    let looks = looks(&mut Monitor::open(dir)?)?;
    Ok(looks
        .iter()
        .enumerate()
        .fold(String::new(), |text, (cpu, look)| {
            let (requested, in_service) = (&look.requested, &look.in_service);
            text + &format!("processor {cpu}: requested [{requested}], in service [{in_service}]\n")
        }))
}

/// Whether a processor of the guest is in a state that no program can cause (see the module):
/// several samples agree, and none in between finds it in order.
///
/// # Errors
/// If the monitor does not exist or does not answer.
pub fn stuck(dir: &Path) -> Result<Option<String>> {
    let mut monitor = Monitor::open(dir)?;
    let mut suspects = Default::default();
    let until = Instant::now() + SAMPLING_MAX;
    for number in 0..LOOKS_MAX {
        let verdict = judge(&mut suspects, number, &looks(&mut monitor)?);
        if verdict.is_some() || Instant::now() >= until {
            return Ok(verdict.flatten());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(None)
}

/// Takes a sample of every processor.
fn looks(monitor: &mut Monitor) -> Result<Vec<Sample>> {
    let registers = monitor.ask("info registers -a")?;
    let mut looks = Vec::new();
    for (cpu, text) in processors(&registers).take(CPUS) {
        let apic = monitor.ask(&format!("info lapic {cpu}"))?;
        looks.push(Sample::of(text, &apic));
    }
    Ok(looks)
}

/// A sample of a processor.
#[derive(Debug, Default)]
struct Sample {
    is_halted: bool,
    /// It is running in the kernel, where it may be in a handler.
    in_kernel: bool,
    lets_interrupts_through: bool,
    /// The page of its next instruction.
    page: u64,
    /// Vectors in service; empty for none.
    in_service: String,
    /// Requested vectors.
    requested: String,
}

impl Sample {
    fn of(registers: &str, apic: &str) -> Sample {
        let value = |name: &str| {
            let (_, rest) = registers.split_once(name)?;
            let digits = rest
                .split(|letter: char| !letter.is_ascii_hexdigit())
                .next()?;
            u64::from_str_radix(digits, 16).ok()
        };
        let vectors = |name: &str| {
            let mut lines = apic.lines().filter_map(|line| line.strip_prefix(name));
            let list = lines.next().unwrap_or_default().trim();
            let is_list = list.starts_with(|letter: char| letter.is_ascii_digit());
            if is_list {
                list.to_owned()
            } else {
                String::new()
            }
        };
        let is_halted = registers.contains(HALTED);
        Sample {
            is_halted,
            in_kernel: !is_halted && !registers.contains("CPL=3"),
            lets_interrupts_through: value("RFL=").is_none_or(|flags| flags & INTERRUPTS != 0),
            page: value("RIP=").unwrap_or_default() & !0xfff,
            in_service: vectors("ISR"),
            requested: vectors("IRR"),
        }
    }
}

/// A state that normally lasts a moment, and the number of samples that found it.
#[derive(Debug, Default)]
struct Suspicion {
    what: String,
    looks: usize,
}

impl Suspicion {
    /// Adds a sample: it found `what`, or nothing if that is empty, and it is a fault there if
    /// `counts`.
    fn look(&mut self, what: &str, counts: bool) {
        if self.what != what {
            *self = Suspicion {
                what: what.to_owned(),
                looks: 0,
            };
        }
        self.looks += usize::from(counts && !what.is_empty());
    }
}

/// Findings of the samples of a processor so far.
#[derive(Debug, Default)]
struct Suspect {
    /// A kernel neither halts nor returns to a program from within a handler.
    in_service: Suspicion,
    /// It handles what is requested as soon as it enables interrupts.
    requested: Suspicion,
    /// What it does with interrupts off makes progress.
    place: Suspicion,
}

impl Suspect {
    fn look(&mut self, look: &Sample) {
        self.in_service.look(&look.in_service, !look.in_kernel);
        let waits = look.is_halted && look.lets_interrupts_through;
        self.requested.look(&look.requested, waits);
        let place = match look.in_kernel && !look.lets_interrupts_through {
            true => format!("{:#x}", look.page),
            false => String::new(),
        };
        self.place.look(&place, true);
    }

    fn fault(&self, cpu: usize) -> Option<String> {
        let is_sure = |suspicion: &Suspicion| suspicion.looks >= SAMPLES;
        let Suspect {
            in_service,
            requested,
            place,
        } = self;
        if is_sure(in_service) {
            let vectors = &in_service.what;
            Some(format!(
                "the APIC of processor {cpu} has vector {vectors} in service, and it is in no \
                 handler: QEMU has lost the end of an interrupt"
            ))
        } else if is_sure(requested) {
            let vectors = &requested.what;
            Some(format!(
                "processor {cpu} is halted, and its APIC has vector {vectors} requested: QEMU does \
                 not wake it"
            ))
        } else if is_sure(place) {
            let page = &place.what;
            Some(format!(
                "processor {cpu} is in the kernel with interrupts off and goes no further than \
                 {page}"
            ))
        } else {
            None
        }
    }

    fn is_suspected(&self) -> bool {
        let Suspect {
            in_service,
            requested,
            place,
        } = self;
        // A vector that was seen may be stuck, though no sample found it out of place yet.
        !in_service.what.is_empty() || !requested.what.is_empty() || place.looks != 0
    }
}

/// Adds a sample of all processors, number `number` from 0; returns the verdict when there is one:
/// a fault or none.
fn judge(suspects: &mut Vec<Suspect>, number: usize, looks: &[Sample]) -> Option<Option<String>> {
    suspects.resize_with(looks.len(), Suspect::default);
    for (suspect, look) in suspects.iter_mut().zip(looks) {
        suspect.look(look);
    }
    let mut each = suspects.iter().enumerate();
    let fault = each.find_map(|(cpu, suspect)| suspect.fault(cpu));
    let is_over = number + 1 >= LOOKS_MAX
        || number + 1 >= SAMPLES_MIN && !suspects.iter().any(Suspect::is_suspected);
    (fault.is_some() || is_over).then_some(fault)
}

/// The part of the output for each processor.
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
            // Each in one write: the client closes the connection as soon as it has seen the
            // prompt.
            stream
                .write_all(format!("QEMU monitor\n{PROMPT} ").as_bytes())
                .unwrap();
            let mut asked = String::new();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            lines.read_line(&mut asked).unwrap();
            stream
                .write_all(format!("done\n{PROMPT} ").as_bytes())
                .unwrap();
            asked
        });
        let answer = Monitor::open(&deep).and_then(|mut monitor| monitor.ask("do it"));
        std::fs::remove_dir_all(&top).unwrap();
        assert!(answer.unwrap().contains("done"));
        assert_eq!(qemu.join().unwrap(), "do it\n");
    }

    /// A sample of a processor with these registers and this APIC state.
    fn look(registers: &str, in_service: &str, requested: &str) -> Sample {
        look_at("ffffffff82d7200e", registers, in_service, requested)
    }

    /// As [`look`], with its next instruction here.
    fn look_at(rip: &str, registers: &str, in_service: &str, requested: &str) -> Sample {
        let apic = format!("LVTT\t 0xec\nISR\t {in_service}\nIRR\t {requested}\n\nAPR 0x00\n");
        let registers = format!("CPU#0\nRAX=0\nRIP={rip} {registers}\n");
        let (_, text) = processors(&registers).next().unwrap();
        Sample::of(text, &apic)
    }

    /// The verdict on a machine whose second processor has these samples.
    fn verdict(mut look: impl FnMut(usize) -> Sample) -> Option<String> {
        let mut suspects = Vec::new();
        let mut numbers = 0..;
        numbers
            .find_map(|number| judge(&mut suspects, number, &[idle(), look(number)]))
            .unwrap()
    }

    fn idle() -> Sample {
        look(HALT, NONE, NONE)
    }

    const NONE: &str = "(none)";
    const HALT: &str = "RFL=00000246 [---Z---] CPL=0 II=0 A20=1 SMM=0 HLT=1";
    const PROGRAM: &str = "RFL=00000246 [---Z---] CPL=3 II=0 A20=1 SMM=0 HLT=0";
    const KERNEL: &str = "RFL=00000246 [---Z---] CPL=0 II=0 A20=1 SMM=0 HLT=0";
    const INTERRUPTS_OFF: &str = "RFL=00000046 [---Z---] CPL=0 II=0 A20=1 SMM=0 HLT=0";
    const OFF_AND_HALTED: &str = "RFL=00000046 [---Z---] CPL=0 II=0 A20=1 SMM=0 HLT=1";

    #[test]
    fn a_lasting_momentary_state_is_a_fault() {
        let finds = |words: &str, look: &mut dyn FnMut(usize) -> Sample| {
            let fault = verdict(look).unwrap();
            assert!(fault.contains(words), "{fault}");
        };
        finds("processor 1 has vector 236 in service", &mut |_| {
            look(HALT, "236 ", "236 ")
        });
        finds("vector 35 in service", &mut |_| look(PROGRAM, "35 ", NONE));
        finds("vector 35 36 requested", &mut |_| {
            look(HALT, NONE, "35 36 ")
        });
        finds("no further than 0xffffffff82d72000", &mut |_| {
            look(INTERRUPTS_OFF, NONE, NONE)
        });
        // The kernel works in between, sometimes with interrupts off: the vector stays.
        finds("vector 35 in service", &mut |number| match number % 3 {
            0 => look(KERNEL, "35 ", NONE),
            1 => look(INTERRUPTS_OFF, "35 ", NONE),
            _ => look(HALT, "35 ", NONE),
        });
        finds("vector 35 in service", &mut |number| match number {
            0..5 => look(KERNEL, "35 ", NONE),
            _ => look(HALT, "35 ", NONE),
        });
    }

    #[test]
    fn a_changing_state_is_no_fault() {
        for registers in [HALT, PROGRAM, KERNEL, OFF_AND_HALTED] {
            assert_eq!(
                verdict(|_| look(registers, NONE, NONE)),
                None,
                "{registers}"
            );
        }
        // In a handler; about to be handled; not enabled.
        assert_eq!(verdict(|_| look(KERNEL, "236 ", NONE)), None);
        assert_eq!(verdict(|_| look(PROGRAM, NONE, "35 ")), None);
        assert_eq!(verdict(|_| look(OFF_AND_HALTED, NONE, "35 ")), None);
        // A different one each time, or none in between, also while in the kernel.
        let vectors = ["35 ", "36 "];
        assert_eq!(verdict(|at| look(HALT, vectors[at % 2], NONE)), None);
        assert_eq!(verdict(|at| look(HALT, NONE, vectors[at % 2])), None);
        let between = |at: usize, registers, others| match at % 5 {
            4 => look(others, NONE, NONE),
            _ => look(registers, "35 ", NONE),
        };
        assert_eq!(verdict(|at| between(at, HALT, KERNEL)), None);
        assert_eq!(verdict(|at| between(at, INTERRUPTS_OFF, KERNEL)), None);
        // Progress with interrupts off.
        let pages = ["1000", "2000"];
        let works = |at: usize| look_at(pages[at % 2], INTERRUPTS_OFF, NONE, NONE);
        assert_eq!(verdict(works), None);
        assert_eq!(judge(&mut Vec::new(), SAMPLES_MIN, &[]), Some(None));
    }
}
