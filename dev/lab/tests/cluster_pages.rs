//! Fan-out copies no byte: each packet is in one page of memory, which the owner of a cluster and
//! its readers have mapped, and the readers' own memory does not grow.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Instant;

use lab::oracle::{TempFile, write_pcap};
use lab::packet::{Udp, number_of};
use lab::process::{Process, barewire, own_test};
use lab::{Pair, Veth, skip};
use port::{PortOptions, Ready};

use crate::cluster_live::{Cluster, FILTER, LIMIT, unique};

/// Environment variable of a reader: its port, and the file for what it finds.
const READER: &str = "BAREWIRE_CLUSTER_PAGES";

const COUNT: u64 = 3_000;
const LEN: usize = 1_400;
const PAGE: u64 = 4_096;

/// A mapping of a process (proc_pid_maps(5)).
struct Mapping {
    start: u64,
    end: u64,
    permissions: String,
    /// Offset in the file at `start`.
    offset: u64,
    /// Device and inode of the file.
    file: String,
}

fn mappings(process: &str) -> Vec<Mapping> {
    let text = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let mapping = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = words[0].split_once('-').unwrap();
        Mapping {
            start: number(start),
            end: number(end),
            permissions: words[1].to_owned(),
            offset: number(words[2]),
            file: format!("{}/{}", words[3], words[4]),
        }
    };
    text.lines().map(mapping).collect()
}

/// Memory of this process that no file backs, in KiB.
fn own_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let words = line.unwrap().split_whitespace();
    words.filter_map(|word| word.parse().ok()).next().unwrap()
}

/// Code of a reader: writes in which place of which file each packet's bytes are, and how much its
/// own memory has grown meanwhile.
#[test]
fn child_finds_the_places_of_packets() {
    let text = ::skip::child_body!(READER);
    let (name, path) = text.split_once(' ').unwrap();
    let mut port = port::open(name, &PortOptions::default()).unwrap();
    let rx = &mut port.rx[0];
    println!("reading");
    let (mut maps, mut out) = (Vec::new(), String::with_capacity(COUNT as usize * 64));
    let (mut count, mut before) = (0, 0);
    while rx.wait(LIMIT).unwrap() == Ready::Packets {
        for packet in rx.receive().unwrap().iter() {
            let address = packet.bytes().as_ptr().addr() as u64;
            if count == 0 {
                // All of its memory has been used once from here on.
                out.extend(std::iter::repeat_n(' ', out.capacity()));
                out.clear();
                maps = mappings("self");
                before = own_memory();
            }
            let is_in = |it: &&Mapping| (it.start..it.end).contains(&address);
            let it = maps.iter().find(is_in).unwrap();
            let (number, at) = (
                number_of(packet.bytes()).unwrap(),
                address - it.start + it.offset,
            );
            assert_eq!(packet.bytes().len(), LEN);
            writeln!(out, "{number} {} {at}", it.file).unwrap();
            count += 1;
        }
        if count == COUNT {
            writeln!(out, "grown {}", own_memory().saturating_sub(before)).unwrap();
            std::fs::write(path, &out).unwrap();
            println!("all read");
        }
    }
}

struct Reader {
    process: Process,
    file: TempFile,
}

impl Reader {
    fn start(port: &str) -> Reader {
        let file = TempFile::new(".places");
        let (program, args) = own_test(module_path!(), "child_finds_the_places_of_packets");
        let mut command = Command::new(program);
        command.args(args);
        command.env(READER, format!("{port} {}", file.path().display()));
        let process = Process::spawn(&mut command).unwrap();
        process.wait_stdout("reading", LIMIT).unwrap();
        Reader { process, file }
    }

    /// The file and the place in it of each packet, and how much its memory has grown, in bytes.
    fn places(&self) -> (BTreeMap<u64, (String, u64)>, u64) {
        self.process.wait_stdout("all read", LIMIT).unwrap();
        let text = std::fs::read_to_string(self.file.path()).unwrap();
        let (mut places, mut grown) = (BTreeMap::new(), None);
        for line in text.lines() {
            match *line.split(' ').collect::<Vec<_>>() {
                [number, file, at] => {
                    let place = (file.to_owned(), at.parse().unwrap());
                    let before = places.insert(number.parse().unwrap(), place);
                    assert_eq!(before, None, "packet {number} twice");
                }
                ["grown", kib] => grown = kib.parse::<u64>().ok(),
                _ => panic!("{line}"),
            }
        }
        (places, grown.unwrap() << 10)
    }
}

/// The physical pages of pages of a file, as a process has mapped them: `None` for those that it
/// has not, 0 without the right to know (Documentation/admin-guide/mm/pagemap.rst).
fn physical(process: u32, file: &str, pages: &BTreeSet<u64>) -> Vec<Option<u64>> {
    let maps = mappings(&process.to_string());
    let pagemap = File::open(format!("/proc/{process}/pagemap")).unwrap();
    let entry = |at: &u64| {
        let is_in = |it: &&Mapping| {
            let end = it.offset + (it.end - it.start);
            it.file == file && (it.offset..end).contains(at)
        };
        let it = maps.iter().find(is_in)?;
        let address = it.start + (at - it.offset);
        let mut bytes = [0; 8];
        pagemap
            .read_exact_at(&mut bytes, address / PAGE * 8)
            .unwrap();
        let entry = u64::from_le_bytes(bytes);
        (entry >> 63 == 1).then_some(entry & ((1 << 55) - 1))
    };
    pages.iter().map(entry).collect()
}

/// Checks that all processes which have mapped a page of the file have the same one. (The kernel
/// may move pages, so another one is looked at again.)
fn check_pages(processes: &[u32], file: &str, pages: &BTreeSet<u64>) {
    let end = Instant::now() + LIMIT;
    loop {
        let tables: Vec<_> = processes
            .iter()
            .map(|it| physical(*it, file, pages))
            .collect();
        let is_shared = |at: &usize| tables.iter().all(|table| table[*at].is_some());
        let shared: Vec<usize> = (0..pages.len()).filter(is_shared).collect();
        // Others may have been reclaimed.
        assert!(
            shared.len() * 2 > pages.len(),
            "{} of {}",
            shared.len(),
            pages.len()
        );
        let is_same = |at: &&usize| tables.iter().all(|table| table[**at] == tables[0][**at]);
        let same = shared.iter().filter(is_same).count();
        let known = shared
            .iter()
            .filter(|at| tables[0][**at] != Some(0))
            .count();
        if same == shared.len() {
            eprintln!(
                "{same} pages the same in {} processes, {known} by number",
                tables.len()
            );
            return;
        }
        assert!(Instant::now() < end, "{same} of {} pages", shared.len());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// Checks that a reader can only read the file, and has no pages of its own instead of its pages.
fn check_mapping(process: u32, file: &str) {
    let maps = mappings(&process.to_string());
    let its: Vec<&Mapping> = maps.iter().filter(|it| it.file == file).collect();
    assert!(!its.is_empty());
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps")).unwrap();
    for it in its {
        assert_eq!(it.permissions, "r--s");
        let head = format!("{:x}-{:x} ", it.start, it.end);
        let lines = text.lines().skip_while(|line| !line.starts_with(&head));
        let anonymous = lines
            .into_iter()
            .find(|line| line.starts_with("Anonymous:"));
        let words: Vec<&str> = anonymous.unwrap().split_whitespace().collect();
        assert_eq!(words[1], "0", "{head}: {words:?}");
    }
}

fn send(pair: &Pair) {
    let plan = Udp::between(&pair.left, &pair.right).flows(16);
    let packets: Vec<_> = (0..COUNT).map(|number| plan.build(number, LEN)).collect();
    let file = write_pcap(&packets).unwrap();
    let name = file.path().to_str().unwrap();
    let args = ["send", name, &pair.left.ifname, "--rate", "20kpps"];
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap();
}

/// Three applications read each packet from one place, in one physical page, which is the owner's,
/// whether the packet was copied into the pool (a tap) or received there (AF_XDP).
#[test]
fn three_applications_read_packets_from_the_same_pages() {
    lab::require!(skip::lab());
    for scheme in ["afpacket", "afxdp"] {
        let pair = Veth::new().create().unwrap();
        let name = unique();
        let port = format!("{scheme}:{}", pair.right.ifname);
        let args = [
            "--app", "one", "--app", "two", "--app", "three", "--ring", "4096", &port, FILTER,
        ];
        let cluster = Cluster::start(&pair, &name, &args);
        let readers = ["one", "two", "three"].map(|it| Reader::start(&format!("ring:{name}/{it}")));
        send(&pair);
        let found = readers.each_ref().map(Reader::places);
        let (places, _) = &found[0];
        assert_eq!(places.len() as u64, COUNT);
        for (others, grown) in &found {
            assert!(others == places, "{scheme}: other places");
            let bytes = COUNT * LEN as u64;
            assert!(*grown < bytes / 4, "{scheme}: {grown} bytes of {bytes}");
        }
        let files: BTreeSet<&String> = places.values().map(|(file, _)| file).collect();
        assert_eq!(files.len(), 1, "{scheme}: {files:?}");
        let file = files.into_iter().next().unwrap();
        let ends = places
            .values()
            .flat_map(|(_, at)| [*at, at + LEN as u64 - 1]);
        let pages: BTreeSet<u64> = ends.map(|at| at / PAGE * PAGE).collect();
        assert!(pages.len() > 32, "{scheme}: {} pages", pages.len());
        let status = cluster.status();
        assert_eq!(status["input"]["zero_copy"], scheme == "afxdp", "{status}");
        let owner = status["process"].as_u64().unwrap() as u32;
        let processes = readers.each_ref().map(|reader| reader.process.pid());
        for process in processes {
            check_mapping(process, file);
        }
        check_pages(&[&processes[..], &[owner]].concat(), file, &pages);
        cluster.stop();
        for mut reader in readers {
            reader.process.wait(LIMIT).unwrap().checked().unwrap();
        }
    }
}
