//! Faults between workers and the server, made by the proxy that half of the workers use.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{Arm, AtClients, Kind, Make};
use crate::common::proxy::Point;

#[allow(
    clippy::redundant_closure_for_method_calls,
    reason = "a method has one lifetime, a closure any"
)]
pub(super) const KINDS: &[Kind] = &[
    of("cut-before", 600, |at| {
        break_one(at, |point| point.cut_before())
    }),
    of("cut-after", 600, |at| {
        break_one(at, |point| point.cut_after())
    }),
    // The call times out, and the next one opens another connection.
    of("swallow", 1_500, |at| {
        break_one(at, |point| point.swallow())
    }),
    of("half-a-reply", 1_500, |at| {
        break_one(at, |point| point.half_way().swallow())
    }),
    of("cut-in-a-reply", 600, |at| {
        break_one(at, |point| point.half_way().cut_after())
    }),
    of("late-reply", 1_500, |at| {
        let late = Duration::from_millis(at.random.u64(20..450));
        break_one(at, |point| point.delay(late))
    }),
    of("too-late-reply", 2_000, |at| {
        let late = Duration::from_millis(at.random.u64(550..1_200));
        break_one(at, |point| point.delay(late))
    }),
    of("no-reply-at-all", 1_500, |at| {
        break_one(at, |point| point.reply("!garbage\r\n"))
    }),
    of("refused", 600, |at| {
        let errors = [
            "LOADING not yet",
            "NOSCRIPT no such script",
            "TRYAGAIN later",
            "MASTERDOWN no link",
            "CLUSTERDOWN down",
            "NOREPLICAS none",
            "BUSY a script",
            "ERR unknown",
        ];
        let error = errors[at.random.usize(..errors.len())];
        break_one(at, |point| point.refuse(error))
    }),
];

const fn of(name: &'static str, disturbs: u64, arm: Arm) -> Kind {
    Kind {
        name,
        announces: &[],
        disturbs,
        fails_over: false,
        make: Make::AtProxy(arm),
    }
}

/// Breaks one of the next commands with this name.
fn break_one(at: &mut AtClients<'_>, how: impl FnOnce(Point<'_>)) -> Arc<AtomicBool> {
    let commands = [
        "EVALSHA", "EVALSHA", "EVALSHA", "EXEC", "SET", "WATCH", "CLIENT",
    ];
    let command = commands[at.random.usize(..commands.len())];
    let nth = at.random.usize(1..6);
    let came = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&came);
    let Some(proxy) = at.proxy else {
        return came;
    };
    // The proxy counts traffic for the tests: discard that here to save memory.
    proxy.traffic_of(|| ());
    proxy
        .at(command)
        .nth(nth)
        .run(move || flag.store(true, Ordering::SeqCst));
    how(proxy.at(command).nth(nth));
    came
}
