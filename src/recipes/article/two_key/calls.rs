//! The scripts beside this file, one typed call each.

use crate::{
    recipes::mutex::calls::release_key,
    script::{Call, scripts},
    token::Token,
};

scripts! {
    ACQUIRE_READ_TWO_KEY = "readers.lua" then "acquire_read.lua";
    RELEASE_READ_TWO_KEY = "readers.lua" then "release_read.lua";
    ACQUIRE_WRITE_TWO_KEY = "acquire_write.lua";
}

/// Answers whether we are among the readers. The keys are the read key and the write key.
pub(crate) fn acquire_read(keys: [&str; 2], token: &Token, lease_millis: u64) -> Call {
    ACQUIRE_READ_TWO_KEY
        .on(keys)
        .arg(token.as_str())
        .arg(lease_millis)
}

/// Answers whether we are the writer. The keys are the read key and the write key.
pub(crate) fn acquire_write(keys: [&str; 2], token: &Token, lease_millis: u64) -> Call {
    ACQUIRE_WRITE_TWO_KEY
        .on(keys)
        .arg(token.as_str())
        .arg(lease_millis)
}

/// Answers whether we were among the readers until now.
pub(crate) fn release_read(read_key: &str, token: &Token) -> Call {
    RELEASE_READ_TWO_KEY.on([read_key]).arg(token.as_str())
}

/// Answers whether we were the writer until now: the write key is the same as a mutex.
pub(crate) fn release_write(write_key: &str, token: &Token) -> Call {
    release_key(write_key, token)
}
