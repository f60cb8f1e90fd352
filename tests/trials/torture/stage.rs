//! The setting of a round: its servers, a resource, and a folder for all records.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use leasehold::redis::{Client, Connection, cmd};
use tempfile::TempDir;

use crate::{
    common::{
        Proxy, Server,
        server::{find_binary, free_port},
    },
    left::server_logs,
    options::Topology,
    role::{Part, Role},
    servers::Servers,
};

/// The time limit of an operator's command.
const PATIENCE: Duration = Duration::from_millis(400);
/// The time limit of the checks' connections.
const JUDGE: Duration = Duration::from_secs(10);
/// The client name of operators' connections.
pub(crate) const OPERATOR: &str = "operator";
/// The folder of the server's write log, inside its own.
pub(crate) const LOG: &str = "appendonlydir";

/// A library that shifts the server's clock by the microseconds in a file.
const CLOCK: &str = include_str!("clock.c");
const CLIENT_CLOCK: &str = include_str!("client_clock.c");

pub(crate) struct Stage {
    pub(crate) servers: Servers,
    /// In front of the one server.
    pub(crate) proxy: Option<Proxy>,
    pub(crate) resource_port: u16,
    pub(crate) has_clock: bool,
    _resource: Part,
    /// Deleted last.
    pub(crate) folder: TempDir,
}

impl Stage {
    /// Sets the stage. `with_clock`: the clock of the one server can be set, if there is a C
    /// compiler.
    pub(crate) fn set(
        topology: Topology,
        replicas: usize,
        with_clock: bool,
        resource_accepts_everything: bool,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("torture-").tempdir()?;
        let has_clock = with_clock && build_clock(&folder)?;
        let (servers, proxy) = match topology {
            Topology::One => {
                let server = start_one(&folder, has_clock)?;
                let proxy = Proxy::in_front_of(&server)?;
                (Servers::One(server), Some(proxy))
            }
            _ => (Servers::several(topology, replicas)?, None),
        };
        let mut resource = Role::Resource {
            accepts_everything: resource_accepts_everything,
        }
        .start()?;
        let mut port = String::new();
        let says = resource.0.stdout.take().context("no stdout")?;
        BufReader::new(says).read_line(&mut port)?;
        Ok(Self {
            servers,
            proxy,
            resource_port: port.trim().parse()?,
            has_clock,
            _resource: resource,
            folder,
        })
    }

    /// Opens a checker's connection to the server that has this key.
    pub(crate) fn judge(&self, key: &str) -> anyhow::Result<Connection> {
        patient(self.servers.master_of(key)?)
    }

    /// Opens one to each server that has keys of its own.
    pub(crate) fn judges(&self) -> anyhow::Result<Vec<Connection>> {
        self.servers.masters().into_iter().map(patient).collect()
    }

    /// Returns the write logs, one per server.
    pub(crate) fn logs(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        let Servers::One(_) = &self.servers else {
            let each = self.servers.all().into_iter();
            let logs: Vec<_> = each
                .map(|server| server_logs(server.directory()))
                .collect::<anyhow::Result<_>>()?;
            return Ok(logs.into_iter().flatten().collect());
        };
        server_logs(&self.folder.path().join("data"))
    }
}

fn patient(server: &Server) -> anyhow::Result<Connection> {
    let conn = Client::open(server.url())?.get_connection_with_timeout(JUDGE)?;
    conn.set_read_timeout(Some(JUDGE))?;
    Ok(conn)
}

fn start_one(folder: &TempDir, has_clock: bool) -> anyhow::Result<Server> {
    let data = folder.path().join("data");
    fs::create_dir(&data)?;
    let program = wrapper(folder, has_clock)?;
    let data = data.to_string_lossy().into_owned();
    Server::start_by(
        &program,
        free_port,
        &[
            ["--dir", &data],
            ["--appendonly", "yes"],
            // The server writes the log before each answer, so that a kill loses nothing.
            ["--appendfsync", "no"],
            ["--auto-aof-rewrite-percentage", "0"],
            ["--enable-debug-command", "local"],
        ]
        .concat(),
    )
}

pub(crate) fn operator(url: &str) -> anyhow::Result<Connection> {
    let mut conn = Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
    conn.set_read_timeout(Some(PATIENCE))?;
    conn.set_write_timeout(Some(PATIENCE))?;
    cmd("CLIENT").arg(&["SETNAME", OPERATOR]).exec(&mut conn)?;
    Ok(conn)
}

/// Returns the server's command, in a shell that turns a full disk into an error instead of a
/// signal.
fn wrapper(folder: &TempDir, has_clock: bool) -> anyhow::Result<String> {
    let binary = find_binary()?;
    let path = folder.path().join("server");
    let preload = if has_clock {
        let at = folder.path().display();
        format!("LD_PRELOAD={at}/clock.so TORTURE_CLOCK={at}/clock ")
    } else {
        String::new()
    };
    let script = format!("#!/bin/sh\ntrap '' XFSZ\n{preload}exec {binary} \"$@\"\n");
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Returns true if the library was built.
fn build_clock(folder: &TempDir) -> anyhow::Result<bool> {
    fs::write(folder.path().join("clock"), 0_i64.to_ne_bytes())?;
    Ok(build(folder, "clock", CLOCK)?.is_some())
}

/// Builds the library that changes the rate of a worker's clock. `None` without a C compiler.
pub(crate) fn build_client_clock(folder: &TempDir) -> anyhow::Result<Option<PathBuf>> {
    build(folder, "client-clock", CLIENT_CLOCK)
}

fn build(folder: &TempDir, name: &str, text: &str) -> anyhow::Result<Option<PathBuf>> {
    let [source, library] = ["c", "so"].map(|end| folder.path().join(format!("{name}.{end}")));
    fs::write(&source, text)?;
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let built = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(&source)
        .output();
    let Ok(built) = built else {
        return Ok(None);
    };
    ensure!(
        built.status.success(),
        "cannot compile the clock library: {}",
        String::from_utf8_lossy(&built.stderr)
    );
    Ok(Some(library))
}
