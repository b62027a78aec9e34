//! Numbered steps with their times; the output of their programs goes to a file, not to the screen.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Lines of a log shown after a failure; the file has all of it.
const SHOWN: usize = 60;
/// Minimum interval of redrawing the progress line.
const PACE: Duration = Duration::from_millis(200);

/// The steps of a task.
pub struct Steps {
    count: u32,
    number: u32,
    began: Instant,
    step: Instant,
    /// The file with the output of the steps' programs.
    log: PathBuf,
}

impl Steps {
    /// Prepares this many steps; the log is created anew.
    pub fn new(count: u32, log: PathBuf) -> Result<Steps> {
        if let Some(folder) = log.parent() {
            std::fs::create_dir_all(folder)?;
        }
        File::create(&log).with_context(|| log.display().to_string())?;
        Ok(Steps {
            count,
            number: 0,
            began: Instant::now(),
            step: Instant::now(),
            log,
        })
    }

    /// Starts the next step.
    pub fn begin(&mut self, title: &str) {
        self.number += 1;
        self.step = Instant::now();
        println!("{}/{} {title}", self.number, self.count);
    }

    /// Ends a step, and prints its time.
    pub fn end(&self) {
        println!("    done in {}", seconds(self.step.elapsed()));
    }

    /// The total time.
    pub fn total(&self) -> String {
        seconds(self.began.elapsed())
    }

    /// Runs a program with its output in the log. A terminal shows a progress line that is redrawn,
    /// anything else nothing; on a failure the end of the log is printed.
    pub fn run(&self, what: &str, command: &mut Command) -> Result<()> {
        self.follow(what, command).with_context(|| {
            let text = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let from = lines.len().saturating_sub(SHOWN);
            let note = match from {
                0 => String::new(),
                n => format!("({n} lines before these are in {})\n", self.log.display()),
            };
            format!("{what} failed\n{note}{}", lines[from..].join("\n"))
        })
    }

    fn follow(&self, what: &str, command: &mut Command) -> Result<()> {
        let (reader, writer) = std::io::pipe()?;
        command.stdin(Stdio::null());
        command.stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().context("cannot be started")?;
        // The pipe ends when no process has its other side open, and this command has.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut log = OpenOptions::new().append(true).open(&self.log)?;
        let mut line = Progress::new(what);
        for text in BufReader::new(reader).split(b'\n') {
            let text = text?;
            log.write_all(&text)?;
            log.write_all(b"\n")?;
            line.show(&String::from_utf8_lossy(&text));
        }
        line.clear();
        let status = child.wait()?;
        if !status.success() {
            bail!("{status}");
        }
        Ok(())
    }

    /// The path of the log.
    pub fn log(&self) -> &Path {
        &self.log
    }
}

/// The progress line.
struct Progress<'a> {
    what: &'a str,
    began: Instant,
    drawn: Option<Instant>,
    is_terminal: bool,
}

impl Progress<'_> {
    fn new(what: &str) -> Progress<'_> {
        Progress {
            what,
            began: Instant::now(),
            drawn: None,
            is_terminal: std::io::stdout().is_terminal(),
        }
    }

    fn show(&mut self, said: &str) {
        if !self.is_terminal || self.drawn.is_some_and(|at| at.elapsed() < PACE) {
            return;
        }
        self.drawn = Some(Instant::now());
        let text = progress(self.what, self.began.elapsed(), said);
        print!("\r\x1b[K{text}");
        let _ = std::io::stdout().flush();
    }

    fn clear(&mut self) {
        if self.drawn.take().is_some() {
            print!("\r\x1b[K");
            let _ = std::io::stdout().flush();
        }
    }
}

/// At most 79 columns, so that it never wraps on a common terminal. Nothing in the program's output
/// can move the cursor.
fn progress(what: &str, elapsed: Duration, said: &str) -> String {
    let said = said.trim().replace(|c: char| c.is_control(), " ");
    let text = format!("    {what}, {} s: {said}", elapsed.as_secs());
    text.chars().take(79).collect()
}

fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(name: &str) -> Steps {
        let name = format!("barewire-steps-{name}-{}", std::process::id());
        Steps::new(2, std::env::temp_dir().join(name)).unwrap()
    }

    #[test]
    fn output_goes_to_the_log_and_is_printed_on_failure() {
        let steps = steps("log");
        let sh = |script: &str| steps.run("try it", Command::new("sh").args(["-c", script]));
        sh("echo to the log; echo and this >&2").unwrap();
        let text = std::fs::read_to_string(steps.log()).unwrap();
        assert_eq!(text, "to the log\nand this\n");
        let error = format!("{:#}", sh("seq 1000; exit 3").unwrap_err());
        assert!(error.starts_with("try it failed\n"), "{error}");
        assert!(error.contains("\n1000: exit status: 3"), "{error}");
        assert!(
            !error.contains("\n900\n") && error.contains("lines before these"),
            "{error}"
        );
        std::fs::remove_file(steps.log()).unwrap();
    }

    #[test]
    fn progress_fits_a_line_and_moves_no_cursor() {
        let text = progress(
            "build",
            Duration::from_secs(61),
            &"Compiling \x1b[31mx ".repeat(20),
        );
        assert_eq!(text.chars().count(), 79);
        assert!(!text.contains(|c: char| c.is_control()), "{text:?}");
        assert!(text.starts_with("    build, 61 s: Compiling"));
    }

    #[test]
    fn long_times_are_in_minutes() {
        assert_eq!(seconds(Duration::from_millis(1234)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(125)), "2 min 5 s");
    }
}
