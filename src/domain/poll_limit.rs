//! How long a worker's poll may park, as the path to its server allows. Proxies and firewalls cut what is silent for
//! too long, and do not say after how long: the limit is learnt from the cuts, and forgotten slowly, since the next
//! network may be another.

use crate::contract::quantity::Seconds;

/// Where nothing cuts, a poll parks so long; the server's own limit is 60 s.
const LONGEST: Seconds = Seconds::new(45);
/// No path that works at all asks for less. What is cut sooner was no poll: whoever asked pauses before asking again.
const SHORTEST: Seconds = Seconds::new(1);
/// An answer is waited for longer than this beyond what was asked for.
const PATIENCE: Seconds = Seconds::new(5);
/// Whole polls in a row before a longer one is tried, at first; doubles with every cut.
const WHOLE_POLLS: u32 = 20;
/// Some hours of polls: a proxy's limit stays as it is for months.
const MOST_WHOLE_POLLS: u32 = 640;

/// How a poll ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollEnd {
    /// The server answered.
    Answered,
    /// What looks like the path's limit: the connection broke or fell silent, or a proxy said that it waited too long.
    Cut,
    /// A proxy has no server behind it at the moment, or answered with something of its own.
    Interrupted,
    /// Nothing could be asked.
    Unreached,
}

/// What has been learnt of one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollLimit {
    longest: Seconds,
    whole_polls: u32,
    needed: u32,
    /// What held before the newest cut, while it may have been the server's end and not the path's limit.
    before: Option<Seconds>,
}

impl Default for PollLimit {
    fn default() -> Self {
        Self { longest: LONGEST, whole_polls: 0, needed: WHOLE_POLLS, before: None }
    }
}

impl PollLimit {
    /// How long the next poll parks: at most `wanted`, and up to a tenth less than the limit (`share` of 0 to 1000
    /// thousandths of it), so that the polls of many workers do not end together.
    pub fn ask(&self, wanted: Seconds, share: u16) -> Seconds {
        let less = self.longest.millis() * u64::from(share.min(1000)) / 10_000;
        wanted.min(Seconds::from_millis(self.longest.millis() - less))
    }

    /// Learns from a poll that asked for `asked` and ended after `after`. Whether it counts as an empty poll: asking
    /// again at once is right then, and anything else needs a pause.
    pub fn ended(&mut self, asked: Seconds, after: Seconds, end: PollEnd) -> bool {
        match end {
            PollEnd::Answered => {
                self.before = None;
                if after >= asked && asked.millis() * 10 >= self.longest.millis() * 9 {
                    self.whole();
                }
                true
            }
            PollEnd::Cut if after >= SHORTEST => {
                self.before = Some(self.before.unwrap_or(self.longest));
                // One that fell silent, until whoever asked lost patience, may have been cut at any moment.
                let tenths = if after < asked.plus(PATIENCE) { 8 } else { 5 };
                let below = Seconds::from_millis(after.min(asked).millis() * tenths / 10);
                self.longest = below.clamp(SHORTEST, self.longest);
                (self.whole_polls, self.needed) = (0, (self.needed * 2).min(MOST_WHOLE_POLLS));
                true
            }
            PollEnd::Unreached => {
                self.server_went();
                false
            }
            PollEnd::Interrupted => after >= SHORTEST,
            PollEnd::Cut => false,
        }
    }

    /// It was the server, or the whole network, that went: the cuts since the last answer taught nothing.
    pub fn server_went(&mut self) {
        if let Some(before) = self.before.take() {
            (self.longest, self.needed) = (before, (self.needed / 2).max(WHOLE_POLLS));
        }
    }

    fn whole(&mut self) {
        self.whole_polls += 1;
        if self.whole_polls >= self.needed {
            self.whole_polls = 0;
            self.longest = LONGEST.min(Seconds::from_millis(self.longest.millis() * 5 / 4));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Seconds = Seconds::new(60);

    fn secs(seconds: u64) -> Seconds {
        Seconds::new(seconds)
    }

    /// A path that cuts after so long: what is asked of it in turn, and how often it cut.
    fn polls(limit: &mut PollLimit, cuts_after: Seconds, count: usize) -> (Vec<Seconds>, usize) {
        let mut cuts = 0;
        let asked = (0..count).map(|_| {
            let asked = limit.ask(LONG, 0);
            let cut = asked >= cuts_after;
            cuts += usize::from(cut);
            let end = if cut { PollEnd::Cut } else { PollEnd::Answered };
            assert!(limit.ended(asked, asked.min(cuts_after), end));
            asked
        });
        (asked.collect(), cuts)
    }

    #[test]
    fn a_path_that_cuts_nothing_is_asked_for_the_longest() {
        let mut limit = PollLimit::default();
        assert_eq!(polls(&mut limit, secs(1000), 100), (vec![LONGEST; 100], 0));
        assert_eq!(limit.ask(secs(2), 0), secs(2), "no longer than wanted");
        assert_eq!(limit.ask(LONG, 1000), Seconds::from_millis(40_500));
    }

    #[test]
    fn a_proxys_limit_is_kept_below_and_tried_again_ever_more_rarely() {
        let mut limit = PollLimit::default();
        let (asked, cuts) = polls(&mut limit, secs(30), 10);
        assert_eq!((asked[0], asked[1], cuts), (secs(45), secs(24), 1));
        let (asked, cuts) = polls(&mut limit, secs(30), 2000);
        assert!(cuts <= 6, "{cuts} cuts in 2000 polls");
        assert!(asked.iter().all(|asked| *asked >= secs(20)), "it stays near the limit");
    }

    #[test]
    fn a_limit_that_went_away_is_forgotten() {
        let mut limit = PollLimit::default();
        polls(&mut limit, secs(10), 5);
        assert_eq!(limit.ask(LONG, 0), secs(8));
        assert_eq!(polls(&mut limit, secs(1000), 500).0.last(), Some(&LONGEST));
    }

    #[test]
    fn a_server_that_went_away_teaches_nothing() {
        let mut limit = PollLimit::default();
        assert!(limit.ended(secs(45), secs(3), PollEnd::Cut));
        assert!(limit.ask(LONG, 0) < secs(3));
        assert!(!limit.ended(secs(2), Seconds::default(), PollEnd::Unreached));
        assert_eq!(limit, PollLimit::default());
        assert!(limit.ended(secs(45), secs(7), PollEnd::Interrupted), "an empty poll");
        assert_eq!(limit, PollLimit::default());
    }

    #[test]
    fn what_ends_at_once_is_no_poll() {
        let mut limit = PollLimit::default();
        for end in [PollEnd::Cut, PollEnd::Interrupted, PollEnd::Unreached] {
            assert!(!limit.ended(secs(45), Seconds::from_millis(200), end), "{end:?}");
        }
        assert_eq!(limit, PollLimit::default());
    }

    #[test]
    fn it_never_falls_below_the_shortest() {
        let mut limit = PollLimit::default();
        for _ in 0..100 {
            let asked = limit.ask(LONG, 500);
            limit.ended(asked, asked, PollEnd::Cut);
        }
        assert_eq!(limit.ask(LONG, 0), SHORTEST);
    }
}
