//! `libpfring.so`: every function of PF_RING's headers is exported, and a C program that calls each
//! of them links and runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use lab::dropin::Dropin;
use lab::oracle::TempFile;
use lab::process::Process;
use lab::{Netns, require, skip};

use crate::cluster_live::LIMIT;

/// Time limit of the program that calls all functions, each in a process; not a measurement.
const PROGRAM_LIMIT: Duration = Duration::from_secs(600);

/// `PF_RING_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: i64 = -7;
/// The error of functions that return a pointer.
const EOPNOTSUPP: i32 = 95;

/// The table of the library.
const TABLE: &str = include_str!("../../../face/pfring/functions.txt");

/// Its parts.
const HEADERS: [&str; 3] = ["pfring.h", "pfring_zc.h", "others"];

/// A function of a header.
struct Function {
    support: &'static str,
    result: &'static str,
    name: &'static str,
    arguments: Vec<&'static str>,
}

/// The functions of a header.
fn of(header: &str) -> Vec<Function> {
    let (_, rest) = TABLE.split_once(&format!("\n[{header}]\n")).unwrap();
    let lines = rest.lines().take_while(|line| !line.is_empty());
    let read = |line: &'static str| {
        let (support, prototype) = line.split_once(' ').unwrap();
        let (head, arguments) = prototype.trim().split_once('(').unwrap();
        let start = head.rfind([' ', '*']).unwrap() + 1;
        let arguments = arguments.strip_suffix(')').unwrap().split(',');
        Function {
            support,
            result: head[..start].trim(),
            name: &head[start..],
            arguments: arguments
                .map(str::trim)
                .filter(|it| !it.is_empty())
                .collect(),
        }
    };
    lines.map(read).collect()
}

fn all() -> Vec<Function> {
    HEADERS.into_iter().flat_map(of).collect()
}

#[test]
fn the_exported_symbols_are_the_functions_of_the_headers() {
    require!(skip::program("nm", "binutils"));
    let dropin = Dropin::pfring().unwrap();
    let mut command = Command::new("nm");
    command.args(["-D", "--defined-only"]).arg(dropin.library());
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    let text = finished.checked().unwrap().stdout;
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    let exported: BTreeSet<_> = names.collect();
    let all = all();
    let expected: BTreeSet<_> = all.iter().map(|row| row.name).collect();
    assert_eq!(exported, expected);
    // As many as the headers declare.
    assert_eq!((of("pfring.h").len(), of("pfring_zc.h").len()), (110, 74));
    assert_eq!(expected.len(), all.len());
}

/// The types that the program declares itself, and what it calls functions with.
const HEAD: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
typedef struct __pfring pfring;
typedef void (*pfringProcesssPacket)(const void *, const u_char *, const u_char *);
typedef int64_t (*pfring_zc_distribution_func)(void *, void *, void *);
typedef pfring_zc_distribution_func pfring_zc_filtering_func;
typedef void (*pfring_zc_idle_callback)(void);
"#;

const TYPES: [&str; 27] = [
    "void",
    "char",
    "int",
    "double",
    "u_char",
    "u_short",
    "u_int",
    "u_int8_t",
    "u_int16_t",
    "u_int32_t",
    "u_int64_t",
    "int8_t",
    "int32_t",
    "time_t",
    "pfring",
    "pfringProcesssPacket",
    "pfring_zc_distribution_func",
    "pfring_zc_filtering_func",
    "pfring_zc_idle_callback",
    "generic_default_action_type",
    "packet_slicing_level",
    "packet_direction",
    "socket_mode",
    "cluster_type",
    "filtering_mode",
    "pfring_zc_queue_mode",
    "pfring_zc_recv_policy",
];

/// Those of them that are numbers of an enumeration.
const ENUMERATIONS: usize = 8;

const BODY: &str = r#"
static pfring *ring, *rings[64];
static pfring_zc_cluster *cluster;
static pfring_zc_queue *queue;
static pfring_zc_buffer_pool *pool;
static pfring_zc_pkt_buff *buffer;
static uint32_t number;
static u_char *bytes;
static void *memory;
static const struct { u_int16_t code; u_int8_t jt, jf; u_int32_t k; } accept_all = { 6, 0, 0, 1 };

static void on_packet(const void *header, const u_char *packet, const u_char *user) {
  pfring_breakloop(ring);
}
static int64_t choose(void *packet, void *from, void *user) { return 0; }
static void idle(void) {}
static pfring_zc_worker *worker(void) {
  return pfring_zc_run_fifo(&queue, NULL, 1, pool, idle, choose, NULL, 0, -1, -1);
}
static pfring_zc_multi_queue *multi(void) { return pfring_zc_create_multi_queue(&queue, 1); }

/// What calls with valid arguments need: a ring and a device that have received packets.
static int prepare(void) {
  int fd = socket(AF_INET, SOCK_DGRAM, 0);
  struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9) };
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  memory = calloc(1, 1 << 17);
  bytes = calloc(1, 1 << 16);
  ring = pfring_open("lo", 1536, 1 << 2);
  cluster = pfring_zc_create_cluster(number, 1536, 0, 64, -1, NULL, 0);
  if (!memory || !bytes || !ring || pfring_enable_ring(ring) || !cluster) return -1;
  queue = pfring_zc_open_device(cluster, "lo", 0, 0);
  pool = pfring_zc_create_buffer_pool(cluster, 16);
  buffer = pfring_zc_get_packet_handle(cluster);
  if (!queue || !pool || !buffer) return -1;
  *(u_int16_t *)buffer = 60;
  for (int i = 0; i < 4; i++)
    if (sendto(fd, "hello", 5, 0, (struct sockaddr *)&to, sizeof to) != 5) return -1;
  return 0;
}
"#;

const MAIN: &str = r#"
int main(int argc, char **argv) {
  number = strtoul(argv[1], NULL, 10);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    for (int valid = 0; valid < 2; valid++) {
      fflush(stdout);
      pid_t child = fork();
      if (child == 0) {
        alarm(20);
        if (valid && prepare()) _exit(3);
        errno = 0;
        long code = calls[i].call(valid);
        printf("%s %d %ld %d\n", calls[i].name, valid, code, errno);
        fflush(stdout);
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      if (status) printf("%s %d status %d\n", calls[i].name, valid, status);
    }
  return 0;
}
"#;

/// A valid argument of a type; that of `name` at `index` where the type does not say it.
fn argument(name: &str, index: usize, kind: &str) -> String {
    let special = match (name, index) {
        ("pfring_set_bpf_filter" | "pfring_zc_set_bpf_filter", 1)
        | ("pfring_parse_bpf_filter", 0) => "\"udp\"",
        // `MAX_CLUSTER_QUEUES`: any.
        ("pfring_set_cluster_consumer", 2) => "64",
        ("pfring_zc_create_cluster", 0) => "number + 1",
        // Masks of more than 64 bits are not supported.
        ("pfring_zc_run_fanout_v3", 8) => "NULL",
        // The rest is for a device that sends.
        ("pfring_zc_open_device", 2) => "0",
        _ => "",
    };
    if !special.is_empty() {
        return special.into();
    }
    match kind {
        "pfring *" => "ring",
        "pfring **" => "rings",
        "pfringProcesssPacket" => "on_packet",
        "pfring_zc_distribution_func" | "pfring_zc_filtering_func" => "choose",
        "pfring_zc_idle_callback" => "idle",
        "const char *" => "\"lo\"",
        // Some functions write there.
        "char *" => "strcpy((char *)bytes, \"lo\")",
        "u_char *" | "const u_char *" => "bytes",
        "u_char **" => "&bytes",
        "struct bpf_insn *" => "(void *)&accept_all",
        "pfring_if_t *" => "pfring_findalldevs()",
        "pfring_zc_cluster *" => "cluster",
        "pfring_zc_queue *" => "queue",
        "pfring_zc_queue **" => "&queue",
        "pfring_zc_buffer_pool *" => "pool",
        "pfring_zc_buffer_pool **" => "&pool",
        "pfring_zc_pkt_buff *" => "buffer",
        "pfring_zc_pkt_buff **" => "&buffer",
        "pfring_zc_multi_queue *" => "multi()",
        "pfring_zc_worker *" => "worker()",
        kind if kind.ends_with('*') => "memory",
        _ => "1",
    }
    .into()
}

/// Declarations of the types that functions name, all of them opaque, and of the functions.
fn declarations(all: &[Function]) -> String {
    let mut text = String::new();
    for name in &TYPES[TYPES.len() - ENUMERATIONS..] {
        let _ = writeln!(text, "typedef int {name};");
    }
    let mut declared: BTreeSet<_> = TYPES.iter().map(|name| (*name).to_owned()).collect();
    for kind in all
        .iter()
        .flat_map(|row| row.arguments.iter().chain([&row.result]))
    {
        let base = kind.replace("const ", "");
        let base = base.trim_end_matches([' ', '*']).trim();
        if !declared.insert(base.to_owned()) {
            continue;
        }
        let _ = match base.starts_with("struct ") {
            true => writeln!(text, "{base};"),
            false => writeln!(text, "typedef void {base};"),
        };
    }
    for row in all {
        let arguments = match row.arguments.is_empty() {
            true => "void".to_owned(),
            false => row.arguments.join(", "),
        };
        let _ = writeln!(text, "extern {} {}({arguments});", row.result, row.name);
    }
    text
}

/// A function that calls one with valid arguments or with nulls.
fn caller(row: &Function) -> String {
    let name = row.name;
    let call = |valid: bool| {
        let value = |(index, kind): (usize, &&str)| match valid {
            true => argument(name, index, kind),
            false => "0".into(),
        };
        let values: Vec<_> = row.arguments.iter().enumerate().map(value).collect();
        format!("{name}({})", values.join(", "))
    };
    let (valid, null) = (call(true), call(false));
    let body = match row.result {
        "void" => format!("if (valid) {valid}; else {null}; return 0;"),
        _ => format!("return (long)(valid ? {valid} : {null});"),
    };
    format!("static long call_{name}(int valid) {{ {body} }}\n")
}

/// The program: prototypes, and a function that calls each.
fn program() -> String {
    let all = all();
    let mut text = [HEAD, &declarations(&all), BODY].concat();
    text.extend(all.iter().map(caller));
    text += "static const struct { const char *name; long (*call)(int); } calls[] = {\n";
    for row in &all {
        let _ = writeln!(text, "  {{ \"{0}\", call_{0} }},", row.name);
    }
    text + "};\n" + MAIN
}

/// Functions that work, but not with the arguments of this test.
const REFUSED: [&str; 4] = [
    // A rule that is not about a flow, and a card that has no clock.
    "pfring_add_hw_rule",
    "pfring_enable_hw_timestamp",
    // Memory that is none of the cluster's, and a cluster that does not exist.
    "pfring_zc_pkt_data_buff",
    "pfring_zc_ipc_attach_",
];

#[test]
fn a_c_program_calls_every_function() {
    require!(skip::lab(), skip::program("cc", "gcc"));
    let dropin = Dropin::pfring().unwrap();
    let (source, binary) = (TempFile::new(".c"), TempFile::new(".out"));
    std::fs::write(source.path(), program()).unwrap();
    let mut command = Command::new("cc");
    command.args(["-Wall", "-Wno-unused", "-Werror", "-o"]);
    command
        .arg(binary.path())
        .arg(source.path())
        .arg(dropin.library());
    let built = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    built.checked().unwrap();
    let ns = Netns::new().unwrap();
    ns.ip(["link", "set", "lo", "up"]).unwrap();
    let number = 1_000_000 + std::process::id() * 2;
    let mut command = dropin.with(ns.command(binary.path()));
    command.arg(number.to_string());
    let mut ran = Process::spawn(&mut command).unwrap();
    let ran = ran.wait(PROGRAM_LIMIT).unwrap();
    for number in [number, number + 1] {
        let _ = std::fs::remove_file(format!("/run/barewire/{number}"));
    }
    let text = ran.checked().unwrap().stdout;
    let mut results = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [name, valid, code, errno] = words[..] else {
            panic!("{line}");
        };
        assert_ne!(code, "status", "{line}");
        let codes: (i64, i32) = (code.parse().unwrap(), errno.parse().unwrap());
        results.insert((name, valid), codes);
    }
    for row in all() {
        let name = row.name;
        assert!(results.contains_key(&(name, "0")), "{name}");
        let (code, errno) = results[&(name, "1")];
        let is_pointer = row.result.ends_with('*');
        let is_refused = REFUSED.iter().any(|refused| name.starts_with(refused));
        match row.support {
            "missing" if is_pointer => assert_eq!((code, errno), (0, EOPNOTSUPP), "{name}"),
            "missing" => assert_eq!(code, NOT_SUPPORTED, "{name}"),
            "accepted" => assert_eq!(code, 0, "{name}"),
            "works" if is_refused => {}
            "works" if is_pointer => assert_ne!(code, 0, "{name}"),
            "works" => assert_ne!(code, NOT_SUPPORTED, "{name}"),
            other => panic!("{other}"),
        }
    }
}

/// The manual has a row for each header and kind of support, with all its functions.
#[test]
fn the_manual_lists_every_function() {
    let manual = include_str!("../../../docs/pfring.md");
    for (header, prefix) in HEADERS.into_iter().zip(["pfring_", "pfring_zc_", ""]) {
        for support in ["works", "accepted", "missing"] {
            let rows = of(header).into_iter().filter(|row| row.support == support);
            let names = rows.map(|row| row.name.strip_prefix(prefix).unwrap_or(row.name));
            let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
            let row = format!("| `{header}`, {support} | {} |\n", names.join(", "));
            assert!(manual.contains(&row), "{row}");
        }
    }
}
