//! The command line.

pub(crate) mod help;
mod tls;
mod values;

use std::{ffi::OsString, time::Duration};

use clap::{ArgMatches, Parser, error::ErrorKind, parser::ValueSource};
use leasehold::{Lock, Locks, Options};

use crate::{
    arguments::{
        tls::TlsFiles,
        values::{duration, lease, line, up_to},
    },
    speaking::text::server_of,
};

const MOST_PERMITS: u32 = 10_000;
const MOST_REPLICAS: u32 = 100;
const USUAL_URL: &str = "redis://127.0.0.1/";
/// The options that take no name.
const NAMELESS: [&str; 2] = ["list", "probe"];
const USUAL_GRACE: Duration = Duration::from_secs(5);

/// The usage that clap generates lists `--url` as required if the environment sets it.
const USAGES: &str = "\
lockrun [OPTIONS] --name <NAME>... -- <COMMAND>...
       lockrun [OPTIONS] --name <NAME>... <--status|--force-release>
       lockrun [OPTIONS] --list [<PREFIX>]
       lockrun [OPTIONS] --probe";

/// Run a command while holding a Redis lock, so that no other host runs it at the same time.
///
/// lockrun renews the lock while the command runs. If it cannot, it sends TERM to the command's
/// process group and, after the grace, KILL, before the lease ends on the server. When the command
/// exits, lockrun ends the processes left in the group, releases the lock and passes the exit code
/// on.
///
/// The command finds its fencing token in LEASEHOLD_FENCING_TOKEN, or with several --name in
/// LEASEHOLD_FENCING_TOKEN_1, LEASEHOLD_FENCING_TOKEN_2 and so on. With --permits it has none.
#[allow(
    clippy::doc_markdown,
    clippy::struct_excessive_bools,
    reason = "a help text, and flags of a command line"
)]
#[derive(Debug, Parser)]
#[command(
    name = "lockrun",
    version,
    override_usage = USAGES,
    max_term_width = 100
)]
pub(crate) struct Arguments {
    /// Name of the lock; repeat it to hold several locks at once
    ///
    /// Several locks are acquired within one --wait, all or none, and released together. If one is
    /// lost, the command is ended. The fencing tokens are numbered in the order of the names.
    /// Several names cannot be used with --once-per or --permits.
    #[arg(
        long = "name", value_name = "NAME", required_unless_present_any = NAMELESS,
        conflicts_with_all = NAMELESS
    )]
    pub(crate) names: Vec<String>,

    /// URL of the Redis server
    ///
    /// Put a URL with a password in the environment, where only root, the same user and the command
    /// can read it. Every user of this host can read the arguments (ps).
    #[arg(long, env = "LEASEHOLD_URL", default_value = USUAL_URL, value_parser = line::<String>)]
    url: String,

    #[command(flatten)]
    tls: TlsFiles,

    /// Prefix of the lock's key
    ///
    /// Commands with different prefixes do not exclude each other, if no prefix begins with
    /// another. It may be empty.
    #[arg(long, env = "LEASEHOLD_PREFIX", default_value = "lock:", value_parser = line::<String>)]
    prefix: String,

    /// Longest wait for the lock; 0s tries once
    ///
    /// While the server is down or loading, lockrun retries until the wait is over. A wrong
    /// password, an access list or an invalid argument ends the wait at once.
    #[arg(
        long, value_name = "TIME", env = "LEASEHOLD_WAIT", default_value = "0s",
        value_parser = duration
    )]
    pub(crate) wait: Duration,

    /// Skip the run if a host completed it within TIME, such as 20h
    ///
    /// lockrun then prints who ran it and exits 0. TIME counts from the end of that run, by the
    /// server's clock. A run counts only if the command exits with 0 while the lock is held, and
    /// lockrun gets no TERM or INT.
    #[arg(
        long, value_name = "TIME", value_parser = duration,
        conflicts_with_all = ["operator", "permits"]
    )]
    pub(crate) once_per: Option<Duration>,

    /// Let N commands run at once instead of one, 1 to 10000
    ///
    /// Use the same N everywhere: lockrun runs its command if fewer than its own N permits are
    /// held. Holders of permits have no order, so they have no fencing token. Cannot be used with
    /// --once-per. Use a name either always or never with --permits, even if N is 1: while it is
    /// held, the other use is refused (64).
    #[arg(
        long, value_name = "N", value_parser = up_to::<MOST_PERMITS>, allow_negative_numbers = true
    )]
    pub(crate) permits: Option<u32>,

    /// Hold the lock only while N replicas have it, 1 to 100
    ///
    /// The lock then survives a failover to one of these replicas. The acquire and each renewal
    /// wait for their confirmation, for a tenth of the lease, at most 1s. If too few have
    /// confirmed the acquire when --wait is over, the command does not run (69). If too few confirm
    /// the renewals, the command is ended before the lease ends (70).
    #[arg(
        long, value_name = "N", value_parser = up_to::<MOST_REPLICAS>,
        allow_negative_numbers = true, conflicts_with = "operator"
    )]
    replicas: Option<u32>,

    /// How long the lock stays if lockrun is killed
    ///
    /// From 500ms to 24h. lockrun renews the lock each time a third of the lease is over.
    #[arg(
        long, value_name = "TIME", env = "LEASEHOLD_LEASE", default_value = "60s",
        value_parser = lease
    )]
    pub(crate) lease: Duration,

    /// Time between TERM and KILL [default: 5s, at most a third of the lease]
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "operator")]
    grace: Option<Duration>,

    /// Print who holds the lock
    ///
    /// With --permits it also prints how many permits are free.
    #[arg(long, group = "operator")]
    pub(crate) status: bool,

    /// Take the lock away from its holder
    ///
    /// It takes all permits of a semaphore. A lockrun that held the lock ends its command.
    #[arg(long, group = "operator")]
    pub(crate) force_release: bool,

    /// Print the held locks, or only those whose names begin with PREFIX
    ///
    /// It scans all keys of the server, or of every master of a cluster, for at most 30s and 10000
    /// locks. If it stops early, it says so on stderr.
    #[arg(
        long, value_name = "PREFIX", num_args = 0..=1, default_missing_value = "",
        group = "operator", conflicts_with = "permits"
    )]
    pub(crate) list: Option<String>,

    /// Print what the server offers, and what that means for locks
    ///
    /// It writes one key and deletes it; the key would expire after five seconds. It prints no
    /// password and no rule of an access list.
    #[arg(long, group = "operator", conflicts_with = "permits")]
    pub(crate) probe: bool,

    /// Print the result as one line of JSON
    ///
    /// The outcome of a command goes to stderr. The result of --status, --force-release, --list or
    /// --probe goes to stdout; with several --name it is an array.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print each step on stderr
    #[arg(long, short)]
    pub(crate) verbose: bool,

    /// Print nothing if the run is skipped, or busy without --wait
    ///
    /// For cron, which mails all output. If the lock is busy for the whole --wait, the command may
    /// hang where it runs, so that is printed.
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

impl Arguments {
    /// Refuses the combinations that clap does not know.
    pub(crate) fn checked(self, matches: &ArgMatches) -> Result<Self, clap::Error> {
        // The environment may set them for all commands of this host, so only the command line
        // is refused.
        let is_given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let unused = ["wait", "lease"].iter().find(|id| is_given(id));
        let (are_several, has_command) = (self.names.len() > 1, !self.command.is_empty());
        let wrong = match unused {
            Some(option) if !has_command => format!("--{option} needs a command"),
            _ if self.grace() > self.lease / 3 => {
                "--grace must be at most a third of --lease".into()
            }
            _ if are_several && (self.once_per.is_some() || self.permits.is_some()) => {
                "--once-per and --permits need a single --name".into()
            }
            _ => {
                let tls = self.tls.for_url(&self.url, matches);
                return Ok(Self { tls, ..self });
            }
        };
        Err(clap::Error::raw(ErrorKind::ValueValidation, wrong + "\n"))
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

    /// The server, in messages.
    pub(crate) fn server(&self) -> String {
        server_of(&self.url)
    }

    /// The name, if there is only one.
    pub(crate) fn only_name(&self) -> Option<&str> {
        match &*self.names {
            [name] => Some(name),
            _ => None,
        }
    }

    /// The locks of all names, in messages.
    pub(crate) fn subject(&self) -> String {
        let all = self.names.iter().map(|name| self.subject_of(name));
        all.collect::<Vec<_>>().join(", ")
    }

    /// The lock of this name, or a permit of it, in messages.
    pub(crate) fn subject_of(&self, name: &str) -> String {
        match self.permits {
            None => format!("`{name}`"),
            Some(_) => format!("a permit of `{name}`"),
        }
    }

    /// The first of the locks that an error names, separated by commas.
    pub(crate) fn first_of(&self, locks: &str) -> String {
        let is_first = |name: &&String| {
            let rest = locks.strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(", "))
        };
        let first = self.names.iter().find(is_first).map(String::as_str);
        first.unwrap_or(locks).to_owned()
    }

    /// The time between TERM and KILL.
    pub(crate) fn grace(&self) -> Duration {
        self.grace.unwrap_or(USUAL_GRACE.min(self.lease / 3))
    }

    /// The command's processes must have ended this long before the lease ends.
    pub(crate) fn margin(&self) -> Duration {
        (self.lease / 10).min(Duration::from_secs(1))
    }
}
