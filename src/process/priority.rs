//! How eagerly a thread is scheduled.

/// Below the default of 0 goes first; tasks run at the default.
const URGENT: i32 = -10;

/// Lets the calling thread go before the tasks of this machine. Says whether the system allows it (root,
/// `CAP_SYS_NICE` or `LimitNICE=`); without it the thread takes its turn like everybody.
pub fn hurry_this_thread() -> bool {
    // Linux keeps a niceness per thread, and this call takes a thread's number for it.
    rustix::process::setpriority_process(Some(rustix::thread::gettid()), URGENT).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_that_asks_is_hurried() {
        let here = rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap();
        let there = std::thread::spawn(|| {
            let allowed = hurry_this_thread();
            (allowed, rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap())
        });
        let (allowed, there) = there.join().unwrap();
        assert_eq!(there, if allowed { URGENT } else { here });
        assert_eq!(rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap(), here);
    }
}
