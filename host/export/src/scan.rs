//! Files of scan results that are not text: Parquet and SQLite. Both have the columns of
//! `row`, and each is a row of [`FORMATS`].

mod parquet;
mod row;
mod sqlite;

use ::scan::report::TableFormat;

/// The formats.
pub static FORMATS: [&TableFormat; 2] = [&parquet::FORMAT, &sqlite::FORMAT];

#[cfg(test)]
mod tests;
