//! The banner of a service.

use std::sync::Arc;

use inspect::{Application, Field};

use super::{Certificate, CertificateFields, Ending};
use crate::cookie::ProbeTarget;

/// The banner of a service.
#[derive(Clone, Debug)]
pub struct Banner {
    /// The service.
    pub target: ProbeTarget,
    /// The name by which it was spoken to.
    pub name: Option<Arc<str>>,
    /// The findings of the decoders.
    pub application: Application,
    /// The fields of its certificate.
    pub certificate: CertificateFields,
    /// The title of its page, as sent.
    pub title: Option<Vec<u8>>,
    /// The first bytes from the server.
    pub start: Vec<u8>,
    /// Number of bytes read from the server.
    pub byte_count: u64,
    /// Why the connection ended.
    pub ending: Ending,
    /// Certificates of the server that no banner had before, if they are kept.
    pub certificates: Vec<Certificate>,
}

impl Banner {
    /// A banner of these first bytes.
    pub fn new(target: ProbeTarget, start: &[u8], ending: Ending) -> Self {
        Self {
            target,
            name: None,
            application: Application::EMPTY,
            certificate: CertificateFields::default(),
            title: None,
            start: start.to_vec(),
            byte_count: start.len() as u64,
            ending,
            certificates: Vec::new(),
        }
    }

    /// Appends the findings, those about the certificate included, as a JSON object; false if there
    /// are none.
    pub fn json(&self, out: &mut Vec<u8>) -> bool {
        let certificate = self.certificate.values();
        inspect::json_with(&self.application, None, &certificate, out)
    }

    /// Whether the server speaks TLS.
    pub(super) fn has_tls(&self) -> bool {
        self.application.has(Field::TlsVersion) || !self.certificate.is_empty()
    }
}
