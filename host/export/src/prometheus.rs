//! Figures for Prometheus: its text format (version 0.0.4) on a page of HTTP/1.1, `/metrics`.
//!
//! The probe writes a page now and then, a thread answers with the last one. One request a
//! connection, one connection at a time, each with bounds in bytes and time: what is served is one
//! page for one scraper, and whoever is slow loses the connection, not the probe its pace.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sys::{Error, Result};

use crate::lane::lock;

/// The longest request that is read.
const REQUEST_MAX: usize = 8 << 10;
/// How long a scraper may take for its request, and for the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the thread looks whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// Counter or gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Never goes down while the probe runs.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A page under construction.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Begins a family: its name, what it counts.
    pub fn family(&mut self, name: &str, kind: Kind, about: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing into a text cannot fail.
        let _ = write!(self.text, "# HELP {name} {about}\n# TYPE {name} {kind}\n");
    }

    /// A value of the family, with labels.
    pub fn value(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.text.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// The page.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The endpoint. Dropped, it ends.
pub struct Endpoint {
    /// `None` once the thread has it.
    listener: Option<TcpListener>,
    address: SocketAddr,
    page: Arc<Mutex<String>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Listens on an address, `127.0.0.1:9100` for example. Nobody is answered before
    /// [`Endpoint::start`].
    ///
    /// # Errors
    /// When that cannot be listened on.
    pub fn bind(address: SocketAddr) -> Result<Endpoint> {
        let what = || format!("serve figures on {address}");
        let listener = TcpListener::bind(address).map_err(|e| Error::from_io(what(), e))?;
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
            is_over: Arc::default(),
            thread: None,
        })
    }

    /// Starts the thread that answers.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&mut self) -> Result<()> {
        let Some(listener) = self.listener.take() else {
            return Ok(());
        };
        let (shown, ends) = (self.page.clone(), self.is_over.clone());
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || serve(&listener, &shown, &ends))
            .map_err(|e| Error::from_io("start a thread for figures", e))?;
        self.thread = Some(thread);
        Ok(())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows a page from now on.
    pub fn show(&self, page: Page) {
        *lock(&self.page) = page.text;
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there is told by its own message.
            drop(thread.join());
        }
    }
}

fn serve(listener: &TcpListener, page: &Mutex<String>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        match listener.accept() {
            // A scraper that goes away has no answer to read.
            Ok((stream, _)) => drop(answer(stream, page)),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

fn answer(mut stream: TcpStream, page: &Mutex<String>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (mut request, mut chunk) = (Vec::new(), [0; 1024]);
    let until = Instant::now() + PATIENCE;
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let len = stream.read(&mut chunk)?;
        request.extend_from_slice(&chunk[..len]);
        if len == 0 || request.len() > REQUEST_MAX || Instant::now() > until {
            return Ok(());
        }
    }
    let line = request
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, path) = (words.next(), words.next().unwrap_or_default());
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        (Some(b"GET" | b"HEAD"), b"/metrics") => ("200 OK", lock(page).clone()),
        (Some(b"GET" | b"HEAD"), _) => ("404 Not Found", "figures are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if method != Some(b"HEAD") {
        stream.write_all(body.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
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
        endpoint.show(page);
        let address = endpoint.address();
        let text = ask(address, "GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with(&body));
        let text = ask(address, "GET / HTTP/1.0\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 404"));
        let text = ask(address, "POST /metrics HTTP/1.0\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 405"));
        // Too long, and binary: no answer, and the next one is served.
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
