//! Shared by the traps and the examples of the three problems: a server, the columns that tell a
//! story, and its history.

pub(crate) mod history;
mod looking;
pub(crate) mod scene;
#[path = "../../tests/common/server.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "shared with the tests, which use more of it"
)]
pub(crate) mod server;

use std::env;

use leasehold::{
    Pool,
    redis::{Client, Connection},
};
use server::Server;

/// Redis for one program: the server at a given URL, or a private one that stops when it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Redis {
    pub(crate) pool: Pool,
    pub(crate) url: String,
    server: Option<Server>,
}

impl Redis {
    /// Uses the URL in the program's first argument, if there is one.
    pub(crate) fn open() -> anyhow::Result<Self> {
        Self::at(env::args().nth(1))
    }

    pub(crate) fn at(url: Option<String>) -> anyhow::Result<Self> {
        let server = if url.is_some() {
            None
        } else {
            Some(Server::start()?)
        };
        let url = url
            .or_else(|| server.as_ref().map(Server::url))
            .unwrap_or_default();
        Ok(Self {
            pool: Pool::connect(&url)?,
            url,
            server,
        })
    }

    /// Returns true if the server is private, so that everything on it may be deleted.
    pub(crate) fn is_private(&self) -> bool {
        self.server.is_some()
    }

    /// Opens a plain connection, as a program without this crate would.
    pub(crate) fn client(&self) -> anyhow::Result<Connection> {
        Ok(Client::open(self.url.as_str())?.get_connection()?)
    }
}
