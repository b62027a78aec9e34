//! `barewire flows query`: SQL over the Parquet files of `--export parquet:DIRECTORY`.

use std::path::PathBuf;

use export::query::{Answer, Engine};
use flow::encode::csv::Texts;
use sys::Result;

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct QueryArgs {
    /// SQL query; the tables are directions and flows
    #[arg(value_name = "SQL")]
    sql: String,
    /// Parquet files, and directories to search recursively for them
    #[arg(value_name = "PLACE", required = true)]
    places: Vec<PathBuf>,
    /// Print one JSON object per row
    #[arg(long)]
    json: bool,
    /// Print CSV with a header line
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print text from packets unchanged, control characters and spreadsheet formulas included
    #[arg(long)]
    raw: bool,
    /// The duckdb program, or a Python that has the duckdb module [default: the first in PATH]
    #[arg(long, value_name = "PROGRAM")]
    engine: Option<PathBuf>,
}

const HELP: &str = "\
Tables (`DESCRIBE directions` lists the columns; docs/export.md describes them):
  directions   a row for each end of a flow that sent packets: address, port, peer, peer_port,
               packets, bytes, ... To sum up traffic by address or port, use this one
  flows        a row for each flow: src is its initiator, bytes is what that sent, and
               reverse_bytes what dst sent

Examples:
  barewire flows query 'SELECT address, sum(bytes) AS sent FROM directions GROUP BY address
                        ORDER BY sent DESC LIMIT 10' flows/
  barewire flows query \"SELECT sum(bytes) FROM directions WHERE date = '2026-11-22'\"
                       flows/ --json";

/// Runs the query and prints the result.
pub fn run(args: &QueryArgs) -> Result<()> {
    let engine = Engine::find(args.engine.as_deref())?;
    let answer = match (args.json, args.csv) {
        (true, _) => Answer::Json,
        (_, true) => Answer::Csv,
        _ => Answer::Table,
    };
    let texts = match args.raw {
        true => Texts::Raw,
        false => Texts::Safe,
    };
    engine.ask(
        &args.sql,
        &args.places,
        (answer, texts),
        &mut std::io::stdout().lock(),
    )
}
