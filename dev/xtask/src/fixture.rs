//! `cargo xtask fixture`: records `testdata/captures` anew from the traffic of real programs.
//!
//! Two namespaces connected by a veth pair; Debian's programs on both sides; tcpdump in the middle.
//! Offloads are off, so that packets are as they would be on a cable, with correct checksums.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::netns::Netns;
use crate::run::{need_root, no_more, quietly, root};
use crate::setup::{self, Set};

/// Maximum size of a capture in bytes: it is committed, and the demo is to start at once.
const CAPTURE_MAX: u64 = 200 * 1024;

/// Creates a file of the given name.
type Record = fn(&Site, &Path) -> Result<()>;

/// All captures, and the functions that create them.
const CAPTURES: &[(&str, Record)] = &[
    ("lab-mix.pcapng", |site, to| site.record(to, Site::mix)),
    ("lab-fragments.pcapng", |site, to| {
        site.record(to, Site::fragments)
    }),
    ("lab-vxlan.pcapng", |site, to| site.record(to, Site::vxlan)),
    ("lab-vlan.pcap", Site::vlan),
];

/// How long a server may take to listen, or tcpdump to start and to stop.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let (directory, rest) = match args.split_first() {
        Some((directory, rest)) => (PathBuf::from(directory), rest),
        None => (root().join("testdata/captures"), args),
    };
    no_more(rest)?;
    setup::ensure(&[Set::Fixture])?;
    need_root("fixture")?;
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let scratch = Scratch::new()?;
    let site = Site::new(&scratch.0)?;
    for (name, record) in CAPTURES {
        let path = directory.join(name);
        record(&site, &path).with_context(|| (*name).to_owned())?;
        let len = path.metadata()?.len();
        println!("{}: {len} bytes", path.display());
        ensure!(
            len <= CAPTURE_MAX,
            "{name} has {len} bytes; at most {CAPTURE_MAX}"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// A directory for pages, keys and raw captures, deleted on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("barewire-fixture-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program that runs until dropped.
struct Background(Child);

impl Background {
    fn start(command: &mut Command) -> Result<Background> {
        let command = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Background(
            command.spawn().with_context(|| format!("{command:?}"))?,
        ))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Both ends of the cable, with servers at one.
struct Site {
    client: Netns,
    server: Netns,
    scratch: PathBuf,
    _servers: Vec<Background>,
}

/// Listeners to wait for: an option of ss(8) and the port.
const LISTENERS: &[(&str, u16)] = &[("-t", 80), ("-t", 443), ("-u", 53), ("-t", 53)];

impl Site {
    fn new(scratch: &Path) -> Result<Site> {
        let (client, server) = (Netns::new()?, Netns::new()?);
        client.ip(&format!(
            "link add name cli0 address 02:ba:4e:00:01:01 type veth \
             peer name srv0 address 02:ba:4e:00:01:02 netns {}",
            server.name
        ))?;
        for (ns, ifname, hosts) in [(&client, "cli0", 11..=16), (&server, "srv0", 2..=4)] {
            ns.exec(&format!(
                "ethtool -K {ifname} rx off tx off sg off tso off gso off gro off"
            ))?;
            // Otherwise the addresses would be lost when the link is set down.
            let keep = format!("echo 1 > /proc/sys/net/ipv6/conf/{ifname}/keep_addr_on_down");
            quietly(ns.command("sh").args(["-c", &keep]))?;
            for host in hosts {
                ns.ip(&format!("address add 10.77.0.{host}/24 dev {ifname}"))?;
                ns.ip(&format!("address add fd77::{host}/64 dev {ifname} nodad"))?;
            }
        }
        let servers = start_servers(&server, scratch)?;
        let site = Site {
            client,
            server,
            scratch: scratch.to_owned(),
            _servers: servers,
        };
        site.set_links("up")?;
        for (protocol, port) in LISTENERS {
            let until = Instant::now() + LIMIT;
            let query = format!("ss -H -l -n {protocol} sport = :{port}");
            while site.server.exec(&query)?.trim().is_empty() {
                ensure!(Instant::now() < until, "nobody listens on port {port}");
                sleep(Duration::from_millis(50));
            }
        }
        Ok(site)
    }

    fn set_links(&self, state: &str) -> Result<()> {
        self.client.ip(&format!("link set cli0 {state}"))?;
        self.server.ip(&format!("link set srv0 {state}"))?;
        Ok(())
    }

    /// Runs a program at the client without output; its failure is an error.
    fn client(&self, words: &str) -> Result<()> {
        self.client.exec(words).map(drop)
    }

    /// Runs a program at the client that must fail: for a closed port, or an unknown name.
    fn client_fails(&self, words: &str) -> Result<()> {
        ensure!(self.client.exec(words).is_err(), "{words} was to fail");
        Ok(())
    }

    /// Records `traffic` at the server's end, as pcapng.
    fn record(&self, to: &Path, traffic: fn(&Site) -> Result<()>) -> Result<()> {
        let raw = self.scratch.join("raw.pcap");
        self.record_pcap(&raw, traffic)?;
        // tcpdump writes pcap only. Unlike dumpcap, editcap records nothing about the machine.
        quietly(
            Command::new("editcap")
                .args(["-F", "pcapng"])
                .arg(&raw)
                .arg(to),
        )?;
        std::fs::remove_file(raw)?;
        Ok(())
    }

    fn record_pcap(&self, to: &Path, traffic: fn(&Site) -> Result<()>) -> Result<()> {
        let _ = std::fs::remove_file(to);
        // Neighbours are flushed, so that each capture starts with ARP and ND.
        for (ns, ifname) in [(&self.client, "cli0"), (&self.server, "srv0")] {
            ns.ip(&format!("neighbor flush dev {ifname}"))?;
        }
        let mut tcpdump = self.server.command("tcpdump");
        tcpdump.args([
            "-i",
            "srv0",
            "-U",
            "--immediate-mode",
            "--time-stamp-precision=nano",
        ]);
        tcpdump.args(["-Z", "root", "-w"]).arg(to);
        let mut tcpdump = Background::start(&mut tcpdump)?;
        // The file header is written once the socket is open.
        let until = Instant::now() + LIMIT;
        while to.metadata().map_or(0, |file| file.len()) < 24 {
            ensure!(Instant::now() < until, "tcpdump does not start");
            sleep(Duration::from_millis(20));
        }
        traffic(self)?;
        // What the kernel still sends (closing handshakes) is included.
        sleep(Duration::from_millis(500));
        kill(Pid::from_raw(tcpdump.0.id().cast_signed()), Signal::SIGINT)?;
        let status = tcpdump.0.wait()?;
        ensure!(status.success(), "tcpdump: {status}");
        Ok(())
    }

    /// The mix of the demo: DNS, web, TLS, echo, traceroute and a few failures, over IPv4 and IPv6,
    /// from several clients to several servers.
    fn mix(&self) -> Result<()> {
        self.set_links("down")?;
        self.set_links("up")?;
        sleep(Duration::from_millis(300));
        for host in 11..=16 {
            for (from, dns, web) in [
                (format!("10.77.0.{host}"), "10.77.0.2", "10.77.0.3"),
                (format!("fd77::{host}"), "fd77::2", "[fd77::3]"),
            ] {
                for query in [
                    "www.lab.example A",
                    "www.lab.example AAAA",
                    "lab.example MX",
                ] {
                    self.client(&format!("dig +tries=1 +time=5 -b {from} @{dns} {query}"))?;
                }
                let page = ["small.txt", "page.html", "large.bin"][host % 3];
                let curl = format!("curl -sS -g -o /dev/null --interface {from}");
                self.client(&format!("{curl} http://{web}/{page}"))?;
                self.client(&format!("ping -c 2 -i 0.05 -I {from} {dns}"))?;
                if host % 2 == 0 {
                    let tls = web.replace('3', "4");
                    self.client(&format!("{curl} -k https://{tls}/"))?;
                }
            }
        }
        for (dns, version) in [("10.77.0.2", "-4"), ("fd77::2", "-6")] {
            self.client(&format!("dig +tcp @{dns} text.lab.example TXT"))?;
            self.client(&format!("dig @{dns} missing.lab.example A"))?;
            self.client(&format!("traceroute {version} -n -q 2 -m 3 {dns}"))?;
        }
        self.client("ping -c 1 -W 1 -p a5 -s 1000 10.77.0.4")?;
        // Refused, and unreachable.
        self.client_fails("curl -sS -o /dev/null http://10.77.0.3:81/")?;
        self.client_fails("curl -sS -g -o /dev/null http://[fd77::3]:81/")?;
        self.client_fails("dig +tries=1 +time=1 -p 5353 @10.77.0.2 www.lab.example")?;
        self.client_fails("ping -c 1 -W 1 10.77.0.99")?;
        Ok(())
    }

    /// Echo requests larger than the MTU, over IPv4 and IPv6.
    fn fragments(&self) -> Result<()> {
        self.client("ping -c 2 -i 0.05 -s 4000 10.77.0.2")?;
        self.client("ping -c 2 -i 0.05 -s 4000 fd77::2")?;
        // Fourteen fragments.
        self.client("ping -c 1 -s 20000 10.77.0.3")
    }

    /// IPv4 and IPv6 inside VXLAN, over both.
    fn vxlan(&self) -> Result<()> {
        let tunnels = [
            ("vx4", 4, "10.77.0.11", "10.77.0.2"),
            ("vx6", 6, "fd77::11", "fd77::2"),
        ];
        for (name, id, left, right) in tunnels {
            for (ns, dev, local, remote, host) in [
                (&self.client, "cli0", left, right, 1),
                (&self.server, "srv0", right, left, 2),
            ] {
                ns.ip(&format!(
                    "link add {name} address 02:ba:4e:00:0{id}:0{host} type vxlan id {id} \
                     local {local} remote {remote} dstport 4789 dev {dev}"
                ))?;
                ns.ip(&format!("address add 10.78.{id}.{host}/24 dev {name}"))?;
                ns.ip(&format!(
                    "address add fd78:{id}::{host}/64 dev {name} nodad"
                ))?;
                ns.ip(&format!("link set {name} up"))?;
                ns.exec(&format!(
                    "ethtool -K {name} tx off sg off tso off gso off gro off"
                ))?;
            }
            self.client(&format!("ping -c 2 -i 0.05 10.78.{id}.2"))?;
            self.client(&format!("ping -c 2 -i 0.05 fd78:{id}::2"))?;
            self.client(&format!("dig @10.78.{id}.2 www.lab.example A"))?;
            self.client(&format!(
                "curl -sS -g -o /dev/null http://[fd78:{id}::2]/page.html"
            ))?;
        }
        for (name, ..) in tunnels {
            self.client.ip(&format!("link delete {name}"))?;
            self.server.ip(&format!("link delete {name}"))?;
        }
        Ok(())
    }

    /// Tagged packets. Not every kernel has VLAN devices, so tcprewrite adds the tag.
    fn vlan(&self, to: &Path) -> Result<()> {
        let raw = self.scratch.join("untagged.pcap");
        self.record_pcap(&raw, |site| {
            for (host, dns) in [("10.77.0.3", "10.77.0.2"), ("[fd77::3]", "fd77::2")] {
                site.client(&format!("curl -sS -g -o /dev/null http://{host}/page.html"))?;
                site.client(&format!("dig @{dns} www.lab.example A"))?;
                site.client(&format!("ping -c 2 -i 0.05 {dns}"))?;
            }
            Ok(())
        })?;
        let tag = ["--enet-vlan=add", "--enet-vlan-tag=77", "--enet-vlan-cfi=0"];
        let mut tcprewrite = Command::new("tcprewrite");
        tcprewrite.args(tag).arg("--enet-vlan-pri=3");
        tcprewrite.arg("-i").arg(&raw).arg("-o").arg(to);
        quietly(&mut tcprewrite)?;
        Ok(())
    }
}

/// Web, TLS and name servers, each a separate program.
fn start_servers(ns: &Netns, scratch: &Path) -> Result<Vec<Background>> {
    let pages = scratch.join("pages");
    std::fs::create_dir_all(&pages)?;
    std::fs::write(pages.join("small.txt"), "barewire lab\n")?;
    let row = "<tr><td>packet</td><td>between the wire and a program</td></tr>\n";
    let page = format!(
        "<!doctype html>\n<title>lab</title>\n<table>\n{}</table>\n",
        row.repeat(40)
    );
    std::fs::write(pages.join("page.html"), page)?;
    let noise: Vec<u8> = (0..12_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    std::fs::write(pages.join("large.bin"), noise)?;
    let (key, certificate) = (scratch.join("key.pem"), scratch.join("certificate.pem"));
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
    ]);
    openssl.args([
        "-nodes",
        "-days",
        "3650",
        "-subj",
        "/CN=www.lab.example",
        "-keyout",
    ]);
    quietly(openssl.arg(&key).arg("-out").arg(&certificate))?;

    let mut web = ns.command("python3");
    web.args(["-m", "http.server", "--bind", "::", "--directory"])
        .arg(&pages)
        .arg("80");
    let mut tls = ns.command("openssl");
    tls.args(["s_server", "-accept", "443", "-www", "-key"])
        .arg(&key)
        .arg("-cert")
        .arg(&certificate);
    let mut dns = ns.command("dnsmasq");
    dns.args([
        "--no-daemon",
        "--no-resolv",
        "--no-hosts",
        "--user=root",
        "--conf-file=/dev/null",
    ]);
    dns.args([
        "--local=/lab.example/",
        "--host-record=www.lab.example,10.77.0.3,fd77::3",
        "--mx-host=lab.example,www.lab.example,10",
        "--txt-record=text.lab.example,packets between the wire and a program",
    ]);
    [&mut web, &mut tls, &mut dns]
        .into_iter()
        .map(Background::start)
        .collect()
}
