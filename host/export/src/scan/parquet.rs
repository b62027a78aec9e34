//! Scan results as Parquet: one file whose footer is written again after each row group.
//!
//! The last row group is not final: each commit encodes the rows since the previous full group
//! again, and writes them and the footer over the last ones, in one call. So the file is valid
//! between calls, and has few row groups however often rows are committed.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use ::scan::grab::Banner;
use ::scan::report::{Ending, Found, TableFile, TableFormat, TableOptions};
use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{
    FileMetaData, KeyValue, ParquetMetaDataBuilder, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};
use sys::create::CreateOptions;
use wire::Timestamp;

use super::row::{self, COLUMNS, Cell, Column, Kind, Row};

pub(super) static FORMAT: TableFormat = TableFormat {
    word: "parquet",
    letter: 'K',
    extension: "parquet",
    about: "a Parquet file",
    is_continued: false,
    open: |options| Ok(Box::new(Results::open(options)?)),
};

/// Row groups have at most this many rows, and about this many bytes before compression.
const GROUP_ROWS_MAX: usize = 16 << 10;
const GROUP_LEN_MAX: usize = 16 << 20;
/// The first bytes of a file.
const MAGIC: &[u8] = b"PAR1";

/// A file.
struct Results {
    file: File,
    schema: TypePtr,
    properties: Arc<WriterProperties>,
    /// Where the results are from.
    about: Vec<KeyValue>,
    /// Row groups that are final.
    groups: Vec<RowGroupMetaData>,
    /// Bytes before the row group that is not final.
    at: u64,
    /// The rows of that group, and their bytes in memory.
    held: Vec<Row>,
    held_len: usize,
    /// Whether rows were added since the last commit.
    has_new: bool,
    /// What was written last at `at`.
    tail: Vec<u8>,
    identity: (u64, u64),
}

impl Results {
    fn open(options: &TableOptions<'_>) -> io::Result<Self> {
        let making = CreateOptions {
            keep: options.keep,
            ..CreateOptions::BY_UMASK
        };
        let file = making.create(options.path)?;
        let data = file.metadata()?;
        if !data.is_file() {
            let why = "Parquet files are regular files";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        file.write_all_at(MAGIC, 0)?;
        let run = options.run;
        let about = [
            ("barewire.version", run.version.clone()),
            ("barewire.arguments", run.arguments.clone()),
            ("barewire.start", format!("{:.6}", run.start)),
            ("barewire.seed", run.seed.to_string()),
        ];
        Ok(Self {
            file,
            schema: schema().map_err(io::Error::other)?,
            properties: crate::parquet::properties().map_err(io::Error::other)?,
            about: about.map(|(name, value)| pair(name, value)).into(),
            groups: Vec::new(),
            at: MAGIC.len() as u64,
            held: Vec::new(),
            held_len: 0,
            has_new: true,
            tail: Vec::new(),
            identity: (data.dev(), data.ino()),
        })
    }

    fn add(&mut self, row: Row) -> io::Result<()> {
        self.held_len += row::len(&row);
        self.held.push(row);
        self.has_new = true;
        if self.held.len() >= GROUP_ROWS_MAX || self.held_len >= GROUP_LEN_MAX {
            let (bytes, group) = self.encode().map_err(io::Error::other)?;
            let groups = self.groups.iter().chain(&group).cloned();
            let footer = self.footer(groups.collect(), None);
            self.write(&[&bytes[..], &footer.map_err(io::Error::other)?].concat())?;
            self.groups.extend(group);
            self.at += bytes.len() as u64;
            self.tail.drain(..bytes.len());
            self.held.clear();
            self.held_len = 0;
        }
        Ok(())
    }

    /// The rows held as a row group at `at`; none of no rows.
    fn encode(&self) -> ParquetResult<(Vec<u8>, Option<RowGroupMetaData>)> {
        if self.held.is_empty() {
            return Ok((Vec::new(), None));
        }
        let (schema, properties) = (self.schema.clone(), self.properties.clone());
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties)?;
        let mut group = writer.next_row_group()?;
        for (index, column) in COLUMNS.iter().enumerate() {
            let Some(mut out) = group.next_column()? else {
                return Err(ParquetError::General("a column too many".into()));
            };
            write(index, column, &self.held, &mut out)?;
            out.close()?;
        }
        let group = group.close()?;
        writer.flush()?;
        // It was written as the first group of a file.
        let bytes = writer.inner_mut().split_off(MAGIC.len());
        let moved = self.at as i64 - MAGIC.len() as i64;
        let columns = group.columns().iter().map(|column| {
            let dictionary = column.dictionary_page_offset();
            let data = column.data_page_offset();
            let builder = column.clone().into_builder();
            builder
                .set_data_page_offset(data + moved)
                .set_dictionary_page_offset(dictionary.map(|at| at + moved))
                .build()
        });
        let columns = columns.collect::<ParquetResult<_>>()?;
        let group = (*group).clone().into_builder();
        let group = group
            .set_column_metadata(columns)
            .set_file_offset(self.at as i64);
        Ok((bytes, Some(group.build()?)))
    }

    /// The footer of a file with these row groups.
    fn footer(
        &self,
        groups: Vec<RowGroupMetaData>,
        ending: Option<&Ending<'_>>,
    ) -> ParquetResult<Vec<u8>> {
        let mut about = self.about.clone();
        let ended = ending.and_then(|ending| ending.result);
        let is_complete = ended.is_some_and(|ended| ended.is_complete && ended.error.is_none());
        about.push(pair("barewire.complete", is_complete.to_string()));
        let created_by = self.properties.created_by().to_owned();
        let row_count = groups.iter().map(RowGroupMetaData::num_rows).sum();
        let schema = Arc::new(SchemaDescriptor::new(self.schema.clone()));
        let file = FileMetaData::new(1, row_count, Some(created_by), Some(about), schema, None);
        let metadata = ParquetMetaDataBuilder::new(file).set_row_groups(groups);
        let mut footer = Vec::new();
        ParquetMetaDataWriter::new(&mut footer, &metadata.build()).finish()?;
        Ok(footer)
    }

    /// Writes what follows the final row groups.
    fn write(&mut self, tail: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all_at(tail, self.at) {
            // The previous bytes fit even if the disk is full, so the file stays valid.
            let _ = self.file.write_all_at(&self.tail, self.at);
            let _ = self.file.set_len(self.at + self.tail.len() as u64);
            return Err(error);
        }
        if tail.len() < self.tail.len() {
            self.file.set_len(self.at + tail.len() as u64)?;
        }
        self.tail = tail.to_vec();
        Ok(())
    }
}

impl TableFile for Results {
    fn answer(&mut self, found: &Found) -> io::Result<()> {
        self.add(row::answer(found))
    }

    fn banner(&mut self, banner: &Banner, time: Timestamp) -> io::Result<()> {
        self.add(row::banner(banner, time))
    }

    fn commit(&mut self, ending: &Ending<'_>) -> io::Result<()> {
        if !std::mem::take(&mut self.has_new) && ending.result.is_none() {
            return Ok(());
        }
        let (mut tail, group) = self.encode().map_err(io::Error::other)?;
        let groups = self.groups.iter().cloned().chain(group).collect();
        let footer = self.footer(groups, Some(ending));
        tail.extend(footer.map_err(io::Error::other)?);
        self.write(&tail)
    }

    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> u64 {
        self.at + self.tail.len() as u64
    }

    fn identity(&self) -> (u64, u64) {
        self.identity
    }
}

fn pair(name: &str, value: String) -> KeyValue {
    KeyValue::new(name.to_owned(), value)
}

fn schema() -> ParquetResult<TypePtr> {
    let field = |column: &Column| {
        let unsigned = |bits| Some(LogicalType::integer(bits, false));
        let (physical, logical) = match column.kind {
            Kind::Number(64) => (Physical::INT64, unsigned(64)),
            Kind::Number(bits) => (Physical::INT32, unsigned(bits)),
            Kind::Time => {
                let logical = LogicalType::timestamp(true, TimeUnit::MICROS);
                (Physical::INT64, Some(logical))
            }
            Kind::Real => (Physical::DOUBLE, None),
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Bytes => (Physical::BYTE_ARRAY, None),
        };
        let repetition = match column.is_required {
            true => Repetition::REQUIRED,
            false => Repetition::OPTIONAL,
        };
        let builder = Type::primitive_type_builder(column.name, physical);
        let builder = builder.with_repetition(repetition);
        builder.with_logical_type(logical).build().map(Arc::new)
    };
    let fields = COLUMNS.iter().map(field).collect::<ParquetResult<_>>()?;
    let group = Type::group_type_builder("scan").with_fields(fields);
    Ok(Arc::new(group.build()?))
}

/// Writes a column of a row group.
fn write(
    index: usize,
    column: &Column,
    rows: &[Row],
    out: &mut SerializedColumnWriter<'_>,
) -> ParquetResult<()> {
    let number = |cell: &Cell| match cell {
        Cell::Number(number) => Some(*number),
        Cell::Time(time) => Some((time.ns() / 1000) as i64),
        _ => None,
    };
    let of = (index, column, rows);
    match column.kind {
        Kind::Number(64) | Kind::Time => values::<Int64Type>(of, out, number),
        Kind::Number(_) => values::<Int32Type>(of, out, |cell| number(cell).map(|n| n as i32)),
        Kind::Real => values::<DoubleType>(of, out, |cell| match cell {
            Cell::Real(real) => Some(*real),
            _ => None,
        }),
        Kind::Text | Kind::Bytes => values::<ByteArrayType>(of, out, |cell| match cell {
            Cell::Text(text) => Some(ByteArray::from(text.as_bytes().to_vec())),
            Cell::Bytes(bytes) => Some(ByteArray::from(bytes.clone())),
            _ => None,
        }),
    }
}

fn values<T: DataType>(
    (index, column, rows): (usize, &Column, &[Row]),
    out: &mut SerializedColumnWriter<'_>,
    read: impl Fn(&Cell) -> Option<T::T>,
) -> ParquetResult<()> {
    let found: Vec<Option<T::T>> = rows.iter().map(|row| read(&row[index])).collect();
    let levels: Vec<i16> = found.iter().map(|value| value.is_some().into()).collect();
    let values: Vec<T::T> = found.into_iter().flatten().collect();
    let levels = (!column.is_required).then_some(&levels[..]);
    out.typed::<T>().write_batch(&values, levels, None)?;
    Ok(())
}
