//! The scripts beside this file, one typed call each.

use redis::Cmd;

use crate::{
    name::LockName,
    script::{Call, scripts},
    token::Token,
};

scripts! {
    ACQUIRE_SIMPLE = "acquire.lua";
}

/// The first attempt: the book's `SETNX` and `EXPIRE` in one command, so that no crash can come
/// between them.
pub(crate) fn set(lock: &LockName, token: &Token, lease_millis: Option<u64>) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(lock.key()).arg(token.as_str()).arg("NX");
    if let Some(millis) = lease_millis {
        set.arg("PX").arg(millis);
    }
    set
}

/// One more attempt at a book lock: takes it if it is free or ours already, gives it an end if it
/// has none.
pub(crate) fn acquire(lock: &LockName, token: &Token, lease_millis: Option<u64>) -> Call {
    ACQUIRE_SIMPLE
        .on([lock.key()])
        .arg(token.as_str())
        .arg(lease_millis.unwrap_or(0))
}
