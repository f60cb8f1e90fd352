//! What the examples of the three problems share: a server, and a story told with the time.

#[path = "../../tests/common/server.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "shared with the tests, which use more of it"
)]
pub(crate) mod server;

use std::{
    env,
    time::{Duration, Instant},
};

use leasehold::Pool;
use server::Server;

/// Redis for one example: the one whose URL is the first argument, or a private one.
#[derive(Debug)]
pub(crate) struct Redis {
    pub(crate) pool: Pool,
    pub(crate) url: String,
    _server: Option<Server>,
}

impl Redis {
    pub(crate) fn open() -> anyhow::Result<Self> {
        let server = if env::args().len() > 1 {
            None
        } else {
            Some(Server::start()?)
        };
        let url = match (&server, env::args().nth(1)) {
            (Some(server), _) => server.url(),
            (None, url) => url.unwrap_or_default(),
        };
        Ok(Self {
            pool: Pool::connect(&url)?,
            url,
            _server: server,
        })
    }
}

/// Says who does what, and when.
#[derive(Debug)]
pub(crate) struct Story {
    started: Instant,
}

impl Story {
    pub(crate) fn begin(title: &str) -> Self {
        println!("\n{title}");
        Self {
            started: Instant::now(),
        }
    }

    pub(crate) fn tell(&self, who: &str, what: &str) {
        println!(
            "{:>6} ms  {who:<6}  {what}",
            self.started.elapsed().as_millis()
        );
    }

    /// Waits until so long after the beginning.
    pub(crate) fn wait_until(&self, moment: Duration) {
        std::thread::sleep(moment.saturating_sub(self.started.elapsed()));
    }
}
