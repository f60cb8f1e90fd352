//! The commands that a server executes, from `MONITOR`.

use std::{
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpStream},
    time::Duration,
};

use anyhow::Context;

use super::{Server, clients};

/// Receives every command that a server executes, including those in scripts and transactions.
pub struct Monitor {
    lines: BufReader<TcpStream>,
    marker: redis::Connection,
    /// A mark of this monitor: other monitors of the same server receive it too.
    mark: String,
}

impl Monitor {
    /// Starts to monitor.
    pub fn start(server: &Server) -> anyhow::Result<Self> {
        let mut marker = server.connection()?;
        let mark = format!(
            "monitor {} has seen everything before this",
            clients::id(&mut marker)
        );
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port()))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::new(stream);
        lines.read_line(&mut String::new())?;
        Ok(Self {
            lines,
            marker,
            mark,
        })
    }

    /// The commands since the last call, one per line, arguments separated by a space.
    pub fn commands(&mut self) -> anyhow::Result<Vec<String>> {
        redis::cmd("ECHO").arg(&self.mark).exec(&mut self.marker)?;
        let mut commands = Vec::new();
        loop {
            let mut line = String::new();
            self.lines.read_line(&mut line)?;
            let (_, quoted) = line
                .trim_end()
                .split_once("] ")
                .context("not a line of MONITOR")?;
            let command = quoted.trim_matches('"').replace("\" \"", " ");
            if command.ends_with(&self.mark) {
                return Ok(commands);
            }
            commands.push(command);
        }
    }
}
