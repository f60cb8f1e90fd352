//! The scripts beside this file, one typed call each.

use crate::{
    script::{Call, Script, scripts},
    token::Token,
};

scripts! {
    ACQUIRE_READ_ONE_HASH = "holders.lua" then "acquire_read.lua";
    ACQUIRE_WRITE_ONE_HASH = "holders.lua" then "acquire_write.lua";
    RELEASE_READ_ONE_HASH = "holders.lua" then "release_read.lua";
    RELEASE_WRITE_ONE_HASH = "holders.lua" then "release_write.lua";
}

/// Answers whether we are in, or were until now. The lengths, in milliseconds, are those of a
/// reader, a writer and the key.
pub(super) fn call(script: &'static Script, key: &str, token: &Token, lengths: [u64; 3]) -> Call {
    script.on([key]).arg(token.as_str()).arg(&lengths)
}
