//! The command line.

use std::{env, ffi::OsString, io, process::ExitCode, time::Duration};

use clap::{CommandFactory, FromArgMatches, Parser, error::ErrorKind, parser::ValueSource};

use crate::{outcome::not_written, text::say};

/// The exit code for arguments that make no sense.
pub(crate) const USAGE: u8 = 64;

const SHORTEST_LEASE: Duration = Duration::from_millis(500);
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
const USUAL_URL: &str = "redis://127.0.0.1/";
const USUAL_GRACE: Duration = Duration::from_secs(5);

/// The usage that clap makes by itself lists `--url` among the required where the environment has
/// it.
const USAGES: &str = "\
lockrun [OPTIONS] --name <NAME> -- <COMMAND>...
       lockrun [OPTIONS] --name <NAME> <--status|--force-release>";

const EXAMPLES: &str = "\
Examples:
  lockrun --name backup -- /usr/local/bin/backup --full
      runs the backup, or says who else is at it, and exits 75 at once
  lockrun --name report --wait 10m --lease 60s -- sh -c 'make && make publish'
      waits up to ten minutes for its turn
  lockrun --name backup --once-per 20h --wait 2h -- /usr/local/bin/backup --full
      on every host at the same time of the night: one makes the backup, and another one if that fails
  lockrun --name import --verbose -- sh -c 'import --fence \"$LEASEHOLD_FENCING_TOKEN\"'
      hands the fencing token on, and tells what happens
  lockrun --name backup --status
      who has the lock, since when, and for how long still
  lockrun --name backup --force-release
      takes the lock away from whoever has it

Exit codes:
  the command's own, 0 as well if it had been run (--once-per); 128+n if the signal n ended it; 126 if it cannot be run, 127 if there is none
  64  the arguments cannot be used, or the name is that of something else than a lock
  69  the server cannot be reached, or refuses
  70  the lock was lost, or could not be renewed: the command was ended, or ran beyond the lock
  71  the system refuses what lockrun needs itself: a process, a thread, /proc
  74  what was asked for cannot be written to stdout
  75  busy: somebody else had the lock for the whole wait
  --status and --force-release exit 0 whether the lock was held or not; --json tells.

Signals: TERM and INT to lockrun end the command, and then let the lock go; HUP, QUIT, USR1, USR2 and alarms are only passed on.";

/// Runs a command while a lock on a Redis server is held, so that no other host runs it at the same
/// time.
///
/// The lock is renewed for as long as the command runs. If it cannot be, the command's process
/// group gets TERM, and KILL after the grace, both before the lease ends on the server. The command
/// finds LEASEHOLD_FENCING_TOKEN in its environment. What it leaves running in its process group is
/// ended before the lock is let go.
#[allow(
    clippy::doc_markdown,
    clippy::struct_excessive_bools,
    reason = "a help text, and flags of a command line"
)]
#[derive(Debug, Parser)]
#[command(name = "lockrun", version, override_usage = USAGES, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Arguments {
    /// The lock
    #[arg(long)]
    pub(crate) name: String,

    /// The server
    ///
    /// Everybody on this host sees a password in this argument (ps). In the environment it is seen
    /// by root, by the same user, and by the command, which inherits it.
    #[arg(
        long,
        env = "LEASEHOLD_URL",
        hide_env_values = true,
        default_value = USUAL_URL
    )]
    pub(crate) url: String,

    /// How long to wait for the lock: 30s, 1m30s, 500ms; 0s tries once
    #[arg(long, default_value = "0s", value_parser = duration, conflicts_with = "operator")]
    pub(crate) wait: Duration,

    /// Run it only if no host has run it with success for so long: 20h for a job of every night
    ///
    /// If one has, lockrun says so and exits 0. The time counts from the end of that run, by the
    /// server's clock. After any exit code but 0, TERM or INT to lockrun, or a lost lock the next
    /// lockrun runs it again.
    #[arg(long, value_name = "PERIOD", value_parser = duration, conflicts_with = "operator")]
    pub(crate) once_per: Option<Duration>,

    /// For how long the lock outlives a lockrun that is gone, 500ms to 24h
    #[arg(long, default_value = "60s", value_parser = duration, conflicts_with = "operator")]
    pub(crate) lease: Duration,

    /// Between TERM and KILL, at most a third of the lease [default: 5s, or a third of a shorter
    /// lease]
    #[arg(long, value_parser = duration, conflicts_with = "operator")]
    grace: Option<Duration>,

    /// Say who has the lock, and run nothing
    #[arg(long, group = "operator")]
    status: bool,

    /// Take the lock away from whoever has it, and run nothing; its holder may go on until it knows
    #[arg(long, group = "operator")]
    force_release: bool,

    /// One line of JSON: of --status and --force-release on stdout, of a command's outcome on
    /// stderr
    #[arg(long)]
    pub(crate) json: bool,

    /// Tell what happens, on stderr
    #[arg(long, short)]
    pub(crate) verbose: bool,

    /// Do not say who has a busy lock, or who has run it: the exit code is enough, as for cron,
    /// which mails every word
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

/// The thing to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Run,
    Status,
    ForceRelease,
}

impl Arguments {
    /// What stands on the command line. Otherwise says what is wrong with it, or the help that was
    /// asked for.
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
        Ok(self)
    }

    pub(crate) fn action(&self) -> Action {
        match (self.status, self.force_release) {
            (true, _) => Action::Status,
            (_, true) => Action::ForceRelease,
            _ => Action::Run,
        }
    }

    /// The time that the command has between TERM and KILL.
    pub(crate) fn grace(&self) -> Duration {
        self.grace.unwrap_or(USUAL_GRACE.min(self.lease / 3))
    }

    /// So long before the end of the lease nothing of the command may run any more.
    pub(crate) fn margin(&self) -> Duration {
        (self.lease / 10).min(Duration::from_secs(1))
    }

    /// Says it if `--verbose` asks for it.
    pub(crate) fn tell(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            say(&mut io::stderr(), &format!("lockrun: {}", text()));
        }
    }
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text)
        .map_err(|_| "it has to be a number with a unit, such as 500ms, 30s, 1m30s or 20h")
}
