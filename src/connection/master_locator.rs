//! Where a connection leads, if that can change: to the master that sentinels name, or to that of a
//! shard of a cluster.

use std::time::{Duration, Instant};

use crate::{error::Result, time::Deadline};

/// Who says where the master is.
pub(super) trait MasterLocator: Send + Sync {
    /// Where the master is. Asks if that is in doubt. Ends by the deadline.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool): nobody has said anything that can be believed.
    fn look(&self, deadline: Deadline) -> Result<MasterPlace>;

    /// Grows when another server has become the master: a connection of an earlier epoch must not
    /// be used again.
    fn epoch(&self) -> u64;

    /// The connection to this place was opened, and it is a master.
    fn confirm(&self, epoch: u64);

    /// A connection to the master has failed, or has led to a server that is no master.
    fn doubt(&self);

    /// The master has too few replicas: they may follow another by now.
    fn is_left_by_replicas(&self) {}

    /// No connection could be opened to the master of this epoch, or the server there is none.
    fn not_reached(&self, _epoch: u64) {
        self.doubt();
    }

    /// A key was not where it was looked for: where there are shards, another one may have it.
    fn moved(&self) {}

    /// Looks whether another server has become the master, if nobody has for so long.
    fn check(&self, unless_within: Duration);

    /// Hears whether another server has become the master, where that is announced. Takes a moment.
    fn listen(&self) {}

    /// When the first lock may be asked for on this master, if it has taken the place of another.
    fn grants_from(&self) -> Option<Instant> {
        None
    }

    /// Which master this is, in words.
    fn whom(&self) -> String;
}

/// Where a connection leads.
#[derive(Clone, Debug)]
pub(super) struct MasterPlace {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) epoch: u64,
}
