//! Filters: libpcap's compiler, barewire's interpreter, and the kernel running barewire's
//! translations must select the same packets of real captures.
//!
//! The captures and tcpdump's counts for 43 expressions are in the large corpus; without it these
//! tests are skipped.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bpf::cbpf::{self, Op, Place, Program};
use bpf::ebpf::Insn;
use bpf::translate::{XdpOptions, skb_program, xdp_program};
use bpf::vm_cbpf;
use lab::skip::{self, Missing};
use sys::bpf::{ProgramSpec, ProgramType, TestRun, XDP_FLAG_FRAGS};
use sys::libpcap::PacketSource;
use wire::LinkType;
use wire::file::{Event, Reader};

const COUNTS: &str = "expected/tcpdump-4.99.3__filter_counts.tsv";

/// Maximum packet length of a kernel test run in one buffer: a page less headroom and tailroom.
const LINEAR_LEN_MAX: usize = 3400;

fn data() -> Result<PathBuf, Missing> {
    lab::corpus::large()
}

/// Maximum length with frags: of 17 more pages one stays unused.
const FRAGS_LEN_MAX: usize = LINEAR_LEN_MAX + 16 * 4096;

struct Packet {
    bytes: Vec<u8>,
    wire_len: u32,
}

/// All packets of a capture file up to its end or the first damaged block.
fn read_capture(path: &Path) -> (Option<PacketSource>, Vec<Packet>) {
    let file = std::fs::read(path).unwrap();
    // The magic number of pcap, or the byte order mark of pcapng, in big-endian order.
    let swapped =
        matches!(file.first(), Some(0xa1)) || file.get(8..12) == Some(&[0x1a, 0x2b, 0x3c, 0x4d]);
    let (mut at, mut reader) = (0, Reader::new());
    let (mut link, mut packets) = (None, Vec::new());
    loop {
        let rest = &file[at.min(file.len())..];
        match reader.next(rest) {
            Ok(Event::Need(_)) | Err(_) => {
                let source =
                    link.map(|LinkType(link_type)| PacketSource::File { link_type, swapped });
                return (source, packets);
            }
            Ok(event) => {
                if let Event::Packet(packet) = &event {
                    link.get_or_insert(packet.link);
                    packets.push(Packet {
                        bytes: rest[packet.data.clone()].to_vec(),
                        wire_len: packet.wire_len,
                    });
                } else if let Event::Interface(found) = &event {
                    link.get_or_insert(found.interface.link);
                }
                at += event.used();
            }
        }
    }
}

fn compile(expression: &str, source: PacketSource) -> sys::Result<Program> {
    let insns = sys::libpcap::compile(expression, source, 262_144, true)?;
    let insns = insns
        .iter()
        .map(|i| cbpf::Insn::new(i.code, i.jt, i.jf, i.k))
        .collect();
    Ok(Program::new(insns).unwrap_or_else(|e| panic!("{expression}: {e}")))
}

/// The table of counts: expressions, and the cells of each file.
fn counts(text: &str) -> (Vec<&str>, Vec<(&str, Vec<&str>)>) {
    let mut lines = text.lines().map(|line| line.split('\t'));
    let expressions = lines.next().unwrap().skip(1).collect();
    let rows = lines
        .map(|mut cells| (cells.next().unwrap(), cells.collect()))
        .collect();
    (expressions, rows)
}

fn libpcap() -> Result<(), Missing> {
    sys::libpcap::version()
        .map(|_| ())
        .map_err(|_| Missing::Program {
            name: "libpcap (a library)".into(),
            package: "libpcap0.8".into(),
        })
}

#[test]
fn the_interpreter_selects_what_tcpdump_selects() {
    lab::require!(libpcap());
    let data = match data() {
        Ok(data) => data,
        Err(missing) => lab::skip!(missing),
    };
    let text = std::fs::read_to_string(data.join(COUNTS)).unwrap();
    let (expressions, rows) = counts(&text);
    assert_eq!(expressions.len(), 44);
    let (mut compared, mut not_compared) = (0, 0);
    let mut programs: HashMap<(PacketSource, &str), Option<Program>> = HashMap::new();
    for (name, cells) in rows {
        let (source, packets) = read_capture(&data.join("pcap").join(name));
        for (&expression, &cell) in expressions.iter().zip(&cells) {
            // Damaged files and mixed interfaces, where libpcap stops reading earlier; a compressed
            // file.
            let Some(source) = source.filter(|_| cell != "unreadable" && !cell.ends_with('*'))
            else {
                not_compared += 1;
                continue;
            };
            let text = if expression == "(all)" {
                ""
            } else {
                expression
            };
            let program = programs
                .entry((source, text))
                .or_insert_with(|| compile(text, source).ok());
            let Some(program) = program else {
                assert_eq!(cell, "reject", "{name}: {expression}");
                continue;
            };
            let selected = packets
                .iter()
                .filter(|p| vm_cbpf::run(program, &p.bytes, p.wire_len) != 0);
            assert_eq!(selected.count().to_string(), cell, "{name}: {expression}");
            compared += 1;
        }
    }
    println!("{compared} counts equal to tcpdump's, {not_compared} not compared (unreadable)");
    assert!(
        compared > 25_000 && not_compared < 1_500,
        "{compared} {not_compared}"
    );
}

fn load(kind: ProgramType, insns: &[Insn], frags: bool, what: &str) -> sys::bpf::Program {
    let words: Vec<u64> = insns.iter().map(|i| i.to_word()).collect();
    let flags = if frags { XDP_FLAG_FRAGS } else { 0 };
    let spec = ProgramSpec {
        kind,
        name: "bw_filter",
        insns: &words,
        flags,
        ifindex: 0,
    };
    sys::bpf::Program::load(&spec).unwrap_or_else(|e| panic!("{what}: {}\n{}", e.source, e.log))
}

/// All ways in which the kernel can run a filter.
pub(super) struct InKernel {
    xdp: Vec<(XdpOptions, sys::bpf::Program)>,
    skb: sys::bpf::Program,
}

impl InKernel {
    pub(super) fn load(program: &Program, what: &str) -> Self {
        let mut xdp = Vec::new();
        for frags in [false, true] {
            for indirect_by_helper in [false, true] {
                let options = XdpOptions {
                    hook: bpf::translate::DirectHook::Xdp,
                    frags,
                    indirect_by_helper,
                    stack_top: 0,
                };
                let insns = xdp_program(program, &options).unwrap();
                xdp.push((options, load(ProgramType::Xdp, &insns, frags, what)));
            }
        }
        let skb = load(
            ProgramType::SocketFilter,
            &skb_program(program).unwrap(),
            false,
            what,
        );
        Self { xdp, skb }
    }

    /// Checks that all agree with the interpreter on a packet. Returns the number of runs.
    pub(super) fn check(&self, program: &Program, bytes: &[u8], what: &str) -> usize {
        let mut runs = 0;
        let expected = vm_cbpf::run(program, bytes, bytes.len() as u32);
        for (options, loaded) in &self.xdp {
            // The kernel accepts no XDP packet shorter than an Ethernet header.
            let len_max = if options.frags {
                FRAGS_LEN_MAX
            } else {
                LINEAR_LEN_MAX
            };
            if bytes.len() < 14 || bytes.len() > len_max {
                continue;
            }
            let result = loaded
                .test_run(&TestRun {
                    data: bytes,
                    ..TestRun::default()
                })
                .unwrap();
            assert_eq!(result.retval, expected, "{what}: {options:?}: {bytes:02x?}");
            runs += 1;
        }
        // In a socket's test run the link header is the one made below.
        let counts_from_link = program
            .ops()
            .any(|op| matches!(op, Op::LoadAbs(_, k) if matches!(Place::of(k), Place::Link(_))));
        if bytes.len() <= LINEAR_LEN_MAX - 14 && !counts_from_link {
            // A test run removes an Ethernet header before it calls a socket filter.
            let data = [&[0; 14], bytes].concat();
            let result = self
                .skb
                .test_run(&TestRun {
                    data: &data,
                    ..TestRun::default()
                })
                .unwrap();
            assert_eq!(
                result.retval, expected,
                "{what}: socket filter: {bytes:02x?}"
            );
            runs += 1;
        }
        runs
    }
}

#[test]
fn the_kernel_selects_what_the_interpreter_selects() {
    lab::require!(skip::root(), libpcap());
    let data = match data() {
        Ok(data) => data,
        Err(missing) => lab::skip!(missing),
    };
    let text = std::fs::read_to_string(data.join(COUNTS)).unwrap();
    let (expressions, rows) = counts(&text);
    // A sample of each capture, evenly spaced.
    let sample_max = 6;
    let mut samples = Vec::new();
    for (name, _) in rows {
        let (source, packets) = read_capture(&data.join("pcap").join(name));
        if matches!(source, Some(PacketSource::File { link_type: 1, .. })) {
            let step = packets.len().div_ceil(sample_max).max(1);
            samples.extend(packets.into_iter().step_by(step).map(|p| (name, p.bytes)));
        }
    }
    let mut runs = 0;
    for expression in expressions
        .iter()
        .map(|&e| if e == "(all)" { "" } else { e })
    {
        let program = compile(expression, PacketSource::Live { link_type: 1 }).unwrap();
        let kernel = InKernel::load(&program, expression);
        for (name, bytes) in &samples {
            runs += kernel.check(&program, bytes, &format!("{name}: {expression}"));
        }
    }
    println!("{runs} runs in the kernel for {} packets", samples.len());
    assert!(
        samples.len() > 1_000 && runs > 100_000,
        "{} {runs}",
        samples.len()
    );
}

#[test]
fn listings_equal_those_of_tcpdump() {
    lab::require!(libpcap(), skip::program("tcpdump", "tcpdump"));
    let file = lab::oracle::write_pcap::<&[u8]>(&[]).unwrap();
    let expressions = [
        "",
        "tcp port 80",
        "ip6 and udp portrange 1000-2000",
        "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
        "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
        "ip[2:2] * 3 - 7 / 2 % 5 ^ 1 | 8 << 1 > len",
        "(-ip[0] > 5) and ip[ip[0]] != ip[1] + ip[2] << ip[3] >> ip[4] % ip[5]",
        "vlan and mpls and host 192.0.2.1",
        "pppoes and tcp",
        "greater 1000 or less 64",
    ];
    for expression in expressions {
        for optimize in ["-O", ""] {
            let mut command = std::process::Command::new("tcpdump");
            command.arg("-r").arg(file.path()).arg("-d");
            // tcpdump's -O is "do not optimize".
            command
                .args(Some(optimize).filter(|o| !o.is_empty()))
                .arg(expression);
            let out = command.output().unwrap();
            assert!(
                out.status.success(),
                "{expression}: {}",
                String::from_utf8_lossy(&out.stderr)
            );
            let source = PacketSource::File {
                link_type: 1,
                swapped: false,
            };
            let insns =
                sys::libpcap::compile(expression, source, 262_144, optimize.is_empty()).unwrap();
            let insns: Vec<_> = insns
                .iter()
                .map(|i| cbpf::Insn::new(i.code, i.jt, i.jf, i.k))
                .collect();
            let ours = bpf::disasm::Classic(&insns).to_string();
            assert_eq!(ours, String::from_utf8_lossy(&out.stdout), "{expression}");
        }
    }
}

/// A pseudorandom number generator (xorshift64*).
struct Random(u64);

impl Random {
    /// Seeds it from `BAREWIRE_SEED`, or with a fixed seed.
    fn new(test: &str) -> Self {
        Self(lab::random::Random::seeded(test).seed() | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((self.next() >> 32) as usize * bound) >> 32
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// An index into a packet: mostly small, sometimes at a boundary.
    fn index(&mut self) -> u32 {
        match self.below(40) {
            0 => 65_530 + self.below(10) as u32,
            1 => self.next() as u32 >> 1,
            2 => 3_500 + self.below(30) as u32,
            3 => self.below(6_000) as u32,
            _ => self.below(70) as u32,
        }
    }
}

/// A valid program of instructions from the whole table. `tame`: none that Linux interprets
/// differently from libpcap (shifts by X, indices that wrap around).
fn random_program(random: &mut Random, tame: bool) -> Program {
    use cbpf::{Alu, Form};
    let mut insns: Vec<cbpf::Insn> = (0..4)
        .map(|word| cbpf::Insn::new(0x02, 0, 0, word))
        .collect();
    let len = insns.len() + 2 + random.below(30);
    while insns.len() < len {
        let info = &cbpf::OPS[random.below(cbpf::OPS.len())];
        let left = (len - insns.len()) as u32;
        let (mut jt, mut jf) = (0, 0);
        let k = match info.form {
            // Few returns, or most programs would end at once.
            Form::RetK | Form::RetA if !random.one_in(8) => continue,
            Form::Alu {
                op: Alu::Lsh | Alu::Rsh,
                x: true,
                ..
            } if tame => continue,
            Form::Abs(_) if random.one_in(12) => cbpf::ANCILLARY_BASE + 40,
            Form::Abs(_) if !tame && random.one_in(12) => cbpf::LINK_BASE + random.index() % 99_999,
            Form::Abs(_) | Form::Msh => random.index(),
            Form::Ind(_) => {
                if tame {
                    insns.push(cbpf::Insn::new(0x01, 0, 0, random.below(50) as u32));
                }
                random.index()
            }
            Form::Mem(_) | Form::Store(_) => random.below(4) as u32,
            Form::Alu {
                op: Alu::Div | Alu::Mod,
                ..
            } => 1 + random.below(9) as u32,
            Form::Alu {
                op: Alu::Lsh | Alu::Rsh,
                ..
            } => random.below(32) as u32,
            Form::Jump => random.below(left as usize) as u32,
            Form::JumpIf(..) => {
                (jt, jf) = (
                    random.below(left as usize) as u8,
                    random.below(left as usize) as u8,
                );
                random.below(256) as u32
            }
            _ if random.one_in(3) => random.next() as u32,
            _ => random.below(64) as u32,
        };
        insns.push(cbpf::Insn::new(info.code, jt, jf, k));
    }
    if tame {
        keep_tame(&mut insns);
    }
    insns.push(cbpf::Insn::new(
        if random.one_in(2) { 0x16 } else { 0x06 },
        0,
        0,
        77,
    ));
    // Jumps were generated for a program that may have grown since; they still point forward and
    // inside.
    Program::new(insns).unwrap()
}

/// Redirects jumps to an indirect load to the instruction before it, which sets X: with any other X
/// the sum X + k could wrap around, where the kernel's classic filters differ.
fn keep_tame(insns: &mut [cbpf::Insn]) {
    let indirect: Vec<bool> = insns.iter().map(|insn| insn.code & 0xe7 == 0x40).collect();
    let back = |at: usize, jump: u32| {
        let target = at + 1 + jump as usize;
        jump - u32::from(indirect.get(target) == Some(&true))
    };
    for (at, insn) in insns.iter_mut().enumerate() {
        if insn.code == 0x05 {
            insn.k = back(at, insn.k);
        } else if insn.code & 0x07 == 0x05 {
            insn.jt = back(at, insn.jt.into()) as u8;
            insn.jf = back(at, insn.jf.into()) as u8;
        }
    }
}

fn random_packet(random: &mut Random) -> Vec<u8> {
    let len = match random.below(8) {
        0 => random.below(20),
        1 => 3_600 + random.below(3_000),
        _ => random.below(100),
    };
    // Also small numbers, which are valid lengths.
    let mask = if random.one_in(2) { 0xff } else { 0x0f };
    (0..len).map(|_| random.next() as u8 & mask).collect()
}

#[test]
fn random_programs_mean_the_same_in_the_kernel() {
    lab::require!(skip::root());
    let mut random = Random::new("random_programs_mean_the_same_in_the_kernel");
    let (mut runs, mut hits) = (0, 0);
    for number in 0..150 {
        let program = random_program(&mut random, false);
        let what = format!(
            "program {number}:\n{}",
            bpf::disasm::Classic(program.insns())
        );
        let kernel = InKernel::load(&program, &what);
        for _ in 0..40 {
            let packet = random_packet(&mut random);
            runs += kernel.check(&program, &packet, &what);
            hits += usize::from(vm_cbpf::run(&program, &packet, packet.len() as u32) != 0);
        }
    }
    println!("{runs} runs, {hits} of {} selected", 150 * 40);
    assert!(runs > 10_000 && hits > 300, "{runs} {hits}");
}

/// The kernel's own cBPF on a pair of unix sockets: refused packets do not arrive, the others are
/// cut to the result.
#[test]
fn random_programs_mean_the_same_as_cbpf_on_a_socket() {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;
    let mut random = Random::new("random_programs_mean_the_same_as_cbpf_on_a_socket");
    let mut hits = 0;
    for number in 0..500 {
        let program = random_program(&mut random, true);
        assert_eq!(program.kernel_refusal(), None);
        let what = format!(
            "program {number}:\n{}",
            bpf::disasm::Classic(program.insns())
        );
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        receiver.set_nonblocking(true).unwrap();
        let insns: Vec<_> = program
            .insns()
            .iter()
            .map(|&cbpf::Insn { code, jt, jf, k }| sys::bpf::ClassicInsn { code, jt, jf, k })
            .collect();
        sys::bpf::attach_classic(receiver.as_fd(), &insns)
            .unwrap_or_else(|e| panic!("{e}\n{what}"));
        for _ in 0..20 {
            let mut packet = random_packet(&mut random);
            packet.push(1);
            let expected = vm_cbpf::run(&program, &packet, packet.len() as u32) as usize;
            sender.send(&packet).unwrap();
            let mut buffer = vec![0; 8192];
            let arrived = receiver.recv(&mut buffer).unwrap_or(0);
            assert_eq!(arrived, expected.min(packet.len()), "{what}{packet:02x?}");
            hits += usize::from(arrived > 0);
        }
    }
    assert!(hits > 500, "{hits} of 10000 selected");
}
