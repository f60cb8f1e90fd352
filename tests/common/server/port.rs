//! Ports for test servers.
//!
//! A client whose server has stopped keeps trying its port for a while, and would reach another
//! test's server there. So a port is not reused before some hundreds of others. Each process has
//! its own blocks of ports.

use std::{
    fmt,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, bail};

/// The first port of all blocks. They are below the system's ephemeral ports: otherwise a proxy or
/// client of another test could take the port first, and be taken for the server.
const FIRST: u16 = 10_000;
/// Ports per block. Small, because each program takes at least one block, even for one server, and
/// a hundred may run at once.
const SIZE: u16 = 20;
const BLOCKS: u16 = 500;
/// Blocks per process: more ports than any test program needs. A process that runs for hours starts
/// over with its first ports.
const MOST: usize = 100;
/// The distance from a cluster node's port to its bus port.
const BUS: u16 = 10_000;

/// A port reserved until this is dropped, whether a server listens on it or not: another test must
/// not take the port of a killed server.
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

/// A free port.
pub fn free_port() -> anyhow::Result<Port> {
    Ok(listener()?.1)
}

/// A listener on such a port. An ephemeral port may be another test's as soon as it is closed.
pub fn listener() -> anyhow::Result<(TcpListener, Port)> {
    first_with(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
}

/// A port for a cluster node.
pub fn free_cluster_port() -> anyhow::Result<Port> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let both = |port: u16| (is_free(port) && is_free(port + BUS)).then_some(());
    Ok(first_with(both)?.1)
}

/// The next port for which `take` succeeds, and its result.
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
        bail!("no port from {FIRST} on is free")
    })
}

/// The ports of this process.
struct Blocks {
    /// The first port of each block, and the socket that keeps other processes from taking the
    /// block; only this search binds it.
    claimed: Vec<(u16, UdpSocket)>,
    /// Ports given since the last start with the first one.
    given: usize,
    /// The ports in use.
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
            .context("other processes use all ports for servers")?;
        let port = first + u16::try_from(self.given % size)?;
        self.given += 1;
        Ok(port)
    }
}

/// A block that no other process has. The search starts at random, so a new process does not get
/// the ports of one that just exited.
fn claim() -> Option<(u16, UdpSocket)> {
    let begin = uuid::Uuid::new_v4().as_u128() % u128::from(BLOCKS);
    let begin = u16::try_from(begin).ok()?;
    (0..BLOCKS).find_map(|further| {
        let first = FIRST + (begin + further) % BLOCKS * SIZE;
        let claim = UdpSocket::bind((Ipv4Addr::LOCALHOST, first)).ok()?;
        Some((first, claim))
    })
}
