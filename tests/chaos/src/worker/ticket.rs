//! Tickets, which lie in a folder between the processes. Some are copied, so that two processes use one.

use std::fs;

use fastrand::Rng;
use lambda_lock::{Lock, Ticket};
use tokio::time::sleep;

use super::hold::{Target, has, millis};
use super::{TICKETS, Worker, draw};
use crate::event::What;

impl Worker {
    pub(super) async fn with_ticket(&self, random: &mut Rng) {
        if random.u8(0..3) > 0
            && let Some(ticket) = self.take_ticket(random)
        {
            return self.use_ticket(&ticket, random).await;
        }
        let op = self.op();
        let target = Target { keys: vec![format!("ticket-{}", random.u64(0..TICKETS))], permits: 1 };
        match self.acquire(op, &target, draw(random, 400..=1500), random).await {
            Some(lock) => self.hold_and_pass_on(op, lock, random).await,
            None => sleep(draw(random, 0..=40)).await,
        }
    }

    async fn hold_and_pass_on(&self, op: u64, lock: Lock, random: &mut Rng) {
        self.hold(op, &lock, random).await;
        if random.u8(0..4) == 0 {
            return self.release(op, &lock).await;
        }
        let ticket = lock.into_ticket().unwrap();
        self.note(op, What::Passed);
        let copies = if random.u8(0..3) == 0 { 2 } else { 1 };
        for copy in 0..copies {
            self.leave_ticket(&ticket, &format!("{}-{copy}", self.holder(op)));
        }
    }

    async fn use_ticket(&self, ticket: &Ticket, random: &mut Rng) {
        let op = self.op();
        self.note(op, What::Shows { key: ticket.key().to_owned(), fence: ticket.fence() });
        match random.u8(0..8) {
            0 => {
                let lease = draw(random, 400..=1500);
                self.note(op, What::Renews { lease: millis(lease) });
                match self.locks.renew_ticket(ticket, lease).await {
                    Ok(_) => {
                        self.note(op, What::Renewed);
                        self.leave_ticket(ticket, &self.holder(op));
                    }
                    Err(error) => self.note(op, What::Failed { why: error.kind().to_string() }),
                }
            }
            1 => {
                self.note(op, What::Releases);
                match self.locks.release_ticket(ticket).await {
                    Ok(()) => self.note(op, What::Released),
                    Err(error) => self.note(op, What::Failed { why: error.kind().to_string() }),
                }
            }
            _ => match self.locks.resume(ticket).await {
                Ok(lock) => {
                    self.note(op, has(&lock, true));
                    self.hold_and_pass_on(op, lock, random).await;
                }
                Err(error) => self.note(op, What::Failed { why: error.kind().to_string() }),
            },
        }
    }

    /// A file is written elsewhere first: in the folder it is whole.
    fn leave_ticket(&self, ticket: &Ticket, name: &str) {
        let path = self.settings.folder.join(name);
        fs::write(&path, serde_json::to_vec(ticket).unwrap()).unwrap();
        fs::rename(path, self.settings.folder.join("tickets").join(name)).unwrap();
    }

    /// Moves one of the files away: only one process can.
    fn take_ticket(&self, random: &mut Rng) -> Option<Ticket> {
        let files = fs::read_dir(self.settings.folder.join("tickets")).unwrap().filter_map(Result::ok);
        let files: Vec<_> = files.map(|file| file.path()).collect();
        let file = random.choice(&files)?;
        let mine = self.settings.folder.join(format!("taken by {}", self.holder(self.op())));
        fs::rename(file, &mine).ok()?;
        let ticket = serde_json::from_slice(&fs::read(&mine).unwrap()).unwrap();
        fs::remove_file(mine).unwrap();
        Some(ticket)
    }
}
