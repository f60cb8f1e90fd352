//! Prints what the server offers for locks.

use leasehold::{Error, Finding, Probe};
use serde_json::{Value, json};

use crate::{
    arguments::Arguments,
    deciding::outcome::{AnswerText, code_of},
    speaking::words::failed,
};

/// The exit code if locks do not work on this server.
const DO_NOT_WORK: u8 = 78;

pub(crate) fn probe(arguments: &Arguments) -> (u8, AnswerText) {
    let probe = arguments.locks().and_then(|locks| locks.probe());
    let code = match &probe {
        Ok(probe) if probe.locks_work() => 0,
        Ok(_) | Err(Error::TooOld { .. }) => DO_NOT_WORK,
        Err(error) => code_of(error),
    };
    let mut told = AnswerText::default();
    match &probe {
        _ if arguments.json => told.out = in_json(arguments, &probe, code).to_string(),
        Ok(probe) => told.out = probe.to_string(),
        Err(error) => told.err = format!("lockrun: {}", failed(arguments, "cannot probe", error)),
    }
    (code, told)
}

fn in_json(arguments: &Arguments, probe: &Result<Probe, Error>, code: u8) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "topic": finding.topic,
            "severity": finding.severity.to_string(),
            "found": finding.found,
            "consequence": finding.consequence,
        })
    };
    let (findings, message) = match probe {
        Ok(probe) => (probe.findings().iter().map(finding).collect(), None),
        Err(error) => (Vec::new(), Some(failed(arguments, "cannot probe", error))),
    };
    json!({
        "locks_work": code == 0,
        "exit_code": code,
        "message": message,
        "findings": findings,
    })
}
