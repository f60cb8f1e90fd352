//! What a process does: it asks, believes, holds, and gives back. All that is decided here is decided by the code of production.

use std::{io::ErrorKind, mem, sync::Arc, time::Instant};

use redis::{RedisResult, Value};

use super::{
    state::{
        Answered, By, Client, Command, Exchange, GaveBack, Phase, Process, Server, Stage, State,
        Token, asks_in_ticks, moment,
    },
    *,
};
use crate::{
    connection::{Belief, Known, Master},
    error::Operation,
    recipes::hold::{Holding, Kind},
    renewing::{
        entry::{Ask, Terms},
        schedule::Id,
    },
    script::Replicas,
    token,
};

/// A hold for each token. The lock's name in it is the token's, by which a call is known again.
static HOLDS: LazyLock<Vec<Arc<Holding>>> = LazyLock::new(|| {
    let hold = |token: Token| {
        let random = token::Token::random();
        let hold = Holding::named(Kind::Mutex, &token.to_string(), &random).unwrap();
        Arc::new(hold.unfenced())
    };
    (0..8).map(hold).collect()
});

fn silence() -> redis::RedisError {
    std::io::Error::from(ErrorKind::TimedOut).into()
}

impl World {
    /// What sentinels say, who watch from the beginning: the first master.
    pub(super) fn process(&self) -> Process {
        let mut process = Process {
            known: Known::default(),
            epoch: 0,
            heard: 0,
            connection: None,
            phase: Phase::Idle,
            schedule: Schedule::default(),
            batch: (Vec::new(), Vec::new()),
            call: None,
            renewal: None,
            given_back: Vec::new(),
            let_go: Vec::new(),
            acquired: 0,
        };
        self.hear(&mut process, (0, 0), 0);
        process
    }

    /// A sentinel names this server as the master of this configuration.
    pub(super) fn hear(
        &self,
        process: &mut Process,
        (configuration, server): (usize, Server),
        now: Tick,
    ) {
        let said = Master {
            host: String::new(),
            port: u16::try_from(server).unwrap(),
            config_epoch: configuration as u64,
        };
        let is_first = process.known.master.is_none();
        let is_lag = configuration < process.heard;
        process.heard = process.heard.max(configuration);
        if is_lag && !self.has(Rule::NothingOlder) {
            process.known = Known::default();
        }
        let belief = process
            .known
            .believe((usize::from(is_lag), 3), said, moment(now));
        // When it was said matters only to who asks next.
        process.known.answered = None;
        if belief != Belief::News || is_first {
            return;
        }
        process.epoch += 1;
        if self.has(Rule::NewConnections) {
            process.connection = None;
        }
        if self.has(Rule::LooksAtLeases) {
            process.schedule.repeat_all(moment(now));
        }
        if self.has(Rule::GivesBackAgain) {
            Self::give_back_again(process, now);
        }
    }

    fn give_back_again(process: &mut Process, now: Tick) {
        let (all, now) = (GivenBack::default(), moment(now));
        for GaveBack { token, epoch, end } in &process.given_back {
            all.remember(Release::new(&HOLDS[*token], false, *epoch, *end), now);
        }
        for call in all.again(process.epoch, now) {
            let is_of = |hold: &Arc<Holding>| hold.lock_name().key() == call.key();
            let token = HOLDS.iter().position(is_of).unwrap();
            process.schedule.abandon(token, false, now);
        }
        for release in &mut process.given_back {
            release.epoch = process.epoch;
        }
    }

    /// Where its connections lead, one of which is opened if there is none. `None`: nowhere.
    fn connected(&self, state: &mut State, client: Client) -> Option<Server> {
        let process = &mut state.processes[client];
        if let Some((server, _)) = process.connection {
            return Some(server);
        }
        let server = Server::from(process.known.master.as_ref()?.port);
        let node = &state.nodes[server];
        let is_replica = node.follows.is_some();
        if !node.is_up || is_replica && self.has(Rule::Role) {
            return None;
        }
        process.connection = Some((server, process.epoch));
        process.known.in_doubt = false;
        Some(server)
    }

    fn send(
        &self,
        state: &mut State,
        client: Client,
        by: By,
        commands: Vec<Command>,
    ) -> Option<()> {
        let server = self.connected(state, client)?;
        let process = &mut state.processes[client];
        let exchange = Exchange {
            server,
            sent: state.now,
            epoch: process.epoch,
            commands,
            stage: Stage::Sent,
        };
        *process.exchange_mut(by) = Some(exchange);
        Some(())
    }

    pub(super) fn ask(&self, state: &mut State, client: Client) -> Option<()> {
        let process = &mut state.processes[client];
        if process.phase == Phase::Idle {
            process.phase = Phase::Waiting {
                token: client + state::CLIENTS * usize::from(process.acquired),
                may_be_ours: false,
                is_out: false,
            };
            process.acquired += 1;
        }
        let Phase::Waiting { token, .. } = process.phase else {
            return None;
        };
        self.send(state, client, By::Calls, vec![Command::Acquire(token)])
    }

    /// It has waited for long enough.
    pub(super) fn give_up(&self, process: &mut Process, now: Tick) {
        let phase = mem::replace(&mut process.phase, Phase::Idle);
        let Phase::Waiting { token, is_out, .. } = phase else {
            return;
        };
        process.schedule.abandon(token, is_out, moment(now));
        let (epoch, end) = (process.epoch, moment(now + LEASE));
        process.let_go.push((token, end));
        if self.has(Rule::RemembersGivenUp) {
            self.remember(process, GaveBack { token, epoch, end }, now);
        }
    }

    pub(super) fn release(&self, state: &mut State, client: Client) -> Option<()> {
        let process = &mut state.processes[client];
        let Phase::Holding {
            token, id, terms, ..
        } = process.phase
        else {
            return None;
        };
        // It waits until what is on its way has come back.
        if process.schedule.is_in_flight(id) {
            return None;
        }
        process.schedule.stop(id);
        process.phase = Phase::Releasing(GaveBack {
            token,
            epoch: process.epoch,
            end: terms.end?,
        });
        self.send(state, client, By::Calls, vec![Command::Free(token)])
    }

    /// The watchdog sends what is due.
    pub(super) fn renew(&self, state: &mut State, client: Client) -> Option<()> {
        let now = moment(state.now);
        let due = state.processes[client].schedule.due_at()?;
        if due > now {
            return None;
        }
        self.connected(state, client)?;
        let process = &mut state.processes[client];
        let batch = process.schedule.take(now);
        let questions = batch.questions.iter();
        let questions = questions.map(|question| asks_in_ticks(question.ask, question.item));
        let orphans = batch
            .orphans
            .iter()
            .map(|orphan| Command::Free(orphan.item));
        let commands: Vec<_> = questions.chain(orphans).collect();
        process.batch = (batch.questions, batch.orphans);
        if commands.is_empty() {
            return None;
        }
        self.send(state, client, By::Leases, commands)
    }

    /// An answer has come, or none ever will.
    pub(super) fn receive(
        &self,
        state: &mut State,
        client: Client,
        by: By,
        answered: Option<&Answered>,
    ) -> Option<()> {
        let now = state.now;
        let process = &mut state.processes[client];
        let exchange = process.exchange_mut(by).take()?;
        if answered.is_none() {
            process.connection = None;
            process.known.in_doubt = true;
        }
        match by {
            By::Leases => self.take_answers(process, &exchange, answered, now),
            By::Calls if matches!(process.phase, Phase::Releasing(_)) => {
                self.settle(process, answered, now);
            }
            By::Calls => {
                let is_of_before = self.judge(process, &exchange, answered, now);
                state.is_of_before |= is_of_before;
            }
        }
        Some(())
    }

    fn too_few(&self, had: u32) -> RedisResult<()> {
        let wait = Duration::from_millis(100);
        let wanted = Replicas {
            count: self.replicas,
            wait,
        };
        wanted.check(Value::Int(had.into()))
    }

    /// The moment from which a lease counts.
    fn counts_from(&self, exchange: &Exchange, now: Tick) -> Instant {
        let from_before = self.has(Rule::CountsFromBefore);
        moment(if from_before { exchange.sent } else { now })
    }

    /// What came of an acquire, as it is told to the one who judges it.
    fn reply(&self, answered: Option<&Answered>, sent: Instant) -> Reply {
        let answer = match answered {
            None => Err(silence()),
            Some(Answered { yes, .. }) if !yes[0] => Ok(Value::Nil),
            Some(_) if !self.has(Rule::ConfirmedGrants) => Ok(Value::Okay),
            Some(Answered { had, .. }) => self.too_few(*had).map(|()| Value::Okay),
        };
        Reply {
            answer,
            sent,
            answered: sent,
            tracked: true,
            again: false,
            has_moved: false,
        }
    }

    /// The answer to an acquire. Says whether it was taken from a server that it knew to be replaced.
    fn judge(
        &self,
        process: &mut Process,
        exchange: &Exchange,
        answered: Option<&Answered>,
        now: Tick,
    ) -> bool {
        let Phase::Waiting {
            token,
            ref mut may_be_ours,
            ref mut is_out,
        } = process.phase
        else {
            return false;
        };
        let reply = self.reply(answered, self.counts_from(exchange, now));
        let (operation, skew) = (Operation::new("Lock::acquire", "a"), self.skew_in_force());
        let hold = Arc::clone(&HOLDS[token]);
        let mut attempts = Attempts::new(operation, &self.settings, skew, hold);
        let outcome = attempts.judge(reply, moment(now)).unwrap();
        let is_of_before = exchange.epoch != process.epoch;
        *is_out |= attempts.is_out();
        match outcome {
            Outcome::Granted { grant, .. } if !is_of_before || !self.has(Rule::AsksAgain) => {
                let until = answered.map_or(now, |answered| answered.until);
                self.hold(process, (token, grant.end, until), now);
                is_of_before
            }
            Outcome::Refused { .. } => {
                *may_be_ours = false;
                false
            }
            outcome => {
                let is_granted = matches!(outcome, Outcome::Granted { .. });
                *may_be_ours |= is_granted || attempts.may_be_ours();
                false
            }
        }
    }

    /// A lease begins, which ends then, and which replicas have until then at least.
    fn hold(
        &self,
        process: &mut Process,
        (token, end, confirmed): (Token, Instant, Tick),
        now: Tick,
    ) {
        let terms = Terms {
            lease: self.settings.longest_at_first(),
            cap: None,
            end: Some(end),
            renews: self.renews,
            // The first renewal finds out what a look before it would.
            look_at: None,
            skew: self.skew_in_force(),
        };
        let id = process.schedule.keep(token, terms, moment(now));
        process.phase = Phase::Holding {
            token,
            id,
            terms,
            confirmed,
        };
    }

    fn skew_in_force(&self) -> Duration {
        state::length(if self.has(Rule::Skew) { self.skew } else { 0 })
    }

    /// The answer to a release.
    fn settle(&self, process: &mut Process, answered: Option<&Answered>, now: Tick) {
        let phase = mem::replace(&mut process.phase, Phase::Idle);
        let Phase::Releasing(gave_back) = phase else {
            return;
        };
        if answered.is_some_and(|answered| !answered.yes[0]) {
            return;
        }
        process.let_go.push((gave_back.token, gave_back.end));
        if answered.is_none() {
            let now = moment(now);
            process.schedule.abandon(gave_back.token, false, now);
            if !self.has(Rule::RemembersUnanswered) {
                return;
            }
        }
        self.remember(process, gave_back, now);
    }

    fn remember(&self, process: &mut Process, gave_back: GaveBack, now: Tick) {
        process.given_back.push(gave_back);
        if gave_back.epoch != process.epoch && self.has(Rule::GivesBackAgain) {
            Self::give_back_again(process, now);
        }
    }

    fn take_answers(
        &self,
        process: &mut Process,
        exchange: &Exchange,
        answered: Option<&Answered>,
        now: Tick,
    ) {
        let (questions, orphans) = mem::take(&mut process.batch);
        let mut yes = answered.into_iter().flat_map(|answered| &answered.yes);
        let mut next = || yes.next().map(|yes| Value::Int((*yes).into()));
        let sent = self.counts_from(exchange, now);
        for question in questions {
            let is_renewal = matches!(question.ask, Ask::Renew(_));
            let reply = next().map(|value| judged(value, sent, true));
            let answer = match (reply, answered) {
                (Some(reply), Some(Answered { had, .. }))
                    if is_renewal && self.has(Rule::ConfirmedRenewals) =>
                {
                    confirmed(reply, self.too_few(*had)).0
                }
                (reply, _) => reply.map_or(Answer::Unanswered, |reply| reply.0),
            };
            let outcome = process.schedule.answered(question.id, answer, moment(now));
            let until = answered.filter(|_| is_renewal).map(|it| it.until);
            Self::enter(process, question.id, outcome, until);
        }
        for orphan in orphans {
            let answer = next().map_or(Answer::Unanswered, |value| judged(value, sent, true).0);
            process.schedule.given_back(orphan, answer, moment(now));
        }
    }

    /// Into what the holder reads.
    fn enter(process: &mut Process, of: Id, outcome: Option<RenewalOutcome>, until: Option<Tick>) {
        let Phase::Holding {
            id,
            ref mut terms,
            ref mut confirmed,
            ..
        } = process.phase
        else {
            return;
        };
        match outcome {
            _ if id != of => {}
            Some(RenewalOutcome::Held(end)) => {
                terms.end = Some(end);
                *confirmed = until.unwrap_or(0).max(*confirmed);
            }
            Some(RenewalOutcome::Lost(_)) => process.phase = Phase::Idle,
            Some(RenewalOutcome::Doubtful) | None => {}
        }
    }
}
