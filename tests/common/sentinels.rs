//! One master, its replicas, and three sentinels that monitor them, on this machine, stopped on
//! drop.

mod sentinel;

use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use redis::{Connection, Value};

use super::{Gate, Server};
pub use sentinel::Sentinel;

/// The sentinels' name for the master.
pub const MASTER: &str = "mymaster";
const SENTINELS: usize = 3;
/// The longest time for the group to form on a busy machine.
const FORM_LIMIT: Duration = Duration::from_mins(2);
const FAILOVER_LIMIT: Duration = Duration::from_secs(20);

/// The options of a group.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of servers, including the master.
    pub servers: usize,
    /// Clients, replicas and sentinels connect to the servers through gates.
    pub gated: bool,
    /// A master that is silent for this long is considered dead.
    pub down_after: Duration,
    /// The password of the sentinels.
    pub password: Option<&'static str>,
    /// Additional server settings.
    pub settings: &'static [&'static str],
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            servers: 2,
            gated: false,
            down_after: Duration::from_millis(500),
            password: None,
            settings: &[],
        }
    }
}

/// Servers and the sentinels that monitor them.
pub struct Sentinels {
    pub servers: Vec<Server>,
    /// One per server, or empty.
    pub gates: Vec<Gate>,
    pub watching: Vec<Sentinel>,
}

impl Sentinels {
    /// One master and one replica.
    pub fn start() -> anyhow::Result<Self> {
        Self::planned(Plan::default())
    }

    /// Starts the group and waits until all know each other: about two seconds, the interval at
    /// which sentinels announce themselves. The first server is the master.
    pub fn planned(plan: Plan) -> anyhow::Result<Self> {
        let (mut servers, mut gates) = (Vec::new(), Vec::new());
        for _ in 0..plan.servers {
            let settings = [&["--repl-diskless-sync-delay", "0"], plan.settings].concat();
            let server = Server::start_with(&settings)?;
            if plan.gated {
                let gate = Gate::before(server.port())?;
                announce(&server, &gate)?;
                gates.push(gate);
            }
            servers.push(server);
        }
        let mut group = Self {
            servers,
            gates,
            watching: Vec::new(),
        };
        for replica in &group.servers[1..] {
            redis::cmd("REPLICAOF")
                .arg("127.0.0.1")
                .arg(group.announced(0))
                .exec(&mut replica.connection()?)?;
        }
        group.wait_until_replicated()?;
        for _ in 0..SENTINELS {
            let sentinel = Sentinel::start(group.announced(0), plan)?;
            group.watching.push(sentinel);
        }
        let started = Instant::now();
        while !group.know_each_other() {
            if started.elapsed() > FORM_LIMIT {
                bail!("the sentinels have not found each other within {FORM_LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(group)
    }

    /// `redis+sentinel://127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT/mymaster`
    pub fn url(&self) -> String {
        let hosts: Vec<_> = (self.watching.iter())
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port()))
            .collect();
        format!("redis+sentinel://{}/{MASTER}", hosts.join(","))
    }

    /// The port that a server announces.
    pub fn announced(&self, server: usize) -> u16 {
        match self.gates.get(server) {
            Some(gate) => gate.port(),
            None => self.servers[server].port(),
        }
    }

    /// The server that most sentinels report as the master.
    pub fn master(&self) -> anyhow::Result<usize> {
        let mut votes = vec![0; self.servers.len()];
        for sentinel in &self.watching {
            if let Ok(port) = sentinel.port_of_master()
                && let Some(server) = (0..votes.len()).find(|at| self.announced(*at) == port)
            {
                votes[server] += 1;
            }
        }
        let most = (0..votes.len()).max_by_key(|at| votes[*at]);
        most.filter(|at| votes[*at] * 2 > SENTINELS)
            .context("the sentinels do not agree on the master")
    }

    /// Performs a planned failover and returns the new master.
    pub fn fail_over(&self) -> anyhow::Result<usize> {
        Ok(self.fail_over_since()?.1)
    }

    /// Also returns the time of the request. On a busy machine no replica may qualify at first;
    /// then it requests again.
    pub fn fail_over_since(&self) -> anyhow::Result<(Instant, usize)> {
        let before = self.master()?;
        for _ in 0..4 {
            let asked = Instant::now();
            self.ask_for_failover()?;
            if let Some(next) = self.promoted_within(before, FAILOVER_LIMIT / 4) {
                return Ok((asked, next));
            }
        }
        bail!("no replica was promoted after four requests")
    }

    /// Requests a planned failover, which takes about a second.
    pub fn ask_for_failover(&self) -> anyhow::Result<()> {
        let asked = Instant::now();
        loop {
            let mut conn = self.watching[0].connection()?;
            let answer = redis::cmd("SENTINEL")
                .arg("FAILOVER")
                .arg(MASTER)
                .exec(&mut conn);
            match answer {
                Ok(()) => return Ok(()),
                // No replica qualifies yet, or another failover is in progress.
                Err(_) if asked.elapsed() < FAILOVER_LIMIT => {
                    thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until a server other than `before` reports that it is a master, and returns it.
    pub fn promoted_after(&self, before: usize) -> anyhow::Result<usize> {
        let next = self.promoted_within(before, FAILOVER_LIMIT);
        next.with_context(|| format!("no other server became the master within {FAILOVER_LIMIT:?}"))
    }

    fn promoted_within(&self, before: usize, limit: Duration) -> Option<usize> {
        let asked = Instant::now();
        while asked.elapsed() < limit {
            for (at, server) in self.servers.iter().enumerate() {
                if at != before && server.is_master() {
                    return Some(at);
                }
            }
            thread::sleep(Duration::from_millis(2));
        }
        None
    }

    /// Waits until a sentinel reports a master other than `before`, and returns the time.
    pub fn another_is_named(&self, before: usize) -> anyhow::Result<Instant> {
        let (asked, port) = (Instant::now(), self.announced(before));
        while asked.elapsed() < FAILOVER_LIMIT {
            let names_another = |sentinel: &Sentinel| {
                let named = sentinel.port_of_master();
                named.is_ok_and(|named| named != port)
            };
            if self.watching.iter().any(names_another) {
                return Ok(Instant::now());
            }
            thread::sleep(Duration::from_millis(2));
        }
        bail!("no sentinel names another master within {FAILOVER_LIMIT:?}")
    }

    /// Waits until most sentinels report this master.
    pub fn wait_until_known(&self, master: usize) -> anyhow::Result<()> {
        let asked = Instant::now();
        while asked.elapsed() < FAILOVER_LIMIT {
            if self.master().is_ok_and(|known| known == master) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("the sentinels do not name the new master within {FAILOVER_LIMIT:?}")
    }

    /// Makes the sentinels query the servers every second instead of every ten, if they can be
    /// configured so: they recognize a restarted server as a replica sooner. A failover takes as
    /// long as before.
    pub fn look_often(&self) -> anyhow::Result<()> {
        for sentinel in &self.watching {
            let mut often = redis::cmd("SENTINEL");
            often.arg("DEBUG").arg("INFO-PERIOD").arg(1_000);
            let _ = often.exec(&mut sentinel.connection()?);
        }
        Ok(())
    }

    /// After a failover: restarts the servers that are down, makes all others replicate the master,
    /// and waits until the sentinels know them.
    pub fn revive(&mut self) -> anyhow::Result<()> {
        let asked = Instant::now();
        let master = loop {
            match self.master() {
                Ok(master) if self.servers[master].is_master() => break master,
                _ if asked.elapsed() > FAILOVER_LIMIT => bail!("there is no master"),
                _ => thread::sleep(Duration::from_millis(20)),
            }
        };
        let port = self.announced(master);
        for at in (0..self.servers.len()).filter(|at| *at != master) {
            if self.servers[at].connection().is_err() {
                self.servers[at].restart()?;
                if let Some(gate) = self.gates.get(at) {
                    announce(&self.servers[at], gate)?;
                }
            }
            let mut conn = self.servers[at].connection()?;
            redis::cmd("REPLICAOF")
                .arg("127.0.0.1")
                .arg(port)
                .exec(&mut conn)?;
        }
        self.wait_until_whole()
    }

    /// Waits until every other server is a replica in sync with the master, and known as such to
    /// all sentinels: only then can it be promoted.
    pub fn wait_until_whole(&self) -> anyhow::Result<()> {
        let (asked, mut marks) = (Instant::now(), Marks::default());
        while asked.elapsed() < 2 * FAILOVER_LIMIT {
            if self.is_whole(&mut marks).unwrap_or(false) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
        bail!(
            "the group is not whole again within {:?}",
            2 * FAILOVER_LIMIT
        )
    }

    fn is_whole(&self, marks: &mut Marks) -> anyhow::Result<bool> {
        let master = self.master()?;
        let mut conn = self.servers[master].connection()?;
        let in_step = marks.in_step(master, &mut conn)?;
        Ok(self.servers[master].is_master()
            && in_step == self.servers.len() - 1
            && self.know_each_other())
    }

    fn wait_until_replicated(&self) -> anyhow::Result<()> {
        let mut master = self.servers[0].connection()?;
        let started = Instant::now();
        while in_step(&mut master)? < self.servers.len() - 1 {
            if started.elapsed() > FORM_LIMIT {
                bail!("the replicas are not in step within {FORM_LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn know_each_other(&self) -> bool {
        let others = |sentinel: &Sentinel| -> anyhow::Result<bool> {
            let mut conn = sentinel.connection()?;
            let known: Vec<String> = redis::cmd("SENTINEL")
                .arg("MASTER")
                .arg(MASTER)
                .query(&mut conn)?;
            let field = |name: &str| {
                let at = known.iter().position(|field| field == name)?;
                known.get(at + 1)?.parse::<usize>().ok()
            };
            let flags = known.iter().position(|field| field == "flags");
            let is_well = flags.is_some_and(|at| known[at + 1] == "master");
            Ok(is_well
                && field("num-other-sentinels") == Some(SENTINELS - 1)
                && field("num-slaves") == Some(self.servers.len() - 1)
                && sentinel.replicas_are_well()?)
        };
        self.watching
            .iter()
            .all(|sentinel| others(sentinel).unwrap_or(false))
    }
}

/// Number of replicas that have all of their master's data.
pub fn in_step(master: &mut Connection) -> anyhow::Result<usize> {
    Marks::default().in_step(0, master)
}

/// The replication offset of each server when first read; it grows while clients write.
#[derive(Default)]
pub struct Marks(HashMap<usize, u64>);

impl Marks {
    /// Number of replicas that have the data that the master had when first read.
    pub fn in_step(&mut self, server: usize, master: &mut Connection) -> anyhow::Result<usize> {
        let info: String = redis::cmd("INFO").arg("replication").query(master)?;
        let now = info.lines().find_map(|line| {
            let offset = line.strip_prefix("master_repl_offset:")?;
            offset.trim().parse::<u64>().ok()
        });
        let now = now.context("INFO without an offset")?;
        let mark = *self.0.entry(server).or_insert(now);
        let is_past = |line: &&str| {
            let offset = line
                .split(',')
                .find_map(|word| word.strip_prefix("offset="));
            let offset = offset.and_then(|offset| offset.parse::<u64>().ok());
            line.contains("state=online") && offset.is_some_and(|offset| offset >= mark)
        };
        Ok(info.lines().filter(is_past).count())
    }
}

/// Makes a new server announce the port of its gate.
fn announce(server: &Server, gate: &Gate) -> anyhow::Result<()> {
    let mut conn = server.connection()?;
    set(&mut conn, "replica-announce-ip", "127.0.0.1")?;
    set(&mut conn, "replica-announce-port", &gate.port().to_string())
}

fn set(conn: &mut Connection, name: &str, value: &str) -> anyhow::Result<()> {
    redis::cmd("CONFIG")
        .arg("SET")
        .arg(name)
        .arg(value)
        .query::<Value>(conn)?;
    Ok(())
}
