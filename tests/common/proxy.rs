//! A TCP proxy in front of a server: it counts round trips, lists commands and injects faults.
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
/// A client that sends this many commands without an answer is in a loop.
const TOO_MANY_UNANSWERED: usize = 40;

/// The traffic through the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bursts of commands, each sent after all earlier replies on its connection were delivered.
    pub round_trips: usize,
    /// The upper-case names of the commands of all connections, in order.
    pub commands: Vec<String>,
}

/// A proxy for any number of connections, stopped on drop.
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy on a free port.
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

    /// Runs a closure and returns the traffic that it caused.
    pub fn traffic_of<T>(&self, run: impl FnOnce() -> T) -> (T, Traffic) {
        *self.shared.traffic.lock() = Traffic::default();
        let result = run();
        (result, mem::take(&mut self.shared.traffic.lock()))
    }

    /// The names of the commands in each burst of a connection, since the last call.
    pub fn take_bursts(&self) -> Vec<Vec<String>> {
        mem::take(&mut self.shared.bursts.lock())
    }

    /// From now on the proxy forwards the connections from these client ports (as in `CLIENT LIST`)
    /// without counting or disturbing them.
    pub fn leave_alone(&self, ports: &[u16]) {
        self.shared.left_alone.lock().extend(ports);
    }

    /// From now on each write reaches the server so much later.
    pub fn delay_each(&self, by: Duration) {
        *self.shared.delay.lock() = by;
    }

    /// Injects one fault at the next command with this upper-case name.
    pub fn at(&self, command: &str) -> Point<'_> {
        self.point(Some(command.to_owned()), 1)
    }

    /// Injects one fault at the n-th command from now on (1: the next), whatever its name.
    pub fn at_command(&self, n: usize) -> Point<'_> {
        self.point(None, n)
    }

    /// True if all injected faults have happened, and no other. Waits for up to five seconds.
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

/// The command at which a fault happens; the methods choose the fault.
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
    /// Counts only commands that contain this key.
    pub fn about(mut self, text: &str) -> Self {
        self.about = Some(text.to_owned());
        self
    }

    /// Counts only commands from this client port, as in `CLIENT LIST`.
    pub fn from(mut self, port: u16) -> Self {
        self.from = Some(port);
        self
    }

    /// Selects the n-th matching command from now on.
    pub fn nth(mut self, n: usize) -> Self {
        self.nth = n;
        self
    }

    /// Delivers the first half of the reply before the fault.
    pub fn half_way(mut self) -> Self {
        self.half_way = true;
        self
    }

    /// Closes the connection after all earlier replies. The server does not get the command.
    pub fn cut_before(self) {
        self.add(Fault::CutBefore);
    }

    /// Closes the connection instead of delivering the reply. The server executes the command, but
    /// nothing after it.
    pub fn cut_after(self) {
        self.add(Fault::Answer(Answer::Cut));
    }

    /// The same, on all connections. New ones are refused for so long.
    pub fn shut(self, length: Duration) {
        self.add(Fault::Shut(length));
    }

    /// The server executes this command and those after it, but the client gets no more replies.
    /// The connection stays open. A client that keeps sending is disconnected at last so that the
    /// test ends, and then the fault has not [happened](Proxy::happened).
    ///
    /// A single reply cannot get lost between two others, because TCP keeps the order.
    pub fn swallow(self) {
        self.add(Fault::Answer(Answer::Swallow));
    }

    /// The server executes the command at once. Its reply, and those after it, are delayed.
    pub fn delay(self, by: Duration) {
        self.add(Fault::Answer(Answer::Delay(by)));
    }

    /// The server executes the command. In place of the reply the client gets one byte after the
    /// other, without an end.
    pub fn trickle(self) {
        self.add(Fault::Answer(Answer::Trickle));
    }

    /// Runs a closure after all earlier commands were executed, then continues with this command,
    /// which may have another fault.
    pub fn run(self, between: impl FnOnce() + Send + 'static) {
        self.add(Fault::Run(Box::new(between)));
    }

    /// Runs the closure at each matching command from now on. [`Proxy::happened`] does not wait for
    /// it.
    pub fn run_each_time(self, between: impl FnMut() + Send + 'static) {
        let between = Arc::new(Mutex::new(between));
        self.faults
            .lock()
            .armed
            .push(self.armed(Fault::RunEachTime(between)));
    }

    /// Answers with an error such as `LOADING not yet` in place of the server. The server does not
    /// get the command, and aborts the transaction that it belongs to, as after an error of its
    /// own.
    pub fn refuse(self, error: &str) {
        self.pretend(&format!("-{error}\r\n"));
    }

    /// Like [`refuse`](Self::refuse), with any reply; `bytes` are sent unchanged.
    pub fn pretend(self, bytes: &str) {
        self.add(Fault::Pretend(bytes.into()));
    }

    /// The server executes the command; the client receives `bytes`, unchanged, instead of the
    /// reply.
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
    /// A closure panicked, or a client kept sending without an answer.
    failed: bool,
}

impl Faults {
    /// The faults due at this request. Each armed fault that matches counts it.
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
    /// The same fault for the next matching command.
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
    Shut(Duration),
    Run(Box<dyn FnOnce() + Send>),
    RunEachTime(Arc<Mutex<dyn FnMut() + Send>>),
    Pretend(Vec<u8>),
    Answer(Answer),
}

/// Handling of the server's reply.
#[derive(Default)]
enum Answer {
    #[default]
    Deliver,
    Cut,
    Swallow,
    Delay(Duration),
    Trickle,
    Replace(Vec<u8>),
}
