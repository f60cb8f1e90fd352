//! A gate in front of a server, which can be shut for replication alone or for all connections.
//!
//! The [`Proxy`](super::Proxy) parses commands and replies, which a replication stream does not
//! have. A gate forwards bytes. A server that announces its gate's port is reached through it by
//! clients, replicas and sentinels; the cluster bus uses another port, which may have a gate too.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use parking_lot::Mutex;

use super::server::{Port, free_port};

/// The command by which a replica starts to replicate.
const REPLICATE: &[u8] = b"PSYNC";

/// The position of the sender's id in a cluster bus message.
const SENDER: Range<usize> = 40..80;

/// Open until shut; stops when dropped.
pub struct Gate {
    port: Port,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    doors: Mutex<Vec<Arc<Door>>>,
    shut_for_replicas: AtomicBool,
    shut: AtomicBool,
    /// The id of the cluster node whose messages are blocked.
    shut_for: Mutex<Option<String>>,
    ended: AtomicBool,
}

/// A connection through the gate.
struct Door {
    client: TcpStream,
    server: TcpStream,
    is_of_a_replica: AtomicBool,
    /// The sender in the first message, if that was as long as a cluster bus message.
    sender: Mutex<Option<Vec<u8>>>,
}

/// Tries another port if the first is taken after all: a process that another test is starting
/// holds a copy of the socket that found the port free, until its `exec`.
fn listen() -> anyhow::Result<(Port, TcpListener)> {
    for _ in 0..20 {
        let port = free_port()?;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())) {
            return Ok((port, listener));
        }
    }
    anyhow::bail!("every port was taken after all")
}

impl Gate {
    /// Listens on a port that no other process gets by chance, and forwards to `server`.
    pub fn before(server: u16) -> anyhow::Result<Self> {
        let (port, listener) = listen()?;
        let shared = Arc::new(Shared {
            server: (Ipv4Addr::LOCALHOST, server).into(),
            doors: Mutex::default(),
            shut_for_replicas: AtomicBool::new(false),
            shut: AtomicBool::new(false),
            shut_for: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept_from(&listener));
        Ok(Self { port, shared })
    }

    /// The port to connect to instead of the server's.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// From now on no replica receives data from this server; other clients are not affected.
    pub fn shut_for_replicas(&self) {
        self.shared.shut_for_replicas.store(true, Ordering::SeqCst);
        self.shared.cut_what_is_shut_out();
    }

    /// From now on the gate accepts no connection, and closes the open ones.
    pub fn shut(&self) {
        self.shared.shut.store(true, Ordering::SeqCst);
        self.shared.cut_what_is_shut_out();
    }

    /// From now on the gate blocks the cluster node with this id. For a gate in front of a cluster
    /// bus port.
    pub fn shut_for(&self, node: &str) {
        *self.shared.shut_for.lock() = Some(node.to_owned());
        self.shared.cut_what_is_shut_out();
    }

    /// Lets all connections through again.
    pub fn open(&self) {
        *self.shared.shut_for.lock() = None;
        self.shared.shut_for_replicas.store(false, Ordering::SeqCst);
        self.shared.shut.store(false, Ordering::SeqCst);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shut();
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port.number()));
    }
}

impl Shared {
    fn accept_from(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            // If the server is down, the client's connection closes.
            let _ = client.and_then(|client| self.let_in(client));
        }
    }

    fn let_in(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(self.server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let door = Arc::new(Door {
            client,
            server,
            is_of_a_replica: AtomicBool::new(false),
            sender: Mutex::default(),
        });
        let mut doors = self.doors.lock();
        doors.retain(|door| Arc::strong_count(door) > 1);
        doors.push(Arc::clone(&door));
        drop(doors);
        for run in [Self::pass_requests, Self::pass_replies] {
            let (shared, door) = (Arc::clone(self), Arc::clone(&door));
            thread::spawn(move || {
                let _ = run(&shared, &door);
                door.cut();
            });
        }
        Ok(())
    }

    fn pass_requests(&self, door: &Door) -> io::Result<()> {
        let mut chunk = vec![0; 1 << 16];
        loop {
            let length = (&door.client).read(&mut chunk)?;
            let request = &chunk[..length];
            if request
                .windows(REPLICATE.len())
                .any(|part| part == REPLICATE)
            {
                door.is_of_a_replica.store(true, Ordering::SeqCst);
            }
            if let Some(sender) = request.get(SENDER) {
                let mut first = door.sender.lock();
                first.get_or_insert_with(|| sender.to_owned());
            }
            if length == 0 || self.shuts_out(door) {
                return Ok(());
            }
            (&door.server).write_all(request)?;
        }
    }

    fn pass_replies(&self, door: &Door) -> io::Result<()> {
        let mut chunk = vec![0; 1 << 16];
        loop {
            let length = (&door.server).read(&mut chunk)?;
            if length == 0 || self.shuts_out(door) {
                return Ok(());
            }
            (&door.client).write_all(&chunk[..length])?;
        }
    }

    fn shuts_out(&self, door: &Door) -> bool {
        let is_of_a_replica = door.is_of_a_replica.load(Ordering::SeqCst);
        let is_of_that_node = (self.shut_for.lock().as_ref())
            .is_some_and(|node| door.sender.lock().as_deref() == Some(node.as_bytes()));
        self.shut.load(Ordering::SeqCst)
            || is_of_a_replica && self.shut_for_replicas.load(Ordering::SeqCst)
            || is_of_that_node
    }

    fn cut_what_is_shut_out(&self) {
        for door in &*self.doors.lock() {
            if self.shuts_out(door) {
                door.cut();
            }
        }
    }
}

impl Door {
    fn cut(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}
