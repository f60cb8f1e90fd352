//! lockrun as a process.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    mem,
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, getpgid, mkfifo},
};
use redis::Commands;

use crate::common::{Server, hold::PATIENCE, wait::comes_true};

/// Longer than any test waits: if it exits sooner, it was ended. It sleeps in small steps, because
/// a shell misses a signal that comes just before it starts to wait.
pub(crate) const LONG: &str = "n=0; while [ $n -lt 800 ]; do n=$((n+1)); sleep 0.05; done";
/// The key of the lock `a`.
pub(crate) const KEY: &str = "lock:a";

/// lockrun at work on the lock `a`, killed when dropped.
pub(crate) struct Tool {
    child: Child,
    input: Option<ChildStdin>,
    says: BufReader<Box<dyn Read + Send>>,
}

/// The result of a process.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    /// The last output of lockrun and the command.
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// The last line of its own errors; a shell may print that its child was terminated.
    pub(crate) fn last(&self) -> &str {
        self.err.lines().last().unwrap_or_default()
    }
}

impl Tool {
    /// With these arguments, and a script for the shell.
    pub(crate) fn start(server: &Server, args: &str, script: &str) -> Self {
        let mut command = lockrun(server);
        command.args(args.split_whitespace());
        Self::spawn(command.args(["--", "sh", "-c", script]))
    }

    /// Holds the lock until [`Tool::finish`]; prints `in` when it has the lock.
    pub(crate) fn holding(server: &Server, args: &str) -> Self {
        Self::start(server, args, "echo in; exec cat")
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::spawn_with(command, Stdio::piped())
    }

    pub(crate) fn spawn_with(command: &mut Command, stderr: Stdio) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let says = BufReader::new(Box::new(child.stdout.take().unwrap()) as _);
        Self { child, input, says }
    }

    /// The output is the command's alone, not lockrun's: when it closes, the command has exited.
    pub(crate) fn apart(server: &Server, args: &str, script: &str) -> Self {
        Self::apart_from(script, |script| Self::start(server, args, script))
    }

    /// The same, started with the script in another way.
    pub(crate) fn apart_from(script: &str, start: impl FnOnce(&str) -> Self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let script = format!("exec >'{}'; {script}", pipe.display());
        let mut tool = start(&script);
        let (opened, is_open) = channel();
        // Blocks until the command opens it too.
        thread::spawn(move || opened.send(File::open(pipe)));
        let pipe = is_open.recv_timeout(PATIENCE).unwrap().unwrap();
        tool.says = BufReader::new(Box::new(pipe));
        tool
    }

    /// The command's next line of output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    #[track_caller]
    pub(crate) fn hear(&mut self, expected: &str) -> &mut Self {
        assert_eq!(self.line(), expected);
        self
    }

    /// Sends a line to the command, if it is still running.
    pub(crate) fn tells(&mut self, line: &str) {
        if let Err(error) = writeln!(self.input.as_mut().unwrap(), "{line}") {
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        }
    }

    /// Makes the [`holding`](Tool::holding) script print a word.
    #[track_caller]
    pub(crate) fn echoes(&mut self, word: &str) {
        self.tells(word);
        self.hear(word);
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) -> &Self {
        send(self.child.id(), signal);
        self
    }

    /// The lines of lockrun's and the command's errors. [`Ended::err`] is empty then.
    pub(crate) fn errors(&mut self) -> Receiver<String> {
        let errors = BufReader::new(self.child.stderr.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            errors
                .lines()
                .try_for_each(|line| sender.send(line.unwrap()))
        });
        lines
    }

    /// Closes the reading end of the command's output.
    pub(crate) fn deaf(&mut self) {
        self.says = BufReader::new(Box::new(io::empty()));
    }

    /// Reads until every writer has closed the output. Returns the text.
    #[track_caller]
    pub(crate) fn silence(&mut self) -> String {
        let nothing = BufReader::new(Box::new(io::empty()) as _);
        let mut says = mem::replace(&mut self.says, nothing);
        let (heard, all) = channel();
        thread::spawn(move || {
            let mut said = String::new();
            let read = says.read_to_string(&mut said);
            heard.send(read.map(|_| said))
        });
        // Some commands take nearly ten seconds.
        let Ok(said) = all.recv_timeout(3 * PATIENCE) else {
            panic!("it is still running");
        };
        said.unwrap()
    }

    /// Closes the command's input.
    pub(crate) fn close(&mut self) {
        self.input = None;
    }

    /// Lets the [`holding`](Tool::holding) script exit.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Ended {
        self.close();
        self.ends()
    }

    /// Waits for the exit.
    #[track_caller]
    pub(crate) fn ends(mut self) -> Ended {
        let out = self.silence();
        assert!(comes_true(|| !self.is_running()));
        let status = self.child.wait().unwrap();
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        let mut err = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut err).unwrap();
        }
        Ended { code, out, err }
    }

    #[track_caller]
    pub(crate) fn ends_with(self, code: i32) -> Ended {
        let ended = self.ends();
        assert_eq!(ended.code, code, "{ended:?}");
        ended
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// True if this signal is ignored here, and therefore by every program that a test starts: `SIGINT`
/// if a script runs the tests in the background, `SIGHUP` under `nohup`.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap());
    mask >> (signal as i32 - 1) & 1 == 1
}

/// lockrun for the lock `a`.
pub(crate) fn lockrun(server: &Server) -> Command {
    lockrun_at(&server.url())
}

pub(crate) fn lockrun_at(url: &str) -> Command {
    let mut command = program();
    command.args(["--name", "a", "--url", url]);
    command
}

/// lockrun without an argument.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockrun"));
    for variable in ["URL", "PREFIX", "WAIT", "LEASE"] {
        command.env_remove(format!("LEASEHOLD_{variable}"));
    }
    command
}

/// Runs it to completion.
#[track_caller]
pub(crate) fn run(server: &Server, args: &str, script: &str) -> Ended {
    Tool::start(server, args, script).ends()
}

/// The output of a query, and the exit code.
#[track_caller]
pub(crate) fn ask(server: &Server, args: &str) -> Ended {
    Tool::spawn(lockrun(server).args(args.split_whitespace())).ends()
}

/// Its children, as soon as it has so many: the guardian is the first.
pub(crate) fn children(tool: &mut Tool, count: usize) -> Vec<u32> {
    let lockrun = tool.pid();
    let listed = format!("/proc/{lockrun}/task/{lockrun}/children");
    let since = Instant::now();
    loop {
        let listed = fs::read_to_string(&listed).unwrap_or_default();
        let numbers = listed.split_whitespace().map(|it| it.parse().unwrap());
        let numbers: Vec<_> = numbers.collect();
        if numbers.len() >= count {
            return numbers;
        }
        assert!(since.elapsed() < PATIENCE && tool.is_running());
    }
}

pub(crate) fn send(process: u32, signal: Signal) {
    kill(pid(process), signal).unwrap();
}

/// The leader of the process group of the command with this process id.
pub(crate) fn guardian(command: &str) -> u32 {
    let group = getpgid(Some(pid(command.parse().unwrap()))).unwrap();
    u32::try_from(group.as_raw()).unwrap()
}

pub(crate) fn pid(process: u32) -> Pid {
    Pid::from_raw(i32::try_from(process).unwrap())
}

/// Number of clients that the server will notify about the lock.
pub(crate) fn are_told(server: &Server) -> usize {
    let mut list = redis::cmd("CLIENT");
    list.arg("LIST");
    let list: String = list.query(&mut server.connection().unwrap()).unwrap();
    let words = list.split_whitespace();
    let flags = words.filter_map(|word| word.strip_prefix("flags="));
    flags.filter(|flags| flags.contains('t')).count()
}

/// Waits until the server will notify this many clients: one that waits, and perhaps the holder.
pub(crate) fn has_asked(server: &Server, who: usize) {
    assert!(comes_true(|| are_told(server) >= who));
}

pub(crate) fn is_locked(server: &Server) -> bool {
    server.connection().unwrap().exists(KEY).unwrap()
}

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The value of the only line.
#[track_caller]
pub(crate) fn json(text: &str) -> serde_json::Value {
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(text).unwrap()
}
