//! SQL queries over the Parquet files of [`crate`], run by an installed DuckDB: its program or its
//! Python module, whichever is found first. The view of all files is named `flows`.

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

/// The Python script: view, query and output format are its arguments.
const SCRIPT: &str = "\
import sys, duckdb
setup, sql, form = sys.argv[1:]
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
        let setup = setup(places)?;
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
        let mut command = match self {
            Engine::Program(path) => {
                let mut command = Command::new(path);
                command.args(["-batch", "-bail", "-box", ":memory:", "-c"]);
                command.arg(format!("{setup};\n{sql};"));
                command
            }
            Engine::Python(path) => {
                let mut command = Command::new(path);
                command.args(["-c", SCRIPT, &setup, &sql, form]);
                command
            }
        };
        run(&mut command, |from| match texts {
            Texts::Safe => text::copy(answer, from, out),
            Texts::Raw => std::io::copy(from, out).and_then(|_| out.flush()),
        })
    }
}

fn absent(why: String) -> Error {
    let what = "find DuckDB";
    Error::new(ErrorKind::Unsupported, what, why).with_hint(HINT)
}

/// Runs the engine. Its output goes through a pipe: the engine itself would truncate an output
/// file.
fn run(
    command: &mut Command,
    copy: impl FnOnce(&mut ChildStdout) -> std::io::Result<()>,
) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |e| Error::from_io(format!("run {name}"), e);
    command.stdin(Stdio::null());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // Both at once: waiting for one while the other is full would block forever.
    let words = std::thread::spawn(move || {
        let mut words = Vec::new();
        let read = stderr.map(|stderr| stderr.take(64 << 10).read_to_end(&mut words));
        drop(read);
        String::from_utf8_lossy(&words).trim().to_owned()
    });
    let copied = stdout.map_or(Ok(()), |mut stdout| copy(&mut stdout));
    let status = child.wait().map_err(failed)?;
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

/// SQL statements before the query.
fn setup(places: &[PathBuf]) -> Result<String> {
    let mut list = String::new();
    for place in places {
        let what = || format!("read {}", place.display());
        let found = place.metadata().map_err(|e| Error::from_io(what(), e))?;
        let text = place
            .to_str()
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, what(), "the name is not UTF-8"))?;
        let mut text = literally(text);
        if found.is_dir() {
            text.push_str("/**/*.parquet");
        }
        if !list.is_empty() {
            list.push_str(", ");
        }
        list.push_str(&format!("'{}'", text.replace('\'', "''")));
    }
    // The last columns may differ between versions.
    Ok(format!(
        "SET TimeZone = 'UTC'; CREATE VIEW flows AS \
         SELECT * FROM read_parquet([{list}], union_by_name = true)"
    ))
}

/// A path with its pattern characters quoted.
fn literally(path: &str) -> String {
    let mut out = String::new();
    for char in path.chars() {
        match char {
            '*' | '?' | '[' => out.extend(['[', char, ']']),
            _ => out.push(char),
        }
    }
    out
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
    fn paths_are_quoted_and_directories_searched() {
        let folder = std::env::temp_dir().join(format!("barewire-it's-[{}]", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("a.parquet");
        std::fs::write(&file, b"").unwrap();
        let sql = setup(&[folder.clone(), file]).unwrap();
        let name = folder
            .to_str()
            .unwrap()
            .replace('\'', "''")
            .replace('[', "[[]");
        assert!(
            sql.contains(&format!("['{name}/**/*.parquet', '{name}/a.parquet']")),
            "{sql}"
        );
        std::fs::remove_dir_all(&folder).unwrap();
        let error = setup(&[folder]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

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
