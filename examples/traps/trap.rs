//! A trap, and how it is shown: first the original code, then this crate.

use leasehold::redis::{self, Connection};

use crate::shared::{
    Redis,
    history::Recorder,
    scene::{Scene, say},
};

/// One half of a trap: what the actors do.
pub(crate) type Half = fn(&Redis, &mut Scene) -> anyhow::Result<()>;

pub(crate) struct Trap {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// The failure.
    pub(crate) title: &'static str,
    /// The book or document that has the code.
    pub(crate) source: &'static str,
    /// Each has a column.
    pub(crate) actors: &'static [&'static str],
    /// The keys that it writes. They are printed, and deleted after each half.
    pub(crate) keys: &'static [&'static str],
    /// The original code, with a plain client.
    pub(crate) classic: Half,
    /// With this crate.
    pub(crate) ours: Half,
}

impl Trap {
    /// A trap of two actors with the usual lock.
    pub(crate) const OF_A_AND_B: Self = Self {
        name: "",
        title: "",
        source: "",
        actors: &["A", "B"],
        keys: &["lock:trap"],
        classic: |_, _| Ok(()),
        ours: |_, _| Ok(()),
    };

    pub(crate) fn show(&self, redis: &Redis, recorder: Option<&Recorder>) -> anyhow::Result<()> {
        let mut conn = redis.client()?;
        if !redis.is_private() {
            self.refuse_the_keys_of_others(&mut conn)?;
        }
        say(&format!("\n{}: {}", self.name, self.title))?;
        say(&format!("from {}", self.source))?;
        for (half, title) in [
            (self.classic, "Without this crate"),
            (self.ours, "With this crate"),
        ] {
            let scene = Scene::begin(redis, title, self.actors, self.keys)?;
            let name = format!("{}: {}", self.name, title.to_lowercase());
            let mut scene = scene.recorded_by(recorder, &name);
            let shown = half(redis, &mut scene);
            self.delete_keys(&mut conn)?;
            shown?;
        }
        Ok(())
    }

    /// Keys that were there before must not be deleted.
    fn refuse_the_keys_of_others(&self, conn: &mut Connection) -> anyhow::Result<()> {
        for key in self.keys {
            let exists: bool = redis::cmd("EXISTS").arg(key).query(conn)?;
            anyhow::ensure!(!exists, "the server has a key `{key}` already");
        }
        Ok(())
    }

    fn delete_keys(&self, conn: &mut Connection) -> anyhow::Result<()> {
        let companions = self.keys.iter().map(|key| format!("{{{key}}}:lease"));
        let keys: Vec<_> = companions
            .chain(self.keys.iter().map(ToString::to_string))
            .collect();
        redis::cmd("DEL").arg(keys).exec(conn)?;
        Ok(())
    }
}
