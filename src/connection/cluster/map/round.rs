//! One round of questions to the nodes of a cluster: who is still to be asked, and the answers that were not believed when they came.

use std::collections::{HashSet, VecDeque};

use redis::Connection;

use super::silent;
use crate::{
    connection::cluster::{answer::Answer, layout::Address},
    error::Error,
};

/// When so many nodes do not reach most of the masters, the rest is not asked.
pub(super) const CUT_OFF: usize = 5;

/// What a node has answered, its address, and the connection on which it came.
pub(super) type Heard = (Answer, Address, Connection);

/// The nodes that are still to be asked, each once.
pub(super) struct Left {
    queue: VecDeque<Address>,
    seen: HashSet<Address>,
}

impl Left {
    pub(super) fn of(all: Vec<Address>) -> Self {
        let seen = all.iter().cloned().collect();
        let queue = all.into();
        Self { queue, seen }
    }

    pub(super) fn next(&mut self) -> Option<Address> {
        self.queue.pop_front()
    }

    pub(super) fn add(&mut self, named: Vec<Address>) {
        for address in named {
            if self.seen.insert(address.clone()) {
                self.queue.push_back(address);
            }
        }
    }
}

/// Why an answer is not believed.
#[derive(Clone, Copy)]
pub(super) enum Disbelief {
    /// It is of another cluster.
    Strange,
    /// It is of an older configuration.
    Older(&'static str),
    Because(&'static str),
}

/// The answers that were not believed when they came.
#[derive(Default)]
pub(super) struct Refused {
    pub(super) why: Option<Error>,
    /// The best of those that know something of this cluster: with a hole, or of a node that is cut off from most of the masters.
    pub(super) second_best: Option<Heard>,
    /// One of another cluster.
    pub(super) strange: Option<Heard>,
    /// A node of this cluster has answered.
    pub(super) is_one_known: bool,
    /// So many nodes have said that they do not reach most of the masters.
    pub(super) cut_off: usize,
    /// Nobody had asked for so long that nobody relies on what is known.
    pub(super) is_forgotten: bool,
}

impl Refused {
    pub(super) fn enter(&mut self, heard: Heard, why: Disbelief) {
        let (Disbelief::Because(reason) | Disbelief::Older(reason)) = why else {
            self.why = Some(silent("they are of another cluster", None));
            // A node of the URL, which was none of this cluster, counts less: these are asked last.
            let kept = self.strange.as_ref().map(|(kept, ..)| kept.is_well());
            if kept.is_none_or(|is_well| !is_well && heard.0.is_well()) {
                self.strange = Some(heard);
            }
            return;
        };
        self.cut_off += usize::from(heard.0.is_cut_off);
        self.why = Some(silent(reason, None));
        if heard.0.layout.is_empty() {
            // It knows of nobody.
            return;
        }
        self.is_one_known = true;
        let names_a_master = heard.0.layout.iter().any(|it| it.master.address.is_some());
        if matches!(why, Disbelief::Older(_)) || !names_a_master {
            return;
        }
        let best = self.second_best.as_ref().map(|(best, ..)| best.worth());
        if best.is_none_or(|best| best < heard.0.worth()) {
            self.second_best = Some(heard);
        }
    }
}
