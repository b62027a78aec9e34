//! `barewire scan --banners` against real servers of HTTP, TLS, SSH, RTSP, MQTT, mail and
//! databases, from the packages that `cargo xtask setup` unpacks.

use std::process::Stdio;
use std::time::{Duration, Instant};

use lab::process::Process;
use lab::skip::Missing;
use lab::unpacked::Unpacked;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

use crate::scan_services::banners;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);

/// The shell of the servers' packages, to start one of them.
pub(crate) fn packages() -> Result<Unpacked, Missing> {
    having("usr/sbin/vsftpd")
}

/// The same, if the packages have this file.
fn having(file: &str) -> Result<Unpacked, Missing> {
    Unpacked::find("servers", file)?;
    Unpacked::find("servers", "usr/bin/sh")
}

/// A server in the right end's namespace. All its processes end on drop.
pub(crate) struct Server {
    pub(crate) pair: Pair,
    process: Process,
}

impl Server {
    /// Runs a script that starts a server; returns when all ports are listened to. The users of
    /// the packages are in its root directory.
    pub(crate) fn start(script: &str, ports: &[u16]) -> Server {
        let pair = Veth::new().offloads().create().unwrap();
        let shell = packages().unwrap().with_processes();
        let mut command = shell.command(Some(&pair.right.ns));
        command.args(["-euc", script]);
        let process = Process::spawn_with_stdin(command.stdin(Stdio::null())).unwrap();
        let mut server = Server { pair, process };
        server.wait_listening(ports);
        server
    }

    fn wait_listening(&mut self, ports: &[u16]) {
        let since = Instant::now();
        let is_listening = || {
            let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap_or_default();
            // State 0A is LISTEN.
            let row = |port: &u16| format!(":{port:04X} 00000000:0000 0A");
            ports.iter().all(|port| table.contains(&row(port)))
        };
        while !self.pair.right.ns.run(is_listening).unwrap() {
            let is_running = self.process.running().unwrap();
            assert!(is_running, "it ended: {}", self.process.stderr());
            assert!(since.elapsed() < LIMIT, "nothing listens on {ports:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The banner at each port, and the totals.
    pub(crate) fn banners(&self, ports: &[u16]) -> (Vec<Value>, Value) {
        let list: Vec<_> = ports.iter().map(u16::to_string).collect();
        let (lines, totals) = banners(&self.pair, &list.join(","));
        let of = |port: &u16| {
            let is_it = |line: &&Value| line["port"] == *port;
            let found: Vec<_> = lines.iter().filter(is_it).collect();
            assert_eq!(found.len(), 1, "port {port}: {totals} {lines:?}");
            found[0].clone()
        };
        (ports.iter().map(of).collect(), totals)
    }

    /// What the only server at a port says, decoded.
    fn application(&self, port: u16) -> Value {
        self.banners(&[port]).0[0]["application"].take()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn nginx_says_its_version_title_and_certificate() {
    require!(skip::lab(), packages().map(drop));
    let script = r#"
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=www.example.org \
    -addext subjectAltName=DNS:www.example.org,DNS:example.org \
    -keyout /tmp/key.pem -out /tmp/cert.pem 2> /dev/null
cat > /etc/nginx/nginx.conf << END
daemon off;
pid /run/nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    ssl_certificate /tmp/cert.pem;
    ssl_certificate_key /tmp/key.pem;
    server { listen 80; listen 443 ssl; root /tmp; }
}
END
echo '<title>A page of this test</title>' > /tmp/index.html
exec nginx
"#;
    let server = Server::start(script, &[80, 443]);
    let (banners, totals) = server.banners(&[80, 443]);
    let plain = &banners[0];
    assert_eq!(plain["title"], "A page of this test");
    assert_eq!(plain["application"]["http_status"], 200);
    let name = text(&plain["application"]["http_server"]);
    assert!(name.starts_with("nginx/1."), "{name}");
    let tls = &banners[1]["application"];
    assert_eq!(tls["protocol"], "tls", "{}", banners[1]);
    assert_eq!(tls["tls_version"], "1.3", "{tls}");
    // A certificate that the server encrypts.
    assert_eq!(tls["tls_subject"], "CN=www.example.org", "{tls}");
    assert_eq!(tls["tls_alpn_chosen"], "http/1.1", "{tls}");
    let names = serde_json::json!(["www.example.org", "example.org"]);
    assert_eq!(tls["tls_san"], names, "{tls}");
    // More than 10 segments of the connections were counted as unrelated once. A reset that arrives
    // after the end of a connection is unrelated.
    assert!(totals["unrelated"].as_u64().unwrap() < 3, "{totals}");
    assert_eq!(totals["open"], 2, "{totals}");
}

#[test]
fn openssh_says_its_version_and_host_key() {
    require!(skip::lab(), packages().map(drop));
    let script = r#"
mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f /tmp/key
ssh-keygen -l -f /tmp/key
serve() { /usr/sbin/sshd -e -f /dev/null -h /tmp/key -p $1 -o KexAlgorithms=$2; }
serve 2222 ecdh-sha2-nistp256
serve 25 ecdh-sha2-nistp256
serve 9001 ecdh-sha2-nistp384
serve 9002 ecdh-sha2-nistp521
serve 9003 diffie-hellman-group14-sha256
serve 9004 diffie-hellman-group16-sha512
serve 9005 curve25519-sha256
exec /usr/sbin/sshd -D -e -f /dev/null -h /tmp/key
"#;
    let ports = [22, 2222, 25, 9001, 9002, 9003, 9004, 9005];
    let server = Server::start(script, &ports);
    // 256 SHA256:… comment (ED25519)
    let line = server.process.stdout();
    let hash = line.split_whitespace().nth(1).unwrap();
    let (banners, totals) = server.banners(&ports);
    for (port, banner) in ports.iter().zip(banners) {
        let found = &banner["application"];
        assert_eq!(found["protocol"], "ssh", "{port}: {totals}");
        let name = text(&found["ssh_server"]);
        assert!(name.starts_with("SSH-2.0-OpenSSH_1"), "{name}");
        assert_eq!(text(&found["hassh_server"]).len(), 32, "{found}");
        assert_eq!(found["ssh_host_key"], "ssh-ed25519", "{port}: {found}");
        let own = format!("SHA256:{}", text(&found["ssh_host_key_sha256"]));
        assert_eq!(own, hash, "{port}: {found}");
    }
}

#[test]
fn redis_says_its_version() {
    require!(skip::lab(), packages().map(drop));
    let script = "exec redis-server --protected-mode no --save ''";
    let found = Server::start(script, &[6379]).application(6379);
    assert_eq!(found["protocol"], "redis");
    assert!(text(&found["redis_version"]).starts_with("8."), "{found}");
}

#[test]
fn an_rtsp_server_answers_options() {
    require!(skip::lab(), packages().map(drop));
    require!(having("usr/bin/rtsp-server-perl").map(drop));
    let server = Server::start("exec perl /usr/bin/rtsp-server-perl", &[554]);
    let (banners, totals) = server.banners(&[554]);
    let found = &banners[0]["application"];
    assert_eq!(found["protocol"], "rtsp", "{totals} {}", banners[0]);
    assert_eq!(found["rtsp_status"], 200, "{found}");
    let start = text(&banners[0]["start"]);
    assert!(start.starts_with("RTSP/1.0 200 OK\r\n"), "{start}");
    assert!(start.contains("\r\nPublic: OPTIONS, DESCRIBE"), "{start}");
}

#[test]
fn mosquitto_accepts_a_client_without_a_name() {
    require!(skip::lab(), packages().map(drop));
    let script = r#"
printf 'listener 1883\nallow_anonymous true\n' > /tmp/conf
exec mosquitto -c /tmp/conf
"#;
    let found = Server::start(script, &[1883]).application(1883);
    assert_eq!(found["protocol"], "mqtt");
    assert_eq!(found["mqtt_return_code"], 0);
}

#[test]
fn vsftpd_says_its_greeting() {
    require!(skip::lab(), packages().map(drop));
    let script = r#"
mkdir -p /run/vsftpd/empty
cat > /etc/vsftpd.conf << END
listen=YES
background=NO
secure_chroot_dir=/run/vsftpd/empty
ftpd_banner=FTP of this test
END
exec vsftpd
"#;
    let found = Server::start(script, &[21]).application(21);
    assert_eq!(found["protocol"], "ftp");
    assert_eq!(found["mail_greeting"], "220 FTP of this test");
}

#[test]
fn postfix_says_its_greeting() {
    require!(skip::lab(), packages().map(drop));
    let script = r#"
chown postfix /var/lib/postfix
cp /usr/share/postfix/master.cf.dist /etc/postfix/master.cf
cat > /etc/postfix/main.cf << END
compatibility_level=3.9
myhostname=mail.example.org
mydestination=
maillog_file=/dev/stdout
END
exec postfix start-fg
"#;
    let found = Server::start(script, &[25]).application(25);
    assert_eq!(found["protocol"], "smtp");
    assert_eq!(found["mail_greeting"], "220 mail.example.org ESMTP Postfix");
}

#[test]
fn dovecot_says_its_greetings() {
    require!(skip::lab(), packages().map(drop));
    let script = r#"
cat > /tmp/conf << END
dovecot_config_version = 2.4.0
dovecot_storage_version = 2.4.0
protocols = imap pop3
ssl = no
log_path = /dev/stderr
mail_driver = maildir
mail_path = /tmp/mail
passdb static {
  password = test
}
userdb static {
}
END
exec dovecot -F -c /tmp/conf
"#;
    let server = Server::start(script, &[110, 143]);
    let (banners, _) = server.banners(&[110, 143]);
    for (banner, (name, start)) in banners.iter().zip([("pop3", "+OK "), ("imap", "* OK ")]) {
        let found = &banner["application"];
        assert_eq!(found["protocol"], name, "{banner}");
        let greeting = text(&found["mail_greeting"]);
        let is_dovecot = greeting.starts_with(start) && greeting.contains("Dovecot");
        assert!(is_dovecot, "{greeting}");
    }
}

#[test]
fn mariadb_says_its_version() {
    require!(skip::lab(), packages().map(drop));
    let script = r#"
mkdir /tmp/data
chown mysql /tmp/data
exec mariadbd --no-defaults --user=mysql --datadir=/tmp/data --socket=/tmp/socket \
    --bind-address=0.0.0.0 --skip-grant-tables
"#;
    let found = Server::start(script, &[3306]).application(3306);
    assert_eq!(found["protocol"], "mysql");
    let version = text(&found["mysql_version"]);
    assert!(version.contains("MariaDB"), "{version}");
}

#[test]
fn postgresql_says_how_clients_authenticate() {
    require!(skip::lab(), packages().map(drop));
    let script = r#"
mkdir /tmp/data
chown postgres:postgres /tmp/data
run="chroot --userspec=postgres:postgres /"
bin=/usr/lib/postgresql/17/bin
$run $bin/initdb -D /tmp/data --auth-local=trust --auth-host=scram-sha-256 --no-sync > /dev/null
echo 'host all all all scram-sha-256' > /tmp/data/pg_hba.conf
exec $run $bin/postgres -D /tmp/data -c listen_addresses='*' -k /tmp
"#;
    let found = Server::start(script, &[5432]).application(5432);
    assert_eq!(found["protocol"], "postgresql", "{found}");
    assert_eq!(found["postgresql_auth"], "SCRAM-SHA-256", "{found}");
}
