//! The proxy's threads: for each connection one forwards requests and one delivers replies.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    mem,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{
    Answer, Armed, Fault, Faults, PATIENCE, TOO_MANY_UNANSWERED, Traffic,
    resp::{command_name, frame_length, is_push},
};
use crate::common::fake::trickle;

/// Shared by the proxy and its threads.
pub(super) struct Shared {
    server: SocketAddr,
    stopping: AtomicBool,
    links: Mutex<Vec<Arc<Link>>>,
    pub(super) left_alone: Mutex<Vec<u16>>,
    pub(super) traffic: Mutex<Traffic>,
    pub(super) bursts: Mutex<Vec<Vec<String>>>,
    pub(super) faults: Mutex<Faults>,
    pub(super) fault_happened: Condvar,
    pub(super) delay: Mutex<Duration>,
    /// No connection is accepted before this moment.
    shut_until: Mutex<Instant>,
}

/// A client's connection and the matching one to the server.
struct Link {
    client: TcpStream,
    server: TcpStream,
    /// The client port that the server sees.
    port: u16,
    owed: Mutex<Owed>,
    answered: Condvar,
}

#[derive(Default)]
struct Owed {
    /// Commands received whose replies have not been delivered.
    replies: usize,
    /// The planned handling of each reply that the server owes.
    answers: VecDeque<Planned>,
}

#[derive(Default)]
struct Planned {
    answer: Answer,
    half_way: bool,
}

impl Shared {
    pub(super) fn new(server: SocketAddr) -> Self {
        Self {
            server,
            stopping: AtomicBool::new(false),
            links: Mutex::default(),
            left_alone: Mutex::default(),
            traffic: Mutex::default(),
            bursts: Mutex::default(),
            faults: Mutex::default(),
            fault_happened: Condvar::new(),
            delay: Mutex::default(),
            shut_until: Mutex::new(Instant::now()),
        }
    }

    /// Closes all connections and stops the thread that accepts at this address.
    pub(super) fn stop(&self, accepting: SocketAddr) {
        self.stopping.store(true, Ordering::SeqCst);
        for link in self.links.lock().drain(..) {
            link.cut();
        }
        let _ = TcpStream::connect(accepting);
    }

    pub(super) fn accept_from(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            if Instant::now() < *self.shut_until.lock() {
                continue;
            }
            // If the server is down, the client's connection closes.
            let _ = client.and_then(|client| self.link(client));
        }
    }

    fn link(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(self.server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let link = Arc::new(Link {
            client,
            port: server.local_addr()?.port(),
            server,
            owed: Mutex::default(),
            answered: Condvar::new(),
        });
        self.links.lock().push(Arc::clone(&link));
        for run in [Self::forward_requests, Self::deliver_replies] {
            let (shared, link) = (Arc::clone(self), Arc::clone(&link));
            thread::spawn(move || {
                // The closure of a fault may panic: then the test fails instead of hanging.
                if catch_unwind(AssertUnwindSafe(|| run(&shared, &link))).is_err() {
                    shared.failed();
                }
                link.cut();
            });
        }
        Ok(())
    }

    fn forward_requests(&self, link: &Link) -> io::Result<()> {
        let (mut unread, mut burst) = (Vec::new(), Vec::new());
        while read_more(&link.client, &mut unread)? {
            burst.append(&mut take_frames(&mut unread));
            // A client's single write is one burst, even if it arrives in several pieces.
            if !unread.is_empty() {
                continue;
            }
            self.note(link, &burst);
            let delay = *self.delay.lock();
            thread::sleep(delay);
            for request in burst.drain(..) {
                if self.was_last(link, &request)? {
                    return link.ignore_the_rest();
                }
            }
        }
        Ok(())
    }

    /// Forwards a request or injects its fault. True if nothing after it may be forwarded.
    fn was_last(&self, link: &Link, request: &[u8]) -> io::Result<bool> {
        let mut planned = Planned::default();
        let mut to_forward = request;
        let due = if self.is_left_alone(link) {
            Vec::new()
        } else {
            self.faults.lock().due_at(request, link.port)
        };
        for Armed {
            fault, half_way, ..
        } in due
        {
            match fault {
                Fault::Answer(answer) => planned = Planned { answer, half_way },
                Fault::Pretend(reply) => {
                    planned.answer = Answer::Replace(reply);
                    to_forward = stand_in(request);
                }
                Fault::Shut(length) => {
                    *self.shut_until.lock() = Instant::now() + length;
                    let links = self.links.lock();
                    let others = links.iter().filter(|it| it.port != link.port);
                    others.for_each(|it| it.cut());
                    planned.answer = Answer::Cut;
                }
                Fault::CutBefore => {
                    link.wait_until_answered();
                    link.cut();
                    self.one_happened();
                    return Ok(true);
                }
                Fault::Run(between) => {
                    link.wait_until_answered();
                    between();
                    self.one_happened();
                }
                Fault::RunEachTime(between) => {
                    link.wait_until_answered();
                    (*between.lock())();
                }
            }
        }
        let is_last = matches!(planned.answer, Answer::Cut);
        link.forward(to_forward, planned)?;
        Ok(is_last)
    }

    fn deliver_replies(&self, link: &Link) -> io::Result<()> {
        let (mut unread, mut silent, mut unanswered) = (Vec::new(), false, 0);
        while read_more(&link.server, &mut unread)? {
            for mut reply in take_frames(&mut unread) {
                if is_push(&reply) {
                    link.deliver(&reply, silent)?;
                    continue;
                }
                let planned = link.next_answer();
                if planned.half_way {
                    let rest = reply.split_off(reply.len() / 2);
                    link.deliver(&mem::replace(&mut reply, rest), silent)?;
                }
                if !matches!(planned.answer, Answer::Deliver) {
                    self.one_happened();
                }
                match planned.answer {
                    Answer::Deliver => {}
                    Answer::Cut => link.cut(),
                    Answer::Swallow => silent = true,
                    Answer::Delay(by) => thread::sleep(by),
                    Answer::Trickle => trickle(&link.client),
                    Answer::Replace(other) => reply = other,
                }
                link.deliver(&reply, silent)?;
                link.answer_done();
                unanswered += usize::from(silent);
                if unanswered > TOO_MANY_UNANSWERED {
                    self.failed();
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn note(&self, link: &Link, burst: &[Vec<u8>]) {
        let mut owed = link.owed.lock();
        if !self.is_left_alone(link) {
            let mut traffic = self.traffic.lock();
            traffic.round_trips += usize::from(owed.replies == 0 && !burst.is_empty());
            let commands: Vec<_> = burst.iter().map(|request| command_name(request)).collect();
            traffic.commands.extend_from_slice(&commands);
            self.bursts.lock().push(commands);
        }
        owed.replies += burst.len();
    }

    fn is_left_alone(&self, link: &Link) -> bool {
        self.left_alone.lock().contains(&link.port)
    }

    fn failed(&self) {
        self.faults.lock().failed = true;
        self.fault_happened.notify_all();
    }

    fn one_happened(&self) {
        self.faults.lock().to_come -= 1;
        self.fault_happened.notify_all();
    }
}

impl Link {
    fn forward(&self, request: &[u8], planned: Planned) -> io::Result<()> {
        self.owed.lock().answers.push_back(planned);
        (&self.server).write_all(request)
    }

    /// Counts the reply as delivered before it is sent: the client may react at once.
    fn next_answer(&self) -> Planned {
        let mut owed = self.owed.lock();
        owed.replies = owed.replies.saturating_sub(1);
        owed.answers.front_mut().map(mem::take).unwrap_or_default()
    }

    fn answer_done(&self) {
        self.owed.lock().answers.pop_front();
        self.answered.notify_all();
    }

    fn wait_until_answered(&self) {
        let mut owed = self.owed.lock();
        self.answered
            .wait_while_for(&mut owed, |owed| !owed.answers.is_empty(), PATIENCE);
    }

    fn deliver(&self, reply: &[u8], silent: bool) -> io::Result<()> {
        if silent {
            return Ok(());
        }
        (&self.client).write_all(reply)
    }

    fn ignore_the_rest(&self) -> io::Result<()> {
        io::copy(&mut &self.client, &mut io::sink())?;
        Ok(())
    }

    fn cut(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

/// False at the end of the stream.
fn read_more(mut stream: &TcpStream, unread: &mut Vec<u8>) -> io::Result<bool> {
    let mut chunk = vec![0; 1 << 16];
    let length = stream.read(&mut chunk)?;
    unread.extend_from_slice(&chunk[..length]);
    Ok(length > 0)
}

fn take_frames(unread: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some(length) = frame_length(unread) {
        frames.push(unread.drain(..length).collect());
    }
    frames
}

/// Sent to the server instead of a refused command: it aborts a transaction as the refusal would.
fn stand_in(request: &[u8]) -> &'static [u8] {
    if command_name(request) == "EXEC" {
        b"*1\r\n$7\r\nDISCARD\r\n"
    } else {
        b"*1\r\n$7\r\nREFUSED\r\n"
    }
}
