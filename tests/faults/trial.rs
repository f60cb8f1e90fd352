//! A function with a fault at one of its commands, in its own database.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, release_lock};
use parking_lot::{Condvar, Mutex};
use redis::{Commands, Connection, ConnectionLike, RedisResult};

use crate::common::{
    Proxy, Server,
    proxy::Point,
    wait::{TOO_SLOW, unless_halted},
    world::{self, Function, Kind},
};

/// A read time-out that is never reached here.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Number of concurrent trials in all tests together: each uses up to eight sockets.
const AT_ONCE: usize = 48;
static RUNNING: Mutex<usize> = Mutex::new(0);
static ONE_ENDED: Condvar = Condvar::new();

/// A function, one of its commands, and its own database.
pub(crate) struct Trial {
    pub(crate) function: Function,
    pub(crate) commands: Vec<String>,
    /// The command's number, from 1.
    pub(crate) at: usize,
    pub(crate) what: String,
    server: String,
    database: usize,
    pub(crate) proxy: Proxy,
    pub(crate) conn: Connection,
    pub(crate) direct: Connection,
}

/// The function's result and duration.
pub(crate) struct Outcome {
    pub(crate) result: Result<bool, Error>,
    /// The whole error chain, as in a log.
    pub(crate) text: String,
    pub(crate) took: Duration,
}

/// Runs a trial for each command of each function, many at once: they mostly wait.
pub(crate) fn at_every_command(run: impl Fn(Trial) + Sync) {
    let server = Server::start_with(&["--databases", "256"]).unwrap();
    let cases = Mutex::new(cases(&server).into_iter().enumerate());
    let next = || cases.lock().next();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((database, (function, commands, at))) = next() {
                    let _turn = Turn::begin();
                    let trial = || Trial::new(&server, database, function, commands.clone(), at);
                    unless_halted(|| run(trial()));
                }
            });
        }
    });
}

/// A permit for one trial.
struct Turn;

impl Turn {
    fn begin() -> Self {
        let mut running = RUNNING.lock();
        ONE_ENDED.wait_while(&mut running, |running| *running >= AT_ONCE);
        *running += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock() -= 1;
        ONE_ENDED.notify_one();
    }
}

/// Every command of every function, with all commands that it sends without faults.
fn cases(server: &Server) -> Vec<(Function, Vec<String>, usize)> {
    let every_command = |function| {
        let trial = Trial::new(server, 0, function, Vec::new(), 0);
        let commands = trial.commands_undisturbed();
        (1..=commands.len()).map(move |at| (function, commands.clone(), at))
    };
    world::functions()
        .into_iter()
        .flat_map(every_command)
        .collect()
}

fn open(url: &str, database: usize) -> Connection {
    let client = redis::Client::open(format!("{url}{database}")).unwrap();
    client.get_connection().unwrap()
}

impl Trial {
    fn new(
        server: &Server,
        database: usize,
        function: Function,
        commands: Vec<String>,
        at: usize,
    ) -> Self {
        let proxy = Proxy::in_front_of(server).unwrap();
        let conn = open(&proxy.url(), database);
        let mut direct = open(&server.url(), database);
        redis::cmd("FLUSHDB").exec(&mut direct).unwrap();
        world::seed(&mut direct);
        let command = commands.get(at.wrapping_sub(1));
        let what = format!("{} at command {at}, {command:?}", function.name);
        Self {
            function,
            commands,
            at,
            what,
            server: server.url(),
            database,
            proxy,
            conn,
            direct,
        }
    }

    fn commands_undisturbed(mut self) -> Vec<String> {
        let (done, traffic) = self
            .proxy
            .traffic_of(|| (self.function.call)(&mut self.conn));
        assert!(done.unwrap(), "{}", self.what);
        traffic.commands
    }

    /// Restores the world to its state before the first call.
    pub(crate) fn begin_anew(&mut self) {
        redis::cmd("FLUSHDB").exec(&mut self.direct).unwrap();
        world::seed(&mut self.direct);
    }

    pub(crate) fn command(&self) -> &str {
        &self.commands[self.at - 1]
    }

    pub(crate) fn point(&self) -> Point<'_> {
        self.proxy.at_command(self.at)
    }

    pub(crate) fn is_acquiring(&self) -> bool {
        self.command() == "SET"
    }

    pub(crate) fn is_writing(&self) -> bool {
        self.multi().is_some_and(|multi| self.at > multi)
    }

    /// Number of commands in the same write that also get no answer if this one gets none.
    pub(crate) fn missing_replies(&self) -> usize {
        match self.multi() {
            _ if self.is_acquiring() => 1,
            Some(multi) if self.at <= multi => multi - self.at + 1,
            _ => self.commands.len() - self.at + 1,
        }
    }

    fn multi(&self) -> Option<usize> {
        self.commands.iter().position(|command| command == "MULTI")
    }

    pub(crate) fn is_done(&mut self) -> bool {
        (self.function.is_done)(&mut self.direct).unwrap()
    }

    pub(crate) fn call(&mut self, io_timeout: Duration) -> Outcome {
        self.conn.set_read_timeout(Some(io_timeout)).unwrap();
        let begun = Instant::now();
        let result = (self.function.call)(&mut self.conn);
        let took = begun.elapsed();
        let text = match &result {
            Ok(_) => String::new(),
            Err(error) => format!("{error:#} {error:?} {:?}", error.downcast_ref::<Error>()),
        };
        let outcome = Outcome {
            result: result.map_err(|error| error.downcast::<Error>().unwrap()),
            text,
            took,
        };
        let happened = self.proxy.happened();
        // The answer to an earlier command, which the proxy does not delay, took longer than the
        // time-out.
        let ended_before = !happened && took >= io_timeout && io_timeout < LONG;
        let timed_out = outcome.text.contains("Resource temporarily unavailable");
        assert!(!(ended_before && timed_out), "{}: {TOO_SLOW}", self.what);
        assert!(
            happened,
            "{}: the fault did not happen: {}",
            self.what, outcome.text
        );
        outcome
    }

    /// Number of time-outs that the function may take: an acquire asks again until its time limit,
    /// a failed trade tries to release its lock.
    pub(crate) fn silent_conversations(&self) -> u32 {
        match self.function.kind {
            Kind::Acquire => 3,
            Kind::Transaction => 1,
            Kind::UnderLock if self.is_writing() => 1,
            Kind::UnderLock => 2,
        }
    }

    /// The result is right or unknown, no change is partial, and every error names its subject.
    pub(crate) fn judge(&mut self, outcome: &Outcome) {
        let (done, what) = (self.is_done(), &self.what);
        match &outcome.result {
            Ok(answer) => assert_eq!(*answer, done, "{what}: wrong result"),
            Err(Error::Redis { .. }) => assert!(!done, "{what}: happened, but returned an error"),
            Err(error @ Error::Unknown { .. }) => {
                let is_read = !self.is_acquiring() && !self.is_writing();
                // An acquire shares a write with the first reads of a transaction. If its answer is
                // late too, the acquire may have happened, and the error has its token.
                let is_of_the_acquire = self.commands[..self.at].iter().any(|name| name == "SET");
                let was_late = is_of_the_acquire && error.token().is_some();
                assert!(!(is_read && was_late), "{what}: {TOO_SLOW}");
                assert!(!is_read, "{what}: a read cannot have happened");
            }
            Err(other) => unreachable!("{what}: {other:?}"),
        }
        if let Err(error) = &outcome.result {
            assert_eq!(error.token().is_some(), self.is_acquiring(), "{what}");
        }
        self.judge_text(outcome);
        world::assert_conserved(&mut self.direct, &self.what);
        world::assert_locks_end(&mut self.direct, &self.what);
    }

    /// The error names the function and the lock, and contains no secret.
    pub(crate) fn judge_text(&self, outcome: &Outcome) {
        let Err(error) = &outcome.result else {
            return;
        };
        let (text, what) = (&outcome.text, &self.what);
        assert!(text.starts_with(self.function.name), "{what}: {text}");
        assert!(
            text.contains(&format!("`{}`", self.function.lock)),
            "{what}: {text}"
        );
        let secret = error
            .token()
            .map_or(world::TOKEN.to_owned(), ToString::to_string);
        assert!(!text.contains(&secret), "{what}: {text}");
    }

    /// Frees the lock that the fault left, and calls the function again if it has not happened.
    pub(crate) fn next_on_a_fresh_connection(&mut self, outcome: &Outcome) {
        let Err(error) = &outcome.result else {
            return;
        };
        let mut fresh = open(&self.proxy.url(), self.database);
        let lock = self.function.lock;
        if let Some(token) = error.token() {
            let held: bool = fresh.exists(format!("lock:{lock}")).unwrap();
            let freed = release_lock(&mut fresh, lock, token).unwrap();
            assert_eq!(freed, held, "{}: the token does not match", self.what);
        } else if self.function.kind == Kind::UnderLock {
            // Instead of waiting until it expires.
            let _: () = fresh.del(format!("lock:{lock}")).unwrap();
        }
        if !self.is_done() {
            assert!(
                (self.function.call)(&mut fresh).unwrap(),
                "{}: again",
                self.what
            );
            assert!(self.is_done(), "{}: again", self.what);
        }
        world::assert_conserved(&mut self.direct, &self.what);
    }

    /// Another client's connection.
    pub(crate) fn another_connection(&self) -> Connection {
        open(&self.server, self.database)
    }

    /// An outstanding reply is not taken for another one's.
    pub(crate) fn next_on_the_same_connection(&mut self) {
        let what = &self.what;
        let asked = Instant::now();
        let soon: RedisResult<String> = self.conn.get("mine");
        let waited = asked.elapsed();
        let has_its_time = soon.is_ok() || waited >= Duration::from_millis(250);
        assert!(has_its_time, "{what}: {soon:?} after {waited:?}");
        self.conn.set_read_timeout(Some(LONG)).unwrap();
        let mine: String = self.conn.get("mine").unwrap();
        assert_eq!(mine, "intact", "{what}");
        let released = release_lock(&mut self.conn, "spare", &world::token()).unwrap();
        assert!(released, "{what}");
        assert!(self.conn.check_connection(), "{what}");
    }
}
