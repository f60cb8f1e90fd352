//! Processes elect a leader: one is killed, one is stopped and continues, one is told to exit.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant, SystemTime},
};

use crate::common::{
    SLACK, Server, example,
    server::signal,
    wait::{comes_true, unless_halted},
};

const LEASE: Duration = Duration::from_secs(3);
const SECOND: Duration = Duration::from_secs(1);

/// A process of the example, killed when this value is dropped.
struct Process {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Starts a process and waits until it waits for the lock.
    fn start(server: &Server) -> Self {
        let mut program = example("leader");
        let program = program.arg(server.url()).stdout(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&said);
        thread::spawn(move || {
            for line in lines {
                hears.lock().unwrap().push(line.unwrap());
            }
        });
        let process = Self { child, said };
        assert!(comes_true(|| process.has_said("waiting")));
        process
    }

    /// How another process finds it while it leads.
    fn address(&self) -> String {
        let process = self.child.id();
        format!("the leader is at http://127.0.0.1:8080/{process}")
    }

    fn signal(&self, name: &str) -> Instant {
        signal(self.child.id(), name).unwrap();
        Instant::now()
    }

    fn has_said(&self, start: &str) -> bool {
        let said = self.said.lock().unwrap();
        said.iter().any(|line| line.starts_with(start))
    }

    /// The times at which it claimed to lead.
    fn leads_at(&self) -> Vec<u64> {
        let said = self.said.lock().unwrap();
        let times = said.iter().filter_map(|line| {
            let time = line.strip_prefix("leading at ")?;
            time.strip_suffix(" ms")?.parse().ok()
        });
        times.collect()
    }

    fn leads_after(&self, time: u64) -> bool {
        self.leads_at().last().is_some_and(|last| *last > time)
    }

    fn ends_well(&mut self) {
        let ended = self.child.wait().unwrap();
        assert!(ended.success(), "{ended}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn now() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

#[test]
fn another_process_leads_after_the_leader_is_killed_halted_or_terminated() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let a = Process::start(&server);
        assert!(comes_true(|| a.has_said("leading at")));

        let b = Process::start(&server);
        assert!(b.has_said(&a.address()));
        let killed = a.signal("KILL");
        assert!(comes_true(|| b.has_said("leading at")));
        let after = killed.elapsed();
        assert!(after < LEASE + SECOND + SLACK, "{after:?} after the kill");

        let mut c = Process::start(&server);
        let halted = b.signal("STOP");
        assert!(comes_true(|| c.has_said("leading at")));
        let after = halted.elapsed();
        assert!(after < LEASE + SECOND + SLACK, "{after:?} after the halt");
        b.signal("CONT");
        assert!(comes_true(|| b.has_said("no longer leading: ")));
        let goes_on = now();
        assert!(comes_true(|| c.leads_after(goes_on)));

        let told = c.signal("TERM");
        assert!(comes_true(|| b.leads_after(goes_on)));
        let after = told.elapsed();
        assert!(after < SECOND + SLACK, "{after:?} after it was told to end");
        c.ends_well();
        assert!(comes_true(|| c.has_said("handed over")));

        // A waiting process exits too.
        let mut d = Process::start(&server);
        d.signal("TERM");
        d.ends_well();
        assert_eq!(*d.said.lock().unwrap(), [b.address().as_str(), "waiting"]);

        let processes = [('a', &a), ('b', &b), ('c', &c)];
        let leads_at = |(name, process): (char, &Process)| {
            let times = process.leads_at().into_iter();
            times.map(move |time| (time, name)).collect::<Vec<_>>()
        };
        let mut leaders: Vec<_> = processes.into_iter().flat_map(leads_at).collect();
        leaders.sort_unstable();
        let mut turns: Vec<_> = leaders.iter().map(|(_, name)| *name).collect();
        turns.dedup();
        assert_eq!(turns, ['a', 'b', 'c', 'b'], "{leaders:?}");
    });
}
