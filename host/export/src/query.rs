//! SQL queries over the Parquet files of [`crate`], run by an installed DuckDB: its program or its
//! Python module, whichever is found first. The tables are `flows` and `directions`.

mod schema;
mod tables;
mod text;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

use flow::encode::csv::Texts;
use sys::{Error, ErrorKind, Result};

/// Format of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A table with borders.
    Table,
    /// One JSON object per line.
    Json,
    /// Comma-separated values, with a header line.
    Csv,
}

/// A query engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// DuckDB's own program.
    Program(PathBuf),
    /// A Python interpreter that has the module `duckdb`.
    Python(PathBuf),
}

/// What the engine writes for NULL, so that a row of one NULL is not an empty line, which readers
/// skip.
const NULL: &str = r"\N";

const HINT: &str = "run `pip install duckdb`, or install the program from duckdb.org; --engine \
                    names either one if it is not in PATH";

/// The Python script. Its argument is the output format; it reads the statements before the query
/// and, after a zero byte, the query from standard input, because they may be too long for
/// arguments.
const SCRIPT: &str = "\
import sys, duckdb
form = sys.argv[1]
setup, sql = sys.stdin.buffer.read().decode().split('\\0')
try:
    db = duckdb.connect()
    db.execute(setup)
    if form:
        db.execute(sql)
    else:
        answer = db.sql(sql)
        if answer is not None:
            answer.show(max_rows=1000000, max_width=10000)
except duckdb.Error as error:
    sys.exit(str(error))
";

impl Engine {
    /// The engine at this path, or the first one found: `duckdb`, then `python3` with the module.
    ///
    /// # Errors
    /// `Unsupported` if there is none.
    pub fn find(path: Option<&Path>) -> Result<Engine> {
        if let Some(path) = path {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            return match name.starts_with("python") {
                true => Engine::python(path.to_owned()).ok_or_else(|| {
                    let why = format!("{} has no duckdb module", path.display());
                    absent(why)
                }),
                false => Ok(Engine::Program(path.to_owned())),
            };
        }
        if let Some(program) = which("duckdb") {
            return Ok(Engine::Program(program));
        }
        which("python3")
            .and_then(Engine::python)
            .ok_or_else(|| absent("found neither the duckdb program nor its Python module".into()))
    }

    fn python(path: PathBuf) -> Option<Engine> {
        let mut command = Command::new(&path);
        command.args(["-c", "import duckdb"]).stdin(Stdio::null());
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status
            .is_ok_and(|status| status.success())
            .then_some(Engine::Python(path))
    }

    /// Runs a query on these files and directories, and writes the result; text from packets is
    /// written as `texts` says.
    ///
    /// # Errors
    /// Errors of the engine, and of reading or writing.
    pub fn ask(
        &self,
        sql: &str,
        places: &[PathBuf],
        (answer, texts): (Answer, Texts),
        out: &mut impl Write,
    ) -> Result<()> {
        let setup = tables::create(places, sql)?;
        let sql = sql.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
        let copy = |form: &str| format!("COPY (\n{sql}\n) TO '/dev/stdout' (FORMAT {form})");
        let (sql, form) = match answer {
            Answer::Table => (sql.to_owned(), ""),
            Answer::Json => (copy("json"), "json"),
            Answer::Csv if texts == Texts::Safe => {
                let form = format!("csv, HEADER, NULLSTR '{NULL}'");
                (copy(&form), "csv")
            }
            Answer::Csv => (copy("csv, HEADER"), "csv"),
        };
        if sql.contains('\0') {
            let why = "the query contains a zero byte";
            return Err(Error::new(ErrorKind::InvalidInput, "run the query", why));
        }
        let (mut command, input) = match self {
            Engine::Program(path) => {
                let mut command = Command::new(path);
                command.args(["-batch", "-bail", "-box", ":memory:"]);
                (command, format!("{setup};\n{sql};\n"))
            }
            Engine::Python(path) => {
                let mut command = Command::new(path);
                command.args(["-c", SCRIPT, form]);
                (command, format!("{setup}\0{sql}"))
            }
        };
        run(&mut command, input, |from| match texts {
            Texts::Safe => text::copy(answer, from, out),
            Texts::Raw => std::io::copy(from, out).and_then(|_| out.flush()),
        })
    }
}

fn absent(why: String) -> Error {
    let what = "find DuckDB";
    Error::new(ErrorKind::Unsupported, what, why).with_hint(HINT)
}

/// Runs the engine with this input. Its output goes through a pipe: the engine itself would
/// truncate an output file.
fn run(
    command: &mut Command,
    input: String,
    copy: impl FnOnce(&mut ChildStdout) -> std::io::Result<()>,
) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |e| Error::from_io(format!("run {name}"), e);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // All at once: waiting for one while another is full would block forever.
    let stdin = child.stdin.take();
    let sender = std::thread::spawn(move || {
        // An engine that ends before it has read everything says why.
        stdin.map(|mut stdin| stdin.write_all(input.as_bytes()))
    });
    let words = std::thread::spawn(move || {
        let mut words = Vec::new();
        let read = stderr.map(|stderr| stderr.take(64 << 10).read_to_end(&mut words));
        drop(read);
        String::from_utf8_lossy(&words).trim().to_owned()
    });
    let copied = stdout.map_or(Ok(()), |mut stdout| copy(&mut stdout));
    let status = child.wait().map_err(failed)?;
    drop(sender.join());
    let words = words.join().unwrap_or_default();
    copied.map_err(|e| Error::from_io("write the result", e))?;
    if status.success() {
        return Ok(());
    }
    let why = if words.is_empty() {
        status.to_string()
    } else {
        words
    };
    Err(Error::new(ErrorKind::InvalidInput, "run the query", why)
        .with_hint("`barewire flows query 'DESCRIBE flows' FOLDER` lists the columns"))
}

fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_does_not_exist_is_an_error() {
        let error = Engine::find(Some(Path::new("/nonexistent/python3"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error
                .hint()
                .is_some_and(|hint| hint.contains("pip install"))
        );
    }
}
