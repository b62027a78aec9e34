//! Captures as a source of packets: read ahead, cached or read again, the same stream either way,
//! in bounded memory.

use std::io::Write as _;
use std::time::{Duration, Instant};

use lab::oracle::{TempFile, write_pcap};
use lab::process::{Signal, barewire};
use lab::{Veth, skip};
use port::{PortOptions, Ready};
use runtime::Stop;
use runtime::send::{Limits, Replay, ReplayOptions, Report, SendEnded, send, survey};
use sys::ErrorKind;
use traffic::{Pace, Pacer, Rewriter};

/// Packets of lengths 60 to 1514, numbered; more than a chunk of the reader.
fn packets(count: u32) -> Vec<Vec<u8>> {
    let build = |number: u32| {
        let mut packet = vec![number as u8; 60 + (number as usize * 37) % 1455];
        packet[12..14].copy_from_slice(&[0x88, 0xb5]);
        packet[14..18].copy_from_slice(&number.to_be_bytes());
        packet
    };
    (0..count).map(build).collect()
}

/// Replays to a memory ring; returns what came out of it.
fn replay(path: &str, options: &ReplayOptions) -> (Report, sys::Result<()>, Vec<Vec<u8>>) {
    let mut port = port::open("memory:", &PortOptions::default()).unwrap();
    let (mut tx, mut rx) = (port.tx.remove(0), port.rx.remove(0));
    let reader = std::thread::spawn(move || {
        let mut packets = Vec::new();
        loop {
            let batch = rx.receive().unwrap();
            packets.extend(batch.iter().map(|packet| packet.bytes().to_vec()));
            let idle = batch.is_empty();
            drop(batch);
            if idle && rx.wait(Duration::from_millis(50)).unwrap() == Ready::End {
                return packets;
            }
        }
    });
    let mut source = Replay::open(path, options).unwrap().start().unwrap();
    let mut pacer = Pacer::new(Pace::Max);
    let (limits, stop) = (Limits::default(), Stop::new());
    let (report, result) = send(
        &mut tx,
        &mut source,
        &mut pacer,
        &limits,
        &stop,
        &mut |_| {},
    );
    drop(tx);
    (report, result, reader.join().unwrap())
}

#[test]
fn cached_and_reread_captures_give_the_same_stream() {
    let sent = packets(5_000);
    let file = write_pcap(&sent).unwrap();
    let path = file.path().to_str().unwrap();
    let bytes = sent.iter().map(Vec::len).sum::<usize>();
    // All cached; cached to the last byte; one byte too many; nothing cached.
    for cache_len in [64 << 20, bytes, bytes - 1, 0] {
        let options = ReplayOptions {
            round_count: 3,
            cache_len,
            ..ReplayOptions::default()
        };
        let (report, result, got) = replay(path, &options);
        result.unwrap();
        assert_eq!((report.packets, report.rounds), (15_000, 3));
        assert_eq!(report.ended, SendEnded::Source);
        assert!(
            got.iter().eq(sent.iter().cycle().take(15_000)),
            "cache of {cache_len}"
        );
    }
}

#[test]
fn skipped_packets_are_counted_in_every_round() {
    let mut sent = packets(100);
    sent[3] = vec![1; 1515];
    sent[4] = vec![2; 13];
    // A VLAN tag may exceed the maximum.
    sent[5] = vec![3; 1518];
    sent[5][12..14].copy_from_slice(&[0x81, 0]);
    let file = write_pcap(&sent).unwrap();
    for cache_len in [64 << 20, 0] {
        let options = ReplayOptions {
            round_count: 2,
            packet_len_max: 1514,
            cache_len,
            ..ReplayOptions::default()
        };
        let (report, result, got) = replay(file.path().to_str().unwrap(), &options);
        result.unwrap();
        let counts = (report.packets, report.too_long, report.not_sendable);
        assert_eq!(counts, (196, 2, 2));
        assert_eq!(got.len(), 196);
    }
}

#[test]
fn an_empty_capture_is_not_repeated_forever() {
    let empty = write_pcap::<Vec<u8>>(&[]).unwrap();
    let mut options = ReplayOptions::default();
    let path = empty.path().to_str().unwrap();
    let (report, result, _) = replay(path, &options);
    result.unwrap();
    assert_eq!(report.packets, 0);
    options.round_count = 0;
    for cache_len in [64 << 20, 0] {
        options.cache_len = cache_len;
        let (report, result, _) = replay(path, &options);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(report.ended, SendEnded::Failed);
    }
}

#[test]
fn packets_before_the_damage_are_delivered() {
    let sent = packets(3_000);
    let file = write_pcap(&sent).unwrap();
    let mut bytes = std::fs::read(file.path()).unwrap();
    bytes.truncate(bytes.len() - 1);
    std::fs::write(file.path(), bytes).unwrap();
    let path = file.path().to_str().unwrap();
    let (report, result, got) = replay(path, &ReplayOptions::default());
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Damaged);
    assert_eq!(report.packets, 2_999);
    assert!(got.iter().eq(&sent[..2_999]));
    let (found, damage) = survey(path, &ReplayOptions::default(), 3, &Stop::new()).unwrap();
    assert_eq!((found.packets, found.samples.len()), (2_999, 3));
    assert_eq!(damage.unwrap().kind(), ErrorKind::Damaged);
}

#[test]
fn cooked_and_raw_captures_get_ethernet_headers() {
    // One UDP packet in the link headers of RAW, LINUX_SLL, LINUX_SLL2, NULL.
    let mut ip = vec![
        0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    ip.extend([0, 7, 0, 9, 0, 12, 0, 0, 1, 2, 3, 4]);
    let sll = [0u8, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0];
    let sll2 = [8u8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0];
    let null = [2u8, 0, 0, 0];
    let macs = Rewriter {
        src_mac: Some("02:00:00:00:00:01".parse().unwrap()),
        dst_mac: Some("02:00:00:00:00:02".parse().unwrap()),
        ..Rewriter::default()
    };
    let mut expected = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    expected.extend(&ip);
    expected.resize(60, 0);
    for (link, head) in [(101, &[][..]), (113, &sll), (276, &sll2), (0, &null)] {
        let file = write_pcap(&[[head, &ip].concat()]).unwrap();
        relink(file.path(), link);
        let options = ReplayOptions {
            rewriter: macs.clone(),
            ..ReplayOptions::default()
        };
        let (_, result, got) = replay(file.path().to_str().unwrap(), &options);
        result.unwrap();
        assert_eq!(got, std::slice::from_ref(&expected), "link type {link}");
    }
    let file = write_pcap(&[[&sll2[..], &ip].concat()]).unwrap();
    relink(file.path(), 276);
    let refused = Replay::open(file.path().to_str().unwrap(), &ReplayOptions::default());
    let error = refused.err().unwrap();
    assert!(error.hint().unwrap().contains("--src-mac"), "{error}");
}

/// Writes another link type into a pcap file's header.
fn relink(path: &std::path::Path, link: u32) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[20..24].copy_from_slice(&link.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

/// A process's current anonymous memory, in bytes.
fn anonymous_memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[test]
fn a_large_file_is_sent_in_bounded_memory() {
    lab::require!(skip::lab());
    // 300 MB of packets, through a pipe of packets of 1514 bytes.
    let file = TempFile::new(".pcap");
    let one = write_pcap(&[vec![0x55u8; 1514]]).unwrap();
    let one = std::fs::read(one.path()).unwrap();
    let many = one[24..].repeat(1000);
    let mut out = std::fs::File::create_new(file.path()).unwrap();
    out.write_all(&one[..24]).unwrap();
    for _ in 0..200 {
        out.write_all(&many).unwrap();
    }
    drop(out);
    let pair = Veth::new().create().unwrap();
    let port = format!("afpacket:{}", pair.left.ifname);
    let name = file.path().to_str().unwrap();
    let args = ["send", name, &port, "--rate", "max", "--loop", "0"];
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let mut most = 0;
    // Until a second round is well under way.
    while pair.right.counters().unwrap().rx_packets < 300_000 && Instant::now() < until {
        most = most.max(anonymous_memory(process.pid()).unwrap());
        std::thread::sleep(Duration::from_millis(10));
    }
    let finished = process
        .stop(Signal::SIGINT, Duration::from_secs(20))
        .unwrap();
    let reported = finished.checked().unwrap().stderr;
    assert!(
        reported.contains("2 rounds") || reported.contains("rounds"),
        "{reported}"
    );
    // The cache of 64 MiB that it exceeded, the chunks ahead, and what a program needs.
    assert!(
        (1..128 << 20).contains(&most),
        "{most} bytes of anonymous memory"
    );
}
