//! The HTTP/1.1 endpoint for scrapers.
//!
//! The probe renders a page from time to time, and a thread serves the last one. There is one
//! request per connection, and at most [`CONNECTIONS_MAX`] connections at a time, each bounded in
//! bytes and time. A further one closes the oldest that has not sent a request yet, so that idle
//! connections delay no others. `/healthz` tells supervisors whether pages are still rendered.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sys::poll::{self, Wanted};
use sys::{Error, Result};

use super::Page;
use super::process::Process;
use crate::worker::lock;

/// Maximum number of connections at a time.
const CONNECTIONS_MAX: usize = 16;
/// Maximum length of a request.
const REQUEST_MAX: usize = 8 << 10;
/// How long a connection may take for its request and the response.
const PATIENCE: Duration = Duration::from_secs(10);
/// A program that has rendered no page for this long is not healthy: each renders one a second.
const FRESH: Duration = Duration::from_secs(30);
/// Interval at which the thread checks whether it is to end.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The endpoint. Dropping it ends its thread.
pub struct Endpoint {
    /// `None` once the thread has it.
    listener: Option<TcpListener>,
    address: SocketAddr,
    page: Arc<Mutex<Shown>>,
    process: Process,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    patience: Duration,
}

/// The last page, and when it was rendered.
#[derive(Default)]
struct Shown {
    text: String,
    at: Option<Instant>,
}

impl Endpoint {
    /// Listens on an address such as `127.0.0.1:14739`. No request is answered before
    /// [`Endpoint::start`].
    ///
    /// # Errors
    /// If it cannot listen there.
    pub fn bind(address: SocketAddr) -> Result<Endpoint> {
        let what = || format!("serve metrics on {address}");
        let listener = TcpListener::bind(address).map_err(|e| {
            let hint = match e.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "another program listens there: choose another port; `ss -ltnp` shows the \
                     program"
                }
                std::io::ErrorKind::AddrNotAvailable => {
                    "use an address of this host, for example 127.0.0.1 or 0.0.0.0"
                }
                std::io::ErrorKind::PermissionDenied => {
                    "ports below 1024 need root or CAP_NET_BIND_SERVICE"
                }
                _ => "give an address and a port, for example 127.0.0.1:14739",
            };
            Error::from_io(what(), e).with_hint(hint)
        })?;
        listener
            .set_nonblocking(true)
            .map_err(|e| Error::from_io(what(), e))?;
        let address = listener
            .local_addr()
            .map_err(|e| Error::from_io(what(), e))?;
        Ok(Endpoint {
            listener: Some(listener),
            address,
            page: Arc::default(),
            process: Process::open(),
            is_over: Arc::default(),
            thread: None,
            patience: PATIENCE,
        })
    }

    /// Starts the thread that serves requests.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(&mut self) -> Result<()> {
        let Some(listener) = self.listener.take() else {
            return Ok(());
        };
        let mut server = Server {
            listener,
            connections: Vec::with_capacity(CONNECTIONS_MAX),
            page: self.page.clone(),
            patience: self.patience,
        };
        let is_over = self.is_over.clone();
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    server.turn();
                }
            })
            .map_err(|e| Error::from_io("start the metrics thread", e))?;
        self.thread = Some(thread);
        Ok(())
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves this page from now on.
    pub fn show(&self, mut page: Page) {
        self.process.write(&mut page);
        *lock(&self.page) = Shown {
            text: page.text,
            at: Some(Instant::now()),
        };
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has printed its own message.
            drop(thread.join());
        }
    }
}

/// State of the thread.
struct Server {
    listener: TcpListener,
    /// Ordered from the oldest to the newest.
    connections: Vec<Connection>,
    page: Arc<Mutex<Shown>>,
    patience: Duration,
}

impl Server {
    /// Waits briefly for events, and handles them.
    fn turn(&mut self) {
        let mut wanted = Vec::with_capacity(1 + CONNECTIONS_MAX);
        wanted.push(Wanted::readable(&self.listener));
        wanted.extend(self.connections.iter().map(Connection::wanted));
        if poll::wait(&mut wanted, CHECK_INTERVAL).is_err() {
            return std::thread::sleep(CHECK_INTERVAL);
        }
        let is_ready: Vec<bool> = wanted.iter().map(Wanted::is_ready).collect();
        let (mut at, now) = (0, Instant::now());
        self.connections.retain_mut(|connection| {
            at += 1;
            // A connection that failed cannot read a response.
            let continues = !is_ready[at] || connection.turn(&self.page).unwrap_or(false);
            continues && now < connection.until
        });
        if is_ready[0] {
            self.accept(now);
        }
    }

    /// Accepts one connection; the next one is handled in the next turn.
    fn accept(&mut self, now: Instant) {
        let accepted = self.listener.accept();
        let accepted = accepted.and_then(|(stream, _)| {
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        let Ok(stream) = accepted else {
            // Possibly out of descriptors: the connection is still pending, and would be reported
            // again at once.
            return std::thread::sleep(CHECK_INTERVAL);
        };
        if self.connections.len() >= CONNECTIONS_MAX {
            let idle = self.connections.iter().position(Connection::is_idle);
            self.connections.remove(idle.unwrap_or(0));
        }
        self.connections.push(Connection {
            stream,
            request: Vec::new(),
            answer: Vec::new(),
            sent: 0,
            until: now + self.patience,
        });
    }
}

/// A connection: reads a request, writes the response, closes.
struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    /// Empty until the request is complete.
    answer: Vec<u8>,
    /// Bytes of the response sent.
    sent: usize,
    until: Instant,
}

impl Connection {
    /// Whether its request has not arrived yet.
    fn is_idle(&self) -> bool {
        self.answer.is_empty()
    }

    fn wanted(&self) -> Wanted<'_> {
        match self.is_idle() {
            true => Wanted::readable(&self.stream),
            false => Wanted::writable(&self.stream),
        }
    }

    /// Reads or writes as much as possible; false when it is done.
    fn turn(&mut self, page: &Mutex<Shown>) -> io::Result<bool> {
        if self.is_idle() {
            let mut chunk = [0; 1024];
            let len = match self.stream.read(&mut chunk) {
                Ok(len) => len,
                Err(error) => return later(error),
            };
            self.request.extend_from_slice(&chunk[..len]);
            if len == 0 || self.request.len() > REQUEST_MAX {
                return Ok(false);
            }
            if !self.request.windows(4).any(|end| end == b"\r\n\r\n") {
                return Ok(true);
            }
            self.answer = answer(&self.request, page);
        }
        match self.stream.write(&self.answer[self.sent..]) {
            Ok(len) => self.sent += len,
            Err(error) => return later(error),
        }
        Ok(self.sent < self.answer.len())
    }
}

/// Whether to retry a failed call when the descriptor is ready.
fn later(error: io::Error) -> io::Result<bool> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(true),
        _ => Err(error),
    }
}

/// The response to a complete request.
fn answer(request: &[u8], page: &Mutex<Shown>) -> Vec<u8> {
    let line = request
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, path) = (words.next(), words.next().unwrap_or_default());
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        (Some(b"GET" | b"HEAD"), b"/metrics") => ("200 OK", lock(page).text.clone()),
        (Some(b"GET" | b"HEAD"), b"/healthz") => health(lock(page).at.map(|at| at.elapsed())),
        (Some(b"GET" | b"HEAD"), _) => (
            "404 Not Found",
            "metrics are at /metrics, the health at /healthz\n".into(),
        ),
        _ => ("405 Method Not Allowed", String::new()),
    };
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if method != Some(b"HEAD") {
        answer.push_str(&body);
    }
    answer.into_bytes()
}

/// Status and text of `/healthz`, for the age of the last page.
fn health(age: Option<Duration>) -> (&'static str, String) {
    const UNHEALTHY: &str = "503 Service Unavailable";
    match age {
        Some(age) if age < FRESH => ("200 OK", "ok\n".into()),
        Some(age) => {
            let text = format!("stalled: no update for {} s\n", age.as_secs());
            (UNHEALTHY, text)
        }
        None => (UNHEALTHY, "starting\n".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    /// Longer than any test: a connection that is closed was closed for another reason.
    const LONG: Duration = Duration::from_secs(3600);

    fn endpoint() -> Endpoint {
        let mut endpoint = Endpoint::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.patience = LONG;
        endpoint.start().unwrap();
        endpoint.show(Page::default());
        endpoint
    }

    fn connect(endpoint: &Endpoint) -> TcpStream {
        let stream = TcpStream::connect(endpoint.address()).unwrap();
        // Ends a failing test: far below the endpoint's timeout.
        stream.set_read_timeout(Some(LONG / 60)).unwrap();
        stream
    }

    fn rest_of(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn idle_connections_do_not_delay_others() {
        let endpoint = endpoint();
        let mut idle: Vec<TcpStream> = (1..CONNECTIONS_MAX).map(|_| connect(&endpoint)).collect();
        for stream in &mut idle {
            stream.write_all(b"GET /metrics HTT").unwrap();
        }
        let mut scraper = connect(&endpoint);
        scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        assert!(rest_of(scraper).starts_with("HTTP/1.1 200 OK\r\n"));
        for mut stream in idle {
            stream.write_all(b"P/1.1\r\n\r\n").unwrap();
            assert!(
                rest_of(stream).starts_with("HTTP/1.1 200 OK\r\n"),
                "it was closed"
            );
        }
    }

    #[test]
    fn the_oldest_idle_connection_is_closed_for_a_new_one() {
        let endpoint = endpoint();
        let mut idle: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| connect(&endpoint)).collect();
        let newest = connect(&endpoint);
        assert_eq!(rest_of(idle.remove(0)), "", "closed without an answer");
        idle.push(newest);
        for mut stream in idle {
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            assert!(rest_of(stream).starts_with("HTTP/1.1 200 OK\r\n"));
        }
    }

    /// A page that does not fit into the buffers of a scraper that does not read.
    #[test]
    fn a_scraper_that_does_not_read_does_not_delay_others() {
        let endpoint = endpoint();
        let text = "x".repeat(64 << 20);
        lock(&endpoint.page).text = text.clone();
        let mut slow = connect(&endpoint);
        slow.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        // The response has started, and cannot end before it is read.
        let mut first = [0; 1];
        slow.read_exact(&mut first).unwrap();
        let mut scraper = connect(&endpoint);
        scraper.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(rest_of(scraper).starts_with("HTTP/1.1 404"));
        assert!(rest_of(slow).ends_with(&text));
    }

    #[test]
    fn connections_time_out() {
        let mut endpoint = Endpoint::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.patience = Duration::from_millis(1);
        endpoint.start().unwrap();
        assert_eq!(rest_of(connect(&endpoint)), "");
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_program_that_renders_no_pages_is_not_healthy() {
        assert_eq!(health(Some(Duration::ZERO)).0, "200 OK");
        let (status, text) = health(Some(Duration::from_secs(45)));
        assert_eq!(status, "503 Service Unavailable");
        assert_eq!(text, "stalled: no update for 45 s\n");
    }

    #[test]
    fn the_last_page_is_served() {
        let mut endpoint = Endpoint::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.start().unwrap();
        let mut page = Page::default();
        page.family("x_total", Kind::Counter, "what");
        page.value("x_total", &[("to", "a\"b\\c\nd"), ("by", "y")], 7);
        page.value("x_total", &[], 8);
        assert_eq!(
            page.text(),
            "# HELP x_total what\n# TYPE x_total counter\n\
             x_total{to=\"a\\\"b\\\\c\\nd\",by=\"y\"} 7\nx_total 8\n"
        );
        let body = page.text().to_owned();
        let address = endpoint.address();
        let text = ask(address, "GET /healthz HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 503") && text.ends_with("starting\n"));
        endpoint.show(page);
        let text = ask(address, "GET /healthz HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\nok\n"));
        let text = ask(address, "GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains(&body));
        assert!(text.contains("\nprocess_cpu_seconds_total "), "{text}");
        let text = ask(address, "GET / HTTP/1.0\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 404"));
        let text = ask(address, "POST /metrics HTTP/1.0\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 405"));
        // Too long, and binary: no response, and the next request is served.
        let mut stream = TcpStream::connect(address).unwrap();
        drop(stream.write_all("x".repeat(3 * REQUEST_MAX).as_bytes()));
        let mut text = String::new();
        drop(stream.read_to_string(&mut text));
        assert_eq!(text, "");
        let text = ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(text.ends_with("\r\n\r\n") && text.contains("200 OK"));
        drop(endpoint);
        assert!(TcpStream::connect(address).is_err());
    }
}
