//! The server of a short example: one that is at hand, or a private one that ends with the program.
#![allow(clippy::print_stderr, reason = "a command-line program")]

mod binary;

use std::{
    env,
    fs::DirBuilder,
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::{fs::DirBuilderExt, net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio, id},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

const DEFAULT: &str = "redis://127.0.0.1/";
const START_LIMIT: Duration = Duration::from_secs(10);

/// Runs the command in its arguments until the program that started it has ended, however it did:
/// then its standard input closes. `$0` is the directory to remove.
const UNTIL_THE_END: &str = r#""$@" & read -r _; kill -KILL $!; wait; rm -r "$0""#;

/// A private server, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Private(Child);

/// Returns the URL in the program's first argument or in `REDIS_URL`. If neither is there,
/// `redis://127.0.0.1/`; if nobody listens there or the URL is empty, that of a private server.
pub(crate) fn server() -> anyhow::Result<(String, Option<Private>)> {
    let given = env::args().nth(1).or_else(|| env::var("REDIS_URL").ok());
    match given {
        Some(url) if !url.is_empty() => Ok((url, None)),
        None if TcpStream::connect("127.0.0.1:6379").is_ok() => Ok((DEFAULT.to_owned(), None)),
        _ => {
            let directory = env::temp_dir().join(format!("leasehold-{}", id()));
            let socket = directory.join("socket");
            let private = Private::start(&directory, &socket)?;
            let url = format!("redis+unix://{}", socket.display());
            eprintln!(
                "without a server: started a private one, {url}, which ends with this program"
            );
            Ok((url, Some(private)))
        }
    }
}

impl Private {
    fn start(directory: &Path, socket: &PathBuf) -> anyhow::Result<Self> {
        let server = binary::find_binary()?;
        DirBuilder::new()
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let shell = Command::new("sh")
            .args(["-c", UNTIL_THE_END])
            .arg(directory)
            .arg(&server)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--dir"])
            .arg(directory)
            .arg("--unixsocket")
            .arg(socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C must reach the program first: it may still release a lock.
            .process_group(0)
            .spawn()?;
        let private = Self(shell);
        let started = Instant::now();
        while !answers(socket) {
            if started.elapsed() > START_LIMIT {
                bail!("{server} does not answer within {START_LIMIT:?}: run it by hand to see why");
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(private)
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn answers(socket: &Path) -> bool {
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 5];
        stream.read_exact(&mut reply)?;
        io::Result::Ok(&reply == b"+PONG")
    };
    ask().unwrap_or(false)
}
