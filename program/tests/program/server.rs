//! A server with scripted answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::{PROGRAM, bare, credentials};

/// The command `run` on a server, with these options.
pub(crate) fn at_a_server(endpoint: &str, options: &[&str]) -> Command {
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "locks", "--endpoint-url", endpoint]).args(options);
    command.envs(credentials());
    command
}

/// Starts a server, and returns its address. It answers with these statuses and bodies, and repeats the last one. It
/// never answers for a status of 0, and answers 200 after `SLOWLY` for a status of 1.
pub(crate) fn server(answers: &'static [(u16, &'static str)]) -> String {
    recording_server(answers).0
}

/// Starts a server like [`server`], and also returns its requests.
pub(crate) fn recording_server(answers: &'static [(u16, &'static str)]) -> (String, Receiver<String>) {
    let (received, requests) = mpsc::channel();
    let mut unanswered = Vec::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let mut answers = answers.iter();
        let mut answer = answers.next().unwrap();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = BufReader::new(stream.try_clone().unwrap());
            let mut length = 0;
            let (mut line, mut lines) = (String::new(), String::new());
            while request.read_line(&mut line).unwrap_or(0) > 2 {
                lines.push_str(&line);
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            request.read_exact(&mut body).unwrap();
            let _nobody_asked = received.send(lines + &String::from_utf8(body).unwrap());
            let (mut status, text) = *answer;
            if status == 1 {
                thread::sleep(SLOWLY);
                status = 200;
            }
            let start = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", text.len());
            if status == 0 {
                unanswered.push(stream);
            } else {
                let _it_may_have_gone = stream.write_all(format!("{start}{text}").as_bytes());
            }
            answer = answers.next().unwrap_or(answer);
        }
    });
    (address, requests)
}

/// Less than the second after which the client retries.
pub(crate) const SLOWLY: Duration = Duration::from_millis(700);

pub(crate) const DENIED: (u16, &str) = (
    400,
    r#"{"__type":"com.amazon.coral.service#AccessDeniedException","Message":"User: arn:aws:iam::123456789012:user/x is not authorized to perform: dynamodb:UpdateItem on resource: arn:aws:dynamodb:us-east-1:123456789012:table/locks"}"#,
);
