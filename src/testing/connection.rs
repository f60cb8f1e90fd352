//! The connections of a stand-in: a port on loopback that speaks the protocol of Redis.

use std::{
    io::Write,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use redis::{Parser, RedisResult, Value, from_redis_value};

use super::{
    failing::{Action, Failure},
    state::{StandIn, StandInState},
    store::{Watching, Words, server_error, texts},
};
use crate::{
    error::{Error, Result},
    pool::Pool,
};

/// Much longer than a reply takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

impl StandIn {
    /// Returns a pool of connections to this stand-in, on loopback. Use it for the data of a test,
    /// and for the plain functions on a mutex, such as
    /// [`transaction_with_lock`](crate::transaction_with_lock), whose waits take real time.
    ///
    /// Each call returns the same pool. [`fail`](Self::fail) does not affect it.
    ///
    /// # Errors
    /// - [`Error::Pool`](crate::Error::Pool): no free port.
    /// - [`Error::Thread`](crate::Error::Thread): a thread could not be started.
    ///
    /// ```
    /// use leasehold::{redis::Commands, testing::StandIn};
    ///
    /// let stand_in = StandIn::new();
    /// let mut conn = stand_in.pool()?.get()?;
    /// let () = conn.set("wallet:7", 12)?;
    /// assert_eq!(conn.get::<_, i64>("wallet:7")?, 12);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn pool(&self) -> Result<Pool> {
        let mut served = self.state.served.lock();
        if let Some((pool, _)) = &*served {
            return Ok(pool.clone());
        }
        let (listener, address) = listen()
            .map_err(|error| Error::pool(format!("the stand-in has no port: {error}"), None))?;
        let url = format!("redis://{address}/?protocol=resp2");
        let pool = Pool::builder()
            .get_timeout(PATIENCE)
            .connect_timeout(PATIENCE)
            .io_timeout(PATIENCE)
            .connect(&url)?;
        let state = Arc::downgrade(&self.state);
        start_thread(move || accept(&listener, &state)).map_err(Error::thread)?;
        *served = Some((pool.clone(), address));
        Ok(pool)
    }
}

fn listen() -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

fn start_thread(run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let name = "leasehold stand-in".to_owned();
    thread::Builder::new().name(name).spawn(run).map(drop)
}

fn accept(listener: &TcpListener, state: &Weak<StandInState>) {
    for stream in listener.incoming() {
        if state.strong_count() == 0 {
            return;
        }
        let state = state.clone();
        if let Ok(stream) = stream {
            // If no thread can be started, the connection is closed.
            let _ = start_thread(move || _ = serve(&stream, &state));
        }
    }
}

fn serve(mut stream: &TcpStream, state: &Weak<StandInState>) -> RedisResult<()> {
    stream.set_nodelay(true)?;
    let (mut parser, mut session) = (Parser::new(), Session::default());
    loop {
        let words = from_redis_value(parser.parse_value(stream)?)?;
        let Some(state) = state.upgrade() else {
            return Ok(());
        };
        let Some(reply) = session.reply(&StandIn { state }, words) else {
            return Ok(());
        };
        let mut packed = Vec::new();
        pack(&reply, &mut packed);
        stream.write_all(&packed)?;
    }
}

/// The state of one connection.
#[derive(Default)]
struct Session {
    watched: Vec<Watching>,
    /// The commands since `MULTI`.
    queued: Option<Vec<Words>>,
}

impl Session {
    /// Returns the reply. `None`: no reply, and the connection is closed.
    fn reply(&mut self, stand_in: &StandIn, words: Words) -> Option<Value> {
        if !stand_in.is_there() {
            return None;
        }
        let name = String::from_utf8_lossy(words.first()?).to_uppercase();
        match &*name {
            "WATCH" => return self.watch(stand_in, &words),
            // Sent on each new connection.
            "INFO" => return Some(Value::BulkString(b"redis_version:7.4.0\r\n".to_vec())),
            "UNWATCH" => self.watched.clear(),
            "MULTI" => self.queued = Some(Vec::new()),
            "DISCARD" => *self = Self::default(),
            "EXEC" => return self.execute(stand_in),
            _ => match &mut self.queued {
                Some(queued) => {
                    queued.push(words);
                    return Some(Value::SimpleString("QUEUED".to_owned()));
                }
                None => return Some(stand_in.command(&words)),
            },
        }
        Some(Value::Okay)
    }

    fn watch(&mut self, stand_in: &StandIn, words: &Words) -> Option<Value> {
        let keys = texts(words);
        let keys: Vec<&str> = keys.iter().skip(1).map(|key| &**key).collect();
        let now = stand_in.now();
        let mut store = stand_in.state.store.lock();
        let watched: Vec<_> = keys.iter().map(|key| store.watch(key, now)).collect();
        let locks = store.lock_names(&keys);
        drop(store);
        match stand_in.state.failing.failure(Action::Read, &locks) {
            Some(Failure::Refused(refusal)) => return Some(server_error(refusal)),
            Some(Failure::LostRequest | Failure::LostReply) => return None,
            None => self.watched.extend(watched),
        }
        Some(Value::Okay)
    }

    fn execute(&mut self, stand_in: &StandIn) -> Option<Value> {
        let Self { watched, queued } = std::mem::take(self);
        let Some(commands) = queued else {
            return Some(server_error("ERR EXEC without MULTI"));
        };
        let keys: Vec<&str> = watched.iter().map(|(key, _)| &**key).collect();
        let locks = stand_in.state.store.lock().lock_names(&keys);
        let failure = stand_in.state.failing.failure(Action::Commit, &locks);
        match failure {
            Some(Failure::Refused(refusal)) => return Some(server_error(refusal)),
            Some(Failure::LostRequest) => return None,
            Some(Failure::LostReply) | None => {}
        }
        let (executed, changed) =
            stand_in.in_store(|store, now| store.execute(&watched, &commands, now));
        stand_in.notify_changed(changed);
        let Some(replies) = executed else {
            return Some(Value::Nil);
        };
        failure.is_none().then_some(Value::Array(replies))
    }
}

impl StandIn {
    /// Executes a command outside a transaction.
    fn command(&self, words: &Words) -> Value {
        let (reply, changed) = self.in_store(|store, now| store.command(words, now));
        self.notify_changed(changed);
        reply
    }
}

/// Packs a reply for RESP2. A value that no server sends becomes an error.
fn pack(value: &Value, packed: &mut Vec<u8>) {
    let line = match value {
        Value::Nil => "$-1".to_owned(),
        Value::Okay => "+OK".to_owned(),
        Value::Int(number) => format!(":{number}"),
        Value::SimpleString(text) => format!("+{text}"),
        Value::ServerError(error) => {
            format!("-{} {}", error.code(), error.details().unwrap_or_default())
        }
        Value::BulkString(bytes) => {
            packed.extend(format!("${}\r\n", bytes.len()).into_bytes());
            packed.extend_from_slice(bytes);
            String::new()
        }
        Value::Array(values) => {
            packed.extend(format!("*{}\r\n", values.len()).into_bytes());
            for value in values {
                pack(value, packed);
            }
            return;
        }
        _ => "-ERR the stand-in cannot send a value of this kind".to_owned(),
    };
    packed.extend_from_slice(line.as_bytes());
    packed.extend_from_slice(b"\r\n");
}
