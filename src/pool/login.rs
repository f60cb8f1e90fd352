//! The settings of new connections, with the current user and password.

use std::{error::Error as StdError, fmt, iter, result, sync::Arc};

use redis::{Client, ConnectionAddr, ErrorKind};

use super::dial::client_by;
use crate::{
    error::{Error, Result},
    event::shielded,
    time::{self, Deadline},
};

/// The user of `requirepass`.
const DEFAULT_USER: &str = "default";

/// A user and a password, or the error of the caller's function.
pub(crate) type LoginResult = result::Result<(String, String), Box<dyn StdError + Send + Sync>>;

/// The caller's function for the user and the password.
#[derive(Clone)]
pub(crate) struct LoginFunction(Arc<dyn Fn() -> LoginResult + Send + Sync>);

impl LoginFunction {
    pub(super) fn new(ask: impl Fn() -> LoginResult + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    fn ask(&self, attempt: Deadline) -> Result<(String, String)> {
        let asked = time::now();
        let failed = |why: String| Error::pool(format!("the login function {why}"), None);
        let login = shielded(&*self.0).ok_or_else(|| failed("panicked".into()))?;
        let login = login.map_err(|error| failed(format!("failed: {}", whole(&*error))))?;
        if attempt.has_passed() {
            let took = asked.elapsed();
            let why = format!("took {took:.1?}, which left no time to connect");
            return Err(failed(why));
        }
        Ok(login)
    }
}

impl fmt::Debug for LoginFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginFunction")
    }
}

/// Formats an error with its sources.
fn whole(error: &(dyn StdError + 'static)) -> String {
    let sources = iter::successors(Some(error), |&error| error.source());
    let texts: Vec<_> = sources.map(ToString::to_string).collect();
    texts.join(": ")
}

/// The settings of the connections to a server, or to all nodes of a cluster.
#[derive(Clone)]
pub(crate) struct Access {
    client: Client,
    login: Option<LoginFunction>,
}

impl Access {
    pub(crate) fn new(client: Client, login: Option<LoginFunction>) -> Self {
        Self { client, login }
    }

    pub(super) fn address(&self) -> &ConnectionAddr {
        self.client.get_connection_info().addr()
    }

    /// Opens a connection. If the server refuses the login and the function now returns another,
    /// tries once more: the password may have changed in between.
    pub(super) fn open<T>(
        &self,
        attempt: Deadline,
        open: impl Fn(&Client) -> Result<T>,
    ) -> Result<T> {
        let client = self.client(attempt)?;
        let opened = open(&client);
        if self.login.is_none() || !opened.as_ref().is_err_and(is_refused_login) {
            return opened;
        }
        let now = self.client(attempt)?;
        if login_of(&now) == login_of(&client) {
            return opened;
        }
        open(&now)
    }

    /// Returns the settings of a connection that is opened now. Takes as long as the caller's
    /// function.
    ///
    /// # Errors
    /// [`Error::Pool`]: the function failed, or took until the end of this attempt to connect.
    pub(crate) fn client(&self, attempt: Deadline) -> Result<Client> {
        let Some(login) = &self.login else {
            return Ok(self.client.clone());
        };
        let (user, password) = login.ask(attempt)?;
        let user = if user.is_empty() { DEFAULT_USER } else { &user };
        let settings = self.client.get_connection_info().clone();
        let login = settings.redis_settings().clone();
        let login = login.set_username(user).set_password(password);
        client_by(settings.set_redis_settings(login))
    }
}

fn login_of(client: &Client) -> (Option<&str>, Option<&str>) {
    let login = client.get_connection_info().redis_settings();
    (login.username(), login.password())
}

fn is_refused_login(error: &Error) -> bool {
    let Error::Pool {
        source: Some(source),
        ..
    } = error
    else {
        return false;
    };
    source.kind() == ErrorKind::AuthenticationFailed || source.code() == Some("WRONGPASS")
}
