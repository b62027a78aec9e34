//! TLS over TCP (RFC 7011 §11.3): the collector is authenticated by its certificate, and the probe
//! by its own if `cert=` and `key=` are given.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sys::{Error, ErrorKind, Result};

use crate::sink::{Sent, Sink};
use crate::target::Target;
use crate::tcp;

/// The system's trusted certificates on Debian and most others.
const SYSTEM_CA: &str = "/etc/ssl/certs/ca-certificates.crt";

struct Tls {
    host: String,
    port: u16,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    stream: Option<StreamOwned<ClientConnection, TcpStream>>,
}

/// Opens the destination of a target: certificates are read here, before privileges are dropped.
pub(crate) fn open(target: &Target) -> Result<Box<dyn Sink>> {
    let (host, port) = crate::udp::host_of(target)?;
    let options = &target.options;
    let name = options.name.clone().unwrap_or_else(|| host.clone());
    let name = ServerName::try_from(name.clone()).map_err(|_| {
        let what = format!("export to {:?}", target.text);
        let why = format!("{name:?} is not a valid certificate name");
        Error::new(ErrorKind::InvalidInput, what, why)
            .with_hint("give the name in the certificate with name=")
    })?;
    let config = config(options.ca.as_deref(), &options.cert, &options.key)?;
    Ok(Box::new(Tls {
        host,
        port,
        name,
        config: Arc::new(config),
        stream: None,
    }))
}

fn config(
    ca: Option<&Path>,
    cert: &Option<PathBuf>,
    key: &Option<PathBuf>,
) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let path = ca.unwrap_or(Path::new(SYSTEM_CA));
    let (added, _) = roots.add_parsable_certificates(certificates(path)?);
    if added == 0 {
        return Err(unreadable(path, "it contains no certificate".into()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| unreadable(path, e.to_string()))?
        .with_root_certificates(roots);
    let (Some(cert), Some(key)) = (cert, key) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable(key, e.to_string()))?;
    builder
        .with_client_auth_cert(chain, private)
        .map_err(|e| unreadable(cert, e.to_string()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path).map_err(|e| unreadable(path, e.to_string()))?;
    all.collect::<std::result::Result<_, _>>()
        .map_err(|e| unreadable(path, e.to_string()))
}

fn unreadable(path: &Path, why: String) -> Error {
    let what = format!("use {} for TLS", path.display());
    Error::new(ErrorKind::InvalidInput, what, why)
        .with_hint("PEM files are required: ca= trusted CAs, cert= and key= client certificate")
}

impl Sink for Tls {
    fn connect(&mut self) -> io::Result<()> {
        let mut socket = tcp::connect(&self.host, self.port)?;
        let mut connection = ClientConnection::new(self.config.clone(), self.name.clone())
            .map_err(io::Error::other)?;
        // The peer must be authenticated before anything is sent.
        let until = Instant::now() + tcp::WHOLE_MAX;
        while connection.is_handshaking() || connection.wants_write() {
            while connection.wants_write() {
                connection.write_tls(&mut socket)?;
                tcp::in_time(until)?;
            }
            if connection.is_handshaking() {
                if connection.read_tls(&mut socket)? == 0 {
                    return Err(tcp::closed());
                }
                let read = connection.process_new_packets();
                if let Err(error) = read {
                    // The error is sent to the peer, too, as an alert.
                    drop(connection.write_tls(&mut socket));
                    return Err(io::Error::other(words(&error)));
                }
                tcp::in_time(until)?;
            }
        }
        self.stream = Some(StreamOwned::new(connection, socket));
        Ok(())
    }

    fn send(&mut self, message: &[u8]) -> Sent {
        let Some(stream) = &mut self.stream else {
            return Sent::Broken(io::ErrorKind::NotConnected.into());
        };
        match write(stream, message) {
            Ok(()) => Sent::Done,
            Err(error) => {
                self.stream = None;
                Sent::Broken(error)
            }
        }
    }

    fn close(&mut self) -> io::Result<()> {
        let Some(mut stream) = self.stream.take() else {
            return Ok(());
        };
        stream.conn.send_close_notify();
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock)?;
        }
        stream.sock.shutdown(Shutdown::Write)
    }
}

/// Explains to users why a connection failed: the library prints some reasons in code.
fn words(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(why) = error else {
        return error.to_string();
    };
    let text = format!("{why:?}");
    let why = [
        (
            "UnknownIssuer",
            "it is not signed by a trusted CA; ca=FILE adds another CA",
        ),
        (
            "CaUsedAsEndEntity",
            "it is the certificate of a CA, which a server must not use",
        ),
        ("Expired", "it has expired"),
        ("NotValidYet", "it is not valid yet"),
        (
            "NotValidForName",
            "it is for another host; name=NAME sets the expected name",
        ),
        ("Revoked", "it was revoked"),
        ("BadSignature", "its signature is invalid"),
    ]
    .into_iter()
    .find_map(|(name, words)| text.contains(name).then_some(words));
    format!("its certificate is not trusted: {}", why.unwrap_or(&text))
}

fn write(stream: &mut StreamOwned<ClientConnection, TcpStream>, message: &[u8]) -> io::Result<()> {
    // Reads what the collector sends (tickets, a close), or a close would be noticed late.
    while tcp::has_input(&stream.sock)? {
        stream.conn.read_tls(&mut stream.sock)?;
        let state = stream
            .conn
            .process_new_packets()
            .map_err(|error| io::Error::other(words(&error)))?;
        if state.peer_has_closed() {
            return Err(tcp::closed());
        }
    }
    let until = Instant::now() + tcp::WHOLE_MAX;
    let mut rest = message;
    while !rest.is_empty() {
        let len = stream.conn.writer().write(rest)?;
        if len == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        rest = &rest[len..];
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock)?;
            tcp::in_time(until)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustls::CertificateError;

    use super::*;

    #[test]
    fn tls_errors_are_explained() {
        for (why, part) in [
            (CertificateError::UnknownIssuer, "ca=FILE"),
            (CertificateError::Expired, "has expired"),
            (CertificateError::NotValidForName, "another host"),
        ] {
            let text = words(&rustls::Error::InvalidCertificate(why));
            assert!(
                text.starts_with("its certificate is not trusted: "),
                "{text}"
            );
            assert!(text.contains(part), "{text}");
        }
    }
}
