//! Closed connections. redis-rs closes one only when it is dropped.

use std::{
    net::{Ipv4Addr, TcpListener},
    time::Duration,
};

use redis::{
    Client, Connection, ConnectionAddr, ConnectionLike, IntoConnectionInfo, RedisConnectionInfo,
    RedisResult,
};

/// The time-out for connecting to this process, which normally takes microseconds.
const LOCAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Replaces a connection with a closed one to this process. If that cannot be made, the connection
/// stays open.
pub(super) fn close(conn: &mut Connection) {
    if conn.is_open()
        && let Ok(closed) = closed_connection()
    {
        *conn = closed;
    }
}

/// A connection to this process that is closed.
pub(super) fn closed_connection() -> RedisResult<Connection> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
    let address = ConnectionAddr::Tcp(Ipv4Addr::LOCALHOST.to_string(), port)
        .into_connection_info()?
        .set_redis_settings(settings);
    let mut conn = Client::open(address)?.get_connection_with_timeout(LOCAL_TIMEOUT)?;
    conn.set_read_timeout(Some(LOCAL_TIMEOUT))?;
    drop(listener.accept()?);
    // redis-rs marks the connection as closed when it reads the end of the stream.
    let _ = conn.recv_response();
    Ok(conn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_connection_is_closed() {
        let conn = closed_connection().unwrap();
        assert!(!conn.is_open());
    }
}
