//! A private redis-server or valkey-server from the PATH, on a free port, stopped on drop.

// With paths, because examples include this file.
#[path = "../../examples/at_hand/binary.rs"]
mod binary;
#[path = "server/port.rs"]
mod port;

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use tempfile::TempDir;

pub(crate) use binary::find_binary;
pub use port::{Port, free_cluster_port, free_port, listener};

const START_LIMIT: Duration = Duration::from_secs(10);

/// A running server.
#[derive(Debug)]
pub struct Server {
    process: Child,
    binary: String,
    port: Port,
    args: Vec<String>,
    /// Deleted after the server has stopped.
    directory: TempDir,
}

impl Server {
    /// Starts a server with settings for a test: no persistence, loopback only.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with additional settings, such as `["--requirepass", "secret"]`.
    pub fn start_with(args: &[&str]) -> anyhow::Result<Self> {
        Self::start_on(free_port, args)
    }

    /// The same, on a port from this function.
    pub fn start_on(
        find_port: impl Fn() -> anyhow::Result<Port>,
        args: &[&str],
    ) -> anyhow::Result<Self> {
        Self::start_by(&find_binary()?, find_port, args)
    }

    /// The same, by a program that executes the server.
    pub fn start_by(
        binary: &str,
        find_port: impl Fn() -> anyhow::Result<Port>,
        args: &[&str],
    ) -> anyhow::Result<Self> {
        // If another process takes the port first, the server exits and the next port is tried.
        for _ in 0..20 {
            let port = find_port()?;
            let directory = tempfile::tempdir()?;
            let args = args.iter().map(ToString::to_string).collect::<Vec<_>>();
            let process = spawn(binary, &port, &args, &directory)?;
            let binary = binary.to_owned();
            let mut server = Self {
                process,
                binary,
                port,
                args,
                directory,
            };
            if server.wait_until_ready()? {
                return Ok(server);
            }
        }
        bail!("{binary} does not start: run it by hand to see why")
    }

    /// `redis://127.0.0.1:PORT/`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The process id.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// The server's directory, unless the settings name another.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A new connection without a pool and without time-outs.
    pub fn connection(&self) -> anyhow::Result<redis::Connection> {
        Ok(redis::Client::open(self.url())?.get_connection()?)
    }

    /// Stops the process until [`Server::thaw`]; connections stay open.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.signal("STOP")
    }

    /// Continues the process after [`Server::freeze`].
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.signal("CONT")
    }

    /// Kills the process. [`Server::restart`] brings it back, empty, on the same port.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Waits until the process exits by itself.
    pub fn wait_for_its_end(&mut self, patience: Duration) -> anyhow::Result<()> {
        let told = Instant::now();
        while self.process.try_wait()?.is_none() {
            if told.elapsed() > patience {
                bail!("{} did not exit within {patience:?}", self.binary);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Restarts the server on the same port after [`Server::kill`].
    ///
    /// If a test has listened on that port meanwhile, a process that another test starts holds a
    /// copy of the socket until its `exec`. Then the server finds the port taken and exits, and
    /// this starts it again.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        while started.elapsed() < START_LIMIT {
            self.process = spawn(&self.binary, &self.port, &self.args, &self.directory)?;
            if self.wait_until_ready()? {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        let (binary, port) = (&self.binary, &self.port);
        let said = fs::read_to_string(said_in(&self.directory)).unwrap_or_default();
        bail!("{binary} does not start again on port {port}. It said:\n{said}")
    }

    /// True once the server answers, false if it has exited.
    fn wait_until_ready(&mut self) -> anyhow::Result<bool> {
        let started = Instant::now();
        while started.elapsed() < START_LIMIT {
            if self.process.try_wait()?.is_some() {
                return Ok(false);
            }
            if answers(self.port(), self.process.id()) && self.process.try_wait()?.is_none() {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(5));
        }
        bail!("{} did not answer within {START_LIMIT:?}", self.binary)
    }

    /// True if it answers and reports that it is a master.
    pub fn is_master(&self) -> bool {
        let asked = || -> anyhow::Result<bool> {
            let limit = Duration::from_secs(1);
            let client = redis::Client::open(self.url())?;
            let mut conn = client.get_connection_with_timeout(limit)?;
            conn.set_read_timeout(Some(limit))?;
            let role: redis::Value = redis::cmd("ROLE").query(&mut conn)?;
            let redis::Value::Array(role) = role else {
                bail!("no role");
            };
            Ok(role.first() == Some(&redis::Value::BulkString(b"master".to_vec())))
        };
        asked().unwrap_or(false)
    }

    fn signal(&self, name: &str) -> anyhow::Result<()> {
        signal(self.process.id(), name)
    }
}

/// Sends a signal to a process started by a test.
pub fn signal(process: u32, name: &str) -> anyhow::Result<()> {
    let status = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(process.to_string())
        .status()?;
    if !status.success() {
        bail!("could not send SIG{name} to the server");
    }
    Ok(())
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// True if the server was built with TLS. Otherwise prints once that TLS tests are skipped.
pub fn has_tls() -> bool {
    static HAS_TLS: LazyLock<bool> = LazyLock::new(|| {
        let binary = find_binary().unwrap_or_default();
        // It exits at once: with TLS because it has no certificate, without TLS because it lacks
        // TLS.
        let output = Command::new(&binary)
            .args(["--port", "0", "--tls-cluster", "yes", "--save", ""])
            .output();
        let has_tls = output.is_ok_and(|output| {
            String::from_utf8_lossy(&output.stdout).contains("Failed to configure TLS")
        });
        if !has_tls {
            // The harness captures the output of a test that passes; this bypasses it.
            let _ = writeln!(io::stderr(), "left out: {binary} was built without TLS");
        }
        has_tls
    });
    *HAS_TLS
}

/// The server's log file.
fn said_in(directory: &TempDir) -> PathBuf {
    directory.path().join("said")
}

fn spawn(binary: &str, port: &Port, args: &[String], directory: &TempDir) -> anyhow::Result<Child> {
    let said = File::options()
        .create(true)
        .append(true)
        .open(said_in(directory))?;
    Command::new(binary)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(directory.path())
        .args(args)
        .stdin(Stdio::null())
        .stdout(said)
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("could not start {binary}"))
}

/// True if this process answers on the port, even if only to demand a password. Another test's
/// server may have taken the port before ours noticed.
fn answers(port: u16, process: u32) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\nINFO server\r\n")?;
        for line in BufReader::new(stream).lines().take(100) {
            let line = line?;
            if let Some(answering) = line.strip_prefix("process_id:") {
                return Ok(answering == process.to_string());
            }
            if line.starts_with('-') {
                return Ok(line.starts_with("-NOAUTH") || line.starts_with("-NOPERM"));
            }
        }
        io::Result::Ok(false)
    };
    ask().unwrap_or(false)
}
