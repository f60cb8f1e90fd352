//! How a Lua file beside a recipe becomes a call.

mod call;
mod packed;
mod replicas;

pub(crate) use call::{Call, Script, count, fencing_token, is_unknown_script, yes_or_no};
pub(crate) use packed::Packed;
pub(crate) use replicas::{MOST_REPLICAS, Replicas};

/// Declares scripts, by paths from the file that declares them: a script may begin with what
/// several have in common.
macro_rules! scripts {
    ($($name:ident = $first:literal $(then $more:literal)*;)+) => {
        $(pub(super) static $name: std::sync::LazyLock<$crate::script::Script> = std::sync::LazyLock::new(|| {
            $crate::script::Script::new(stringify!($name), concat!(
                include_str!($first),
                $(include_str!($more),)*
            ))
        });)+
    };
}
pub(crate) use scripts;

/// What is told to whom is refused.
#[derive(Clone, Copy)]
pub(crate) enum Refusal {
    /// That it is.
    Bare,
    /// As a list of one, how long in milliseconds it will be, as far as is known: -1 is for ever.
    WithItsEnd,
}

impl Refusal {
    pub(crate) fn flag(self) -> u8 {
        u8::from(matches!(self, Self::WithItsEnd))
    }
}
