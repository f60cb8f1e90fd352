//! For random operations on locks, the stand-in answers like a server.

use std::{
    cell::{Cell, RefCell},
    sync::atomic::{AtomicU32, Ordering},
};

use leasehold::{Locks, testing::StandIn};
use proptest::{prelude::*, test_runner::TestRunner};

use crate::{
    common::{Server, wait::at_once},
    run::transcript,
    steps::{Step, steps},
    world::World,
};

/// On a busy machine a lease may expire by chance.
const TRIES: u32 = 5;

struct Both {
    server: Server,
    processes: [Locks; 2],
}

/// The transcripts of a server and of the stand-in.
type Transcripts = [Vec<String>; 2];

impl Both {
    fn start() -> Self {
        let server = Server::start().unwrap();
        let processes = [(); 2].map(|()| server.locks());
        Self { server, processes }
    }

    /// `None` if the machine was too slow.
    fn transcripts(&mut self, steps: &[Step]) -> Option<Transcripts> {
        self.server.start_again();
        let real = transcript(&self.server, self.processes.clone(), steps)?;
        let other = StandIn::new();
        let others = [(); 2].map(|()| World::locks(&other));
        Some([real, transcript(&other, others, steps)?])
    }
}

/// Returns the number of cases compared.
fn they_agree(cases: u32) -> u32 {
    let both = RefCell::new(Both::start());
    let compared = Cell::new(0);
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
        .run(&steps(), |steps| {
            let mut both = both.borrow_mut();
            let found = (0..TRIES).find_map(|_| both.transcripts(&steps));
            if let Some([real, stand_in]) = found {
                compared.set(compared.get() + 1);
                prop_assert_eq!(real, stand_in);
            }
            Ok(())
        })
        .unwrap_or_else(|difference| panic!("{difference}"));
    compared.get()
}

/// It mostly sleeps.
#[test]
fn stand_in_and_server_behave_the_same() {
    let compared = AtomicU32::new(0);
    at_once([10; 6], |cases| {
        compared.fetch_add(they_agree(cases), Ordering::SeqCst);
    });
    assert!(compared.into_inner() > 0, "the machine is too busy");
}

#[test]
#[ignore = "a minute: `cargo test --features testing --test stand_in -- --ignored`"]
fn stand_in_and_server_behave_the_same_in_thousands_of_runs() {
    at_once([500; 6], |cases| {
        assert!(they_agree(cases) > cases / 2, "the machine is too busy");
    });
}
