//! The message of an outcome, in words or in JSON.

use std::os::unix::process::ExitStatusExt;

use leasehold::{Error, FencingToken};
use serde_json::{Value, json};

use crate::{
    arguments::Arguments,
    deciding::outcome::{Conclusion, Report, of_error},
    speaking::{
        messages::{self, Message},
        text::{holder_in_json, last_run_in_json, millis},
    },
};

/// The reason why a successful run may not be marked as completed.
const INTERRUPTED: &str = "lockrun got TERM or INT";

/// A failed operation without a command, as JSON.
pub(crate) fn failure_in_json(name: &str, error: &Error, message: &str) -> Value {
    let (code, outcome) = of_error(error);
    json!({ "name": name, "outcome": outcome, "exit_code": code, "message": message })
}

impl Report {
    /// `None`: there is nothing to say.
    pub(crate) fn message(&self, arguments: &Arguments) -> Option<Message> {
        if arguments.json {
            return Some(messages::in_json(&self.json(arguments)));
        }
        // A lock keeps all hosts but one from the work, so it is no failure that another host holds
        // the lock or has done the work. But a host that holds the lock for the whole wait may
        // hang.
        let is_usual = match self.outcome {
            Conclusion::Busy(_) => arguments.wait.is_zero(),
            Conclusion::AlreadyRun(_) => true,
            _ => false,
        };
        if is_usual && arguments.quiet {
            return None;
        }
        self.in_words(arguments)
    }

    fn in_words(&self, arguments: &Arguments) -> Option<Message> {
        let subject = arguments.subject();
        Some(match &self.outcome {
            Conclusion::Told(_) => return None,
            Conclusion::Ended(status) if status.success() => {
                messages::may_be_run_again(&subject, self.unmarked(arguments)?)
            }
            // Whoever told lockrun to end expects no success.
            Conclusion::Ended(_) if self.was_interrupted => return None,
            Conclusion::Ended(status) => messages::command_failed(&subject, *status),
            Conclusion::AlreadyRun(run) => messages::already_run(&subject, run),
            Conclusion::Lost(loss) => messages::lost(&arguments.subject_of(&loss.lock), loss),
            Conclusion::NotRun(error) => messages::not_run(arguments, error),
            Conclusion::Busy(busy) => messages::busy(busy),
            Conclusion::Failed(error) => messages::not_acquired(arguments, error, self.waited),
            Conclusion::System(error) => messages::system(error),
        })
    }

    /// The reason why a successful run with `--once-per` may not have been marked as completed.
    fn unmarked(&self, arguments: &Arguments) -> Option<&str> {
        arguments.once_per?;
        if self.was_interrupted {
            return Some(INTERRUPTED);
        }
        self.unmarked.as_deref()
    }

    /// The lock of this outcome: of several, the one that was not acquired or was lost.
    fn name<'a>(&'a self, arguments: &'a Arguments) -> Option<&'a str> {
        let of_several = || match &self.outcome {
            Conclusion::Busy(busy) => Some(&*busy.name),
            Conclusion::Lost(loss) => Some(&*loss.lock),
            Conclusion::Failed(error) => error.context().map(|context| &*context.lock),
            _ => None,
        };
        arguments.only_name().or_else(of_several)
    }

    fn json(&self, arguments: &Arguments) -> Value {
        let (code, word) = self.code_and_word();
        let (status, lost) = match &self.outcome {
            Conclusion::Ended(status) => (Some(*status), None),
            Conclusion::Lost(loss) => (loss.status, Some(loss.why.word())),
            _ => (None, None),
        };
        let holders = match &self.outcome {
            Conclusion::Busy(busy) => busy.holders(),
            _ => &[],
        };
        let fences = self.fencing_tokens.iter();
        let fences: Vec<_> = fences.map(|fence| fence.map(FencingToken::get)).collect();
        json!({
            "name": self.name(arguments),
            "names": arguments.names,
            "permits": arguments.permits,
            "outcome": word,
            "exit_code": code,
            "message": self.in_words(arguments).as_ref().map(Message::text),
            "last_run": match &self.outcome {
                Conclusion::AlreadyRun(run) => last_run_in_json(run),
                _ => Value::Null,
            },
            "holders": holders.iter().map(holder_in_json).collect::<Vec<_>>(),
            "lost_reason": lost,
            "command_exit_code": status.and_then(|status| status.code()),
            "command_signal": status.and_then(|status| status.signal()),
            "fencing_token": arguments.only_name().and_then(|_| *fences.first()?),
            "fencing_tokens": fences,
            "waited_ms": millis(self.waited),
            "held_ms": self.held.map(millis),
        })
    }
}
