//! `--asn`, `--geo`, `--mac-vendors`: enrichment of flows from the user's files.

use std::path::PathBuf;

use probe::Origins;
use runtime::origin_table::OriginFiles;
use sys::{Error, ErrorKind, Result};

/// Enrichment files.
#[derive(clap::Args)]
#[command(next_help_heading = "Enrichment")]
pub struct OriginArgs {
    /// Add AS numbers and names of addresses, from a MaxMind DB file or a list of prefixes or
    /// ranges (iptoasn.com and others); may be repeated (docs/enrichment.md)
    #[arg(long, value_name = "FILE")]
    asn: Vec<PathBuf>,
    /// Add countries and cities of addresses, from the same kinds of files
    #[arg(long, value_name = "FILE")]
    geo: Vec<PathBuf>,
    /// Add MAC vendors, from IEEE's oui.csv or Wireshark's manuf; needs --key mac
    #[arg(long, value_name = "FILE")]
    mac_vendors: Vec<PathBuf>,
}

impl OriginArgs {
    /// The files.
    pub fn files(&self) -> OriginFiles {
        OriginFiles {
            networks: self.asn.clone(),
            places: self.geo.clone(),
            vendors: self.mac_vendors.clone(),
        }
    }

    /// Reads them.
    ///
    /// # Errors
    /// Errors of the files, and `InvalidInput` if vendors are requested but MAC addresses are not
    /// recorded.
    pub fn open(&self, has_mac: bool) -> Result<Origins> {
        let files = self.files();
        if files.parts().vendor && !has_mac {
            let what = "add MAC vendors";
            let why = "MAC addresses are not recorded";
            let error = Error::new(ErrorKind::InvalidInput, what, why);
            return Err(error.with_hint("--key mac records them, as part of the flow key"));
        }
        Origins::open(&files)
    }
}
