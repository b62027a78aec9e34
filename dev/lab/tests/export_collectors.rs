//! Exports read by pmacct's nfacctd and by libfixbuf's ipfixDump, and over TLS by OpenSSL's server.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::export::{
    Folder, LIMIT, Totals, capture, captures, run, tcp_port, udp_port, wait_bound,
};
use lab::process::{Process, Signal};
use lab::{require, skip};
use serde_json::Value;

/// nfacctd skips reverse elements: uniflows. It reads the sampling rate from the options.
#[test]
fn nfacctd_reads_uniflows_and_the_sampling_rate() {
    require!(skip::program("nfacctd", "pmacct"));
    for (format, options) in [("ipfix", "&uniflow"), ("netflow9", ""), ("netflow5", "")] {
        let (folder, port) = (Folder::new(&format!("nfacctd-{format}")), udp_port());
        let config = folder.0.join("nfacctd.conf");
        let text = format!(
            "daemonize: false\nnfacctd_ip: 127.0.0.1\nnfacctd_port: {port}\nplugins: print\n\
             print_output: json\nprint_refresh_time: 1\nprint_history: 1m\n\
             aggregate: src_host,dst_host,src_port,dst_port,proto,tcpflags,sampling_rate\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("nfacctd");
        let mut process = Process::spawn(command.arg("-f").arg(&config)).unwrap();
        wait_bound("udp", port);
        let mut expected = Totals::default();
        let mut has_flags = false;
        for (at, file) in captures(200).iter().enumerate() {
            let url = format!(
                "{format}:udp://127.0.0.1:{port}?rate=5000&domain={}{options}",
                at + 1
            );
            let run = run(file, &["--sampling-rate", "100", "--export", &url]);
            let only_four = format == "netflow5";
            expected.add(run.totals(|flow| !only_four || flow["ip_version"] == 4));
            has_flags |= run.flows.iter().any(|flow| flow["tcp_flags"] != 0);
        }
        assert!(has_flags && expected.packets > 200);
        let until = Instant::now() + Duration::from_secs(20);
        let mut found;
        let mut records: Vec<Value>;
        loop {
            let text = process.stdout();
            records = text
                .lines()
                .filter(|line| line.starts_with('{'))
                .filter_map(|line| serde_json::from_str(line).ok())
                .collect();
            let sum = |name: &str| records.iter().filter_map(|r| r[name].as_u64()).sum::<u64>();
            found = (sum("packets"), sum("bytes"));
            if found.0 >= expected.packets || Instant::now() > until {
                break;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        process.stop(Signal::SIGINT, LIMIT).unwrap();
        assert_eq!(found, (expected.packets, expected.bytes), "{format}");
        let rates = records.iter().map(|r| r["sampling_rate"].as_u64());
        let wrong = rates.filter(|rate| *rate != Some(100)).count();
        assert_eq!(wrong, 0, "{format}: {:?}", records.first());
        let flags = records
            .iter()
            .any(|r| r["tcp_flags"].as_str().is_some_and(|f| f != "0"));
        assert!(flags, "{format}: no TCP flags in {:?}", records.first());
    }
}

/// Records, and sums of packets and bytes in both directions, as ipfixDump prints them.
fn ipfix_dump(file: &Path) -> (u64, u64, u64) {
    let mut command = Command::new("ipfixDump");
    command.arg("--in").arg(file).arg("--data");
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    let text = finished.checked().unwrap().stdout;
    let (mut records, mut packets, mut bytes) = (0, 0, 0);
    for line in text.lines() {
        let Some((name, value)) = line.rsplit_once(" : ") else {
            continue;
        };
        let number = || {
            value
                .trim()
                .parse::<u64>()
                .unwrap_or_else(|_| panic!("{line:?}"))
        };
        match name.split_whitespace().last().unwrap_or_default() {
            "packetDeltaCount" => {
                records += 1;
                packets += number();
            }
            "reversePacketDeltaCount" => packets += number(),
            "octetDeltaCount" | "reverseOctetDeltaCount" => bytes += number(),
            _ => {}
        }
    }
    (records, packets, bytes)
}

#[test]
fn ipfix_dump_reads_files() {
    require!(skip::program("ipfixDump", "libfixbuf-tools"));
    let folder = Folder::new("ipfixdump");
    let names = "payloadOctetDeltaCount,reversePayloadOctetDeltaCount,ipVersion";
    let mut all = 0;
    for (at, capture) in captures(60).iter().enumerate() {
        let file = folder.0.join(format!("{at}.ipfix"));
        let url = format!("ipfix:{}?fields={names}", file.display());
        let run = run(capture, &["--export", &url]);
        let expected = run.totals(|_| true);
        let flows = run.flows.len() as u64;
        let found = ipfix_dump(&file);
        assert_eq!(
            found,
            (flows, expected.packets, expected.bytes),
            "{}",
            capture.display()
        );
        all += flows;
    }
    assert!(all > 20, "{all} flows");
}

/// Creates a key and a self-signed certificate.
fn certify(name: &str, key: &str, certificate: &str) {
    let (subject, alternative) = (
        format!("/CN={name}.example"),
        format!("subjectAltName=DNS:{name}.example"),
    );
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"]);
    command.args(["-pkeyopt", "ec_paramgen_curve:P-256"]);
    command.args(["-subj", &subject, "-addext", &alternative]);
    command.args(["-addext", "basicConstraints=critical,CA:false"]);
    command.args(["-keyout", key, "-out", certificate]);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    finished.checked().unwrap();
}

/// The output of OpenSSL's server is a file as in RFC 5655. A collector whose certificate is not
/// trusted gets nothing.
#[test]
fn tls_delivers_all_records_and_trusts_no_other_ca() {
    require!(skip::program("openssl", "openssl"));
    require!(skip::program("ipfixDump", "libfixbuf-tools"));
    let folder = Folder::new("tls");
    let path = |name: &str| folder.0.join(name).display().to_string();
    for name in ["collector", "probe", "other"] {
        certify(
            name,
            &path(&format!("{name}.key")),
            &path(&format!("{name}.pem")),
        );
    }
    let serve = |port: u16, out: &str| {
        let line = format!(
            "sleep 60 | exec openssl s_server -quiet -accept 127.0.0.1:{port} -naccept 1 \
             -Verify 1 -CAfile {} -cert {} -key {} > {out}",
            path("probe.pem"),
            path("collector.pem"),
            path("collector.key")
        );
        let server = Process::spawn(Command::new("sh").args(["-c", &line])).unwrap();
        wait_bound("tcp", port);
        server
    };
    let capture = capture();
    let export = |port: u16, ca: &str| {
        let url = format!(
            "ipfix:tls://127.0.0.1:{port}?name=collector.example&ca={}&cert={}&key={}",
            path(ca),
            path("probe.pem"),
            path("probe.key")
        );
        run(&capture, &["--export", &url])
    };
    let (port, out) = (tcp_port(), path("flows.ipfix"));
    let mut server = serve(port, &out);
    let reported = export(port, "collector.pem");
    let expected = reported.totals(|_| true);
    assert_eq!(
        reported.export()["dropped"],
        serde_json::json!({}),
        "{}",
        reported.export()
    );
    std::thread::sleep(Duration::from_millis(300));
    drop(server.kill());
    let found = ipfix_dump(Path::new(&out));
    assert_eq!(
        found,
        (
            reported.flows.len() as u64,
            expected.packets,
            expected.bytes
        )
    );

    let (port, out) = (tcp_port(), path("nothing.ipfix"));
    let mut server = serve(port, &out);
    let reported = export(port, "other.pem");
    drop(server.kill());
    let lost = reported.export()["dropped"]["unreachable"]["packets"].as_u64();
    assert_eq!(lost, Some(expected.packets), "{}", reported.export());
    let words = reported.export()["last_failure"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(std::fs::metadata(&out).unwrap().len(), 0, "{words}");
}

/// If the kernel has no SCTP, the command reports it at once.
#[test]
fn sctp_works_or_is_reported_as_unsupported() {
    let capture = capture();
    let mut command = Command::new(lab::process::barewire().unwrap());
    command
        .args(["flows", "--export", "ipfix:sctp://127.0.0.1"])
        .arg(&capture);
    command.stdin(Stdio::null());
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    if finished.stderr.contains("SCTP is not supported here") {
        assert_eq!(finished.code(), Some(1));
        assert!(
            finished
                .stderr
                .contains("hint: load the sctp kernel module")
        );
    } else {
        // It is supported but there is no listener: the account shows it.
        assert!(
            finished.stderr.contains("unreachable"),
            "{}",
            finished.stderr
        );
    }
}
