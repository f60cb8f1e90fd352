//! The program of a server: one on the PATH, or the one that `.ci/setup` has fetched.

use std::{
    env,
    process::Command,
    sync::{Mutex, PoisonError},
};

use anyhow::Context;

/// The variable that names another binary.
const BINARY: &str = "LEASEHOLD_REDIS_SERVER";

/// The server binary, checked to be a real one: a crate installs a toy under the same name.
pub(crate) fn find_binary() -> anyhow::Result<String> {
    let candidates = match env::var(BINARY) {
        Ok(named) => vec![named],
        Err(_) => ["redis-server", "valkey-server"]
            .map(str::to_owned)
            .into_iter()
            .chain(fetched())
            .collect(),
    };
    candidates
        .into_iter()
        .find(|candidate| is_real(candidate))
        .context("no redis-server or valkey-server on the PATH: run .ci/setup, or install the package redis-server, redis or valkey")
}

/// Where `.ci/setup` puts a server that no package manager could install: into the folder of
/// Cargo's output, in which this program is too.
fn fetched() -> Option<String> {
    let program = env::current_exe().ok()?;
    let found = program
        .ancestors()
        .map(|folder| folder.join("servers/redis-server"))
        .find(|server| server.exists())?;
    found.into_os_string().into_string().ok()
}

/// Cached per process: to ask for the version takes as long as to start the server.
fn is_real(binary: &str) -> bool {
    static REAL: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut real = REAL.lock().unwrap_or_else(PoisonError::into_inner);
    if real.iter().any(|known| known == binary) {
        return true;
    }
    let is_real = says_that_it_is(binary);
    if is_real {
        real.push(binary.to_owned());
    }
    is_real
}

fn says_that_it_is(binary: &str) -> bool {
    let Ok(output) = Command::new(binary).arg("--version").output() else {
        return false;
    };
    let version = String::from_utf8_lossy(&output.stdout);
    version.starts_with("Redis server v=") || version.starts_with("Valkey server v=")
}
