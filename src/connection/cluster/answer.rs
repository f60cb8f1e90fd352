//! What a node says of the cluster: who serves what, and at which configuration.

use super::layout::{Address, Group, Layout};

/// The answer of one node.
pub(super) struct Answer {
    pub(super) layout: Layout,
    config_epoch: Option<u64>,
    /// By its own word it does not reach most of the masters, or does not serve.
    pub(super) is_cut_off: bool,
}

impl Answer {
    /// By `CLUSTER INFO`, if the node may be asked for it.
    pub(super) fn new(layout: Layout, info: Option<&str>) -> Self {
        let found = |name| {
            let mut lines = info.unwrap_or_default().lines();
            lines
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
        };
        let epoch = found("cluster_current_epoch:").and_then(|epoch| epoch.parse().ok());
        Self {
            layout,
            config_epoch: epoch,
            is_cut_off: found("cluster_state:") == Some("fail"),
        }
    }

    /// It reaches most of the masters, and serves.
    pub(super) fn is_well(&self) -> bool {
        !self.is_cut_off
    }

    /// Which configuration it is, where this is the newest that was heard of. A replica that is cut off from the others counts one
    /// further with each election that it holds and nobody answers: its count is not that of the cluster, and would have the others
    /// refused as older.
    pub(super) fn config_epoch(&self, newest: u64) -> Option<u64> {
        let epoch = self.config_epoch?;
        Some(if self.is_well() {
            epoch
        } else {
            epoch.min(newest)
        })
    }

    /// Where the nodes are that it names.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let nodes = self.layout.iter();
        let nodes = nodes.flat_map(|group: &Group| group.replicas.iter().chain([&group.master]));
        nodes.filter_map(|node| node.address.clone()).collect()
    }

    /// Of two answers that are not believed at once that of a node that is well is the better one, then that of the newer configuration,
    /// and then the one that says more.
    pub(super) fn worth(&self) -> (bool, Option<u64>, usize) {
        let slots = (self.layout.iter()).flat_map(|group| group.slots.iter().cloned().flatten());
        (self.is_well(), self.config_epoch, slots.count())
    }
}
