//! Ports for the servers of the tests.
//!
//! Whoever had a connection to a server that has ended goes on knocking at its port for a while. So no port is given twice before some
//! hundreds of others were: a client of an ended test would come to the server of another one. Each process has blocks of ports of its own.

use std::{
    fmt,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, bail};

/// The first port of all blocks. Systems give no port of a block to whoever asks for any port: a proxy or a client of another test could
/// have it before our server does, and be taken for the server.
const FIRST: u16 = 10_000;
/// How many ports a block has: few, since a program that starts one server takes a block as well, and a hundred of them may run at once.
const SIZE: u16 = 20;
const BLOCKS: u16 = 500;
/// A process that lives for hours begins again with its first ports after so many blocks.
const MOST: usize = 40;
/// A node of a cluster listens on the port so far above its own as well.
const BUS: u16 = 10_000;

/// A port that nobody else is given until this is dropped, whether somebody listens on it or not: where a server was killed,
/// the next test's must not take its place.
#[derive(Debug)]
pub struct Port(u16);

impl Port {
    pub fn number(&self) -> u16 {
        self.0
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        with_blocks(|blocks| blocks.held.retain(|held| *held != self.0));
    }
}

/// A port that nobody listens on.
pub fn free_port() -> anyhow::Result<Port> {
    Ok(listener()?.1)
}

/// Somebody who listens on such a port. Of those that a system gives, one that has ended may be another test's at once.
pub fn listener() -> anyhow::Result<(TcpListener, Port)> {
    first_with(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
}

/// A port for a node of a cluster.
pub fn free_cluster_port() -> anyhow::Result<Port> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let both = |port: u16| (is_free(port) && is_free(port + BUS)).then_some(());
    Ok(first_with(both)?.1)
}

/// The next port with which this can be had, and that.
fn first_with<T>(take: impl Fn(u16) -> Option<T>) -> anyhow::Result<(T, Port)> {
    with_blocks(|blocks| {
        for _ in 0..usize::from(SIZE) * MOST {
            let port = blocks.next()?;
            if !blocks.held.contains(&port)
                && let Some(taken) = take(port)
            {
                blocks.held.push(port);
                return Ok((taken, Port(port)));
            }
        }
        bail!("no port is free from {FIRST} on")
    })
}

/// The ports of this process.
struct Blocks {
    /// The first port of each block, and what keeps other processes from taking the block: a socket that only those bind who look for a
    /// port here.
    claimed: Vec<(u16, UdpSocket)>,
    /// How many ports were given since it began with the first one.
    given: usize,
    /// The ports that are in use.
    held: Vec<u16>,
}

fn with_blocks<T>(act: impl FnOnce(&mut Blocks) -> T) -> T {
    static OURS: Mutex<Blocks> = Mutex::new(Blocks {
        claimed: Vec::new(),
        given: 0,
        held: Vec::new(),
    });
    act(&mut OURS.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Blocks {
    fn next(&mut self) -> anyhow::Result<u16> {
        let size = usize::from(SIZE);
        if self.given == size * self.claimed.len() {
            let has_all = self.claimed.len() == MOST;
            match (!has_all).then(claim).flatten() {
                Some(block) => self.claimed.push(block),
                None => self.given = 0,
            }
        }
        let (first, _) = (self.claimed.get(self.given / size))
            .context("other processes have all ports for servers")?;
        let port = first + u16::try_from(self.given % size)?;
        self.given += 1;
        Ok(port)
    }
}

/// A block that no other process has. Where the search begins is left to chance: a process that begins as another one ends is not to have
/// the same ports.
fn claim() -> Option<(u16, UdpSocket)> {
    let begin = uuid::Uuid::new_v4().as_u128() % u128::from(BLOCKS);
    let begin = u16::try_from(begin).ok()?;
    (0..BLOCKS).find_map(|further| {
        let first = FIRST + (begin + further) % BLOCKS * SIZE;
        let claim = UdpSocket::bind((Ipv4Addr::LOCALHOST, first)).ok()?;
        Some((first, claim))
    })
}
