//! The questions that wait for an answer: those about jobs before those that only ask what if, and of one credential only
//! a few of these.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

/// Questions that wait at most, of each kind; who asks beyond them is told that the server is busy.
const MOST_WAITING: usize = 64;
/// What-ifs of one credential that wait or are being answered at most.
const MOST_OF_ONE: usize = 2;

/// A credential, by its hash.
pub(super) type Credential = [u8; 32];

/// Who waits for an answer.
pub(super) trait Waiter {
    /// Nobody does any more.
    fn has_left(&self) -> bool;
}

/// Why a question is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// The same credential asks too many.
    TooManyOfOne,
    /// Too many wait.
    TooMany,
}

/// See the module.
pub(super) struct Questions<T> {
    waiting: Mutex<Waiting<T>>,
    arrived: Condvar,
}

struct Waiting<T> {
    about_jobs: VecDeque<T>,
    what_ifs: VecDeque<(Credential, T)>,
    /// Whose what-if is being answered.
    answered: Option<Credential>,
    closed: bool,
}

impl<T: Waiter> Questions<T> {
    pub(super) fn new() -> Self {
        let waiting =
            Waiting { about_jobs: VecDeque::new(), what_ifs: VecDeque::new(), answered: None, closed: false };
        Self { waiting: Mutex::new(waiting), arrived: Condvar::new() }
    }

    /// Takes a question in, or gives it back. `what_if_by`: it is one, of this credential.
    pub(super) fn add(&self, question: T, what_if_by: Option<Credential>) -> Result<(), (T, NotTaken)> {
        let mut waiting = self.waiting.lock();
        match what_if_by {
            None => {
                waiting.about_jobs.retain(|asked| !asked.has_left());
                if waiting.about_jobs.len() >= MOST_WAITING {
                    return Err((question, NotTaken::TooMany));
                }
                waiting.about_jobs.push_back(question);
            }
            Some(by) => {
                waiting.what_ifs.retain(|(_, asked)| !asked.has_left());
                let others = waiting.what_ifs.iter().filter(|(other, _)| *other == by).count();
                if others + usize::from(waiting.answered == Some(by)) >= MOST_OF_ONE {
                    return Err((question, NotTaken::TooManyOfOne));
                }
                if waiting.what_ifs.len() >= MOST_WAITING {
                    return Err((question, NotTaken::TooMany));
                }
                waiting.what_ifs.push_back((by, question));
            }
        }
        self.arrived.notify_one();
        Ok(())
    }

    /// The next one to be answered, once the one before it was; `None` when they are closed.
    pub(super) fn next(&self) -> Option<T> {
        let mut waiting = self.waiting.lock();
        waiting.answered = None;
        loop {
            if waiting.closed {
                return None;
            }
            if let Some(about_job) = waiting.about_jobs.pop_front() {
                return Some(about_job);
            }
            if let Some((by, what_if)) = waiting.what_ifs.pop_front() {
                waiting.answered = Some(by);
                return Some(what_if);
            }
            self.arrived.wait(&mut waiting);
        }
    }

    /// Whoever waits is not answered any more.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.closed = true;
        waiting.about_jobs.clear();
        waiting.what_ifs.clear();
        self.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A question by its number; from a hundred on nobody waits for the answer.
    impl Waiter for u32 {
        fn has_left(&self) -> bool {
            *self >= 100
        }
    }

    const ONE: Option<Credential> = Some([1; 32]);
    const OTHER: Option<Credential> = Some([2; 32]);

    #[test]
    fn jobs_are_answered_for_before_what_ifs() {
        let questions = Questions::new();
        for (number, by) in [(1, ONE), (2, OTHER), (3, None), (4, None)] {
            questions.add(number, by).unwrap();
        }
        assert_eq!([questions.next(), questions.next(), questions.next()], [Some(3), Some(4), Some(1)]);
        questions.add(5, None).unwrap();
        assert_eq!([questions.next(), questions.next()], [Some(5), Some(2)]);
        questions.close();
        assert_eq!(questions.next(), None);
    }

    #[test]
    fn one_credential_asks_two_what_ifs_at_once_and_keeps_nobody_else_from_asking() {
        let questions = Questions::new();
        questions.add(1, ONE).unwrap();
        questions.add(2, ONE).unwrap();
        assert_eq!(questions.add(3, ONE), Err((3, NotTaken::TooManyOfOne)));
        assert_eq!(questions.next(), Some(1));
        // The first is being answered, and counts.
        assert_eq!(questions.add(3, ONE), Err((3, NotTaken::TooManyOfOne)));
        questions.add(4, OTHER).unwrap();
        assert_eq!(questions.next(), Some(2));
        questions.add(5, ONE).unwrap();
        // Whoever has gone leaves room.
        questions.add(100, OTHER).unwrap();
        questions.add(6, OTHER).unwrap();
        assert_eq!([questions.next(), questions.next(), questions.next()], [Some(4), Some(5), Some(6)]);
    }

    #[test]
    fn what_ifs_leave_room_for_questions_about_jobs() {
        let questions = Questions::new();
        for credential in 0..64_u8 {
            questions.add(1, Some([credential; 32])).unwrap();
        }
        assert_eq!(questions.add(2, Some([64; 32])), Err((2, NotTaken::TooMany)));
        for _ in 0..64 {
            questions.add(3, None).unwrap();
        }
        assert_eq!(questions.add(4, None), Err((4, NotTaken::TooMany)));
    }
}
