//! What may happen next, and what it leads to.

use std::collections::VecDeque;

use stateright::Property;

use super::{
    state::{
        Answered, By, CLIENTS, Client, Command, Held, LEASE, Node, Phase, Process, Server, Stage,
        State, Tick, moment,
    },
    *,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Pass,
    // Servers and sentinels.
    Replicate(Server),
    Promote(Server),
    Follow(Server),
    Execute(Client, By),
    Answer(Client, By),
    Hear(Client, usize),
    Cut(Client, By),
    // Processes.
    Ask(Client),
    Receive(Client, By),
    GiveUp(Client),
    Release(Client),
    Renew(Client),
}

impl World {
    /// The clock of a server.
    fn clock(&self, state: &State, server: Server) -> Tick {
        state.now + self.ahead[server]
    }

    fn write(state: &mut State, server: Server, lock: Option<Held>) {
        let node = &mut state.nodes[server];
        node.lock = lock;
        node.written += 1;
        for node in &mut state.nodes {
            if node.follows == Some(server) {
                node.pending.push_back(lock);
            }
        }
    }

    /// What the scripts do.
    fn run(&self, state: &mut State, server: Server, command: Command) -> bool {
        let clock = self.clock(state, server);
        let held = state.nodes[server].lock.filter(|held| held.end > clock);
        let ours = |token| held.filter(|held| held.token == token);
        let lasts = |token, lease| Held {
            token,
            end: clock + lease,
        };
        match command {
            Command::Acquire(token) => {
                if held.is_none_or(|held| held.token == token && held.end < clock + LEASE) {
                    Self::write(state, server, Some(lasts(token, LEASE)));
                }
                held.is_none_or(|held| held.token == token)
            }
            Command::Renew(token, lease) | Command::Repeat(token, lease) => {
                if ours(token).is_some_and(|held| held.end < clock + lease) {
                    Self::write(state, server, Some(lasts(token, lease)));
                }
                ours(token).is_some()
            }
            Command::Look(token) => ours(token).is_some(),
            Command::Free(token) => {
                let is_ours = ours(token).is_some();
                let deletes = is_ours || held.is_some() && !self.has(Rule::ReleasesOnlyOurs);
                if deletes {
                    Self::write(state, server, None);
                }
                deletes
            }
        }
    }

    fn execute(&self, state: &mut State, client: Client, by: By) -> Option<()> {
        let exchange = state.processes[client].exchange(by)?;
        let (server, commands) = (exchange.server, exchange.commands.clone());
        let run = |command: &Command| self.run(state, server, *command);
        let yes: Vec<_> = commands.iter().map(run).collect();
        let is_waited_for = |command: &Command| {
            matches!(command, Command::Acquire(_) | Command::Renew(..)) && self.replicas > 0
        };
        let comes_to = if commands.iter().any(is_waited_for) && yes.contains(&true) {
            let written = state.nodes[server].written;
            Stage::Executed { yes, written }
        } else {
            Stage::Answered(Answered {
                yes,
                had: 0,
                until: 0,
            })
        };
        state.processes[client].exchange_mut(by).as_mut()?.stage = comes_to;
        self.answer_at_once(state, client, by)
    }

    /// Where the answers to the watchdog are not late.
    fn answer_at_once(&self, state: &mut State, client: Client, by: By) -> Option<()> {
        if by == By::Calls || self.late {
            return Some(());
        }
        match &state.processes[client].exchange(by)?.stage {
            Stage::Answered(answered) => {
                let answered = answered.clone();
                self.receive(state, client, by, Some(&answered))
            }
            _ => Some(()),
        }
    }

    /// The answer to `WAIT`, which may come before enough replicas have it.
    fn answer(&self, state: &mut State, client: Client, by: By) -> Option<()> {
        let exchange = state.processes[client].exchange(by)?;
        let Stage::Executed { yes, written } = &exchange.stage else {
            return None;
        };
        let of_all = state.nodes[exchange.server].written;
        let (mut had, mut until) = (0, Tick::MAX);
        for (server, replica) in state.replicas_of(exchange.server) {
            if of_all - replica.pending.len() >= *written {
                had += 1;
                let end = replica.lock.map_or(0, |held| held.end);
                until = until.min(end.saturating_sub(self.ahead[server]));
            }
        }
        if had < self.replicas {
            until = 0;
        }
        let answered = Answered {
            yes: yes.clone(),
            had,
            until,
        };
        state.processes[client].exchange_mut(by).as_mut()?.stage = Stage::Answered(answered);
        self.answer_at_once(state, client, by)
    }

    /// The server closes all connections.
    fn close(&self, state: &mut State, server: Server) {
        for client in 0..CLIENTS {
            for by in [By::Calls, By::Leases] {
                let exchange = state.processes[client].exchange(by);
                let is_open = exchange.is_some_and(|exchange| {
                    exchange.server == server && !matches!(exchange.stage, Stage::Answered(_))
                });
                if is_open {
                    self.receive(state, client, by, None);
                }
            }
            let connection = &mut state.processes[client].connection;
            connection.take_if(|(to, _)| *to == server);
        }
    }

    fn promote(&self, state: &mut State, server: Server) {
        let before = state.master();
        state.masters.push(server);
        let node = &mut state.nodes[server];
        node.follows = None;
        node.pending.clear();
        node.written = 0;
        if !self.goes_on {
            state.nodes[before].is_up = false;
            self.close(state, before);
        }
    }

    /// A server is told whose replica it is, and gets all that the master has.
    fn follow(&self, state: &mut State, server: Server) {
        let master = state.master();
        let lock = state.nodes[master].lock;
        state.nodes[server] = Node {
            is_up: true,
            follows: Some(master),
            lock,
            pending: VecDeque::new(),
            written: 0,
        };
        self.close(state, server);
    }

    fn pass(state: &mut State) {
        state.now += 1;
        let now = moment(state.now);
        for process in &mut state.processes {
            process.given_back.retain(|release| release.end > now);
            process.let_go.retain(|(_, end)| *end > now);
            if let Phase::Holding { id, terms, .. } = process.phase
                && terms.lost_at(now).is_some()
            {
                process.schedule.stop(id);
                process.phase = Phase::Idle;
            }
        }
    }

    /// What makes no difference any more is the same in all states.
    fn tidy(&self, state: &mut State) {
        let is_executed = |process: &Process| {
            [By::Calls, By::Leases].into_iter().any(|by| {
                let exchange = process.exchange(by);
                exchange.is_some_and(|exchange| matches!(exchange.stage, Stage::Executed { .. }))
            })
        };
        let counts = state.processes.iter().any(is_executed);
        for server in 0..self.servers {
            let clock = self.clock(state, server);
            let behind = state
                .replicas_of(server)
                .map(|(_, node)| node.pending.len());
            let behind = behind.max().unwrap_or(0);
            let node = &mut state.nodes[server];
            node.lock = node.lock.filter(|held| held.end > clock);
            if !counts {
                node.written = behind;
            }
        }
    }

    fn of_process(&self, state: &State, client: Client, actions: &mut Vec<Action>) {
        use Action::*;
        let process = &state.processes[client];
        match process.phase {
            // They are alike, so that either may be called the first.
            Phase::Idle if client > 0 && state.processes[client - 1].acquired == 0 => {}
            Phase::Idle if process.acquired < self.wants[client] => actions.push(Ask(client)),
            Phase::Waiting { may_be_ours, .. } if process.call.is_none() => {
                actions.push(Ask(client));
                actions.extend(may_be_ours.then_some(GiveUp(client)));
            }
            Phase::Holding { .. } => actions.push(Release(client)),
            _ => {}
        }
        let now = moment(state.now);
        if process.renewal.is_none() && process.schedule.due_at().is_some_and(|due| due <= now) {
            actions.push(Renew(client));
        }
        for by in [By::Calls, By::Leases] {
            let Some(exchange) = process.exchange(by) else {
                continue;
            };
            actions.push(match exchange.stage {
                Stage::Sent => Execute(client, by),
                Stage::Executed { .. } => Answer(client, by),
                Stage::Answered(_) => Receive(client, by),
            });
            actions.extend((state.cuts < self.cuts).then_some(Cut(client, by)));
        }
        for configuration in 0..state.masters.len() {
            let is_news = configuration > process.heard;
            let is_lag = configuration < process.heard && state.lags < self.lags;
            actions.extend((is_news || is_lag).then_some(Hear(client, configuration)));
        }
        let next = state.masters.len();
        if self.early && next <= self.promotions && process.heard < next {
            actions.push(Hear(client, next));
        }
    }

    fn of_servers(&self, state: &State, actions: &mut Vec<Action>) {
        let master = state.master();
        for (server, node) in state.nodes.iter().enumerate() {
            if !node.pending.is_empty() {
                actions.push(Action::Replicate(server));
            }
            let is_replica = node.is_up && node.follows == Some(master);
            let may = state.masters.len() <= self.promotions;
            if is_replica && may && (self.loses || node.pending.is_empty()) {
                actions.push(Action::Promote(server));
            }
            if node.is_up && server != master && !is_replica {
                actions.push(Action::Follow(server));
            }
        }
    }

    fn named(state: &State, configuration: usize) -> Server {
        let replica = || state.replicas_of(state.master()).next();
        let named = state.masters.get(configuration).copied();
        named.unwrap_or_else(|| replica().map_or(state.master(), |(server, _)| server))
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let node = |server| Node {
            is_up: true,
            follows: (server > 0).then_some(0),
            lock: None,
            pending: VecDeque::new(),
            written: 0,
        };
        vec![State {
            now: 0,
            nodes: (0..self.servers).map(node).collect(),
            masters: vec![0],
            processes: (0..CLIENTS).map(|_| self.process()).collect(),
            lags: 0,
            cuts: 0,
            is_of_before: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.last {
            actions.push(Action::Pass);
        }
        self.of_servers(state, actions);
        for client in 0..CLIENTS {
            self.of_process(state, client, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        match action {
            Action::Pass => Self::pass(state),
            Action::Replicate(server) => {
                let node = &mut state.nodes[server];
                node.lock = node.pending.pop_front()?;
            }
            Action::Promote(server) => self.promote(state, server),
            Action::Follow(server) => self.follow(state, server),
            Action::Execute(client, by) => self.execute(state, client, by)?,
            Action::Answer(client, by) => self.answer(state, client, by)?,
            Action::Hear(client, configuration) => {
                let server = Self::named(state, configuration);
                let process = &mut state.processes[client];
                state.lags += u8::from(configuration < process.heard);
                self.hear(process, (configuration, server), state.now);
            }
            Action::Cut(client, by) => {
                state.cuts += 1;
                self.receive(state, client, by, None)?;
            }
            Action::Ask(client) => self.ask(state, client)?,
            Action::Receive(client, by) => {
                let exchange = state.processes[client].exchange(by)?;
                let Stage::Answered(answered) = exchange.stage.clone() else {
                    return None;
                };
                self.receive(state, client, by, Some(&answered))?;
            }
            Action::GiveUp(client) => self.give_up(&mut state.processes[client], state.now),
            Action::Release(client) => self.release(state, client)?,
            Action::Renew(client) => self.renew(state, client)?,
        }
        self.tidy(state);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ALONE, |_, state: &State| !state.do_two_believe(|_| true)),
            Property::always(ALONE_WHERE_KNOWN, |_, state: &State| {
                let configuration = state.configuration();
                !state.do_two_believe(|process| process.is_settled(configuration, state.now))
            }),
            Property::always(OF_THE_MASTER, |_, state: &State| !state.is_of_before),
            Property::always(CONFIRMED, |world: &Self, state: &State| {
                world.replicas == 0 || state.processes.iter().all(|it| it.is_confirmed(state.now))
            }),
            Property::always(NOT_LEFT, |_, state: &State| !state.is_anything_left()),
            Property::sometimes(GOES_ON, |world: &Self, state: &State| {
                state.configuration() == world.promotions
                    && state.processes.iter().all(|process| process.acquired > 0)
                    && state
                        .processes
                        .iter()
                        .any(|it| it.has_it_of(state.configuration()))
            }),
        ]
    }
}
