//! Kafka: an Apache broker, whose messages are read by kcat and fastavro. Totals and lines equal
//! those of the probe; an absent broker is accounted for.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::export::{Folder, Totals, captures, flood, run, tcp_port};
use crate::export_fields::assert_same_rows;
use lab::oracle::python::python;
use lab::process::{Process, Signal, barewire};
use lab::skip::Missing;
use lab::{require, skip};
use serde_json::{Value, json};

/// A broker starts slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// The directory in which `cargo xtask setup` installs the broker's libraries.
fn libraries() -> Result<PathBuf, Missing> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/kafka/libs");
    let has = |name: &str| {
        let entries = std::fs::read_dir(&folder).into_iter().flatten();
        let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.any(|file| file.starts_with(name))
    };
    if has("kafka_2.13-") && has("kafka-clients-") {
        return Ok(folder);
    }
    Err(Missing::Machine(
        "the libraries of Apache Kafka (cargo xtask setup)".into(),
    ))
}

struct Broker {
    folder: Folder,
    port: u16,
    process: Option<Process>,
}

impl Broker {
    /// Starts a broker that is its own controller, with its own log.
    fn start() -> Broker {
        let folder = Folder::new("kafka");
        let (port, controller) = (tcp_port(), tcp_port());
        let log = folder.0.join("log");
        let lines = [
            "process.roles=broker,controller".to_owned(),
            "node.id=1".into(),
            format!("controller.quorum.voters=1@127.0.0.1:{controller}"),
            format!("listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"),
            format!("advertised.listeners=PLAINTEXT://127.0.0.1:{port}"),
            "controller.listener.names=CONTROLLER".into(),
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".into(),
            format!("log.dirs={}", log.display()),
            "num.partitions=2".into(),
            "offsets.topic.replication.factor=1".into(),
            "transaction.state.log.replication.factor=1".into(),
            "transaction.state.log.min.isr=1".into(),
        ];
        std::fs::write(folder.0.join("server.properties"), lines.join("\n")).unwrap();
        let mut broker = Broker {
            folder,
            port,
            process: None,
        };
        let mut format = broker.java("kafka.tools.StorageTool");
        format.args(["format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c"]);
        format.arg(broker.folder.0.join("server.properties"));
        let formatted = Process::spawn(&mut format).unwrap().wait(PATIENCE).unwrap();
        assert_eq!(formatted.code(), Some(0), "{}", formatted.stderr);
        broker.resume();
        broker
    }

    fn java(&self, class: &str) -> Command {
        let mut command = Command::new("java");
        let path = format!("{}/*", libraries().unwrap().display());
        command.args([
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
        ]);
        command.arg(path).arg(class).current_dir(&self.folder.0);
        command
    }

    /// Starts it, and waits until it answers.
    fn resume(&mut self) {
        let mut command = self.java("kafka.Kafka");
        command.arg(self.folder.0.join("server.properties"));
        let mut process = Process::spawn(&mut command).unwrap();
        let until = Instant::now() + PATIENCE;
        let answers = || {
            // Without a listener kcat takes its full five seconds.
            TcpStream::connect(self.address()).is_ok() && {
                let mut list = Command::new("kcat");
                list.args(["-L", "-m", "5", "-b", &self.address()]);
                let listed = list.stdout(Stdio::null()).stderr(Stdio::null()).status();
                listed.unwrap().success()
            }
        };
        while !answers() {
            let is_well = process.running().unwrap() && Instant::now() < until;
            assert!(
                is_well,
                "no broker: {} {}",
                process.stdout(),
                process.stderr()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        self.process = Some(process);
    }

    /// Kills it.
    fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.signal(Signal::SIGKILL).unwrap();
        process.wait(PATIENCE).unwrap();
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// All messages of a topic, each preceded by its length in four bytes.
    fn read(&self, topic: &str) -> Vec<u8> {
        let (output, words) = self.try_read(topic);
        output.unwrap_or_else(|| panic!("{topic}: {words}"))
    }

    /// As [`Broker::read`]; on failure returns the error.
    fn try_read(&self, topic: &str) -> (Option<Vec<u8>>, String) {
        let mut command = Command::new("kcat");
        command.args(["-C", "-q", "-e", "-o", "beginning", "-f", "%R%s"]);
        command.args(["-b", &self.address(), "-t", topic]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success().then_some(output.stdout), words)
    }

    /// All messages as JSON values.
    fn read_json(&self, topic: &str) -> Vec<Value> {
        let bytes = self.read(topic);
        let (mut values, mut rest) = (Vec::new(), &bytes[..]);
        while let Some((head, behind)) = rest.split_first_chunk::<4>() {
            let (message, behind) = behind.split_at(u32::from_be_bytes(*head) as usize);
            values.push(serde_json::from_slice(message).unwrap());
            rest = behind;
        }
        values
    }
}

/// The account of the only destination, from the last line.
fn account(stdout: &str) -> Value {
    let summary: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!(summary["imbalance"], 0);
    assert_eq!(summary["exports"][0]["imbalance"], 0, "{summary}");
    summary["exports"][0].clone()
}

/// One broker for everything, as starting it takes long.
#[test]
fn records_arrive_once_and_are_accounted_for() {
    require!(
        skip::program("java", "default-jre-headless"),
        skip::program("kcat", "kcat"),
        libraries(),
        python(&["fastavro"])
    );
    let mut broker = Broker::start();
    totals_equal_ours(&broker);
    measured_values_equal_ours(&broker);
    // One outage for two probes: a broker takes seconds to start.
    let mut interrupted = Interrupted::start(&broker);
    Bounded::prepare(&broker);
    broker.kill();
    interrupted.send_rest();
    let bounded = Bounded::start(&broker);
    broker.resume();
    bounded.check(&broker);
    interrupted.check(&broker);
    broker.kill();
    a_broker_that_stays_away_is_accounted_for(&broker);
}

fn totals_equal_ours(broker: &Broker) {
    let (mut expected, mut lines) = (Totals::default(), Vec::new());
    let mut count = 0;
    for file in captures(15) {
        let address = broker.address();
        let json = format!("json:kafka://{address}/flows-json");
        let avro = format!("avro:kafka://{address}/flows-avro?compression.codec=zstd");
        let run = run(&file, &["--export", &json, "--export", &avro]);
        for export in run.summary["exports"].as_array().unwrap() {
            assert_eq!(export["dropped"], json!({}), "{export}");
            assert_eq!(export["exported"], export["offered"], "{export}");
        }
        expected.add(run.totals(|_| true));
        count += run.flows.len();
        lines.extend(run.flows.iter().map(Value::to_string));
    }
    assert!(count > 20, "{count}");
    let mut found: Vec<String> = broker
        .read_json("flows-json")
        .iter()
        .map(Value::to_string)
        .collect();
    found.sort();
    lines.sort();
    assert!(
        found == lines,
        "{} messages for {} flows",
        found.len(),
        lines.len()
    );
    // The compact format, read with only the documented schema.
    let messages = broker.folder.0.join("messages");
    std::fs::write(&messages, broker.read("flows-avro")).unwrap();
    let script = "
import sys, json, io, struct, fastavro
schema = fastavro.parse_schema(json.load(open(sys.argv[1])))
data, flows, packets, size = open(sys.argv[2], 'rb'), 0, 0, 0
while head := data.read(4):
    value = io.BytesIO(data.read(struct.unpack('>I', head)[0]))
    flow = fastavro.schemaless_reader(value, schema)
    assert value.read() == b'' and flow['end_time'] >= flow['start_time']
    assert (flow['src_port'] is None) == (flow['icmp_type'] is not None)
    flows += 1
    packets += flow['packets'] + flow['reverse_packets']
    size += flow['bytes'] + flow['reverse_bytes']
print(json.dumps([flows, packets, size]))";
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/flow.avsc");
    let mut command = Command::new(python(&["fastavro"]).unwrap());
    command.args(["-c", script]).arg(schema).arg(messages);
    let finished = Process::spawn(&mut command)
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let found: Value = serde_json::from_str(finished.stdout.trim()).unwrap();
    assert_eq!(found, json!([count, expected.packets, expected.bytes]));
}

/// The fields of `--fields full`, read with their schema.
fn measured_values_equal_ours(broker: &Broker) {
    let url = format!("avro:kafka://{}/flows-full", broker.address());
    let mut flows = Vec::new();
    for file in captures(100) {
        let run = run(&file, &["--fields", "full", "--export", &url]);
        flows.extend(run.flows);
    }
    assert!(flows.len() > 20, "{}", flows.len());
    let messages = broker.folder.0.join("full");
    std::fs::write(&messages, broker.read("flows-full")).unwrap();
    let script = "
import sys, json, io, struct, fastavro
schema = fastavro.parse_schema(json.load(open(sys.argv[1])))
data = open(sys.argv[2], 'rb')
while head := data.read(4):
    value = io.BytesIO(data.read(struct.unpack('>I', head)[0]))
    flow = fastavro.schemaless_reader(value, schema)
    assert value.read() == b''
    print(json.dumps({k: v for k, v in flow.items() if not k.endswith(('_time', '_address'))}))";
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/flow-full.avsc");
    let mut command = Command::new(python(&["fastavro"]).unwrap());
    command.args(["-c", script]).arg(schema).arg(messages);
    let finished = Process::spawn(&mut command)
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    let text = finished.checked().unwrap().stdout;
    let rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_same_rows(&rows, &flows, "flows-full");
}

/// Starts the probe on a capture, with JSON lines to a topic.
fn start(input: &str, url: &str) -> Process {
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "--json", "--table-size", "64k", "--export", url]);
    command.arg(input).stdin(match input {
        "-" => Stdio::piped(),
        _ => Stdio::null(),
    });
    Process::spawn_with_stdin(&mut command).unwrap()
}

/// What identifies the flows of a flood, and how often each is in a topic.
fn keys(broker: &Broker, topic: &str) -> BTreeMap<(String, u64), u64> {
    let mut keys = BTreeMap::new();
    for flow in broker.read_json(topic) {
        let (src, port) = (flow["src"].as_str().unwrap(), flow["src_port"].as_u64());
        *keys.entry((src.to_owned(), port.unwrap())).or_default() += 1;
    }
    keys
}

/// Waits until a topic exists and has this many messages.
fn wait_messages(broker: &Broker, topic: &str, count: usize) {
    let until = Instant::now() + PATIENCE;
    while broker.try_read(topic).0.is_none() || keys(broker, topic).len() < count {
        assert!(Instant::now() < until, "{topic} has no {count} messages");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A broker killed while messages are sent and queued, and restarted: everything arrives once.
struct Interrupted {
    probe: Process,
    stdin: Option<ChildStdin>,
    capture: Vec<u8>,
}

impl Interrupted {
    const TOPIC: &str = "flows-killed";
    const COUNT: u32 = 20_000;
    /// Where the capture's second half starts.
    const HALF: usize = 24 + 44 * Self::COUNT as usize / 2;

    /// Starts a probe, and waits for its first messages.
    fn start(broker: &Broker) -> Interrupted {
        let address = broker.address();
        // A broker takes time to start on a busy machine.
        let url = format!("json:kafka://{address}/{}?wait=150s", Self::TOPIC);
        let capture = flood(Self::COUNT);
        let mut probe = start("-", &url);
        let mut stdin = probe.take_stdin().unwrap();
        stdin.write_all(&capture[..Self::HALF]).unwrap();
        wait_messages(broker, Self::TOPIC, 1);
        Interrupted {
            probe,
            stdin: Some(stdin),
            capture,
        }
    }

    /// Sends the rest while the broker is away.
    fn send_rest(&mut self) {
        let mut stdin = self.stdin.take().unwrap();
        stdin.write_all(&self.capture[Self::HALF..]).unwrap();
    }

    fn check(mut self, broker: &Broker) {
        let finished = self.probe.wait(PATIENCE).unwrap();
        assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
        let account = account(&finished.stdout);
        // The outage was detected.
        assert!(account["failures"].as_u64() > Some(0), "{account}");
        assert_eq!(account["dropped"], json!({}), "{account}");
        assert_eq!(account["exported"]["flows"], Self::COUNT, "{account}");
        let keys = keys(broker, Self::TOPIC);
        assert_eq!(keys.len(), Self::COUNT as usize);
        assert!(keys.values().all(|count| *count == 1));
    }
}

/// A broker that is away for longer than the queue has room: the rest is reported as dropped, and
/// everything else arrives once.
struct Bounded {
    probe: Process,
    stdin: ChildStdin,
    capture: Vec<u8>,
}

impl Bounded {
    const TOPIC: &str = "flows-bounded";
    const HALF: usize = 24 + 44 * 16_000;

    fn url(broker: &Broker) -> String {
        format!("json:kafka://{}/{}", broker.address(), Self::TOPIC)
    }

    /// Creates the topic, so that only the broker is missing later.
    fn prepare(broker: &Broker) {
        let input = broker.folder.0.join("input.pcap");
        std::fs::write(&input, flood(1)).unwrap();
        let mut first = start(input.to_str().unwrap(), &Self::url(broker));
        let first = first.wait(PATIENCE).unwrap();
        assert_eq!(account(&first.stdout)["exported"]["flows"], 1);
    }

    /// Starts a probe while the broker is away. Its input is read although its output stalls: what
    /// exceeds the bound is dropped.
    fn start(broker: &Broker) -> Bounded {
        let bounds = "queue=512&queue.buffering.max.messages=1000&wait=10s";
        let mut probe = start("-", &format!("{}?{bounds}", Self::url(broker)));
        let mut stdin = probe.take_stdin().unwrap();
        let capture = flood(20_000);
        stdin.write_all(&capture[..Self::HALF]).unwrap();
        Bounded {
            probe,
            stdin,
            capture,
        }
    }

    fn check(mut self, broker: &Broker) {
        wait_messages(broker, Self::TOPIC, 1000);
        self.stdin.write_all(&self.capture[Self::HALF..]).unwrap();
        drop(self.stdin);
        let finished = self.probe.wait(PATIENCE).unwrap();
        assert_eq!(finished.code(), Some(5), "{}", finished.stderr);
        let account = account(&finished.stdout);
        let exported = account["exported"]["flows"].as_u64().unwrap();
        let full = account["dropped"]["queue_full"]["flows"].as_u64();
        assert_eq!(Some(20_000), full.map(|full| full + exported), "{account}");
        assert!(exported >= 1000 + 512, "{account}");
        let keys = keys(broker, Self::TOPIC);
        // The first flow of the second run equals that of the first one.
        let twice = keys.values().filter(|count| **count == 2).count() as u64;
        assert!(twice <= 1 && keys.values().all(|count| *count <= 2));
        assert_eq!(keys.values().sum::<u64>(), exported + 1);
    }
}

/// Without a broker the run ends, and every record is reported as lost.
fn a_broker_that_stays_away_is_accounted_for(broker: &Broker) {
    let input = broker.folder.0.join("input.pcap");
    std::fs::write(&input, flood(3000)).unwrap();
    let url = format!("json:kafka://{}/flows-never?wait=5s", broker.address());
    let finished = start(input.to_str().unwrap(), &url).wait(PATIENCE).unwrap();
    assert_eq!(finished.code(), Some(5), "{}", finished.stderr);
    let account = account(&finished.stdout);
    assert_eq!(account["exported"]["flows"], 0, "{account}");
    assert_eq!(
        account["dropped"]["send_failed"]["flows"], 3000,
        "{account}"
    );
    assert!(account["last_failure"].is_string(), "{account}");
}
