//! Whatever is done to locks, the stand-in answers as a server does.

use std::{cell::RefCell, time::Duration};

use leasehold::{FencingToken, Inspection, Lease, Lock, Locks, Options, Owner, testing::StandIn};
use proptest::{prelude::*, sample::Index, test_runner::TestRunner};

use crate::{
    common::Server,
    world::{World, told},
};

#[derive(Clone, Copy, Debug)]
enum Kind {
    Mutex,
    Reentrant,
    Read,
    Write,
}

#[derive(Clone, Debug)]
struct Which {
    process: usize,
    kind: Kind,
    name: &'static str,
    hands_over: bool,
}

#[derive(Clone, Debug)]
enum Step {
    TryAcquire(Which),
    Release(Index),
    Verify(Index),
    Renew(Index),
    Leave(Index),
    Inspect(&'static str),
    ForceRelease(&'static str),
    Expire(&'static str),
    Steal(Which),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || prop_oneof![3 => Just("a"), 1 => Just("b")];
    let kind = prop_oneof![
        Just(Kind::Mutex),
        Just(Kind::Reentrant),
        Just(Kind::Read),
        Just(Kind::Write)
    ];
    let which =
        (0..2_usize, kind, name(), any::<bool>()).prop_map(|(process, kind, name, hands_over)| {
            Which {
                process,
                kind,
                name,
                hands_over,
            }
        });
    let which = which.boxed();
    let step = prop_oneof![
        8 => which.clone().prop_map(Step::TryAcquire),
        4 => any::<Index>().prop_map(Step::Release),
        2 => any::<Index>().prop_map(Step::Verify),
        1 => any::<Index>().prop_map(Step::Renew),
        1 => any::<Index>().prop_map(Step::Leave),
        3 => name().prop_map(Step::Inspect),
        1 => name().prop_map(Step::ForceRelease),
        1 => name().prop_map(Step::Expire),
        1 => which.prop_map(Step::Steal),
    ];
    prop::collection::vec(step, 1..40)
}

/// Two processes and what they hold.
struct Run<'w> {
    world: &'w dyn World,
    processes: [Locks; 2],
    held: Vec<Lease>,
    last_fence: u64,
}

impl Run<'_> {
    fn lock(&self, which: &Which) -> Lock {
        let locks = &self.processes[which.process];
        let owner = Owner::new(format!("process {}", which.process)).unwrap();
        let mut options = Options::new().owner(owner);
        if which.hands_over {
            options = options.hand_over(10, Duration::from_secs(1));
        }
        let locks = locks.with(options);
        match which.kind {
            Kind::Mutex => locks.lock(which.name),
            Kind::Reentrant => locks.reentrant(which.name),
            Kind::Read => locks.read(which.name),
            Kind::Write => locks.write(which.name),
        }
    }

    fn take(&mut self, index: Index) -> Option<Lease> {
        if self.held.is_empty() {
            return None;
        }
        let place = index.index(self.held.len());
        Some(self.held.remove(place))
    }

    fn step(&mut self, step: &Step) -> String {
        match step {
            Step::TryAcquire(which) => {
                let came = self.lock(which).try_acquire();
                let outcome = told(&came);
                let Ok(Some(lease)) = came else {
                    return format!("{outcome}, not had");
                };
                let fence = lease.fencing_token().map(FencingToken::get);
                let grew = fence.map(|fence| fence.cmp(&self.last_fence));
                self.last_fence = fence.unwrap_or(0).max(self.last_fence);
                self.held.push(lease);
                format!("had, fencing token {grew:?}")
            }
            Step::Release(index) => match self.take(*index) {
                Some(lease) => told(&lease.release()).to_owned(),
                None => String::new(),
            },
            Step::Leave(index) => match self.take(*index) {
                Some(lease) => {
                    let verified = told(&lease.verify());
                    let is_over = lease.leave().1.is_zero();
                    format!("{verified} {}", is_over || verified == "wrong kind")
                }
                None => String::new(),
            },
            Step::Verify(index) => self.of_one(*index, |lease| told(&lease.verify()).to_owned()),
            Step::Renew(index) => self.of_one(*index, |lease| {
                told(&lease.renew(Duration::from_secs(60))).to_owned()
            }),
            Step::Inspect(name) => {
                let found = self.processes[0].lock(name).inspect().unwrap();
                self.described(&found)
            }
            Step::ForceRelease(name) => {
                let had = self.processes[1].lock(name).force_release().unwrap();
                self.let_losses_be_known(name);
                had.to_string()
            }
            Step::Expire(name) => {
                let had = self.world.expire(name);
                self.let_losses_be_known(name);
                had.to_string()
            }
            Step::Steal(which) => {
                // It takes over the kind that the lock is of, where it is of one.
                let found = self.processes[0].lock(which.name).inspect().unwrap();
                let kind = match found.holders().first() {
                    Some(holder) if holder.count().is_some() => Kind::Reentrant,
                    Some(holder) if holder.is_reader() => Kind::Write,
                    Some(_) if self.processes[0].lock(which.name).try_acquire().is_err() => {
                        Kind::Write
                    }
                    _ => Kind::Mutex,
                };
                let which = Which {
                    kind,
                    ..which.clone()
                };
                self.world.steal(&self.lock(&which));
                self.let_losses_be_known(which.name);
                String::new()
            }
        }
    }

    /// A server tells of a loss after a moment: the next step may depend on it.
    fn let_losses_be_known(&self, name: &str) {
        for lease in self.held.iter().filter(|lease| lease.name() == name) {
            assert!(lease.lost().wait_for(Duration::from_secs(20)));
        }
    }

    fn of_one(&self, index: Index, ask: impl FnOnce(&Lease) -> String) -> String {
        if self.held.is_empty() {
            return String::new();
        }
        ask(index.get(&self.held))
    }

    fn described(&self, found: &Inspection) -> String {
        let holders = found.holders().iter().map(|holder| {
            let ours = |lease: &Lease| holder.token().is_some_and(|token| token == lease.token());
            let ours = self.held.iter().position(ours);
            let fence = holder.fencing_token().map(FencingToken::get);
            let is_its =
                ours.map(|ours| self.held[ours].fencing_token().map(FencingToken::get) == fence);
            format!(
                "{ours:?} fence {is_its:?} owner {:?} count {:?} reader {} ends {} since {}",
                holder.owner(),
                holder.count(),
                holder.is_reader(),
                holder.remaining().is_some_and(|left| left.as_secs() >= 4),
                holder.since().is_some(),
            )
        });
        let mut holders: Vec<_> = holders.collect();
        holders.sort();
        format!(
            "{} {} {holders:?}",
            found.is_foreign(),
            found.waiting_writers()
        )
    }
}

fn transcript(world: &dyn World, processes: [Locks; 2], steps: &[Step]) -> Vec<String> {
    let mut run = Run {
        world,
        processes,
        held: Vec::new(),
        last_fence: 0,
    };
    steps.iter().map(|step| run.step(step)).collect()
}

fn they_agree(cases: u32) {
    let server = RefCell::new(Server::start().unwrap());
    let processes = [(); 2].map(|()| server.borrow().locks());
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
        .run(&steps(), |steps| {
            let mut server = server.borrow_mut();
            server.start_again();
            let real = transcript(&*server, processes.clone(), &steps);
            let other = StandIn::new();
            let others = [(); 2].map(|()| other.locks().unwrap());
            let stand_in = transcript(&other, others, &steps);
            prop_assert_eq!(real, stand_in);
            Ok(())
        })
        .unwrap_or_else(|difference| panic!("{difference}"));
}

#[test]
fn they_answer_alike() {
    they_agree(40);
}

#[test]
#[ignore = "a minute: `cargo test --features testing --test stand_in -- --ignored`"]
fn they_answer_alike_thousands_of_times() {
    they_agree(1_000);
}
