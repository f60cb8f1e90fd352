//! Lock names, their keys, and owners.

use std::{
    cell::RefCell,
    env, fmt, fs, process,
    str::FromStr,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use uuid::Uuid;

use crate::{
    error::{Error, Result, ensure},
    token::{FencingToken, Token},
};

/// The book's prefix of a lock's key.
const PREFIX: &str = "lock:";
/// The size limit of names, tokens, owners, keys and users.
const MAX_BYTES: usize = 512;
const MAX_PREFIX_BYTES: usize = 128;
/// Suffixes of the keys that belong to a lock. No lock's own key may look like one of them.
const COMPANION: &str = ":lease";
const MARK: &str = ":done";
const PROOF: &str = ":proof";
const RUN_MARK: &str = ":lease:ran";

/// # Errors
/// [`Error::Invalid`]: the text is empty or longer than 512 bytes.
pub(crate) fn check_size(argument: &'static str, text: &str) -> Result<()> {
    let fits = (1..=MAX_BYTES).contains(&text.len());
    ensure(fits, argument, "it must be 1 to 512 bytes long")
}

/// A checked lock name and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockName {
    key: String,
    /// The offset of the name in the key.
    name_at: usize,
}

impl LockName {
    /// # Errors
    /// [`Error::Invalid`]: the name is empty, longer than 512 bytes, ends in `:lease` or
    /// `:lease:ran`, or has braces other than one non-empty `{tag}`. Otherwise two names could
    /// share a key, or a lock and its other keys could be in different hash slots.
    pub(crate) fn new(name: &str) -> Result<Self> {
        Self::prefixed(PREFIX, name)
    }

    /// Creates a name with another prefix, or none.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`Error::Invalid`]: the prefix is longer than 128 bytes or has
    /// braces, or there is no prefix and the name begins with a brace, as a lock's other keys do.
    pub(crate) fn prefixed(prefix: &str, name: &str) -> Result<Self> {
        let is_prefix = prefix.len() <= MAX_PREFIX_BYTES && !prefix.contains(['{', '}']);
        let reason = "it must be at most 128 bytes long and have no braces";
        ensure(is_prefix, "prefix", reason)?;
        let is_bare = prefix.is_empty() && name.starts_with('{');
        let reason = "without a prefix it must not begin with a brace";
        ensure(!is_bare, "lock name", reason)?;
        check_size("lock name", name)?;
        let (companion, mark) = (name.ends_with(COMPANION), name.ends_with(RUN_MARK));
        ensure(!companion, "lock name", "it must not end in `:lease`")?;
        ensure(!mark, "lock name", "it must not end in `:lease:ran`")?;
        let reason = "braces may only enclose one non-empty {tag}";
        ensure(braces_are_one_tag(name), "lock name", reason)?;
        Ok(Self {
            key: [prefix, name].concat(),
            name_at: prefix.len(),
        })
    }

    /// Returns the key of the lock: by default `lock:` and the name, as in the book.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Returns the text before the name.
    pub(crate) fn prefix(&self) -> &str {
        self.key.get(..self.name_at).unwrap_or_default()
    }

    /// Returns the name as it was given.
    pub(crate) fn text(&self) -> &str {
        self.key.get(self.name_at..).unwrap_or(&self.key)
    }

    /// Returns the companion key, in the same hash slot: it holds the data that does not fit into
    /// the lock's own key.
    pub(crate) fn companion(&self) -> String {
        self.beside(COMPANION)
    }

    /// Returns the key of the mark that a run leaves, in the same hash slot.
    pub(crate) fn run_mark(&self) -> String {
        self.beside(RUN_MARK)
    }

    fn beside(&self, end: &str) -> String {
        if self.key.contains('{') {
            [&*self.key, end].concat()
        } else {
            ["{", &*self.key, "}", end].concat()
        }
    }

    /// Returns the key that marks an operation with this id as done under the lock, in the same
    /// hash slot. A lock's key never has two pairs of braces, so this is never the key of a lock,
    /// of a companion, or of another lock's operation.
    pub(crate) fn mark(&self, operation_id: &str) -> String {
        self.beside(&[MARK, "{", operation_id, "}"].concat())
    }

    /// Returns the key of one transaction's proof that the lock is held, in the same hash slot.
    /// Like a mark, it is never another key of ours.
    pub(crate) fn proof(&self, transaction_id: &str) -> String {
        self.beside(&[PROOF, "{", transaction_id, "}"].concat())
    }
}

/// Returns true if there are no braces, or one `{` before one `}` with text between them.
fn braces_are_one_tag(name: &str) -> bool {
    match (name.find('{'), name.rfind('}')) {
        (None, None) => true,
        (Some(open), Some(close)) => {
            open + 1 < close && name.rfind('{') == Some(open) && name.find('}') == Some(close)
        }
        _ => false,
    }
}

impl FromStr for Token {
    type Err = Error;

    /// Reads a token as this library or another one stores it in Redis.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the text is empty or longer than 512 bytes.
    fn from_str(text: &str) -> Result<Self> {
        check_size("token", text)?;
        Ok(Self(text.into()))
    }
}

impl FromStr for FencingToken {
    type Err = Error;

    /// Reads the number that [`Display`](fmt::Display) prints.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the text is not a number below 2^64.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |_| Error::invalid("fencing token", "it must be a number below 2^64");
        text.parse::<u64>().map(Self::from).map_err(invalid)
    }
}

/// The owner of a reentrant lock, who may acquire it again: a thread, or any name that the caller
/// chooses.
///
/// ```
/// use leasehold::Owner;
///
/// assert_eq!(Owner::current_thread(), Owner::current_thread());
/// assert_eq!(Owner::new("night job on host 7")?.to_string(), "night job on host 7");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(Arc<str>);

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Owner {
    /// Returns the owner that stands for this thread. It differs from that of any other thread of
    /// any process on any host.
    #[must_use]
    pub fn current_thread() -> Self {
        static PROCESS: LazyLock<Uuid> = LazyLock::new(Uuid::new_v4);
        static THREADS: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        // A forked child has the parent's UUID and thread number, but another process id.
        let (process, thread) = (process::id(), THREAD.with(|number| *number));
        Self(format!("{}:{process}:{thread}", *PROCESS).into())
    }

    /// Returns this thread as readable text: host, process and thread name.
    pub(crate) fn described() -> Self {
        Self::described_in(process::id())
    }

    /// Like [`described`](Self::described), for a caller that knows the process id. Each thread
    /// builds the text once.
    pub(crate) fn described_in(process: u32) -> Self {
        thread_local! {
            static DESCRIBED: RefCell<Option<(u32, Owner)>> = const { RefCell::new(None) };
        }
        // A destructor of another thread-local may acquire a lock after this one has been
        // destroyed.
        let described = DESCRIBED.try_with(|described| {
            let mut described = described.try_borrow_mut().ok()?;
            // A forked child has a copy of its parent's text.
            let known = described.as_ref().filter(|(of, _)| *of == process);
            let owner = known.map_or_else(|| Self::describe(process), |(_, owner)| owner.clone());
            *described = Some((process, owner.clone()));
            Some(owner)
        });
        let described = described.ok().flatten();
        described.unwrap_or_else(|| Self::describe(process))
    }

    fn describe(process: u32) -> Self {
        static HOST: LazyLock<String> = LazyLock::new(host);
        let thread = thread::current();
        let name: String = thread.name().unwrap_or("thread").chars().take(64).collect();
        Self(format!("{}:{process}:{name}", *HOST).into())
    }

    /// Creates an owner with a name that the caller chooses.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the text is empty, longer than 512 bytes, or looks like a field of a
    /// read-write lock: it is `kind` or begins with `r:`, `w:` or `i:`.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        check_size("owner", &text)?;
        let is_field = |side| text.starts_with(side);
        let is_free = text != "kind" && !["r:", "w:", "i:"].into_iter().any(is_field);
        let reason = "it must not be `kind` or begin with `r:`, `w:` or `i:`, like the fields of \
                      a read-write lock";
        ensure(is_free, "owner", reason)?;
        Ok(Self(text.into()))
    }

    /// Returns the text that is stored in Redis.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Owner {
    type Err = Error;

    /// Reads an owner, as [`Owner::new`] does.
    ///
    /// # Errors
    /// [`Error::Invalid`]: as [`Owner::new`].
    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

/// Returns this machine's name from `/proc` or `HOSTNAME`, or else `?`.
fn host() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let said = kernel.or_else(|| env::var("HOSTNAME").ok());
    let name = said.filter(|name| !name.trim().is_empty());
    name.map_or("?".to_owned(), |name| {
        name.trim().chars().take(64).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn is_valid(name: &str) -> bool {
        LockName::new(name).is_ok()
    }

    #[test]
    fn a_fencing_token_is_its_number() {
        for number in [0, 1, 1_764_288_000_000_000, u64::MAX] {
            let token = FencingToken::from(number);
            assert_eq!((u64::from(token), token.get()), (number, number));
            assert_eq!(token.to_string().parse::<FencingToken>().unwrap(), token);
        }
        for text in ["", "x", "-1", " 1", "18446744073709551616"] {
            assert!(
                matches!(text.parse::<FencingToken>(), Err(Error::Invalid { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        for name in [
            "",
            "a:lease",
            "a:lease:ran",
            "{",
            "}",
            "{}",
            "a{}b",
            "}a{",
            "{a}{b}",
            "{a",
            "a}",
            "{a}}",
            "{{a}",
        ] {
            assert!(!is_valid(name), "{name}");
        }
        assert!(!is_valid(&"x".repeat(513)));
    }

    #[test]
    fn valid_names_and_their_keys() {
        for name in [
            "a",
            "lease",
            "market:ItemA.4",
            "{shop}:report",
            "a b\r\n\0",
            "名前",
            "lock:lock",
        ] {
            assert_eq!(LockName::new(name).unwrap().key(), format!("lock:{name}"));
        }
        assert!(is_valid(&"x".repeat(512)));
    }

    #[test]
    fn companion_and_mark_are_in_the_slot_of_the_lock() {
        let companion = |name| LockName::new(name).unwrap().companion();
        assert_eq!(companion("a"), "{lock:a}:lease");
        assert_eq!(companion("{shop}:report"), "lock:{shop}:report:lease");
        let mark = |name| LockName::new(name).unwrap().run_mark();
        assert_eq!(mark("a"), "{lock:a}:lease:ran");
        assert_eq!(mark("{shop}:report"), "lock:{shop}:report:lease:ran");
        let proof = |name| LockName::new(name).unwrap().proof("id");
        assert_eq!(proof("a"), "{lock:a}:proof{id}");
        assert_eq!(proof("{shop}:report"), "lock:{shop}:report:proof{id}");
    }

    proptest! {
        #[test]
        fn two_names_never_share_a_key(names in proptest::collection::vec("[ab{}:.]{0,6}(:lease)?(:ran)?", 2..40)) {
            let mut names_by_key = HashMap::new();
            for name in names {
                if let Ok(lock) = LockName::new(&name) {
                    for key in [lock.key().to_owned(), lock.companion(), lock.run_mark()] {
                        let earlier = names_by_key.insert(key, name.clone());
                        prop_assert!(earlier.is_none_or(|earlier| earlier == name));
                    }
                }
            }
        }

        #[test]
        fn any_text_is_accepted_or_refused(name in any::<String>()) {
            let _ = LockName::new(&name);
        }
    }
}
