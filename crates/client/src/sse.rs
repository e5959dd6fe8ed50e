//! Reads server-sent events of a response body.

use crate::MAX_RESPONSE;
use msb_spec::{Error, Kind, Result};
use std::io::{BufRead, BufReader, Read};

/// Iterator over events: name and data.
pub(crate) struct SseReader<R> {
    lines: BufReader<R>,
}

impl<R: Read> SseReader<R> {
    pub(crate) fn new(body: R) -> Self {
        Self { lines: BufReader::new(body) }
    }

    fn event(&mut self) -> Result<Option<(String, String)>> {
        let (mut name, mut data) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            let read = self.lines.by_ref().take(MAX_RESPONSE).read_line(&mut line);
            let read =
                read.map_err(|error| Error::host("the response of the server was cut off", error))?;
            let whole = line.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
            match whole {
                None if read == 0 => return Ok(None),
                None => {
                    return Err(Error::new(
                        Kind::Protocol,
                        "an event of the server is incomplete or too long",
                    ));
                }
                Some("") if name.is_empty() && data.is_empty() => {}
                Some("") => return Ok(Some((name, data))),
                Some(line) => match line.split_once(": ") {
                    Some(("event", text)) => name = text.to_owned(),
                    Some(("data", text)) => data.push_str(text),
                    _ => {}
                },
            }
        }
    }
}

impl<R: Read> Iterator for SseReader<R> {
    type Item = Result<(String, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.event().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_one_by_one() {
        let text = ": hello\n\nevent: a\ndata: 1\n\nevent: b\r\ndata: {}\r\n\r\nevent: c";
        let mut events = SseReader::new(text.as_bytes());
        let mut next = || events.next();
        assert_eq!(next().unwrap().unwrap(), ("a".to_owned(), "1".to_owned()));
        assert_eq!(next().unwrap().unwrap(), ("b".to_owned(), "{}".to_owned()));
        assert!(next().unwrap().is_err());
    }
}
