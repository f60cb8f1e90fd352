//! Columns for the time, for each actor, and for the contents of Redis.

use std::{
    env,
    io::{self, IsTerminal, Write, stdout},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::ensure;
use leasehold::{
    Options, Token,
    redis::{self, Connection, ConnectionLike, Script, Value},
};

use super::{
    Redis,
    history::{Happened, Recorder},
    looking::{Shown, Watched, as_redis_cli, refusal},
};

const TIME: usize = 9;
const BOLD: &str = "1";
const FAINT: &str = "2";
const GREEN: &str = "1;32";
const RED: &str = "1;31";

/// A part of a story, printed while it happens.
pub(crate) struct Scene {
    title: String,
    actors: Vec<&'static str>,
    /// How long a line of an actor may be.
    width: usize,
    /// Where each column begins: the actors', and what is in Redis. An actor's text goes on below
    /// the next actor's name, since each row has one actor's text; so a scene is 100 wide.
    columns: Vec<usize>,
    watched: Vec<Watched>,
    looks: Connection,
    /// The names to print in place of texts that differ from run to run.
    names: Vec<(String, String)>,
    recorder: Option<Recorder>,
    started: Instant,
}

/// The server's reply to a command.
#[derive(Debug)]
pub(crate) struct Reply(Option<Value>);

impl Scene {
    pub(crate) fn begin(
        redis: &Redis,
        title: &str,
        actors: &[&'static str],
        keys: &[&'static str],
    ) -> anyhow::Result<Self> {
        let watched = |key: &&'static str| {
            let is_data = key.contains("report")
                || ["users:", "inventory:", "market:"]
                    .iter()
                    .any(|start| key.starts_with(start));
            Watched::new(key, if is_data { Shown::Data } else { Shown::Lock })
        };
        let (step, width) = if actors.len() > 2 { (15, 28) } else { (22, 32) };
        let starts = (0..actors.len()).map(|n| TIME + step * n);
        let in_redis = TIME + step * actors.len().saturating_sub(1) + width;
        let scene = Self {
            title: title.to_owned(),
            actors: actors.to_vec(),
            width,
            columns: starts.chain([in_redis]).collect(),
            watched: keys.iter().map(watched).collect(),
            looks: redis.client()?,
            names: Vec::new(),
            recorder: None,
            started: Instant::now(),
        };
        say(&format!("\n{}", in_color(BOLD, title)))?;
        let named = actors.iter().map(|name| (*name).to_owned());
        let mut cells: Vec<_> = named.map(|name| vec![name]).collect();
        cells.push(vec!["in Redis".to_owned()]);
        scene.print("time", &cells)?;
        Ok(scene)
    }

    /// Records the holds of this scene.
    pub(crate) fn recorded_by(mut self, recorder: Option<&Recorder>, name: &str) -> Self {
        self.recorder = recorder.map(|recorder| recorder.of_scene(name));
        self
    }

    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Options with this lease. What becomes of it goes into the history, as this actor's.
    pub(crate) fn options(&self, actor: &str, lease: Duration) -> Options {
        let options = Options::new().lease(lease);
        match &self.recorder {
            Some(recorder) => options.events(recorder.events(actor, lease)),
            None => options,
        }
    }

    /// Records an event of an actor's hold.
    pub(crate) fn record(&self, actor: &str, happened: Happened) -> anyhow::Result<()> {
        match &self.recorder {
            Some(recorder) => recorder.record(actor, happened),
            None => Ok(()),
        }
    }

    /// Prints a token as its owner's from now on.
    pub(crate) fn knows(&mut self, token: &Token, owner: &str) {
        self.calls(token.to_string(), format!("{owner}'s token"));
    }

    /// Prints a text under another name from now on.
    pub(crate) fn calls(&mut self, text: String, name: String) {
        self.names.push((text, name));
    }

    /// Sends a command for an actor, and prints it and its reply.
    pub(crate) fn send(
        &mut self,
        actor: &str,
        conn: &mut impl ConnectionLike,
        command: &str,
    ) -> anyhow::Result<Reply> {
        let mut words = command.split(' ');
        let mut call = redis::cmd(words.next().unwrap_or_default());
        call.arg(words.collect::<Vec<_>>());
        self.answered(actor, command, call.query(conn))
    }

    /// Sends commands as one transaction for an actor, and prints them and the reply to `EXEC`.
    pub(crate) fn transaction(
        &mut self,
        actor: &str,
        conn: &mut Connection,
        commands: &[String],
    ) -> anyhow::Result<Vec<Reply>> {
        let mut all = redis::pipe();
        all.atomic();
        for command in commands {
            let mut words = command.split(' ');
            all.cmd(words.next().unwrap_or_default());
            all.arg(words.collect::<Vec<_>>());
        }
        let answers: Vec<Value> = all.query(conn)?;
        let lines = as_redis_cli(&Value::Array(answers.clone()));
        let (commands, lines) = (commands.join("\n"), lines.join("\n"));
        self.tell(actor, &format!("MULTI\n{commands}\nEXEC\n{lines}"))?;
        Ok(answers
            .into_iter()
            .map(|answer| Reply(Some(answer)))
            .collect())
    }

    /// Runs a script for an actor, and prints it as an argument of `redis-cli --eval`.
    pub(crate) fn eval(
        &mut self,
        actor: &str,
        conn: &mut Connection,
        script: (&str, &str),
        keys: &[&str],
        args: &[&str],
    ) -> anyhow::Result<Reply> {
        let (file, lua) = script;
        let script = Script::new(lua);
        let mut call = script.prepare_invoke();
        for key in keys {
            call.key(key);
        }
        for arg in args {
            call.arg(arg);
        }
        let command = format!("--eval {file} {} , {}", keys.join(" "), args.join(" "));
        self.answered(actor, &command, call.invoke(conn))
    }

    fn answered(
        &mut self,
        actor: &str,
        command: &str,
        answer: redis::RedisResult<Value>,
    ) -> anyhow::Result<Reply> {
        let (lines, reply) = match answer {
            Ok(value) => (as_redis_cli(&value), Some(value)),
            Err(error) if error.is_io_error() => return Err(error.into()),
            Err(error) => (vec![refusal(&error)], None),
        };
        self.tell(actor, &format!("{command}\n{}", lines.join("\n")))?;
        Ok(Reply(reply))
    }

    /// Prints an actor's action. `
    /// ` separates lines; long lines are wrapped.
    pub(crate) fn tell(&mut self, actor: &str, what: &str) -> anyhow::Result<()> {
        let time = format!("{:>4} ms", self.started.elapsed().as_millis());
        let mut cells = vec![Vec::new(); self.actors.len()];
        let column = self.actors.iter().position(|name| *name == actor);
        let what = self.renamed(what);
        if let Some(cell) = column.and_then(|column| cells.get_mut(column)) {
            *cell = what
                .lines()
                .flat_map(|line| broken(line, self.width - 1))
                .collect();
        }
        let mut found = Vec::new();
        for key in &mut self.watched {
            found.extend(key.look(&mut self.looks)?);
        }
        cells.push(found.iter().map(|line| self.renamed(line)).collect());
        self.print(&time, &cells)
    }

    /// Ends the scene with a failure. An error if nothing failed, because the page would be wrong.
    pub(crate) fn goes_wrong(&mut self, wrong: bool, what: &str) -> anyhow::Result<()> {
        ensure!(wrong, "{}: it did not go wrong: {what}", self.title);
        say(&format!("{}  {what}", in_color(RED, "WRONG")))
    }

    /// Ends the scene with a success. An error if it did not succeed.
    pub(crate) fn goes_right(&mut self, right: bool, what: &str) -> anyhow::Result<()> {
        ensure!(right, "{}: it is not so: {what}", self.title);
        say(&format!("{}  {what}", in_color(GREEN, "RIGHT")))
    }

    /// Waits until this many milliseconds after the start.
    pub(crate) fn wait_until(&self, millis: u64) {
        sleep(Duration::from_millis(millis).saturating_sub(self.started.elapsed()));
    }

    /// Waits until a key has at most `left` milliseconds left; 0: until it is gone.
    pub(crate) fn wait_for_the_end(&mut self, key: &str, left: i64) -> anyhow::Result<()> {
        while redis::cmd("PTTL").arg(key).query::<i64>(&mut self.looks)? > left {
            sleep(Duration::from_millis(2));
        }
        // During the last millisecond of a key, `PTTL` is 0 and the key may still exist.
        while left == 0
            && redis::cmd("EXISTS")
                .arg(key)
                .query::<bool>(&mut self.looks)?
        {
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn renamed(&self, text: &str) -> String {
        let names = self.names.iter();
        names.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// Prints one row, which has as many lines as its longest cell.
    fn print(&self, time: &str, cells: &[Vec<String>]) -> anyhow::Result<()> {
        let lines = cells.iter().map(Vec::len).max().unwrap_or(0).max(1);
        for n in 0..lines {
            let time = if n == 0 { time } else { "" };
            let mut row = String::new();
            for (cell, column) in cells.iter().zip(&self.columns) {
                if let Some(text) = cell.get(n) {
                    row = format!("{row:0$}{text}", column - TIME);
                }
            }
            let time = in_color(FAINT, &format!("{time:TIME$}"));
            say((time + &row).trim_end())?;
        }
        Ok(())
    }
}

impl Reply {
    pub(crate) fn is_int(&self, number: i64) -> bool {
        self.0 == Some(Value::Int(number))
    }

    pub(crate) fn is_nil(&self) -> bool {
        self.0 == Some(Value::Nil)
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.0 == Some(Value::Okay)
    }

    pub(crate) fn is_text(&self, text: &str) -> bool {
        self.0 == Some(Value::BulkString(text.into()))
    }

    /// Returns true if the server refused the command.
    pub(crate) fn is_refused(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn int(&self) -> Option<i64> {
        match self.0 {
            Some(Value::Int(number)) => Some(number),
            _ => None,
        }
    }
}

/// Breaks a line between words into pieces of at most `width` characters.
fn broken(line: &str, width: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for word in line.split(' ') {
        let Some(piece) = pieces.last_mut() else {
            continue;
        };
        if piece.is_empty() {
            piece.push_str(word);
        } else if piece.chars().count() + 1 + word.chars().count() <= width {
            piece.push(' ');
            piece.push_str(word);
        } else {
            pieces.push(format!("  {word}"));
        }
    }
    pieces
}

/// Prints one line. Returns an error instead of a panic if the reader, such as `head`, has closed
/// the pipe.
pub(crate) fn say(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(stdout(), "{line}")?)
}

/// Returns true if the program ends because the reader of its output has closed the pipe.
pub(crate) fn is_unread(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Uses colour only on a terminal, and not if `NO_COLOR` is set.
fn in_color(color: &str, text: &str) -> String {
    if stdout().is_terminal() && env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{color}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}
