//! The scripts beside this file, one typed call each.

use crate::{
    script::{Call, scripts},
    token::Token,
};

scripts! {
    ACQUIRE_READ_ONE_HASH = "holders.lua" then "acquire_read.lua";
    ACQUIRE_WRITE_ONE_HASH = "holders.lua" then "acquire_write.lua";
    RELEASE_READ_ONE_HASH = "holders.lua" then "release_read.lua";
    RELEASE_WRITE_ONE_HASH = "holders.lua" then "release_write.lua";
}

/// What to do with the article's hash.
#[derive(Clone, Copy)]
pub(crate) enum OneHash {
    AcquireRead,
    AcquireWrite,
    ReleaseRead,
    ReleaseWrite,
}

/// Answers whether we are in, or were until now. The lengths, in milliseconds, are those of a reader, a writer and the key.
pub(crate) fn call(step: OneHash, key: &str, token: &Token, lengths: [u64; 3]) -> Call {
    let script = match step {
        OneHash::AcquireRead => &ACQUIRE_READ_ONE_HASH,
        OneHash::AcquireWrite => &ACQUIRE_WRITE_ONE_HASH,
        OneHash::ReleaseRead => &RELEASE_READ_ONE_HASH,
        OneHash::ReleaseWrite => &RELEASE_WRITE_ONE_HASH,
    };
    script.on([key]).arg(token.as_str()).arg(&lengths)
}
