//! The command line.

use std::{env, ffi::OsString, io, process::ExitCode, time::Duration};

use clap::{CommandFactory, FromArgMatches, Parser, error::ErrorKind, parser::ValueSource};
use leasehold::{Lock, Locks};

use crate::{outcome::not_written, text::say, tls::TlsFiles};

/// The exit code for invalid arguments.
pub(crate) const USAGE: u8 = 64;

const SHORTEST_LEASE: Duration = Duration::from_millis(500);
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
const MOST_PERMITS: u32 = 10_000;
const USUAL_URL: &str = "redis://127.0.0.1/";
const USUAL_GRACE: Duration = Duration::from_secs(5);

/// The usage that clap generates lists `--url` as required if the environment sets it.
const USAGES: &str = "\
lockrun [OPTIONS] --name <NAME>... -- <COMMAND>...
       lockrun [OPTIONS] --name <NAME>... <--status|--force-release>";

const EXAMPLES: &str = "\
Examples:
  lockrun --name backup -- /usr/local/bin/backup --full
      runs the backup; if somebody else is running it, prints who, and exits 75 at once
  lockrun --name report --wait 10m --lease 60s -- sh -c 'make && make publish'
      waits up to ten minutes for the lock
  lockrun --name backup --once-per 20h --wait 2h -- /usr/local/bin/backup --full
      on every host, at the same time each night: one makes the backup; if it fails, another does
  lockrun --name import --verbose -- sh -c 'import --fence \"$LEASEHOLD_FENCING_TOKEN\"'
      passes the fencing token on, and reports progress
  lockrun --name partner-api --permits 3 --wait 1h -- /usr/local/bin/sync-orders
      at most three at once, on all hosts together; a fourth waits up to an hour
  lockrun --name account:4711 --name account:4712 --wait 1m -- /usr/local/bin/transfer
      waits up to a minute for both locks
  lockrun --name backup --status
      prints who holds the lock, since when, and for how much longer
  lockrun --name backup --force-release
      takes the lock away from its holder
  lockrun --name partner-api --permits 3 --status
      prints all holders, and how many of three permits are free

Exit codes:
  the command's own; 128+n if signal n ended it; 126 if it cannot be run, 127 if it is not found
  0   also if another run was recent enough (--once-per)
  64  the arguments are invalid, or the name belongs to a key that is not a lock
  69  the server cannot be reached, or refuses
  70  the lock was lost, or could not be renewed: the command was ended, or outlived the lock
  71  the system refuses what lockrun itself needs: a process, a thread, /proc
  74  the output cannot be written to stdout
  75  busy: somebody else held the lock, or others all the permits, for the whole wait
  --status and --force-release exit 0 whether or not the lock was held; --json shows which.
  With --permits a lock is held if no permit is free.

Signals: TERM and INT to lockrun end the command and then release the lock; HUP, QUIT, USR1, USR2
and alarms are only passed on.";

/// Runs a command while holding a lock on a Redis server, so that no other host runs it at the same
/// time.
///
/// The lock is renewed while the command runs. If no renewal succeeds in time, the command's
/// process group gets TERM and, after the grace, KILL, both before the lease ends on the server.
/// The command's environment has LEASEHOLD_FENCING_TOKEN, except with --permits; with several
/// --name it has LEASEHOLD_FENCING_TOKEN_1, LEASEHOLD_FENCING_TOKEN_2 and so on instead. Processes
/// that the command leaves in its process group are ended before the lock is released.
#[allow(
    clippy::doc_markdown,
    clippy::struct_excessive_bools,
    reason = "a help text, and flags of a command line"
)]
#[derive(Debug, Parser)]
#[command(name = "lockrun", version, override_usage = USAGES, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Arguments {
    /// The lock's name; with several --name the command runs while all of these locks are held
    ///
    /// They are acquired together, all within --wait or none, and released together. The order is
    /// of no account, except for the numbers of the fencing tokens. If one is lost, the command is
    /// ended. Several do not go with --once-per or --permits.
    #[arg(long = "name", value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,

    /// The server's URL
    ///
    /// Everybody on this host can see a password in this argument (ps). In the environment only
    /// root, the same user and the command, which inherits it, can see it.
    #[arg(
        long,
        env = "LEASEHOLD_URL",
        hide_env_values = true,
        default_value = USUAL_URL
    )]
    url: String,

    #[command(flatten)]
    tls: TlsFiles,

    /// Time to wait for the lock, such as 30s, 1m30s or 500ms; 0s tries once
    #[arg(long, default_value = "0s", value_parser = duration, conflicts_with = "operator")]
    pub(crate) wait: Duration,

    /// Skip the run if any host has completed it within this period, such as 20h for a nightly job
    ///
    /// lockrun then prints who has run it and exits 0. The period counts from the end of that run,
    /// by the server's clock. A run does not count after an exit code other than 0, after TERM or
    /// INT to lockrun, or after the loss of the lock: the next lockrun runs the command again.
    #[arg(long, value_name = "PERIOD", value_parser = duration, conflicts_with = "operator")]
    pub(crate) once_per: Option<Duration>,

    /// Let this many commands run at once, 1 to 10000, instead of one
    ///
    /// Give the same number everywhere: each lockrun is judged by its own, and runs if fewer
    /// permits than that are held. There is no fencing token, since several holders have no order:
    /// LEASEHOLD_FENCING_TOKEN is not set. Not with --once-per. lockrun without --permits is
    /// refused (64) on the same name, and the other way round, even with --permits 1.
    #[arg(long, value_name = "N", value_parser = permits, allow_negative_numbers = true)]
    pub(crate) permits: Option<u32>,

    /// Time for which the lock outlives a killed lockrun, 500ms to 24h
    #[arg(long, default_value = "60s", value_parser = duration, conflicts_with = "operator")]
    pub(crate) lease: Duration,

    /// Time between TERM and KILL, at most a third of the lease [default: 5s, or a third of the
    /// lease if that is shorter]
    #[arg(long, value_parser = duration, conflicts_with = "operator")]
    grace: Option<Duration>,

    /// Print who holds the lock, and run nothing; with --permits also how many permits are free
    #[arg(long, group = "operator")]
    status: bool,

    /// Take the lock away from its holder, or all permits from their holders, and run nothing; a
    /// holder may continue until it notices
    #[arg(long, group = "operator")]
    force_release: bool,

    /// Print one line of JSON: --status and --force-release on stdout, as an array with several
    /// --name; the outcome of a command on stderr
    #[arg(long)]
    pub(crate) json: bool,

    /// Report progress on stderr
    #[arg(long, short)]
    pub(crate) verbose: bool,

    /// Do not print who holds a busy lock, or who has run the command, such as under cron, which
    /// mails all output
    #[arg(long, short, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// The command and its arguments
    #[arg(
        last = true,
        required_unless_present = "operator",
        conflicts_with = "operator"
    )]
    pub(crate) command: Vec<OsString>,
}

/// The action that the arguments ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Run,
    Status,
    ForceRelease,
}

impl Arguments {
    /// Reads the command line. Otherwise prints the error or the requested help, and returns the
    /// exit code.
    pub(crate) fn read() -> Result<Self, ExitCode> {
        let read = Self::parsed().and_then(Self::checked);
        read.map_err(|error| {
            let printed = error.print();
            match (error.kind(), printed) {
                (ErrorKind::DisplayHelp | ErrorKind::DisplayVersion, printed) => printed
                    .map_or_else(|error| not_written(&error), |()| 0)
                    .into(),
                (ErrorKind::UnknownArgument, _) if env::args_os().all(|word| word != "--") => {
                    say(&mut io::stderr(), "\nThe command stands after `--`.");
                    USAGE.into()
                }
                _ => USAGE.into(),
            }
        })
    }

    fn parsed() -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches()?;
        let mut arguments = Self::from_arg_matches(&matches)?;
        let is_from_environment = matches.value_source("url") == Some(ValueSource::EnvVariable);
        if arguments.url.is_empty() && is_from_environment {
            arguments.url = USUAL_URL.into();
        }
        Ok(arguments)
    }

    fn checked(self) -> Result<Self, clap::Error> {
        let wrong = |text: &str| {
            Err(clap::Error::raw(
                ErrorKind::ValueValidation,
                format!("{text}\n"),
            ))
        };
        if !(SHORTEST_LEASE..=LONGEST_LEASE).contains(&self.lease) {
            return wrong("--lease has to be between 500ms and 24h");
        }
        if self.grace() > self.lease / 3 {
            return wrong("--grace has to be at most a third of --lease");
        }
        if self.once_per.is_some() && self.permits.is_some() {
            return wrong(
                "--once-per does not go with --permits: one run would count for all of those that \
                 run at once",
            );
        }
        let is_one = self.only_name().is_some();
        if !is_one && self.once_per.is_some() {
            return wrong(
                "--once-per does not go with several --name: a run is marked as the lock is \
                 released, and several are released one after the other",
            );
        }
        if !is_one && self.permits.is_some() {
            return wrong(
                "--permits does not go with several --name: one number would count for all of \
                 them",
            );
        }
        Ok(self)
    }

    pub(crate) fn action(&self) -> Action {
        match (self.status, self.force_release) {
            (true, _) => Action::Status,
            (_, true) => Action::ForceRelease,
            _ => Action::Run,
        }
    }

    pub(crate) fn locks(&self) -> leasehold::Result<Locks> {
        self.tls.locks(&self.url)
    }

    pub(crate) fn lock(&self, locks: &Locks, name: &str) -> Lock {
        match self.permits {
            None => locks.lock(name),
            Some(permits) => locks.semaphore(name, permits),
        }
    }

    /// The only name. `None`: there are several.
    pub(crate) fn only_name(&self) -> Option<&str> {
        match &*self.names {
            [name] => Some(name),
            _ => None,
        }
    }

    /// The subject of messages: the lock's name, or one of its permits, or the names of all.
    pub(crate) fn subject(&self) -> String {
        let all = self.names.iter().map(|name| self.subject_of(name));
        all.collect::<Vec<_>>().join(", ")
    }

    /// The subject of messages about one of the locks.
    pub(crate) fn subject_of(&self, name: &str) -> String {
        match self.permits {
            None => format!("`{name}`"),
            Some(_) => format!("a permit of `{name}`"),
        }
    }

    /// The first lock of an error of several, which has their names with a comma between.
    pub(crate) fn first_of(&self, locks: &str) -> String {
        let is_first = |name: &&String| {
            let rest = locks.strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(", "))
        };
        let first = self.names.iter().find(is_first).map(String::as_str);
        first.unwrap_or(locks).to_owned()
    }

    /// The command's time between TERM and KILL.
    pub(crate) fn grace(&self) -> Duration {
        self.grace.unwrap_or(USUAL_GRACE.min(self.lease / 3))
    }

    /// The time before the end of the lease by which all of the command must have ended.
    pub(crate) fn margin(&self) -> Duration {
        (self.lease / 10).min(Duration::from_secs(1))
    }

    /// Prints progress if `--verbose` is given.
    pub(crate) fn tell(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            say(&mut io::stderr(), &format!("lockrun: {}", text()));
        }
    }
}

fn permits(text: &str) -> Result<u32, &'static str> {
    let number = text.parse().ok();
    let permits = number.filter(|number| (1..=MOST_PERMITS).contains(number));
    permits.ok_or("it has to be a whole number from 1 to 10000")
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text)
        .map_err(|_| "it has to be a number with a unit, such as 500ms, 30s, 1m30s or 20h")
}
