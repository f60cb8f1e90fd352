//! One sentinel process.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;
use redis::Connection;
use tempfile::TempDir;

use super::{FORM_LIMIT, MASTER, Plan};
use crate::common::server::{Port, find_binary, free_port, signal};

/// A running sentinel.
pub struct Sentinel {
    process: Child,
    port: Port,
    password: Option<&'static str>,
    _directory: TempDir,
}

impl Sentinel {
    pub(super) fn start(master: u16, plan: Plan) -> anyhow::Result<Self> {
        let binary = find_binary()?;
        for _ in 0..20 {
            let (port, directory) = (free_port()?, tempfile::tempdir()?);
            let file = directory.path().join("sentinel.conf");
            let down_after = plan.down_after.as_millis();
            let password = (plan.password).map(|password| format!("requirepass {password}\n"));
            let settings = format!(
                "port {port}\nbind 127.0.0.1\nlogfile \"\"\nprotected-mode no\ndir {}\n\
                 sentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
                 sentinel down-after-milliseconds {MASTER} {down_after}\n\
                 sentinel failover-timeout {MASTER} 2000\n\
                 sentinel parallel-syncs {MASTER} 8\n{}",
                directory.path().display(),
                password.unwrap_or_default()
            );
            fs::write(&file, settings)?;
            let process = Command::new(&binary)
                .arg(&file)
                .arg("--sentinel")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            let mut sentinel = Self {
                process,
                port,
                password: plan.password,
                _directory: directory,
            };
            if sentinel.wait_until_ready()? {
                return Ok(sentinel);
            }
        }
        bail!("{binary} does not start as a sentinel: run it by hand to see why")
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// An authenticated connection.
    pub fn connection(&self) -> anyhow::Result<Connection> {
        let user = self
            .password
            .map_or(String::new(), |password| format!(":{password}@"));
        let url = format!("redis://{user}127.0.0.1:{}/", self.port);
        let limit = Duration::from_secs(1);
        let conn = redis::Client::open(url)?.get_connection_with_timeout(limit)?;
        conn.set_read_timeout(Some(limit))?;
        Ok(conn)
    }

    /// Stops the process until [`thaw`](Self::thaw).
    pub fn freeze(&self) -> anyhow::Result<()> {
        signal(self.process.id(), "STOP")
    }

    pub fn thaw(&self) -> anyhow::Result<()> {
        signal(self.process.id(), "CONT")
    }

    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// The port of the master that this sentinel reports.
    pub fn port_of_master(&self) -> anyhow::Result<u16> {
        let (_, port): (String, u16) = redis::cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(MASTER)
            .query(&mut self.connection()?)?;
        Ok(port)
    }

    pub(super) fn replicas_are_well(&self) -> anyhow::Result<bool> {
        let replicas: Vec<Vec<String>> = redis::cmd("SENTINEL")
            .arg("REPLICAS")
            .arg(MASTER)
            .query(&mut self.connection()?)?;
        let is_well = |replica: &Vec<String>| {
            let field = |name: &str| {
                let at = replica.iter().position(|field| field == name);
                at.and_then(|at| replica.get(at + 1)).map(String::as_str)
            };
            field("flags") == Some("slave") && field("master-link-status") == Some("ok")
        };
        Ok(replicas.iter().all(is_well))
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<bool> {
        let started = Instant::now();
        while started.elapsed() < FORM_LIMIT {
            if self.process.try_wait()?.is_some() {
                return Ok(false);
            }
            let asked = self.connection().and_then(|mut conn| {
                Ok(redis::cmd("INFO")
                    .arg("server")
                    .query::<String>(&mut conn)?)
            });
            let own = format!("process_id:{}\r\n", self.process.id());
            if asked.is_ok_and(|info| info.contains(&own)) {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(5));
        }
        bail!("a sentinel did not answer within {FORM_LIMIT:?}")
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
