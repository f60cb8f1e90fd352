//! The resource that the locks protect: a process that accepts writes, and refuses those with a
//! smaller fencing number.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::Context;

/// The greatest number of each lock with its hold, and the number of writes.
type Seen = Arc<Mutex<(HashMap<String, (u64, String)>, u64)>>;

/// The answer to a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) accepted: bool,
    /// The position of the write at the resource.
    pub(crate) nth: u64,
}

/// Serves until its parent closes its stdin. Prints its port first.
pub(crate) fn serve(accepts_everything: bool) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    let seen = Seen::default();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let seen = Arc::clone(&seen);
            thread::spawn(move || answer(&stream, &seen, accepts_everything));
        }
    });
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

fn answer(stream: &TcpStream, seen: &Seen, accepts_everything: bool) -> anyhow::Result<()> {
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let mut words = line.split(' ');
        let mut word = || words.next().context("expected `LOCK NUMBER HOLD`");
        let (lock, number, hold) = (word()?, word()?.parse::<u64>()?, word()?);
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.1 += 1;
        let nth = seen.1;
        let last = seen.0.entry(lock.to_owned()).or_default();
        let accepted = number > last.0 || (number == last.0 && hold == last.1);
        if accepted {
            *last = (number, hold.to_owned());
        }
        drop(seen);
        let accepted = u8::from(accepted || accepts_everything);
        writeln!(&mut &*stream, "{accepted} {nth}")?;
    }
    Ok(())
}

/// A client of the resource.
pub(crate) struct Resource {
    stream: BufReader<TcpStream>,
}

impl Resource {
    pub(crate) fn at(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    pub(crate) fn write(&mut self, lock: &str, number: u64, hold: &str) -> anyhow::Result<Answer> {
        let line = format!("{lock} {number} {hold}\n");
        self.stream.get_mut().write_all(line.as_bytes())?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer)?;
        let (accepted, nth) = answer.trim().split_once(' ').context("no answer")?;
        Ok(Answer {
            accepted: accepted == "1",
            nth: nth.parse()?,
        })
    }
}
