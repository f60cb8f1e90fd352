//! A fake sentinel or server that sends the answers a test gives it.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    proxy::{command_name, frame_length, word},
    server::{Port, listener},
};

/// The answer to a command, from its upper-case name and the number of earlier commands of that
/// name. Commands to a cluster or a sentinel have two words, as in `CLUSTER SLOTS`.
type Answers = Box<dyn FnMut(&str, usize) -> Vec<u8> + Send>;

/// Closes the connection instead of answering.
pub const HANG_UP: &[u8] = b"hang up";

/// The pause between two bytes of an answer that trickles.
const TRICKLES: Duration = Duration::from_millis(50);
/// Begins an answer and sends a byte of it now and then, without an end.
pub const TRICKLE: &[u8] = b"trickle";

/// The RESP3 reply to a subscription to one channel.
const SUBSCRIBED: &[u8] = b">3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n";
const ANNOUNCED: &[u8] = b">3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$8\r\nmymaster\r\n";

/// Answers until it is dropped.
pub struct Fake {
    port: Port,
    ended: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<String>>>,
    /// The subscribed connections.
    subscribed: Arc<Mutex<Vec<TcpStream>>>,
}

impl Fake {
    pub fn saying(answers: impl FnMut(&str, usize) -> Vec<u8> + Send + 'static) -> Self {
        let (listener, port) = listener().unwrap();
        let (ended, asked) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let subscribed = Arc::default();
        let answers: Arc<Mutex<Answers>> = Arc::new(Mutex::new(Box::new(answers)));
        let (ends, heard) = (Arc::clone(&ended), Arc::clone(&asked));
        let listening = Arc::clone(&subscribed);
        thread::spawn(move || {
            for client in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let (answers, heard) = (Arc::clone(&answers), Arc::clone(&heard));
                let listening = Arc::clone(&listening);
                thread::spawn(move || {
                    client.map(|client| talk(client, &answers, &heard, &listening))
                });
            }
        });
        Self {
            port,
            ended,
            asked,
            subscribed,
        }
    }

    /// A sentinel that reports this port and configuration epoch for a master that has had its role
    /// for an hour. With port 0 its answer [trickles](TRICKLE).
    pub fn sentinel(answers: impl Fn() -> (u16, u64) + Send + 'static) -> Self {
        Self::sentinel_since(Duration::from_hours(1), answers)
    }

    /// A sentinel that also reports how long the master has had its role.
    pub fn sentinel_since(
        since: Duration,
        answers: impl Fn() -> (u16, u64) + Send + 'static,
    ) -> Self {
        let mut said = (0, 0);
        Self::saying(move |command, _| {
            match command {
                "HELLO" => return b"%1\r\n+proto\r\n:3\r\n".to_vec(),
                "SUBSCRIBE" => return [SUBSCRIBED, SUBSCRIBED].concat(),
                _ => {}
            }
            // The client sends both questions in one write; both answers have to be from the same
            // moment.
            if command != "SENTINEL MASTER" {
                said = answers();
                if said.0 == 0 {
                    return TRICKLE.to_vec();
                }
                let port = said.0.to_string();
                return format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
                    .into_bytes();
            }
            let (epoch, millis) = (said.1.to_string(), since.as_millis().to_string());
            format!(
                "*4\r\n$12\r\nconfig-epoch\r\n${}\r\n{epoch}\r\n\
                 $18\r\nrole-reported-time\r\n${}\r\n{millis}\r\n",
                epoch.len(),
                millis.len()
            )
            .into_bytes()
        })
    }

    /// Announces a failover, like a sentinel.
    pub fn announce(&self) {
        for mut client in &*self.subscribed.lock() {
            client.write_all(ANNOUNCED).unwrap();
        }
    }

    /// Number of subscribed connections.
    pub fn subscribers(&self) -> usize {
        self.subscribed.lock().len()
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The names of the commands received so far.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port()));
    }
}

fn talk(
    mut client: TcpStream,
    answers: &Mutex<Answers>,
    asked: &Mutex<Vec<String>>,
    subscribed: &Mutex<Vec<TcpStream>>,
) {
    // With Nagle's algorithm, two answers in a row would arrive 40 ms apart.
    let _ = client.set_nodelay(true);
    let (mut unread, mut chunk) = (Vec::new(), [0; 4096]);
    while let Ok(length) = client.read(&mut chunk) {
        if length == 0 {
            return;
        }
        unread.extend_from_slice(&chunk[..length]);
        while let Some(length) = frame_length(&unread) {
            let command: Vec<u8> = unread.drain(..length).collect();
            let mut name = command_name(&command);
            if ["CLUSTER", "SENTINEL"].contains(&name.as_str()) {
                name = format!("{name} {}", word(&command, 1));
            }
            let before = {
                let mut asked = asked.lock();
                asked.push(name.clone());
                asked.iter().filter(|other| **other == name).count() - 1
            };
            let answer = (answers.lock())(&name, before);
            if name == "SUBSCRIBE" {
                subscribed.lock().extend(client.try_clone());
            }
            if answer == TRICKLE {
                trickle(&client);
            }
            if answer == HANG_UP || client.write_all(&answer).is_err() {
                return;
            }
        }
    }
}

/// Sends a reply without an end, each byte sooner than any time-out, until the client hangs up.
pub fn trickle(mut client: &TcpStream) {
    let mut sent = client.write_all(b"+");
    while sent.is_ok() {
        thread::sleep(TRICKLES);
        sent = client.write_all(b"x");
    }
}
