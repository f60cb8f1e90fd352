//! A TCP proxy in front of a server: it counts round trips, lists commands and makes things go wrong at one of them.
//!
//! ```ignore
//! let proxy = Proxy::in_front_of(&server)?;
//! let mut conn = proxy.connection()?;
//! proxy.at("EXEC").nth(2).cut_after();
//! let (answer, traffic) = proxy.traffic_of(|| release_lock(&mut conn, "a", &token));
//! assert!(proxy.happened());
//! ```

mod link;
mod resp;

use std::{
    io, mem,
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;

use self::link::Shared;
pub use self::resp::{command_name, frame_length, word};
use super::{
    Server,
    server::{Port, listener},
};

const PATIENCE: Duration = Duration::from_secs(5);
/// Nobody has reason to send so many commands on a connection that answers nothing.
const TOO_MANY_UNANSWERED: usize = 40;

/// What went through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bursts of commands, each sent when every earlier reply on its connection had been delivered.
    pub round_trips: usize,
    /// The upper-case names of the commands of all connections, in order.
    pub commands: Vec<String>,
}

/// A proxy that runs until it is dropped, for any number of connections.
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts one on a free port.
    pub fn in_front_of(server: &Server) -> anyhow::Result<Self> {
        let (listener, port) = listener()?;
        let shared = Arc::new(Shared::new((Ipv4Addr::LOCALHOST, server.port()).into()));
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept_from(&listener));
        Ok(Self { port, shared })
    }

    /// The port to connect to instead of the server's.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `redis://127.0.0.1:PORT/`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// A connection through the proxy, without time-outs.
    pub fn connection(&self) -> anyhow::Result<redis::Connection> {
        Ok(redis::Client::open(self.url())?.get_connection()?)
    }

    /// Runs something and says what it sent.
    pub fn traffic_of<T>(&self, run: impl FnOnce() -> T) -> (T, Traffic) {
        *self.shared.traffic.lock() = Traffic::default();
        let result = run();
        (result, mem::take(&mut self.shared.traffic.lock()))
    }

    /// The names of the commands that came at once on one connection, for each time, since this was asked last.
    pub fn take_bursts(&self) -> Vec<Vec<String>> {
        mem::take(&mut self.shared.bursts.lock())
    }

    /// What comes from these ports, as the server's `CLIENT LIST` has them, goes through from now on: it is neither counted nor disturbed.
    pub fn leave_alone(&self, ports: &[u16]) {
        self.shared.left_alone.lock().extend(ports);
    }

    /// The next command of this (upper-case) name is where something will go wrong, once.
    pub fn at(&self, command: &str) -> Point<'_> {
        self.point(Some(command.to_owned()), 1)
    }

    /// The same for the n-th command from now on (1: the next), whatever its name.
    pub fn at_command(&self, n: usize) -> Point<'_> {
        self.point(None, n)
    }

    /// Whether everything asked for has gone wrong by now, and nothing else. Waits for it for up to five seconds.
    pub fn happened(&self) -> bool {
        let mut faults = self.shared.faults.lock();
        self.shared.fault_happened.wait_while_for(
            &mut faults,
            |faults| faults.to_come > 0 && !faults.failed,
            PATIENCE,
        );
        faults.to_come == 0 && !faults.failed
    }

    fn point(&self, command: Option<String>, nth: usize) -> Point<'_> {
        Point {
            faults: &self.shared.faults,
            command,
            about: None,
            from: None,
            nth,
            half_way: false,
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop((Ipv4Addr::LOCALHOST, self.port()).into());
    }
}

/// Where something will go wrong; the methods say what.
#[must_use]
pub struct Point<'p> {
    faults: &'p Mutex<Faults>,
    command: Option<String>,
    about: Option<String>,
    from: Option<u16>,
    nth: usize,
    half_way: bool,
}

impl Point<'_> {
    /// Only those commands count that contain this text, as a key.
    pub fn about(mut self, text: &str) -> Self {
        self.about = Some(text.to_owned());
        self
    }

    /// Only those commands count that reach the server from this port, as its `CLIENT LIST` has it.
    pub fn from(mut self, port: u16) -> Self {
        self.from = Some(port);
        self
    }

    /// At the n-th such command from now on.
    pub fn nth(mut self, n: usize) -> Self {
        self.nth = n;
        self
    }

    /// The first half of its reply is delivered before the reply is cut, swallowed or delayed.
    pub fn half_way(mut self) -> Self {
        self.half_way = true;
        self
    }

    /// Closes the connection when all before it has been answered. It is not executed.
    pub fn cut_before(self) {
        self.add(Fault::CutBefore);
    }

    /// Closes the connection instead of delivering its reply. It is executed, and nothing after it.
    pub fn cut_after(self) {
        self.add(Fault::Answer(Answer::Cut));
    }

    /// It and what follows is executed, but no reply comes any more. The connection stays open. Whoever goes on asking all
    /// the same is cut off in the end, so that a test ends, and then it has not [happened](Proxy::happened) as told.
    ///
    /// A single reply cannot get lost between two others: TCP keeps the order.
    pub fn swallow(self) {
        self.add(Fault::Answer(Answer::Swallow));
    }

    /// It is executed at once. Its reply, and those behind it, come later.
    pub fn delay(self, by: Duration) {
        self.add(Fault::Answer(Answer::Delay(by)));
    }

    /// Runs something when all before it has been executed, and then lets it go on, to another fault if there is one.
    pub fn run(self, between: impl FnOnce() + Send + 'static) {
        self.add(Fault::Run(Box::new(between)));
    }

    /// The same at each such command from now on, for as long as the proxy runs. It is nothing that [`Proxy::happened`]
    /// waits for.
    pub fn run_each_time(self, between: impl FnMut() + Send + 'static) {
        let between = Arc::new(Mutex::new(between));
        self.faults
            .lock()
            .armed
            .push(self.armed(Fault::RunEachTime(between)));
    }

    /// Refuses it in the server's name with an error such as `LOADING not yet`. It is not executed, and a transaction that
    /// it was part of is aborted, as the server itself does.
    pub fn refuse(self, error: &str) {
        self.pretend(&format!("-{error}\r\n"));
    }

    /// The same with any reply, as it is.
    pub fn pretend(self, bytes: &str) {
        self.add(Fault::Pretend(bytes.into()));
    }

    /// It is executed, and this is delivered instead of its reply, as it is.
    pub fn reply(self, bytes: &str) {
        self.add(Fault::Answer(Answer::Replace(bytes.into())));
    }

    fn add(self, fault: Fault) {
        let mut faults = self.faults.lock();
        faults.to_come += 1;
        faults.armed.push(self.armed(fault));
    }

    fn armed(self, fault: Fault) -> Armed {
        Armed {
            command: self.command,
            about: self.about,
            from: self.from,
            skip: self.nth - 1,
            half_way: self.half_way,
            fault,
        }
    }
}

#[derive(Default)]
struct Faults {
    armed: Vec<Armed>,
    to_come: usize,
    /// Something panicked in between, or went on asking without an answer.
    failed: bool,
}

impl Faults {
    /// What is due at this request. All that wait for such a command count it.
    fn due_at(&mut self, request: &[u8], port: u16) -> Vec<Armed> {
        let command = command_name(request);
        let contains = |text: &String| request.windows(text.len()).any(|it| it == text.as_bytes());
        let is_due = |armed: &mut Armed| {
            let is_named = (armed.command.as_deref()).is_none_or(|name| name == command);
            let is_from = armed.from.is_none_or(|from| from == port);
            let is_it = is_named && is_from && armed.about.as_ref().is_none_or(contains);
            let is_due = is_it && armed.skip == 0;
            armed.skip -= usize::from(is_it && !is_due);
            is_due
        };
        let due: Vec<Armed> = self.armed.extract_if(.., is_due).collect();
        self.armed.extend(due.iter().filter_map(Armed::again));
        due
    }
}

struct Armed {
    command: Option<String>,
    about: Option<String>,
    from: Option<u16>,
    skip: usize,
    half_way: bool,
    fault: Fault,
}

impl Armed {
    /// The same for the next such command.
    fn again(&self) -> Option<Self> {
        let Fault::RunEachTime(between) = &self.fault else {
            return None;
        };
        Some(Self {
            command: self.command.clone(),
            about: self.about.clone(),
            from: self.from,
            skip: 0,
            half_way: false,
            fault: Fault::RunEachTime(Arc::clone(between)),
        })
    }
}

enum Fault {
    CutBefore,
    Run(Box<dyn FnOnce() + Send>),
    RunEachTime(Arc<Mutex<dyn FnMut() + Send>>),
    Pretend(Vec<u8>),
    Answer(Answer),
}

/// What to do with the server's reply.
#[derive(Default)]
enum Answer {
    #[default]
    Deliver,
    Cut,
    Swallow,
    Delay(Duration),
    Replace(Vec<u8>),
}
