//! The settings of the pools of a cluster.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::{Client, ConnectionAddr};

use super::{
    Inner, Nodes,
    layout::{Address, AddressMap},
    map::Map,
};
use crate::{
    connection::{dial, process::Process, settings::PoolBuilder, url},
    error::{Error, Result},
};

/// The settings of [`Nodes`], by value.
///
/// ```
/// let nodes = leasehold::Nodes::builder()
///     .max_size(4)
///     .connect("redis+cluster://10.0.0.1:7000,10.0.0.2:7000,10.0.0.3:7000")?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct NodesBuilder {
    pools: PoolBuilder,
    address_map: Option<AddressMap>,
}

impl NodesBuilder {
    /// How many connections there may be to each master, 1 to 10,000. Default 10.
    pub fn max_size(mut self, connections: u32) -> Self {
        self.pools = self.pools.max_size(connections);
        self
    }

    /// How long [`Nodes::get_for`] takes at most: asking the nodes, waiting while all connections
    /// are lent, and connecting; and for how long [`Nodes::run`] tries again after a node's
    /// refusal. A node that cannot be reached is an error at once. 1 ms to 24 h, default 2 s.
    pub fn get_timeout(mut self, timeout: Duration) -> Self {
        self.pools = self.pools.get_timeout(timeout);
        self
    }

    /// As [`PoolBuilder::connect_timeout`]; asking the nodes who has which keys takes no longer
    /// either. 1 ms to 24 h, default 2 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.pools = self.pools.connect_timeout(timeout);
        self
    }

    /// As [`PoolBuilder::io_timeout`]. 1 ms to 24 h, default 2 s.
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.pools = self.pools.io_timeout(timeout);
        self
    }

    /// Where a node is reached from here, by the host and the port that the nodes name: for a
    /// cluster behind network address translation, or in containers; with TLS, where certificates
    /// are for names, or the nodes (`tls-cluster no`) name their ports without TLS. Default: where
    /// they say.
    ///
    /// It has to return the same for the same node each time, for a node that it does not know the
    /// two that it was given, and must not wait for anything. The nodes in the URL are not asked of
    /// it.
    ///
    /// ```
    /// let nodes = leasehold::Nodes::builder()
    ///     .address_map(|host, port| match host {
    ///         "172.18.0.2" => (String::from("redis.example.org"), port + 1_000),
    ///         host => (host.to_owned(), port),
    ///     })
    ///     .connect("redis+cluster://redis.example.org:8000")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn address_map(
        mut self,
        map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static,
    ) -> Self {
        self.address_map = Some(AddressMap(Arc::new(map)));
        self
    }

    /// The nodes of the cluster at a URL as [`Nodes::connect`] takes it. Opens no connection and
    /// waits for nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the URL cannot be read, or for a size or a time-out outside its
    /// limits.
    pub fn connect(self, url: &str) -> Result<Nodes> {
        self.build(&url::nodes_of(url)?)
    }

    /// The nodes of the cluster to which these belong: for settings that a URL has no place for,
    /// such as a private CA. Opens no connection and waits for nothing.
    ///
    /// The first says how to connect to all nodes: password, TLS. Of the others only the address is
    /// used.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and if there is none, or one that is not reached by TCP, or
    /// names another database than 0: a cluster has no other.
    ///
    /// ```
    /// use leasehold::{Nodes, redis::Client};
    ///
    /// let some = ["10.0.0.1", "10.0.0.2"]
    ///     .map(|host| Client::open(format!("redis://:password@{host}:7000/")).unwrap());
    /// let nodes = Nodes::builder().build(&some)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn build(self, nodes: &[Client]) -> Result<Nodes> {
        self.pools.check()?;
        let seeds = nodes.iter().map(address_of).collect::<Result<Vec<_>>>()?;
        let first = nodes.first();
        let first = first.ok_or_else(|| Error::invalid("nodes", "there has to be at least one"))?;
        let client = dial::prepared(first)?;
        let limit = self.pools.longest_attempt();
        Ok(Nodes {
            inner: Arc::new(Inner {
                process: Process::current(),
                map: Arc::new(Map::new(client.clone(), seeds, self.address_map, limit)),
                pools: Mutex::new(HashMap::new()),
                settings: self.pools,
                client,
            }),
        })
    }
}

fn address_of(client: &Client) -> Result<Address> {
    let settings = client.get_connection_info();
    if settings.redis_settings().db() != 0 {
        let reason = "a cluster has no other database than 0";
        return Err(Error::invalid("nodes", reason));
    }
    match settings.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Ok(Address::new(host, *port))
        }
        _ => Err(Error::invalid("nodes", "they have to be reached by TCP")),
    }
}
