//! Holders in other processes, killed or stopped.

use std::{
    cell::RefCell,
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use leasehold::Locks;
use redis::Commands;

use crate::common::{
    LONG, MS, SLACK, Server,
    hold::{comes_true, every_kind},
    wait::{at_once, unless_halted},
};

/// Longer than a busy machine delays a process: a longer pause means that it was stopped.
const LEASE: Duration = Duration::from_millis(2_500);
const SERVER: &str = "LEASEHOLD_TEST_SERVER";
const TOKEN: &str = "LEASEHOLD_TEST_TOKEN";

/// Another process that holds the lock `a`, killed when dropped.
struct Holder {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Holder {
    fn start(server: &Server) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "processes::holds_until_it_is_killed"])
            .args(["--ignored", "--nocapture"])
            .env(SERVER, server.url())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let mut holder = Self { child, says };
        holder.hear("holding");
        holder
    }

    /// Waits for a line with this prefix, and returns the rest.
    fn hear(&mut self, what: &str) -> String {
        let mut line = String::new();
        while self.says.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once(what) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("it never printed {what}");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Holds `a`, and after any pause prints whether it is held, whether a commit works, and the
/// fencing token.
#[test]
#[ignore = "run by another test, in its own process"]
#[allow(clippy::infinite_loop, reason = "runs until killed")]
fn holds_until_it_is_killed() {
    let Ok(url) = env::var(SERVER) else {
        return;
    };
    let locks = crate::connect(&url).with(crate::options().lease(LEASE));
    let lease = locks.lock("a").acquire(LONG).unwrap();
    let mut say = std::io::stdout();
    // Before it prints: the reader may stop it at once.
    let mut last = Instant::now();
    writeln!(say, "\nholding").unwrap();
    loop {
        let asked = Instant::now();
        if asked.duration_since(last) > LEASE {
            let held = lease.is_held();
            let commits = lease
                .commit(|pipe| {
                    pipe.cmd("INCR").arg("written");
                })
                .is_ok();
            let fence = lease.fencing_token().unwrap();
            writeln!(say, "\nafter {held} {commits} {fence}").unwrap();
        }
        last = asked;
        thread::sleep(2 * MS);
    }
}

/// Adopts the lock `b` with the token that its holder has put into the environment.
#[test]
#[ignore = "run by another test, in its own process"]
fn adopts_and_writes() {
    let (Ok(url), Ok(token)) = (env::var(SERVER), env::var(TOKEN)) else {
        return;
    };
    let locks = crate::connect(&url).with(crate::options().lease(LEASE));
    let lease = locks.lock("b").adopt(&token.parse().unwrap()).unwrap();
    let fence = lease.fencing_token().unwrap();
    let until = Instant::now() + LEASE + LEASE / 2;
    while Instant::now() < until {
        lease.check().unwrap();
        thread::sleep(2 * MS);
    }
    lease
        .commit(|pipe| _ = pipe.set("by", fence.get()))
        .unwrap();
    lease.release().unwrap();
}

#[test]
fn another_process_continues_and_releases_what_this_one_has_detached() {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url()).with(crate::options().lease(LEASE));
    let lease = locks.lock("b").acquire(LONG).unwrap();
    let fence = lease.fencing_token().unwrap().get();
    let (token, _) = lease.detach();
    let mut other = Command::new(env::current_exe().unwrap());
    let other = other.args(["--exact", "processes::adopts_and_writes"]);
    let other = other.args(["--ignored", "--nocapture"]);
    let other = other.env(SERVER, server.url());
    let mut other = other.env(TOKEN, token.to_string()).spawn().unwrap();
    // Until then it is renewed past its first end.
    let next = locks.lock("b").acquire(LONG).unwrap();
    let by: Option<u64> = server.connection().unwrap().get("by").unwrap();
    assert!(other.wait().unwrap().success() && by >= Some(fence));
    assert!(next.fencing_token().unwrap().get() > by.unwrap());
}

/// Runs concurrently: each mostly waits.
#[test]
fn waiters_after_a_killed_or_stopped_holder() {
    let cases: [fn(); 2] = [
        after_a_killed_holder_the_next_is_in_within_the_lease,
        a_holder_that_was_stopped_knows_at_once_that_it_has_lost,
    ];
    at_once(cases, |case| case());
}

fn after_a_killed_holder_the_next_is_in_within_the_lease() {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url());
    let holder = Holder::start(&server);
    thread::scope(|scope| {
        let next = scope.spawn(|| {
            let lease = locks.lock("a").acquire(LONG).unwrap();
            (Instant::now(), lease)
        });
        assert!(comes_true(|| locks
            .lock("a")
            .inspect()
            .unwrap()
            .waiting_here()
            == 1));
        holder.signal("-KILL");
        let killed = Instant::now();
        let (got, _lease) = next.join().unwrap();
        assert!(got - killed < LEASE + SLACK, "{:?}", got - killed);
    });
}

fn a_holder_that_was_stopped_knows_at_once_that_it_has_lost() {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url());
    let mut holder = Holder::start(&server);
    holder.signal("-STOP");
    let next = locks.lock("a").acquire(LONG).unwrap();
    thread::sleep(LEASE);
    holder.signal("-CONT");
    let said = holder.hear("after");
    let words: Vec<_> = said.split(' ').collect();
    assert_eq!(words[..2], ["false", "false"], "held, or wrote");
    let late: u64 = words[2].parse().unwrap();
    assert!(
        late < next.fencing_token().unwrap().get(),
        "the resource refuses it"
    );
    assert!(next.is_held());
    assert!(
        !server
            .connection()
            .unwrap()
            .exists::<_, bool>("written")
            .unwrap()
    );
}

/// It asks before others learn of its release, so it is never refused and cannot know that they
/// wait.
#[test]
fn a_thread_that_reacquires_at_once_lets_other_processes_in() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let [one, others] = [(); 2].map(|()| crate::connect(&server.url()));
        let comes_again = AtomicBool::new(true);
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let lock = one.lock("a");
                while comes_again.load(Ordering::SeqCst) {
                    let lease = lock.acquire(LONG).unwrap();
                    thread::sleep(MS / 2);
                    lease.release().unwrap();
                }
            });
            for _ in 0..3 {
                let asked = Instant::now();
                let got = others.lock("a").acquire(LONG);
                let waited = asked.elapsed();
                drop(got.unwrap());
                // Long enough for the server's record of the last turns to expire.
                thread::sleep(1_200 * MS);
                if waited > 350 * MS + SLACK {
                    comes_again.store(false, Ordering::SeqCst);
                    panic!("waited for {waited:?}");
                }
            }
            comes_again.store(false, Ordering::SeqCst);
            thread.join().unwrap();
        });
    });
}

/// The first thread-local is destroyed last, after the library's own.
#[test]
fn a_lock_is_acquired_and_released_in_the_destructor_of_a_thread_local() {
    let server = Server::start().unwrap();
    let ended = Command::new(env::current_exe().unwrap())
        .args(["--exact", "processes::acquires_in_a_destructor"])
        .args(["--ignored", "--nocapture"])
        .env(SERVER, server.url())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{said}{complaint}");
    let mut conn = server.connection().unwrap();
    let done: Vec<String> = conn.lrange("done", 0, -1).unwrap();
    assert_eq!(
        done,
        ["mutex", "reentrant", "read", "write", "semaphore", "bare"]
    );
    assert!(conn.keys::<_, Vec<String>>("lock:*").unwrap().is_empty());
}

#[test]
#[ignore = "run by another test, in its own process"]
fn acquires_in_a_destructor() {
    struct AtTheEnd(Locks, redis::Connection);
    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            for lock in every_kind(&self.0) {
                let holder = lock.acquire(LONG).unwrap();
                let is_named = lock.inspect().unwrap().holders()[0].owner().is_some();
                assert!(is_named || ["read", "bare"].contains(&lock.name()));
                holder.release().unwrap();
                let () = self.1.rpush("done", lock.name()).unwrap();
            }
        }
    }
    thread_local! {
        static AT_THE_END: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
    }
    let Ok(url) = env::var(SERVER) else {
        return;
    };
    let conn = redis::Client::open(&*url)
        .unwrap()
        .get_connection()
        .unwrap();
    thread::spawn(move || {
        let locks = crate::connect(&url);
        AT_THE_END.set(Some(AtTheEnd(locks.clone(), conn)));
        drop(locks.lock("first").acquire(LONG).unwrap());
    })
    .join()
    .unwrap();
}
