//! The commands sent to a server: script calls, pipelines in one round trip, `WATCH` and `WAIT`.

mod closed;
mod exchange;
mod finished;
mod replicas;
mod script;
mod wait;
mod watch;
mod within;

pub(crate) use exchange::{exchange, exchange_each, exchange_partly, is_interrupted, typed, words};
pub(crate) use finished::{Finished, is_from_replica};
pub(crate) use replicas::{MOST_REPLICAS, Replicas};
#[cfg(feature = "testing")]
pub(crate) use script::script_named;
pub(crate) use script::{
    BusyReply, Call, Script, ask, count, fencing_token, is_unknown_script, releasing, scripts,
    yes_or_no,
};
pub(crate) use wait::until_granted;
pub(crate) use watch::{WatchReplies, Watched, command};
pub(crate) use within::{Bounds, Lending, Spares, bounding, within};
