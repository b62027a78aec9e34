//! The Prometheus endpoint of a program.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{Netns, Process};

/// Time limit for a page; not a measurement.
const LIMIT: Duration = Duration::from_secs(60);

/// Reads the page at the address that the program has printed, in its namespace.
///
/// # Errors
/// If it has printed none, or the page cannot be read.
pub fn scrape(ns: &Netns, process: &Process) -> Result<String> {
    let said = process.stderr();
    let (_, rest) = said
        .split_once("metrics at http://")
        .context("no address")?;
    let address: SocketAddr = rest.split('/').next().unwrap_or_default().parse()?;
    let mut stream = ns.run(|| TcpStream::connect(address))??;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}
