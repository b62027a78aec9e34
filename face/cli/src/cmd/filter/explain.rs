//! `barewire filter explain`: prints a program and what each instruction tests.

use bpf::cbpf::{Op, Program, Width};
use bpf::disasm::Classic;
use filter::dns::{self, Family};
use filter::p0f::{Signature, Start, TcpOption, Version};
use runtime::filter::select::{Select, for_version};
use sys::Result;

use super::{FilterArgs, Link};

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: FilterArgs,
    /// The first header of each packet
    #[arg(long, value_enum, default_value = "raw")]
    link: Link,
}

/// Prints the program with remarks, or two programs for a signature of both IP versions.
pub fn run(args: &Args) -> Result<()> {
    let select = args.filter.select()?;
    let link_type = args.link.link_type();
    let text = match &select {
        Select::P0f(signature) => {
            let mut text = format!("{signature}\n");
            for &version in signature.versions() {
                let one = for_version(signature, version);
                let program = Select::P0f(one.clone()).compile(link_type)?;
                text += &signature_text(&one, version, args.link, &program);
            }
            text
        }
        Select::Dns(queries) => {
            let start = match args.link {
                Link::Ethernet => Start::Ethernet,
                Link::Raw => Start::Ip,
            };
            let program = select.compile(link_type)?;
            let notes = dns::compile(queries, Family::Both, start).map(|made| made.notes);
            let mut remarks = vec![String::new(); program.insns().len()];
            for note in notes.unwrap_or_default() {
                if let Some(remark) = remarks.get_mut(note.insns.start) {
                    *remark = note.what.join("; ");
                }
            }
            listing(&program, &remarks)
        }
        Select::Expression(_) | Select::P0fFuzzy(_) => {
            let program = select.compile(link_type)?;
            listing(&program, &vec![String::new(); program.insns().len()])
        }
    };
    super::print(&text)
}

fn listing(program: &Program, remarks: &[String]) -> String {
    let lines = Classic(program.insns()).to_string();
    let mut text = format!("{} instructions\n", program.insns().len());
    for (line, remark) in lines.lines().zip(remarks) {
        // The disassembler puts a tab before jump targets.
        let line = line.replace('\t', "  ");
        match remark.is_empty() {
            true => text += line.trim_end(),
            false => text += &format!("{line:<50} ; {remark}"),
        }
        text += "\n";
    }
    text
}

/// A field of a packet that has the signature: offset, length, name.
type Field = (u32, u32, String);

fn signature_text(s: &Signature, version: Version, link: Link, program: &Program) -> String {
    let fields = fields(s, version, link);
    let remarks: Vec<String> = program
        .ops()
        .map(|op| match op {
            Op::LoadAbs(width, at) => names(&fields, at, width),
            _ => String::new(),
        })
        .collect();
    let name = if version == Version::V6 {
        "IPv6"
    } else {
        "IPv4"
    };
    format!("\n{name}: {}", listing(program, &remarks))
}

/// The fields that a load reads.
fn names(fields: &[Field], at: u32, width: Width) -> String {
    let end = at + width.bytes();
    let touched = fields.iter().filter(|f| f.0 < end && f.0 + f.1 > at);
    let names: Vec<&str> = touched.map(|f| f.2.as_str()).collect();
    names.join(", ")
}

#[rustfmt::skip]
const IPV4: [(u32, u32, &str); 9] = [
    (0, 1, "version and header length"), (1, 1, "DSCP and ECN"), (2, 2, "total length"),
    (4, 2, "identification"), (6, 2, "flags and fragment offset"), (8, 1, "TTL"),
    (9, 1, "protocol"), (10, 2, "header checksum"), (12, 8, "addresses"),
];
#[rustfmt::skip]
const IPV6: [(u32, u32, &str); 5] = [
    (0, 4, "version, traffic class and flow label"), (4, 2, "payload length"),
    (6, 1, "next header"), (7, 1, "hop limit"), (8, 32, "addresses"),
];
#[rustfmt::skip]
const TCP: [(u32, u32, &str); 8] = [
    (0, 4, "ports"), (4, 4, "sequence number"), (8, 4, "acknowledgment number"),
    (12, 1, "data offset and NS"), (13, 1, "TCP flags"), (14, 2, "window"),
    (16, 2, "TCP checksum"), (18, 2, "urgent pointer"),
];

fn fields(s: &Signature, version: Version, link: Link) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut add = |at: u32, table: &[(u32, u32, &str)]| {
        fields.extend(table.iter().map(|f| (at + f.0, f.1, f.2.to_owned())));
    };
    let ip = if link == Link::Ethernet { 14 } else { 0 };
    if link == Link::Ethernet {
        add(0, &[(0, 12, "MAC addresses"), (12, 2, "EtherType")]);
    }
    let tcp = if version == Version::V6 {
        add(ip, &IPV6);
        ip + 40
    } else {
        add(ip, &IPV4);
        ip + 20 + u32::from(s.ip_options)
    };
    add(tcp, &TCP);
    let mut at = tcp + 20;
    for option in &s.layout {
        let len = match option {
            TcpOption::Nop => 1,
            TcpOption::End(padding) => 1 + u32::from(*padding),
            TcpOption::Mss => 4,
            TcpOption::WindowScale => 3,
            TcpOption::SackPermitted => 2,
            TcpOption::Timestamp => 10,
            // The offsets of the remaining options depend on the packet.
            TcpOption::Sack | TcpOption::Other(_) => break,
        };
        fields.push((at, len, format!("option {option}")));
        at += len;
    }
    fields
}
