//! The command line.

use std::{ffi::OsString, io, process::ExitCode, time::Duration};

use clap::{ArgMatches, FromArgMatches, Parser, error::ErrorKind, parser::ValueSource};
use clap_complete::Shell;
use leasehold::{Lock, Locks, Options};

use crate::{
    help::{self, EXAMPLES, USAGES},
    outcome::not_written,
    text::say,
    tls::TlsFiles,
    words::server_of,
};

/// The exit code for invalid arguments.
pub(crate) const USAGE: u8 = 64;

const SHORTEST_LEASE: Duration = Duration::from_millis(500);
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
const MOST_PERMITS: u32 = 10_000;
const MOST_REPLICAS: u32 = 100;
const USUAL_URL: &str = "redis://127.0.0.1/";
/// The options that run no command, and are of no lock.
const NAMELESS: [&str; 4] = ["list", "man", "completions", "probe"];
const USUAL_GRACE: Duration = Duration::from_secs(5);

/// Runs a command while holding a lock on a Redis server, so that no other host runs it at the same
/// time.
///
/// The lock is renewed while the command runs. If no renewal succeeds in time, the command's
/// process group gets TERM and, after the grace, KILL, both before the lease ends on the server.
/// The command's environment has LEASEHOLD_FENCING_TOKEN, except with --permits; with several
/// --name it has LEASEHOLD_FENCING_TOKEN_1, LEASEHOLD_FENCING_TOKEN_2 and so on instead. Processes
/// that the command leaves in its process group are ended before the lock is released.
///
/// An environment variable that is empty counts as none.
#[allow(
    clippy::doc_markdown,
    clippy::struct_excessive_bools,
    reason = "a help text, and flags of a command line"
)]
#[derive(Debug, Parser)]
#[command(name = "lockrun", version, override_usage = USAGES, after_long_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Arguments {
    /// The lock's name; repeat it to hold several locks at once
    ///
    /// They are acquired together, all within --wait or none, and released together. Their order
    /// matters only for the numbers of the fencing tokens. If one is lost, the command is ended.
    /// Several names do not go with --once-per or --permits.
    #[arg(
        long = "name",
        value_name = "NAME",
        required_unless_present_any = NAMELESS,
        conflicts_with_all = NAMELESS
    )]
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

    /// The text before the name in the lock's key
    ///
    /// Programs exclude each other only if their prefixes are the same. It may be empty.
    #[arg(
        long,
        env = "LEASEHOLD_PREFIX",
        hide_env_values = true,
        default_value = "lock:"
    )]
    prefix: String,

    /// Time to wait for the lock, such as 30s, 1m30s or 500ms; 0s tries once
    #[arg(
        long,
        env = "LEASEHOLD_WAIT",
        hide_env_values = true,
        default_value = "0s",
        value_parser = duration
    )]
    pub(crate) wait: Duration,

    /// Skip the run if a host completed it within this period, such as 20h for a nightly job
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

    /// Hold the lock only while this many replicas have it, 1 to 100
    ///
    /// Such a lock survives a failover to one of these replicas. An acquire and each renewal wait
    /// for them, for a tenth of the lease, at most 1s. While too few confirm the acquire, it is
    /// repeated until --wait is over (69). If too few confirm the renewals, the command is ended
    /// before the lease ends (70).
    #[arg(
        long,
        value_name = "N",
        value_parser = replicas,
        allow_negative_numbers = true,
        conflicts_with = "operator"
    )]
    replicas: Option<u32>,

    /// Time for which the lock outlives a killed lockrun, 500ms to 24h
    #[arg(
        long,
        env = "LEASEHOLD_LEASE",
        hide_env_values = true,
        default_value = "60s",
        value_parser = lease
    )]
    pub(crate) lease: Duration,

    /// Time between TERM and KILL [default: 5s, at most a third of the lease]
    #[arg(long, value_parser = duration, conflicts_with = "operator")]
    grace: Option<Duration>,

    /// Print who holds the lock, and run nothing
    ///
    /// With --permits it also prints how many permits are free.
    #[arg(long, group = "operator")]
    status: bool,

    /// Take the lock away from its holder, and run nothing
    ///
    /// From a semaphore it takes all permits. A holder may continue until it notices.
    #[arg(long, group = "operator")]
    force_release: bool,

    /// Print what the server offers, and what that means for locks
    ///
    /// Writes one key, which is deleted and would end by itself after five seconds. Prints no
    /// password and no rule of an access list.
    #[arg(long, group = "operator", conflicts_with = "permits")]
    probe: bool,

    /// Print which locks are held, by whom, since when and for how much longer
    ///
    /// Only those whose names begin with PREFIX, if it is given. It reads the names of all keys of
    /// the server by SCAN, on a cluster those of every master, for at most 30s, and looks at no more
    /// than 10000 locks. If that was not enough, it says so on stderr.
    #[arg(
        long,
        value_name = "PREFIX",
        num_args = 0..=1,
        default_missing_value = "",
        group = "operator",
        conflicts_with = "permits"
    )]
    pub(crate) list: Option<String>,

    /// Print one line of JSON
    ///
    /// --status, --force-release, --list and --probe print it on stdout, with several --name as an
    /// array. The outcome of a command is printed on stderr.
    #[arg(long)]
    pub(crate) json: bool,

    /// Report progress on stderr
    #[arg(long, short)]
    pub(crate) verbose: bool,

    /// Do not print who holds a busy lock or has run the command: for cron, which mails all output
    #[arg(long, short, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Print the manual page: lockrun --man | man -l -
    #[arg(long, group = "operator")]
    man: bool,

    /// Print the completions of this shell
    #[arg(long, value_name = "SHELL", group = "operator")]
    completions: Option<Shell>,

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
pub(crate) enum Task {
    Run,
    Status,
    ForceRelease,
    List,
    Manual,
    Completions(Shell),
    Probe,
}

impl Arguments {
    /// Reads the command line. Otherwise prints the error or the requested help, and returns the
    /// exit code.
    pub(crate) fn read() -> Result<Self, ExitCode> {
        let matches = help::command().try_get_matches();
        let read = matches.and_then(|matches| Self::from_arg_matches(&matches)?.checked(&matches));
        read.map_err(|error| {
            let printed = error.print();
            if let ErrorKind::DisplayHelp | ErrorKind::DisplayVersion = error.kind() {
                let code = printed.map_or_else(|error| not_written(&error), |()| 0);
                return code.into();
            }
            if let Some(hint) = help::hint(&error) {
                say(&mut io::stderr(), &format!("\n{hint}"));
            }
            USAGE.into()
        })
    }

    fn checked(self, matches: &ArgMatches) -> Result<Self, clap::Error> {
        let wrong = |text: &str| {
            Err(clap::Error::raw(
                ErrorKind::ValueValidation,
                format!("{text}\n"),
            ))
        };
        // A variable may set them for all commands of this host.
        let is_given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let unused = ["wait", "lease"].iter().find(|id| is_given(id));
        if let (Some(option), true) = (unused, self.command.is_empty()) {
            return wrong(&format!("--{option} is for a command: there is none"));
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
        let is_one = self.names.len() <= 1;
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

    pub(crate) fn action(&self) -> Task {
        if self.status {
            return Task::Status;
        }
        if self.force_release {
            return Task::ForceRelease;
        }
        if self.probe {
            return Task::Probe;
        }
        if self.list.is_some() {
            return Task::List;
        }
        if self.man {
            return Task::Manual;
        }
        self.completions.map_or(Task::Run, Task::Completions)
    }

    /// Opens no connection.
    pub(crate) fn locks(&self) -> leasehold::Result<Locks> {
        let locks = self.tls.locks(&self.url)?;
        Ok(locks.with(Options::new().prefix(&self.prefix)))
    }

    /// The options of locks that are acquired.
    pub(crate) fn options(&self) -> Options {
        Options::new()
            .lease(self.lease)
            .replicas(self.replicas.unwrap_or(0), self.margin())
    }

    pub(crate) fn lock(&self, locks: &Locks, name: &str) -> Lock {
        match self.permits {
            None => locks.lock(name),
            Some(permits) => locks.semaphore(name, permits),
        }
    }

    /// The server, for people.
    pub(crate) fn server(&self) -> String {
        server_of(&self.url)
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

fn replicas(text: &str) -> Result<u32, &'static str> {
    let number = text.parse().ok();
    let replicas = number.filter(|number| (1..=MOST_REPLICAS).contains(number));
    replicas.ok_or("it has to be a whole number from 1 to 100")
}

fn lease(text: &str) -> Result<Duration, &'static str> {
    let lease = duration(text)?;
    let is_in_range = (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease);
    is_in_range
        .then_some(lease)
        .ok_or("it has to be from 500ms to 24h")
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text)
        .map_err(|_| "it has to be a number with a unit, such as 500ms, 30s, 1m30s or 20h")
}
