//! The connections of a worker to its servers.

use leasehold::{Locks, Nodes, Pool, PooledConnection, Result, Watchdog, redis::Connection};

use super::{IO_TIMEOUT, Plan};
use crate::options::Topology;

/// A pool for one server or the current master, or one for each shard.
#[derive(Clone)]
pub(crate) enum Reach {
    Pool(Pool),
    Nodes(Nodes),
}

/// The connection of a plain job: its own for a while, or in a cluster the right shard for each
/// call.
pub(crate) enum Lent {
    Connection(Box<PooledConnection>),
    Nodes(Nodes, &'static str),
}

impl Reach {
    pub(super) fn of(plan: &Plan) -> Result<Self> {
        if plan.topology == Topology::Cluster {
            let nodes = Pool::builder()
                .max_size(plan.pool)
                .io_timeout(IO_TIMEOUT)
                .connect_timeout(IO_TIMEOUT);
            return nodes.connect_nodes(&plan.url).map(Self::Nodes);
        }
        let pool = Pool::builder()
            .max_size(plan.pool)
            .io_timeout(IO_TIMEOUT)
            .connect_timeout(IO_TIMEOUT);
        pool.connect(&plan.url).map(Self::Pool)
    }

    pub(super) fn locks(&self) -> Result<Locks> {
        match self {
            Self::Pool(pool) => Locks::new(pool),
            Self::Nodes(nodes) => Ok(Locks::on_nodes(nodes)),
        }
    }

    pub(super) fn watchdog(&self) -> Result<Watchdog> {
        match self {
            Self::Pool(pool) => Watchdog::new(pool),
            Self::Nodes(nodes) => Ok(Watchdog::on_nodes(nodes)),
        }
    }

    /// Returns a connection to the server of a lock.
    pub(super) fn connection(&self, lock: &str) -> Result<PooledConnection> {
        match self {
            Self::Pool(pool) => pool.get(),
            Self::Nodes(nodes) => nodes.get_for(lock),
        }
    }

    pub(super) fn lend(&self, lock: &'static str) -> Result<Lent> {
        Ok(match self {
            Self::Pool(pool) => Lent::Connection(Box::new(pool.get()?)),
            Self::Nodes(nodes) => Lent::Nodes(nodes.clone(), lock),
        })
    }
}

impl Lent {
    /// Calls one function.
    pub(super) fn run<T>(
        &mut self,
        function: impl FnMut(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        let mut function = function;
        match self {
            Self::Connection(conn) => function(conn),
            Self::Nodes(nodes, lock) => nodes.run(lock, function),
        }
    }
}
