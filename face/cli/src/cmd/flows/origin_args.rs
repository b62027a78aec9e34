//! `--asn`, `--geo`, `--mac-vendors`: who stands behind the ends of flows, by files of the user.

use std::path::PathBuf;

use probe::Origins;
use runtime::origin_table::OriginFiles;
use sys::{Error, ErrorKind, Result};

/// Files about addresses and network cards.
#[derive(clap::Args)]
#[command(next_help_heading = "Origins")]
pub struct OriginArgs {
    /// Tell the autonomous systems of addresses, by a MaxMind DB file or a list of prefixes or
    /// ranges (iptoasn.com and others); may be given several times (docs/enrichment.md)
    #[arg(long, value_name = "FILE")]
    asn: Vec<PathBuf>,
    /// Tell countries and cities of addresses, by files of the same kinds
    #[arg(long, value_name = "FILE")]
    geo: Vec<PathBuf>,
    /// Tell the makers of network cards, by IEEE's oui.csv or Wireshark's manuf; with --key mac
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
    /// Of files; and where makers are asked for, but no addresses of cards are recorded.
    pub fn open(&self, has_mac: bool) -> Result<Origins> {
        let files = self.files();
        if files.parts().vendor && !has_mac {
            let what = "tell makers of network cards";
            let why = "addresses of network cards are not recorded";
            let error = Error::new(ErrorKind::InvalidInput, what, why);
            return Err(error.with_hint("--key mac records them; they are then part of the key"));
        }
        Origins::open(&files)
    }
}
